"""requests.py: a request that was sent again is the same request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptymux import limits
from ptymux.errors import ProtocolError
from ptymux.messages import Failure, Request, Response
from ptymux.requests import Call, Remembered, ReplyCache, RequestTable

KEY = b"k" * 16


def call(name: str = "create", *, key: bytes | None = KEY, once: bool = False) -> Call:
    return Call(name, {}, key, once=once)


def asked(*calls: Call) -> RequestTable:
    table = RequestTable()
    for one in calls:
        table.ask(one)
    return table


# --- the client's end -----------------------------------------------------------------------------
def test_requests_go_out_in_order_and_once() -> None:
    table = asked(call("one"), call("two"))
    assert [frame.method for frame in table.frames()] == ["one", "two"]
    assert table.frames() == []


def test_an_answer_finds_its_request() -> None:
    first, second = call("one"), call("two")
    rung: list[str] = []
    first.on_answer = lambda: rung.append("first")
    second.on_answer = lambda: rung.append("second")
    table = asked(first, second)
    a, b = table.frames()
    assert a.id != b.id
    table.on_answer(Failure(b.id, "not_found", "no such session", {}))
    table.on_answer(Response(a.id, {"x": 1}))
    assert rung == ["second", "first"]
    assert first.answer == Response(a.id, {"x": 1})
    assert isinstance(second.answer, Failure)


def test_a_stamp_is_of_the_moment_of_sending() -> None:
    """Time passes between the call and each sending; it remains the same request."""
    clock = 1.0
    stamped = Call("restore", {"x": 1}, KEY, stamp=lambda: {"now": clock})
    table = asked(stamped)
    clock = 2.0
    (first,) = table.frames()
    table.disconnected()
    clock = 3.0
    (again,) = table.frames()
    assert [frame.params for frame in (first, again)] == [{"x": 1, "now": 2.0}, {"x": 1, "now": 3.0}]
    assert first.key == again.key == KEY
    assert stamped.params == {"x": 1}
    table.on_answer(Response(again.id, {}))
    assert stamped.answer == Response(again.id, {})


@pytest.mark.parametrize("frame", [Response(0, {}), Failure(9, "os", "text", {})])
def test_an_answer_to_nothing_is_malformed(frame: Response | Failure) -> None:
    table = asked(call())
    table.frames()
    with pytest.raises(ProtocolError, match=rf"^malformed {type(frame).__name__}: no request {frame.id}$"):
        table.on_answer(frame)


def test_a_second_answer_is_malformed() -> None:
    table = asked(call())
    (frame,) = table.frames()
    table.on_answer(Response(frame.id, {}))
    with pytest.raises(ProtocolError, match="no request"):
        table.on_answer(Response(frame.id, {}))


def test_what_is_unanswered_is_asked_again_with_its_key_under_a_new_id_before_what_is_newer() -> None:
    first, second, third = call("one", key=b"1" * 16), call("two", key=b"2" * 16), call("three", key=None)
    table = asked(first, second)
    a, b = table.frames()
    table.on_answer(Response(a.id, {}))
    table.ask(third)
    table.disconnected()
    again = table.frames()
    assert [(frame.method, frame.key) for frame in again] == [("two", b"2" * 16), ("three", None)]
    assert b.id not in {frame.id for frame in again}


def test_an_answer_of_an_earlier_connection_is_malformed_on_the_next() -> None:
    """Ids are not used again at once, so that it cannot be taken for another request's."""
    table = asked(call())
    (old,) = table.frames()
    table.disconnected()
    table.frames()
    with pytest.raises(ProtocolError, match="no request"):
        table.on_answer(Response(old.id, {}))


def test_a_request_of_one_connection_is_not_asked_on_the_next() -> None:
    """An attach is asked anew, from its cursor of that time."""
    table = asked(call("attach", once=True), call("create"))
    table.frames()
    table.ask(call("attach", once=True))
    table.disconnected()
    assert [frame.method for frame in table.frames()] == ["create"]


def test_no_more_than_max_requests_are_in_flight() -> None:
    table = asked(*(call(str(n)) for n in range(limits.MAX_REQUESTS + 5)))
    frames = table.frames()
    assert len(frames) == limits.MAX_REQUESTS
    assert table.frames() == []
    table.on_answer(Response(frames[3].id, {}))
    assert [frame.method for frame in table.frames()] == [str(limits.MAX_REQUESTS)]
    table.disconnected()
    assert [frame.method for frame in table.frames()][:4] == ["0", "1", "2", "4"]


def test_a_cancelled_request_that_was_not_sent_is_never_sent() -> None:
    one = call("one")
    table = asked(one, call("two"))
    table.cancel(one)
    assert [frame.method for frame in table.frames()] == ["two"]


def test_a_cancelled_request_on_the_wire_rings_nobody_and_is_not_asked_again() -> None:
    one = call("one")
    one.on_answer = lambda: pytest.fail("nobody waits")
    table = asked(one)
    (frame,) = table.frames()
    table.cancel(one)
    table.on_answer(Response(frame.id, {}))
    assert isinstance(one.answer, Failure)
    two = call("two")
    table.ask(two)
    table.frames()
    table.cancel(two)
    table.disconnected()
    assert table.frames() == []


def test_cancelling_twice_or_after_the_answer_changes_nothing() -> None:
    one = call("one")
    table = asked(one)
    (frame,) = table.frames()
    table.on_answer(Response(frame.id, {"x": 1}))
    table.cancel(one)
    table.cancel(one)
    assert one.answer == Response(frame.id, {"x": 1})


def test_giving_up_returns_everything_unanswered_in_order() -> None:
    calls = [call("one"), call("two"), call("three")]
    table = asked(*calls[:2])
    a, _ = table.frames()
    table.ask(calls[2])
    table.on_answer(Response(a.id, {}))
    assert table.abandon() == calls[1:]
    assert table.abandon() == []
    assert table.frames() == []


# --- the agent's end ------------------------------------------------------------------------------
def test_the_same_request_has_one_entry() -> None:
    cache = ReplyCache()
    entry, new = cache.begin(b"client", KEY)
    assert new
    assert cache.begin(b"client", KEY) == (entry, False)
    assert cache.begin(b"other", KEY)[1]
    assert cache.begin(b"client", b"o" * 16)[1]


def test_a_retry_waits_for_the_first_or_has_its_answer() -> None:
    entry = ReplyCache().begin(b"client", KEY)[0]
    got: list[Any] = []
    entry.waiters.append(got.append)
    entry.waiters.append(got.append)
    entry.settle(("ok", {"session": "s"}))
    assert got == [("ok", {"session": "s"})] * 2
    assert entry.waiters == []
    assert entry.answer == ("ok", {"session": "s"})


def test_a_waiter_that_begins_the_next_request_does_no_harm() -> None:
    """What a waiter does while it is told may come back into the entry."""
    entry = Remembered()
    got: list[Any] = []
    entry.waiters.append(lambda answer: entry.waiters.append(got.append))
    entry.settle(("ok", 1))
    assert got == []
    assert len(entry.waiters) == 1


def test_the_oldest_settled_entries_are_forgotten_first() -> None:
    cache = ReplyCache(most=3)
    entries = [cache.begin(b"c", bytes([n]))[0] for n in range(3)]
    entries[1].settle(("ok", 1))
    assert cache.begin(b"c", b"new")[1]  # takes the place of 1: 0 is being carried out
    assert not cache.begin(b"c", bytes([0]))[1]
    assert not cache.begin(b"c", bytes([2]))[1]
    assert cache.begin(b"c", bytes([1]))[1]


def test_a_request_that_is_being_carried_out_is_never_forgotten() -> None:
    """Else its retry would be carried out beside it."""
    cache = ReplyCache(most=2)
    for n in range(10):
        assert cache.begin(b"c", bytes([n]))[1]
    for n in range(10):
        assert not cache.begin(b"c", bytes([n]))[1]


def test_memory_is_bounded_once_requests_settle() -> None:
    cache = ReplyCache()
    for n in range(limits.MAX_REPLIES + 500):
        cache.begin(b"c", n.to_bytes(16, "big"))[0].settle(("ok", n))
    assert len(cache._known) == limits.MAX_REPLIES


def test_answers_of_an_earlier_server_are_known() -> None:
    cache = ReplyCache()
    cache.restore(b"client", KEY, ("error", ("exists", "the name is taken", {})))
    entry, new = cache.begin(b"client", KEY)
    assert not new
    assert entry.answer == ("error", ("exists", "the name is taken", {}))


# --- both -----------------------------------------------------------------------------------------
@given(
    steps=st.lists(st.sampled_from(["ask", "send", "work", "answer", "cut"]), max_size=60),
    keyed=st.booleans(),
)
def test_over_any_cuts_each_keyed_request_is_carried_out_once_and_answered(steps: list[str], keyed: bool) -> None:
    """Requests and answers are lost with their connections.  A keyed one is carried out exactly once, one without a key at least
    once, and everyone who asked gets the answer that belongs to its request.
    """
    table, cache = RequestTable(), ReplyCache()
    calls: list[Call] = []
    done: list[str] = []
    to_agent: list[Request] = []
    to_client: list[Response] = []
    working: list[tuple[str, Any]] = []
    connection = 0

    def ask() -> None:
        number = len(calls)
        calls.append(Call(str(number), {}, number.to_bytes(16, "big") if keyed else None))
        table.ask(calls[-1])

    def take(frame: Request) -> None:
        """The agent begins, and answers on the connection on which it was asked, if that is still there."""
        here = connection

        def reply(answer: Any) -> None:
            if connection == here:
                to_client.append(Response(frame.id, answer[1]))

        entry, new = cache.begin(b"client", frame.key) if frame.key is not None else (Remembered(), True)
        if entry.answer is not None:
            reply(entry.answer)
            return
        entry.waiters.append(reply)
        if new:
            working.append((frame.method, entry))

    def step(what: str) -> None:
        nonlocal connection
        if what == "ask":
            ask()
        elif what == "send":
            to_agent.extend(table.frames())
        elif what == "work" and to_agent:
            take(to_agent.pop(0))
        elif what == "answer":
            if working:
                method, entry = working.pop()
                done.append(method)
                entry.settle(("ok", {"done": method}))
            if to_client:
                table.on_answer(to_client.pop(0))
        elif what == "cut":
            connection += 1
            to_agent.clear()
            to_client.clear()
            table.disconnected()

    for what in steps:
        step(what)
    for _ in range(10 * len(calls) + 10):
        for what in ("send", "work", "answer"):
            step(what)
    assert [one.answer and one.answer[1] for one in calls] == [{"done": one.method} for one in calls]
    if keyed:
        assert sorted(done, key=int) == [one.method for one in calls]
    else:
        assert set(done) == {one.method for one in calls}
