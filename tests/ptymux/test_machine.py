"""machine.py: the client's end of the protocol, without I/O.  The test is the agent, the clock and the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ptymux import events, limits
from ptymux.cursor import Cursor
from ptymux.errors import AttachEnded, HandshakeRefused, InputRefused, LocalProtocolError, ProtocolError, PtymuxError
from ptymux.frames import Decoder
from ptymux.liveness import Verdict
from ptymux.machine import FINAL, PASSING, Attachment, AttachState, ClientMachine, State
from ptymux.messages import (
    CLIENT,
    Ack,
    Credit,
    Detached,
    Error,
    Failure,
    Gap,
    Hello,
    Input,
    InputEnd,
    Mark,
    Message,
    Notice,
    Output,
    Ping,
    Pong,
    Refused,
    Request,
    Response,
    Skip,
    encode,
)
from ptymux.requests import Call
from tests.ptymux.scripted import GENERATION, attached, welcome

ME = b"C" * 16
S = "s1"


class Bench:
    """A machine, and its agent's end spoken by hand."""

    def __init__(self) -> None:
        self.machine = ClientMachine(ME, b"token", {"name": "bench"})
        self.states: list[State] = []
        self.machine.on_state = lambda: self.states.append(self.machine.state)
        self.now = 100.0
        self.hellos = 0
        self._decoder = Decoder(CLIENT)

    def connect(self) -> Hello:
        """A transport is up; the hello."""
        self.hellos += 1
        self._decoder = Decoder(CLIENT)
        self.machine.connected(b"nonce %02d" % self.hellos, self.now)
        (hello,) = self.sent()
        assert isinstance(hello, Hello)
        return hello

    def up(self, **changes: Any) -> list[Any]:
        """Connected and welcomed; what the client says at once."""
        hello = self.connect()
        self.say(welcome(hello, **changes))
        self._decoder.greeted()
        return self.sent()

    def reconnect(self) -> list[Any]:
        self.machine.disconnected()
        return self.up()

    def sent(self) -> list[Any]:
        """Everything that the client wants to send now."""
        return list(self._decoder.feed(self.machine.data_to_send()))

    def say(self, *messages: Message) -> None:
        self.machine.receive(b"".join(map(encode, messages)), self.now)

    def ask(self, method: str = "info", *, key: bytes | None = None, once: bool = False) -> tuple[Call, list[Any]]:
        """A call, and the answers that its hook was called with."""
        call = Call(method, {}, key, once=once)
        answers: list[Any] = []
        call.on_answer = lambda: answers.append(call.answer)
        self.machine.ask(call)
        return call, answers

    def attach(self, cursor: Cursor | None = None, window: int = 1000, **answer: Any) -> Attachment:
        """An attachment that is attached."""
        attachment = Attachment(S, {"repair": "bytes"}, cursor, window)
        self.machine.attach(attachment)
        (request,) = self.sent()
        self.say(Response(request.id, attached(**answer)))
        assert attachment.state is AttachState.ATTACHED
        return attachment


@pytest.fixture
def bench() -> Bench:
    return Bench()


def taken(attachment: Attachment) -> list[Any]:
    """The events so far, taken."""
    found = list(attachment.events)
    attachment.events.clear()
    return found


# --- connection -----------------------------------------------------------------------------------
def test_hello_and_welcome(bench: Bench) -> None:
    assert bench.machine.state is State.DOWN
    assert bench.machine.data_to_send() == b""
    hello = bench.connect()
    assert (hello.client, hello.token, hello.info) == (ME, b"token", {"name": "bench"})
    assert bench.machine.state is State.GREETING
    bench.say(welcome(hello))
    assert bench.machine.state is State.UP
    assert bench.machine.welcome == welcome(hello)
    assert bench.states == [State.GREETING, State.UP]


def test_nothing_is_sent_before_the_welcome(bench: Bench) -> None:
    """The agent would take it for a malformed greeting."""
    bench.ask()
    bench.machine.attach(Attachment(S, {}, None, 1000))
    bench.machine.type(bench.machine.lane(S), b"x", bench.now)
    hello = bench.connect()
    assert bench.sent() == []
    bench.say(welcome(hello))
    assert [type(message) for message in bench.sent()] == [Request, Request, Input]


def test_an_old_welcome_is_not_taken_for_an_answer(bench: Bench) -> None:
    """case C37: bytes of another connection, after a reset raced with a restore."""
    hello = bench.connect()
    with pytest.raises(ProtocolError, match="not an answer to this hello"):
        bench.say(welcome(hello, nonce=b"another nonce"))


@pytest.mark.parametrize("code", ["unauthorized", "version", "malformed", "internal"])
def test_a_refusal_is_the_end(bench: Bench, code: str) -> None:
    bench.connect()
    bench.say(Error(code, "no", True))
    assert bench.machine.state is State.FAILED
    assert isinstance(bench.machine.failure, HandshakeRefused)
    assert (bench.machine.failure.code, str(bench.machine.failure)) == (code, "no")
    bench.machine.disconnected()
    assert bench.machine.state is State.FAILED, "a closed transport does not make it better"


@pytest.mark.parametrize("code", sorted(PASSING))
def test_a_refusal_that_passes_is_not(bench: Bench, code: str) -> None:
    bench.connect()
    bench.say(Error(code, "not now", True))
    assert bench.machine.state is State.DOWN
    assert bench.machine.refusal is not None
    assert bench.machine.refusal.code == code
    bench.machine.disconnected()
    bench.up()
    assert bench.machine.state is State.UP
    assert bench.machine.refusal is None


@pytest.mark.parametrize("code", sorted(FINAL))
def test_some_errors_end_it_for_good(bench: Bench, code: str) -> None:
    """case C31: who was replaced by a newer connection of itself must not come back and replace that."""
    bench.up()
    bench.say(Error(code, "no more", True), Ping(1))
    assert bench.machine.state is State.FAILED
    assert bench.machine.data_to_send() == b"", "what follows a fatal error is of no interest"


@pytest.mark.parametrize("code", ["shutdown", "limit", "internal"])
def test_others_end_only_the_connection(bench: Bench, code: str) -> None:
    bench.up()
    bench.say(Error(code, "bye", True))
    assert bench.machine.state is State.DOWN
    bench.machine.disconnected()
    bench.up()
    assert bench.machine.state is State.UP


def test_what_is_not_fatal_changes_nothing(bench: Bench) -> None:
    bench.up()
    bench.say(Error("unknown_frame", "what?", False), Notice("demoted", {"session": S}))
    bench.machine.receive(b"\x00\x00\x00\x03\x92\x7f\x01", bench.now)  # a frame type of a later revision
    assert bench.machine.state is State.UP
    assert list(bench.machine.notices) == [Notice("demoted", {"session": S})]


@pytest.mark.parametrize(
    "message",
    [Response(7, {}), Failure(7, "state", "no", {}), Pong(3)],
    ids=lambda message: type(message).__name__,
)
def test_before_the_welcome_only_a_welcome_or_an_error_may_come(bench: Bench, message: Message) -> None:
    bench.connect()
    with pytest.raises(ProtocolError, match="unexpected"):
        bench.say(message)


def test_a_second_welcome_is_an_error(bench: Bench) -> None:
    hello = bench.connect()
    bench.say(welcome(hello))
    with pytest.raises(ProtocolError, match="unexpected Welcome"):
        bench.say(welcome(hello))


def test_the_decoder_starts_anew_with_each_connection(bench: Bench) -> None:
    """Half a frame of the last connection does not spoil the next."""
    bench.up()
    bench.machine.receive(encode(Ping(1))[:3], bench.now)
    bench.reconnect()
    bench.say(Ping(2))
    assert bench.sent() == [Pong(2)]


def test_control_frames_of_a_lost_connection_are_not_sent_on_the_next(bench: Bench) -> None:
    bench.up()
    bench.say(Ping(1))
    assert bench.reconnect() == []


def test_it_tells_whether_a_connection_worked(bench: Bench) -> None:
    """Which a welcome alone does not show: an agent that accepts and drops in a loop is to be dialled ever more slowly."""
    bench.up()
    assert not bench.machine.worked
    bench.say(Ping(1))
    assert bench.machine.worked


# --- liveness -------------------------------------------------------------------------------------
def check_until(bench: Bench, end: float) -> list[tuple[float, Verdict]]:
    """Look every two seconds, as the shell does."""
    said = []
    while bench.now < end:
        bench.now += 2
        verdict = bench.machine.check(bench.now)
        if verdict is not Verdict.OK:
            said.append((bench.now - 100, verdict))
    return said


def test_a_quiet_agent_is_pinged_and_given_up(bench: Bench) -> None:
    bench.up()
    assert [verdict for _, verdict in check_until(bench, 100 + limits.DEAD_AFTER)] == [
        Verdict.PING,
        Verdict.PING,
        Verdict.DEAD,
    ]
    assert [type(message) for message in bench.sent()] == [Ping, Ping]


def test_a_pong_is_a_sign_of_life(bench: Bench) -> None:
    bench.up()
    for _ in range(20):
        assert [verdict for _, verdict in check_until(bench, bench.now + limits.PING_AFTER + 1)] == [Verdict.PING]
        (ping,) = bench.sent()
        bench.say(Pong(ping.token))


def test_who_was_asleep_does_not_give_up(bench: Bench) -> None:
    """case C39."""
    bench.up()
    bench.now += 3600
    assert bench.machine.check(bench.now) is Verdict.PING
    assert [verdict for _, verdict in check_until(bench, bench.now + limits.PING_AFTER - 3)] == []


def test_no_ping_before_the_welcome(bench: Bench) -> None:
    bench.connect()
    check_until(bench, 100 + limits.PING_AFTER + 4)
    assert bench.sent() == []


def test_nothing_to_check_without_a_connection(bench: Bench) -> None:
    assert bench.machine.check(1e9) is Verdict.OK


# --- requests -------------------------------------------------------------------------------------
def test_a_request_is_asked_again_with_its_key_until_it_is_answered(bench: Bench) -> None:
    bench.up()
    _, answers = bench.ask("create", key=b"k" * 16)
    (first,) = bench.sent()
    (second,) = bench.reconnect()
    assert (second.method, second.key) == (first.method, first.key) == ("create", b"k" * 16)
    assert second.id != first.id
    bench.say(Response(second.id, {"id": S}))
    assert answers == [Response(second.id, {"id": S})]
    assert bench.reconnect() == []


def test_requests_are_asked_again_in_their_order_and_before_newer_ones(bench: Bench) -> None:
    bench.up()
    for method in ("a", "b"):
        bench.ask(method)
    bench.sent()
    bench.machine.disconnected()
    bench.ask("c")
    assert [request.method for request in bench.up()] == ["a", "b", "c"]


def test_a_once_request_is_not_asked_again(bench: Bench) -> None:
    """It was about the connection that is gone."""
    bench.up()
    bench.ask("about this connection", once=True)
    bench.sent()
    assert bench.reconnect() == []
    bench.ask("not even sent", once=True)
    assert bench.reconnect() == []


def test_a_cancelled_request_is_not_asked_again_and_its_answer_is_no_surprise(bench: Bench) -> None:
    bench.up()
    on_wire, answers = bench.ask("a")
    (request,) = bench.sent()
    waiting, _ = bench.ask("b")
    for call in (on_wire, waiting):
        bench.machine.requests.cancel(call)
    assert bench.sent() == []
    bench.say(Response(request.id, {}))
    assert answers == []
    assert bench.reconnect() == []


def test_an_answer_to_nothing_is_an_error(bench: Bench) -> None:
    bench.up()
    with pytest.raises(ProtocolError, match="no request 99"):
        bench.say(Response(99, {}))


def test_only_so_many_requests_are_in_flight(bench: Bench) -> None:
    """The agent drops a connection that asks more; the others wait for an answer."""
    bench.up()
    for _ in range(limits.MAX_REQUESTS + 2):
        bench.ask()
    first = bench.sent()
    assert len(first) == limits.MAX_REQUESTS
    assert bench.sent() == []
    bench.say(Response(first[0].id, {}))
    assert len(bench.sent()) == 1


def test_what_cannot_be_sent_is_the_callers_error_and_nobody_elses(bench: Bench) -> None:
    bench.up()
    with pytest.raises(LocalProtocolError, match="cannot encode Request"):
        bench.machine.ask(Call("m", {"value": object()}, None))
    with pytest.raises(LocalProtocolError):
        bench.machine.ask(Call("", {}, None))
    with pytest.raises(LocalProtocolError):
        bench.machine.attach(Attachment(S, {"size": object()}, None, 1000))
    with pytest.raises(LocalProtocolError):
        bench.machine.lane("")
    assert bench.sent() == []
    assert bench.reconnect() == []


def test_failing_for_good_answers_everybody(bench: Bench) -> None:
    told: list[str] = []

    def teller(name: str) -> Callable[[], None]:
        return lambda: told.append(name)

    bench.up()
    attachment = bench.attach()
    attachment.on_change = teller("attachment")
    lane = bench.machine.lane(S)
    lane.on_change = teller("lane")
    on_wire, _ = bench.ask()
    bench.sent()
    waiting, _ = bench.ask()
    on_wire.on_answer, waiting.on_answer = teller("on wire"), teller("waiting")
    error = PtymuxError("over")
    bench.machine.fail(error)
    assert sorted(told) == ["attachment", "lane", "on wire", "waiting"]
    assert on_wire.answer is waiting.answer is None
    assert (bench.machine.failure, attachment.error, attachment.state) == (error, error, AttachState.ENDED)
    bench.machine.fail(PtymuxError("again"))
    assert bench.machine.failure is error, "the first reason stays"
    assert bench.states[-1] is State.FAILED


# --- attachments ----------------------------------------------------------------------------------
def test_an_attachment_follows_the_stream(bench: Bench) -> None:
    bench.up()
    attachment = bench.attach(replay_to=3, head=3)
    bench.say(Output(0, 0, b"abcde"), Mark(0, 5, 0, "resize", {"columns": 80}), Output(0, 5, b"f"))
    assert taken(attachment) == [
        events.Output(0, b"abc", replayed=True),
        events.ReplayEnd(3),
        events.Output(3, b"de"),
        events.Marked(5, 0, "resize", {"columns": 80}),
        events.Output(5, b"f"),
    ]
    assert attachment.receiver.cursor == Cursor(GENERATION, 6, 1)


def test_the_end_of_a_replay_is_told_once_and_exactly_where_it_is(bench: Bench) -> None:
    bench.up()
    attachment = bench.attach(replay_to=4, head=4)
    bench.say(Output(0, 0, b"ab"), Output(0, 2, b"cd"), Output(0, 4, b"ef"))
    assert taken(attachment) == [
        events.Output(0, b"ab", replayed=True),
        events.Output(2, b"cd", replayed=True),
        events.ReplayEnd(4),
        events.Output(4, b"ef"),
    ]


def test_a_replay_that_was_cut_goes_on_as_a_replay(bench: Bench) -> None:
    """case C12: what is left of it is no news on the next connection either."""
    bench.up()
    attachment = bench.attach(replay_to=4, head=4)
    bench.say(Output(0, 0, b"ab"))
    (request,) = bench.reconnect()
    bench.say(Response(request.id, attached(2, 0, replay_to=2, head=4)), Output(0, 2, b"cdef"))
    assert taken(attachment) == [
        events.Output(0, b"ab", replayed=True),
        events.Output(2, b"cd", replayed=True),
        events.ReplayEnd(4),
        events.Output(4, b"ef"),
    ]


def test_on_each_connection_it_is_asked_for_from_its_cursor(bench: Bench) -> None:
    bench.up()
    attachment = bench.attach(Cursor(GENERATION, 10), offset=10, mark=2, replay_to=10)
    bench.say(Output(0, 10, b"abc"))
    bench.machine.disconnected()
    assert attachment.state is AttachState.WAITING
    (request,) = bench.up()
    assert request.key is None
    assert request.params == {
        "session": S,
        "channel": 0,
        "repair": "bytes",
        "cursor": [GENERATION, 13, 2],
        "window": 1000,
        "backlog": 3,  # received, and not yet taken by the caller
    }
    bench.say(Response(request.id, attached(13, 2, replay_to=13)), Output(0, 13, b"d"))
    assert taken(attachment) == [events.Output(10, b"abc"), events.Output(13, b"d")]


def test_a_cut_before_the_first_frame_asks_for_the_same_again(bench: Bench) -> None:
    """Were the cursor to move with the answer, a gap that follows it would be lost with the connection."""
    bench.up()
    bench.attach(Cursor(b"another branch's", 10), offset=50, mark=2, replay_to=60)
    (request,) = bench.reconnect()
    assert request.params["cursor"] == [b"another branch's", 10, None]


def test_discontinuities_are_events(bench: Bench) -> None:
    bench.up()
    attachment = bench.attach(offset=0, replay_to=0)
    bench.say(
        Gap(0, "gap", 0, 100, 3, 120, {"reason": "overwritten"}),
        Output(0, 100, b"x"),
        Gap(0, "rewound", 101, 90, 2, 90, {}),
        Gap(0, "foreign", None, 7, 0, 7, {}),
        Mark(0, 7, 0, "gap", {"size": None}),
    )
    assert taken(attachment) == [
        events.Gap(0, 100, 100, {"reason": "overwritten"}),
        events.Output(100, b"x", replayed=True),
        events.Rewound(101, 90),
        events.Foreign(7),
        events.Gap(7, 7, None, {"size": None}),
    ]


def test_a_hole_is_an_error(bench: Bench) -> None:
    """case C24."""
    bench.up()
    bench.attach()
    with pytest.raises(ProtocolError, match="offset 5 where 0 follows"):
        bench.say(Output(0, 5, b"x"))


@pytest.mark.parametrize("closed", [True, False])
def test_exit_is_the_end_once_the_output_is_closed(bench: Bench, closed: bool) -> None:
    """case C5: two facts."""
    bench.up()
    attachment = bench.attach()
    bench.say(Mark(0, 0, 0, "exit", {"code": 3, "output_closed": closed}))
    assert attachment.exit is not None
    assert attachment.exit.status == 3
    assert attachment.complete == closed
    if not closed:
        bench.say(Output(0, 0, b"late"), Mark(0, 4, 1, "output_closed", {}))
        assert attachment.complete
        assert [type(event).__name__ for event in taken(attachment)] == ["Exit", "Output", "Marked"]


def test_a_signal_is_a_status_too(bench: Bench) -> None:
    bench.up()
    attachment = bench.attach()
    bench.say(Mark(0, 0, 0, "exit", {"signal": 9, "output_closed": True}))
    assert attachment.exit is not None
    assert (attachment.exit.code, attachment.exit.signal, attachment.exit.status) == (None, 9, 137)


def test_a_refused_attach_ends_the_attachment(bench: Bench) -> None:
    bench.up()
    attachment = Attachment(S, {}, None, 1000)
    changes: list[AttachState] = []
    attachment.on_change = lambda: changes.append(attachment.state)
    bench.machine.attach(attachment)
    (request,) = bench.sent()
    bench.say(Failure(request.id, "not_found", "no such session", {"x": 1}))
    assert changes == [AttachState.ENDED]
    assert isinstance(attachment.error, AttachEnded)
    assert (attachment.error.code, attachment.error.details) == ("not_found", {"x": 1})
    assert bench.reconnect() == [], "it is not asked for again"


def test_a_detached_frame_ends_the_attachment_behind_its_events(bench: Bench) -> None:
    bench.up()
    attachment = bench.attach()
    bench.say(Output(0, 0, b"x"), Detached(0, "removed", "the session was removed"), Output(0, 1, b"y"))
    assert taken(attachment) == [events.Output(0, b"x")]
    assert attachment.state is AttachState.ENDED
    assert bench.reconnect() == []


@pytest.mark.parametrize(
    "answer",
    [
        {"generation": GENERATION, "offset": 0, "mark": 0},
        attached() | {"generation": "text"},
        attached() | {"offset": None},
        attached() | {"replay_to": True},
    ],
)
def test_an_answer_without_a_position_is_an_error(bench: Bench, answer: dict[str, Any]) -> None:
    bench.up()
    bench.machine.attach(Attachment(S, {}, None, 1000))
    (request,) = bench.sent()
    with pytest.raises(ProtocolError, match="malformed Response: attach with"):
        bench.say(Response(request.id, answer))


def test_who_let_go_hears_nothing_more(bench: Bench) -> None:
    bench.up()
    attachment = bench.attach()
    bench.machine.detach(0)
    (request,) = bench.sent()
    assert (request.method, request.params) == ("detach", {"channel": 0})
    bench.say(Output(0, 0, b"late"), Response(request.id, {}))
    assert taken(attachment) == []
    bench.machine.detach(0)
    assert bench.reconnect() == []


def test_letting_go_before_the_answer(bench: Bench) -> None:
    """A cancelled attach: the agent is told, and its answer is no surprise."""
    bench.up()
    attachment = Attachment(S, {}, None, 1000)
    channel = bench.machine.attach(attachment)
    bench.machine.detach(channel)
    attach, detach = bench.sent()
    assert [attach.method, detach.method] == ["attach", "detach"]
    bench.say(Response(attach.id, attached()), Output(channel, 0, b"x"), Response(detach.id, {}))
    assert attachment.state is AttachState.WAITING
    assert taken(attachment) == []


def test_channels_are_never_used_twice(bench: Bench) -> None:
    """A late frame of an old attach must not be taken for one of a new."""
    bench.up()
    assert [bench.machine.attach(Attachment(S, {}, None, 1000)) for _ in range(3)] == [0, 1, 2]
    bench.machine.detach(1)
    assert bench.machine.attach(Attachment(S, {}, None, 1000)) == 3


def test_credit_is_given_for_what_was_consumed(bench: Bench) -> None:
    bench.up()
    bench.attach(window=100)
    bench.say(Output(0, 0, b"x" * 100))
    assert bench.sent() == [], "received is not consumed"
    bench.machine.consumed(0, 10)
    assert bench.sent() == [], "not worth a frame"
    bench.machine.consumed(0, 50)
    assert bench.sent() == [Credit(0, 160)]
    bench.machine.consumed(0, 1)
    assert bench.sent() == []
    with pytest.raises(ProtocolError, match="exceeds the credit of 160"):
        bench.say(Output(0, 100, b"x" * 61))


def test_nobody_consumes_what_has_not_come(bench: Bench) -> None:
    """A caller's mistake is the caller's error, and no broken connection."""
    bench.up()
    attachment = bench.attach(window=100)
    bench.say(Output(0, 0, b"x" * 30))
    with pytest.raises(LocalProtocolError, match="cannot consume 31 bytes: 30 are there"):
        bench.machine.consumed(0, 31)
    assert bench.sent() == []
    assert attachment.receiver.backlog == 30


def test_what_is_consumed_without_a_connection_needs_no_credit(bench: Bench) -> None:
    bench.up()
    bench.attach(window=100)
    bench.say(Output(0, 0, b"x" * 100))
    bench.machine.disconnected()
    bench.machine.consumed(0, 100)
    (request,) = bench.up()
    assert (request.params["cursor"], request.params["backlog"]) == ([GENERATION, 100, 0], 0)
    bench.say(Response(request.id, attached(100, 0)))
    assert bench.sent() == [], "the question said it"
    bench.machine.consumed(7, 1)  # a channel that is gone


@pytest.mark.parametrize(
    ("taken", "credits"), [(0, []), (24, []), (25, [Credit(0, 125)]), (100, [Credit(0, 200)])], ids=str
)
def test_what_is_consumed_before_the_answer_is_told_after_it(bench: Bench, taken: int, credits: list[Any]) -> None:
    """With a full backlog the agent may send nothing: were it not told, it would wait for ever."""
    bench.up()
    attachment = bench.attach(window=100)
    bench.say(Output(0, 0, b"x" * 100))
    (request,) = bench.reconnect()
    assert request.params["backlog"] == 100
    bench.machine.consumed(0, taken)
    assert bench.sent() == [], "there is nobody to give it to yet"
    assert request.params["backlog"] == 100
    bench.say(Response(request.id, attached(100, 0)))
    assert bench.sent() == credits
    assert attachment.receiver.backlog == 100 - taken
    if taken:
        bench.say(Output(0, 100, b"y" * taken))
    with pytest.raises(ProtocolError, match=f"exceeds the credit of {100 + taken}"):
        bench.say(Output(0, 100 + taken, b"z"))


def test_what_is_consumed_while_the_link_is_up_but_not_greeted_is_in_the_question(bench: Bench) -> None:
    """The backlog is that of the moment when it is asked for, which is when the welcome has come."""
    bench.up()
    bench.attach(window=100)
    bench.say(Output(0, 0, b"x" * 80))
    bench.machine.disconnected()
    bench.machine.consumed(0, 30)
    hello = bench.connect()
    bench.machine.consumed(0, 20)
    assert bench.sent() == []
    bench.say(welcome(hello))
    (request,) = bench.sent()
    assert request.params["backlog"] == 30
    bench.say(Response(request.id, attached(80, 0)))
    assert bench.sent() == []
    with pytest.raises(ProtocolError, match="exceeds the credit of 150"):
        bench.say(Output(0, 80, b"x" * 71))


def test_an_answer_that_was_lost_changes_nothing(bench: Bench) -> None:
    """What was consumed since that question is in the next one."""
    bench.up()
    bench.attach(window=100)
    bench.say(Output(0, 0, b"x" * 100))
    (request,) = bench.reconnect()
    bench.machine.consumed(0, 40)
    (request,) = bench.reconnect()
    assert request.params["backlog"] == 60
    bench.machine.consumed(0, 10)
    bench.say(Response(request.id, attached(100, 0)))
    assert bench.sent() == []
    bench.machine.consumed(0, 15)
    assert bench.sent() == [Credit(0, 165)]


def test_credit_is_given_at_a_gap(bench: Bench) -> None:
    """The agent may have moved a window along that is nearly closed, with credit under way that counts from before it; and if
    no byte follows the gap, nothing else would tell it: a program that waits for this reader would wait for ever.
    """
    bench.up()
    bench.attach(window=100)
    bench.say(Output(0, 0, b"x" * 90))
    bench.machine.consumed(0, 90)
    assert bench.sent() == [Credit(0, 190)]
    bench.say(Gap(0, "gap", 90, 1000, 0, 1000, {}))
    assert bench.sent() == [Credit(0, 1100)]
    bench.say(Output(0, 1000, b"x" * 80), Gap(0, "gap", 1080, 2000, 0, 2000, {}))
    assert bench.sent() == [], "not worth a frame: 20 are left"
    bench.machine.consumed(0, 5)
    assert bench.sent() == [Credit(0, 2025)]


@pytest.mark.parametrize("gaps", [False, True])
def test_who_takes_nothing_gets_one_window_over_all_connections(bench: Bench, gaps: bool) -> None:
    """Regression: each gap and each connection opened the window anew."""
    bench.up()
    attachment = bench.attach(window=100)
    offset = 0
    for _ in range(50):
        (request,) = bench.reconnect()
        assert request.params["cursor"] in (None, [GENERATION, offset, 0])
        backlog = request.params["backlog"]
        assert backlog == sum(len(event.data) for event in attachment.events if isinstance(event, events.Output))
        start = offset + 1000 if gaps else offset
        bench.say(Response(request.id, attached(start, 0)))
        if gaps:
            bench.say(Gap(0, "gap", offset, start, 0, start, {}))
        offset = start
        size = min(7, 100 - backlog)
        if size:
            bench.say(Output(0, offset, b"x" * size))
            offset += size
    assert attachment.receiver.backlog == 100
    with pytest.raises(ProtocolError, match=f"exceeds the credit of {offset}$"):
        bench.say(Output(0, offset, b"x"))


# --- input ----------------------------------------------------------------------------------------
def test_input_is_resent_once_and_only_what_the_agent_does_not_have(bench: Bench) -> None:
    """case C30."""
    bench.up()
    lane = bench.machine.lane(S)
    assert bench.machine.type(lane, b"abc", bench.now) == 3
    assert bench.machine.type(lane, b"def", bench.now) == 6
    assert bench.sent() == [Input(S, 0, b"abc"), Input(S, 3, b"def")]
    bench.say(Ack(S, 2))
    assert bench.reconnect() == [Input(S, 2, b"")], "first the question what was written"
    assert bench.sent() == []
    bench.say(Ack(S, 4))
    assert bench.sent() == [Input(S, 4, b"ef")]
    bench.say(Ack(S, 6))
    assert bench.reconnect() == []


def test_old_keystrokes_are_given_up_and_everybody_is_told(bench: Bench) -> None:
    """case C30: not typed into a shell that has moved on, and no hole is left."""
    bench.up()
    attachment, other = bench.attach(), Attachment("s2", {}, None, 1000)
    bench.machine.attach(other)
    lane = bench.machine.lane(S)
    bench.machine.type(lane, b"old", bench.now)
    bench.sent()
    bench.machine.disconnected()
    bench.now += limits.INPUT_MAX_AGE + 1
    bench.machine.type(lane, b"new", bench.now)
    bench.up()
    bench.say(Ack(S, 0))
    assert bench.sent() == [Skip(S, 0, 3), Input(S, 3, b"new")]
    assert taken(attachment) == [events.InputDropped(0, 3, "stale")]
    assert taken(other) == []
    assert lane.lost == [events.InputDropped(0, 3, "stale")]


def test_input_of_any_age_is_kept_where_that_was_asked_for(bench: Bench) -> None:
    bench.up()
    lane = bench.machine.lane(S, None)
    assert bench.machine.lane(S, 10.0) is lane, "the first call decides"
    bench.machine.type(lane, b"old", bench.now)
    bench.sent()
    bench.now += 3600
    bench.reconnect()
    bench.say(Ack(S, 0))
    assert bench.sent() == [Input(S, 0, b"old")]


def test_refused_input_is_told_and_skipped(bench: Bench) -> None:
    bench.up()
    attachment = bench.attach()
    lane = bench.machine.lane(S)
    bench.machine.type(lane, b"long line", bench.now)
    bench.sent()
    bench.say(Refused(S, 4, "line_too_long", "no", {"limit": 4095}))
    assert taken(attachment) == [events.InputDropped(4, 9, "refused")]
    assert isinstance(lane.refusal, InputRefused)
    assert (lane.refusal.code, lane.refusal.offset, lane.refusal.details["limit"]) == ("line_too_long", 4, 4095)
    assert bench.sent() == [Skip(S, 4, 9)]
    bench.machine.type(lane, b"x", bench.now)
    assert bench.sent() == [Input(S, 9, b"x")]


def test_uncertain_input_is_told(bench: Bench) -> None:
    bench.up()
    attachment = bench.attach()
    bench.machine.type(bench.machine.lane(S), b"abcd", bench.now)
    bench.reconnect()
    bench.say(Ack(S, 4, [1, 3]))
    assert taken(attachment) == [events.InputUncertain(1, 3)]


def test_acks_for_unknown_sessions_mean_nothing(bench: Bench) -> None:
    bench.up()
    bench.say(Ack("other", 5), Refused("other", 0, "exited", "no", {}))
    assert bench.sent() == []


def test_the_end_of_input_follows_the_last_byte_and_is_said_again_after_a_cut(bench: Bench) -> None:
    bench.up()
    lane = bench.machine.lane(S)
    bench.machine.type(lane, b"abc", bench.now)
    bench.machine.end_input(lane)
    assert bench.sent() == [Input(S, 0, b"abc"), InputEnd(S, 3)]
    assert bench.reconnect() == [Input(S, 0, b"")]
    bench.say(Ack(S, 3))
    assert bench.sent() == [InputEnd(S, 3)]


def test_only_lanes_with_something_to_say_are_looked_at(bench: Bench) -> None:
    """A client that has typed into ten thousand sessions does not pay for them at every keystroke."""
    bench.up()
    lanes = [bench.machine.lane(f"s{i}") for i in range(100)]
    for lane in lanes:
        bench.machine.type(lane, b"x", bench.now)
    assert len(bench.sent()) == 100
    looked: list[str] = []
    for lane in lanes:
        frames = lane.sender.frames
        lane.sender.frames = lambda lane=lane, frames=frames: looked.append(lane.sender.session) or frames()  # type: ignore[method-assign, misc]
    bench.machine.type(lanes[7], b"y", bench.now)
    assert bench.sent() == [Input("s7", 1, b"y")]
    assert looked == ["s7"]


def test_a_lane_is_forgotten_with_its_session_unless_somebody_still_waits(bench: Bench) -> None:
    bench.up()
    settled, waiting = bench.machine.lane("settled"), bench.machine.lane("waiting")
    for lane in (settled, waiting):
        bench.machine.type(lane, b"x", bench.now)
    bench.sent()
    bench.say(Ack("settled", 1))
    for session in ("settled", "waiting", "unknown"):
        bench.machine.forget_lane(session)
    assert list(bench.machine.lanes) == ["waiting"]
    bench.say(Refused("waiting", 0, "not_found", "no session", {}))
    assert waiting.lost == [events.InputDropped(0, 1, "refused")]


def test_an_acknowledgement_of_what_was_never_sent_is_an_error(bench: Bench) -> None:
    bench.up()
    bench.machine.type(bench.machine.lane(S), b"abc", bench.now)
    with pytest.raises(ProtocolError, match="acknowledges input that was not sent"):
        bench.say(Ack(S, 4))
