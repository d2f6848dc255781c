"""client.py and contact.py in trio, over memory streams, in made-up time: hours pass here without one real sleep.

The agent is spoken by hand (see scripted.py), in a task of the test's nursery.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ptymux import client, connect, events, limits
from ptymux.contact import CHECK_EVERY, DIAL_TIME
from ptymux.cursor import Cursor
from ptymux.errors import (
    AttachEnded,
    ConnectionLost,
    DialError,
    HandshakeRefused,
    InputRefused,
    LocalProtocolError,
    ProtocolError,
    RequestFailed,
)
from ptymux.messages import (
    Ack,
    Credit,
    Detached,
    Error,
    Failure,
    Hello,
    Input,
    InputEnd,
    Mark,
    Output,
    Ping,
    Pong,
    Refused,
    Request,
    Response,
    Skip,
)
from tests.ptymux.scripted import GENERATION, Dials, Wire, attached

S = "s1"


@pytest.fixture
def dials(monkeypatch: pytest.MonkeyPatch) -> Dials:
    dials = Dials()
    monkeypatch.setattr("ptymux.contact.dial", dials)
    return dials


class Up:
    """A client that is up, and the agent's end of its first connection."""

    def __init__(self, agent: client.Agent, wire: Wire) -> None:
        self.agent = agent
        self.wire = wire


@pytest.fixture
async def up(dials: Dials, autojump_clock: MockClock) -> AsyncGenerator[Up]:
    wires: list[Wire] = []

    async def greet() -> None:
        wires.append(await dials.greet())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(greet)
        async with connect("unix:/memory") as agent:
            await trio.testing.wait_all_tasks_blocked()
            yield Up(agent, wires[0])


async def both(first: Callable[[], Awaitable[Any]], second: Callable[[], Awaitable[Any]]) -> tuple[Any, Any]:
    """The results of the two sides of something, in the order in which they are given."""
    results: list[Any] = [None, None]

    async def run(index: int, call: Callable[[], Awaitable[Any]]) -> None:
        results[index] = await call()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, 0, first)
        nursery.start_soon(run, 1, second)
    return results[0], results[1]


async def raised(kind: type[Exception], call: Callable[[], Awaitable[Any]]) -> Any:
    """The error that a call must raise."""
    with pytest.raises(kind) as found:
        await call()
    return found.value


async def open_attach(up: Up, nursery: trio.Nursery, stack: AsyncExitStack, **answer: Any) -> client.Attach:
    """A session's stream that is attached."""
    _, stream = await both(
        lambda: up.wire.attach(**answer),
        lambda: stack.enter_async_context(up.agent.session(S).attach(repair="bytes", window=1000)),
    )
    return stream


# --- first contact --------------------------------------------------------------------------------
async def test_a_welcome_is_contact(dials: Dials, autojump_clock: MockClock) -> None:
    states: list[str] = []

    async def agent_side() -> Hello:
        wire = await dials.accept()
        return await wire.greet(role="viewer", limits={"max_frame": 7})

    async def client_side() -> None:
        async with connect("unix:/memory", token="secret", on_state=states.append) as agent:
            assert (agent.up, agent.role, agent.generation, agent.limits) == (
                True,
                "viewer",
                GENERATION,
                {"max_frame": 7},
            )
            assert (agent.connections, str(agent.address)) == (1, "unix:/memory")
            assert len(agent.client_id) == limits.CLIENT_ID_SIZE
        assert not agent.up

    hello, _ = await both(agent_side, client_side)
    assert hello.token == b"secret"
    assert states == ["up", "down"]


async def test_without_waiting_the_first_failure_is_raised(dials: Dials, autojump_clock: MockClock) -> None:
    dials.down = True
    error = await raised(DialError, lambda: connect("unix:/memory").__aenter__())
    assert str(error) == "cannot dial memory: it is down"
    assert dials.at == [0.0]


async def test_waiting_ends_in_time_with_the_last_failure(dials: Dials, autojump_clock: MockClock) -> None:
    dials.down = True
    await raised(DialError, lambda: connect("unix:/memory", wait=20).__aenter__())
    assert trio.current_time() == 20
    assert len(dials.at) > 5


async def test_an_agent_that_comes_up_late_is_found(dials: Dials, autojump_clock: MockClock) -> None:
    dials.down = True

    async def agent_side() -> None:
        await trio.sleep(15)
        dials.down = False
        await dials.greet()

    async def client_side() -> None:
        async with connect("unix:/memory", wait=60):
            assert 15 <= trio.current_time() <= 15 + limits.BACKOFF_MAX

    await both(agent_side, client_side)


async def test_a_dial_that_hangs_is_a_failure(dials: Dials, autojump_clock: MockClock) -> None:
    dials.hangs = True
    error = await raised(DialError, lambda: connect("unix:/memory").__aenter__())
    assert "no answer within" in str(error)
    assert trio.current_time() == DIAL_TIME


async def test_an_agent_that_accepts_and_is_silent_is_a_failure(dials: Dials, autojump_clock: MockClock) -> None:
    """case C37: after a restore a connection may be accepted by nobody."""
    error = await raised(DialError, lambda: connect("unix:/memory").__aenter__())
    assert "did not greet" in str(error)
    assert DIAL_TIME <= trio.current_time() <= DIAL_TIME + CHECK_EVERY


async def test_an_agent_that_hangs_up_is_a_failure(dials: Dials, autojump_clock: MockClock) -> None:
    async def agent_side() -> None:
        wire = await dials.accept()
        await wire.hear(Hello)
        await wire.cut()

    _, error = await both(agent_side, lambda: raised(DialError, lambda: connect("unix:/memory").__aenter__()))
    assert "did not greet" in str(error)
    assert trio.current_time() == 0


async def refuse(dials: Dials, code: str) -> None:
    wire = await dials.accept()
    await wire.hear(Hello)
    await wire.say(Error(code, "cannot connect: because", True))
    await wire.hang_up_heard()


async def test_a_refusal_is_raised_at_once_however_long_one_would_wait(dials: Dials, autojump_clock: MockClock) -> None:
    _, error = await both(
        lambda: refuse(dials, "unauthorized"),
        lambda: raised(HandshakeRefused, lambda: connect("unix:/memory", wait=math.inf).__aenter__()),
    )
    assert (error.code, str(error)) == ("unauthorized", "cannot connect: because")
    assert trio.current_time() == 0
    assert len(dials.at) == 1


async def test_a_full_agent_is_asked_again_by_who_waits(dials: Dials, autojump_clock: MockClock) -> None:
    async def agent_side() -> None:
        for _ in range(3):
            await refuse(dials, "limit")
        await dials.greet()

    async def client_side() -> None:
        async with connect("unix:/memory", wait=60) as agent:
            assert agent.connections == 1

    await both(agent_side, client_side)


async def test_a_full_agent_is_a_failure_for_who_does_not_wait(dials: Dials, autojump_clock: MockClock) -> None:
    _, error = await both(
        lambda: refuse(dials, "limit"), lambda: raised(HandshakeRefused, lambda: connect("unix:/memory").__aenter__())
    )
    assert error.code == "limit"


async def test_cancelling_while_it_dials(dials: Dials, autojump_clock: MockClock) -> None:
    dials.hangs = True
    with trio.move_on_after(3) as scope:
        async with connect("unix:/memory", wait=math.inf):
            pass
    assert scope.cancelled_caught
    assert trio.current_time() == 3


# --- reconnecting ---------------------------------------------------------------------------------
async def test_after_a_cut_it_dials_at_once_and_then_ever_more_slowly(
    up: Up, dials: Dials, autojump_clock: MockClock
) -> None:
    await up.wire.say(Ping(1))
    await up.wire.hear(Pong)  # it worked
    await trio.sleep(10)
    dials.down = True
    await up.wire.cut()
    await trio.sleep(60)
    assert dials.pauses[0] == 10
    pauses = dials.pauses[1:]
    for pause, most in zip(pauses, (limits.BACKOFF_FIRST * 2**i for i in itertools.count()), strict=False):
        ceiling = min(most, limits.BACKOFF_MAX)
        assert ceiling / 2 <= pause <= ceiling
    assert pauses[-1] >= limits.BACKOFF_MAX / 2
    dials.down = False
    wire = await dials.greet()
    await wire.say(Ping(1))
    await wire.hear(Pong)
    now = trio.current_time()
    await wire.cut()
    await dials.greet()
    assert trio.current_time() == now, "a connection that worked begins anew"


async def test_an_agent_that_greets_and_drops_is_dialled_ever_more_slowly(
    up: Up, dials: Dials, autojump_clock: MockClock
) -> None:
    """A crash loop must not be made worse by its clients."""
    wire = up.wire
    for _ in range(12):
        await wire.cut()
        wire = await dials.greet()
    assert dials.pauses[-1] >= limits.BACKOFF_MAX / 2


async def test_states_are_told_once_each(dials: Dials, autojump_clock: MockClock) -> None:
    states: list[str] = []

    async def agent_side() -> None:
        wire = await dials.greet()
        dials.down = True
        await wire.cut()
        await trio.sleep(30)
        dials.down = False
        await dials.greet()

    async def client_side() -> None:
        async with connect("unix:/memory", on_state=states.append) as agent:
            await trio.sleep(100)
            assert agent.connections == 2

    await both(agent_side, client_side)
    assert states == ["up", "down", "up", "down"]


async def test_a_shutdown_is_a_cut_and_no_more(up: Up, dials: Dials, autojump_clock: MockClock) -> None:
    """An upgrade of the agent."""
    await up.wire.say(Error("shutdown", "bye", True))
    await dials.greet()
    await trio.testing.wait_all_tasks_blocked()
    assert up.agent.connections == 2


async def test_who_was_replaced_does_not_come_back(up: Up, dials: Dials, autojump_clock: MockClock) -> None:
    """case C31."""
    await up.wire.say(Error("replaced", "a newer connection took over", True))
    error = await raised(HandshakeRefused, up.agent.info)
    assert error.code == "replaced"
    await trio.sleep(100)
    assert len(dials.at) == 1


async def test_a_broken_protocol_is_the_end(up: Up, dials: Dials, autojump_clock: MockClock) -> None:
    async def break_it() -> None:
        await up.wire.asked("info")
        await up.wire.say(Response(99, {}))

    _, error = await both(break_it, lambda: raised(ProtocolError, up.agent.info))
    assert "no request 99" in str(error)
    assert await raised(ProtocolError, up.agent.info) is error
    await trio.sleep(100)
    assert len(dials.at) == 1


# --- giving up ------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["down", "hangs", "silent"])
async def test_giving_up_is_in_time_whatever_the_dials_meet(dials: Dials, how: str, autojump_clock: MockClock) -> None:
    async def agent_side() -> None:
        wire = await dials.greet()
        await trio.sleep(10)
        dials.down, dials.hangs = how == "down", how == "hangs"
        await wire.cut()

    async def client_side() -> None:
        async with connect("unix:/memory", give_up_after=7) as agent:
            waiting = [agent.info, lambda: agent.session(S).send(b"x")]
            await trio.sleep(9)
            async with trio.open_nursery() as nursery:
                for call in waiting:
                    nursery.start_soon(raised, ConnectionLost, call)
            assert trio.current_time() == 17
            error = await raised(ConnectionLost, agent.info)
            assert "contact with unix:/memory was lost" in str(error)
            if how == "down":
                assert "it is down" in str(error)

    await both(agent_side, client_side)


async def test_contact_in_time_is_not_given_up(dials: Dials, autojump_clock: MockClock) -> None:
    async def agent_side() -> None:
        for _ in range(5):
            dials.down = False
            wire = await dials.greet()
            dials.down = True
            await trio.sleep(20)
            await wire.cut()
            await trio.sleep(3)
        dials.down = False
        wire = await dials.greet()
        await wire.answer("info", {"last": True})

    async def client_side() -> None:
        async with connect("unix:/memory", give_up_after=9) as agent:
            await trio.sleep(5 * 23)
            assert await agent.info() == {"last": True}

    await both(agent_side, client_side)


async def test_without_a_limit_it_never_gives_up(up: Up, dials: Dials, autojump_clock: MockClock) -> None:
    dials.down = True
    await up.wire.cut()
    with trio.move_on_after(24 * 3600) as scope:
        await up.agent.info()
    assert scope.cancelled_caught
    assert max(dials.pauses[1:]) <= limits.BACKOFF_MAX


async def test_before_the_first_contact_only_wait_counts(dials: Dials, autojump_clock: MockClock) -> None:
    dials.down = True
    await raised(DialError, lambda: connect("unix:/memory", wait=50, give_up_after=5).__aenter__())
    assert trio.current_time() == 50


# --- liveness -------------------------------------------------------------------------------------
async def test_a_quiet_agent_is_asked_and_then_dropped(up: Up, dials: Dials, autojump_clock: MockClock) -> None:
    """Cases C32, C36: no EOF is waited for."""
    await up.wire.hear(Ping)
    assert limits.PING_AFTER <= trio.current_time() <= limits.PING_AFTER + CHECK_EVERY
    await up.wire.hear(Ping)
    await up.wire.hang_up_heard()
    assert limits.DEAD_AFTER <= trio.current_time() <= limits.DEAD_AFTER + CHECK_EVERY
    await dials.greet()
    await trio.testing.wait_all_tasks_blocked()
    assert up.agent.connections == 2


async def test_an_agent_that_answers_is_kept_for_ever(up: Up, dials: Dials, autojump_clock: MockClock) -> None:
    pings = 0
    while trio.current_time() < 3600:
        ping = await up.wire.hear(Ping)
        await up.wire.say(Pong(ping.token))
        pings += 1
    assert up.agent.connections == 1
    assert pings <= 3600 / limits.PING_AFTER


async def test_pings_of_the_agent_are_answered(up: Up, autojump_clock: MockClock) -> None:
    await up.wire.say(Ping(42))
    assert await up.wire.hear(Pong) == Pong(42)


# --- requests -------------------------------------------------------------------------------------
async def test_an_answer_is_returned_and_a_failure_raised(up: Up, autojump_clock: MockClock) -> None:
    _, info = await both(lambda: up.wire.answer("info", {"version": "1"}), up.agent.info)
    assert info == {"version": "1"}

    async def refuse() -> None:
        request = await up.wire.asked("inspect")
        await up.wire.say(Failure(request.id, "not_found", "cannot inspect: no session", {"x": 1}))

    _, error = await both(refuse, lambda: raised(RequestFailed, lambda: up.agent.find("nobody")))
    assert (error.code, str(error), error.details) == ("not_found", "cannot inspect: no session", {"x": 1})


async def test_a_request_survives_a_cut_with_its_key(up: Up, dials: Dials, autojump_clock: MockClock) -> None:
    async def agent_side() -> None:
        first = await up.wire.asked("create")
        await up.wire.cut()
        wire = await dials.greet()
        second = await wire.asked("create")
        assert first.key == second.key
        assert first.key is not None
        await wire.say(Response(second.id, {"id": S}))
        await wire.hears_nothing(1)

    _, session = await both(agent_side, lambda: up.agent.create(["true"]))
    assert session.id == S


async def test_two_requests_have_two_keys_and_looking_has_none(up: Up, autojump_clock: MockClock) -> None:
    keys = []
    for call in (up.agent.session(S).kill, up.agent.session(S).kill, up.agent.info):
        request, _ = await both(lambda: answer_anything(up.wire), call)
        keys.append(request.key)
    assert len({*keys}) == 3
    assert keys[2] is None


async def answer_anything(wire: Wire) -> Request:
    request = await wire.hear(Request)
    await wire.say(Response(request.id, {"sessions": [], "more": False, "id": S}))
    return request


async def test_a_cancelled_request_stops_nothing_else(
    up: Up, dials: Dials, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    with trio.move_on_after(1) as scope:
        await up.agent.request("slow")
    assert scope.cancelled_caught
    slow = await up.wire.asked("slow")
    _, info = await both(lambda: up.wire.answer("info", {"n": 1}), up.agent.info)
    await up.wire.say(Response(slow.id, {}))  # late, and nobody cares
    with trio.move_on_after(1):
        await up.agent.request("slower")
    await up.wire.cut()
    wire = await dials.greet()
    await wire.hears_nothing(5)
    assert info == {"n": 1}
    assert up.agent.connections == 2


async def test_what_cannot_be_sent_is_the_callers_error(up: Up, autojump_clock: MockClock) -> None:
    """It must not surface in the writer, where it would end everything."""
    await raised(LocalProtocolError, lambda: up.agent.request("x", {"value": object()}))
    await raised(LocalProtocolError, lambda: up.agent.session(S).attach(size=(object(), 3)).__aenter__())  # type: ignore[arg-type]
    await raised(LocalProtocolError, lambda: up.agent.session("").send(b"x"))
    _, info = await both(lambda: up.wire.answer("info", {"n": 1}), up.agent.info)
    assert info == {"n": 1}


async def test_lists_are_read_page_by_page(up: Up, autojump_clock: MockClock) -> None:
    async def pages() -> list[Any]:
        asked = []
        for ids, more in ((["a", "b"], True), (["c"], False)):
            request = await up.wire.asked("list")
            asked.append(request.params["after"])
            await up.wire.say(Response(request.id, {"sessions": [{"id": id_} for id_ in ids], "more": more}))
        return asked

    asked, rows = await both(pages, up.agent.sessions)
    assert asked == ["", "b"]
    assert [row["id"] for row in rows] == ["a", "b", "c"]


async def test_creating_sends_what_was_given_and_nothing_else(up: Up, autojump_clock: MockClock) -> None:
    request, session = await both(
        lambda: up.wire.answer("create", {"id": S}),
        lambda: up.agent.create(["vi", "x"], name="n", env={"A": "b"}, size=(100, 30), tty=False),
    )
    assert session.id == S
    assert request.params == {
        "argv": ["vi", "x"],
        "name": "n",
        "env": {"A": "b"},
        "size": [100, 30],
        "policy": "hold",
        "tty": False,
    }


async def test_the_session_methods_ask_what_they_say(up: Up, autojump_clock: MockClock) -> None:
    session = up.agent.session(S)
    for call, method, params in (
        (lambda: session.resize(100, 30), "resize", {"columns": 100, "rows": 30}),
        (lambda: session.signal("INT"), "signal", {"signal": "INT", "to": "foreground"}),
        (lambda: session.signal(9, everyone=True), "signal", {"signal": 9, "to": "session"}),
        (session.kill, "kill", {}),
        (lambda: session.remove(force=True), "remove", {"force": True}),
        (session.inspect, "inspect", {}),
    ):
        request, _ = await both(lambda method=method: up.wire.answer(method), call)  # type: ignore[misc]
        assert request.params == {"session": S, **params}


# --- streams --------------------------------------------------------------------------------------
async def test_a_stream_goes_on_at_its_byte_after_a_cut(
    up: Up, dials: Dials, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with AsyncExitStack() as stack:
        stream = await open_attach(up, nursery, stack)
        await up.wire.output(0, b"abc")
        assert await anext(stream) == events.Output(0, b"abc")
        await up.wire.output(3, b"d")
        await trio.testing.wait_all_tasks_blocked()
        await up.wire.cut()
        wire = await dials.accept()
        assert not stream.attached
        await wire.greet()
        request = await wire.attach(offset=4, replay_to=4)
        assert request.params["cursor"] == [GENERATION, 4, 0]
        await wire.output(4, b"ef")
        assert await anext(stream) == events.Output(3, b"d"), "received before the cut, taken after it"
        assert await anext(stream) == events.Output(4, b"ef")
        assert stream.attached
        assert stream.cursor == Cursor(GENERATION, 6, 0)
        await wire.say(Mark(0, 6, 0, "exit", {"code": 0, "output_closed": True}))
        assert [type(event) async for event in stream] == [events.Exit]
        assert stream.exit is not None
        nursery.start_soon(wire.answer, "detach")


async def test_a_size_is_announced_again_on_each_connection(up: Up, dials: Dials, autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        request, stream = await both(
            lambda: up.wire.attach(size=[80, 24]),
            lambda: stack.enter_async_context(up.agent.session(S).attach(size=(80, 24), view=True, stream="stderr")),
        )
        assert request.params["size"] == [80, 24]
        assert request.params["view"] is True
        assert request.params["stream"] == "stderr"
        assert stream.answer["size"] == [80, 24]
        stream.set_size((100, 30))
        await up.wire.cut()
        wire = await dials.greet()
        assert (await wire.attach()).params["size"] == [100, 30]


async def test_what_was_dealt_with_is_acknowledged_when_the_next_event_is_asked_for(
    up: Up, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with AsyncExitStack() as stack:
        stream = await open_attach(up, nursery, stack)
        await up.wire.output(0, b"x" * 600)
        await up.wire.output(600, b"y" * 400)
        assert len((await anext(stream)).data) == 600  # type: ignore[union-attr]
        await up.wire.hears_nothing(10)
        await anext(stream)
        assert await up.wire.hear(Credit) == Credit(0, 1600)


async def test_a_cancelled_read_takes_nothing(up: Up, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        stream = await open_attach(up, nursery, stack)
        with trio.move_on_after(1) as scope:
            await anext(stream)
        assert scope.cancelled_caught
        await up.wire.output(0, b"a")
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(stream)
        assert scope.cancelled_caught
        assert await anext(stream) == events.Output(0, b"a")


async def test_cancelling_while_it_attaches_lets_go(up: Up, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    with trio.move_on_after(1):
        await up.agent.session(S).attach().__aenter__()
    attach = await up.wire.asked("attach")
    detach = await up.wire.asked("detach")
    assert detach.params == {"channel": attach.params["channel"]}
    await up.wire.say(Response(attach.id, attached()), Output(0, 0, b"x"), Response(detach.id, {}))
    _, info = await both(lambda: up.wire.answer("info", {"n": 1}), up.agent.info)
    assert info == {"n": 1}


async def test_a_refused_attach_is_a_failed_request(up: Up, autojump_clock: MockClock) -> None:
    async def agent_side() -> None:
        request = await up.wire.asked("attach")
        await up.wire.say(Failure(request.id, "not_found", "cannot attach: no session", {}))

    _, error = await both(agent_side, lambda: raised(RequestFailed, lambda: up.agent.session(S).attach().__aenter__()))
    assert error.code == "not_found"
    await up.wire.hears_nothing(1)


async def test_a_stream_that_the_agent_ends_is_no_success(
    up: Up, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with AsyncExitStack() as stack:
        stream = await open_attach(up, nursery, stack)
        await up.wire.say(Output(0, 0, b"x"), Detached(0, "removed", "the session was removed"))
        assert await anext(stream) == events.Output(0, b"x")
        error = await raised(AttachEnded, lambda: anext(stream))
        assert error.code == "removed"
        assert stream.exit is None


async def test_a_stream_has_no_use_outside_its_block(up: Up, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """Also for a task that waits on it while another leaves the block: an error, not a wait for ever."""
    stream = up.agent.session(S).attach()
    await raised(RuntimeError, lambda: anext(stream))
    async with AsyncExitStack() as stack:
        stream = await open_attach(up, nursery, stack)
        nursery.start_soon(raised, RuntimeError, lambda: anext(stream))
        await trio.testing.wait_all_tasks_blocked()
    await raised(RuntimeError, lambda: anext(stream))


# --- input ----------------------------------------------------------------------------------------
async def test_send_returns_when_it_is_written(up: Up, autojump_clock: MockClock) -> None:
    async def agent_side() -> float:
        assert await up.wire.hear(Input) == Input(S, 0, b"abc")
        await trio.sleep(3)
        await up.wire.say(Ack(S, 2))
        await trio.sleep(4)
        await up.wire.say(Ack(S, 3))
        return trio.current_time()

    _, end = await both(agent_side, lambda: up.agent.session(S).send(b"abc"))
    assert end == 3
    assert trio.current_time() == 7
    assert await up.agent.session(S).send(b"de", wait=False) == 5
    assert trio.current_time() == 7
    await up.wire.hear(Input)
    await both(lambda: up.wire.say(Ack(S, 5)), up.agent.session(S).flush_input)


async def test_input_is_sent_again_after_a_cut_and_only_what_is_missing(
    up: Up, dials: Dials, autojump_clock: MockClock
) -> None:
    async def agent_side() -> None:
        await up.wire.hear(Input)
        await up.wire.cut()
        wire = await dials.greet()
        assert await wire.hear(Input) == Input(S, 0, b"")
        await wire.say(Ack(S, 2))
        assert await wire.hear(Input) == Input(S, 2, b"cd")
        await wire.say(Ack(S, 4))

    await both(agent_side, lambda: up.agent.session(S).send(b"abcd"))


async def come_back_late(up: Up, dials: Dials, seconds: float) -> Wire:
    """Cut in the middle of a send; the next connection comes so much later and nothing was written."""
    await up.wire.hear(Input)
    dials.down = True
    await up.wire.cut()
    await trio.sleep(seconds)
    dials.down = False
    wire = await dials.greet()
    await wire.hear(Input)
    await wire.say(Ack(S, 0))
    return wire


async def test_old_keystrokes_are_given_up_and_the_sender_is_told(
    up: Up, dials: Dials, autojump_clock: MockClock
) -> None:
    """case C30."""

    async def agent_side() -> None:
        wire = await come_back_late(up, dials, 60)
        assert await wire.hear(Skip) == Skip(S, 0, 4)

    _, error = await both(agent_side, lambda: raised(InputRefused, lambda: up.agent.session(S).send(b"rm *")))
    assert (error.code, error.offset, error.details["to"]) == ("stale", 0, 4)


async def test_data_does_not_age(up: Up, dials: Dials, autojump_clock: MockClock) -> None:
    session = up.agent.session(S)
    session.keep_input(None)

    async def agent_side() -> None:
        wire = await come_back_late(up, dials, 3600)
        assert await wire.hear(Input) == Input(S, 0, b"data")
        await wire.say(Ack(S, 4))

    await both(agent_side, lambda: session.send(b"data"))


async def test_refused_input_is_raised_with_the_agents_reason(up: Up, autojump_clock: MockClock) -> None:
    async def agent_side() -> None:
        await up.wire.hear(Input)
        await up.wire.say(Refused(S, 1, "line_too_long", "cannot type: too long", {"limit": "cooked_line"}))
        await up.wire.hear(Skip)

    _, error = await both(agent_side, lambda: raised(InputRefused, lambda: up.agent.session(S).send(b"abc")))
    assert (error.code, error.offset, error.details["limit"]) == ("line_too_long", 1, "cooked_line")


async def test_uncertain_input_is_raised(up: Up, autojump_clock: MockClock) -> None:
    async def agent_side() -> None:
        await up.wire.hear(Input)
        await up.wire.say(Ack(S, 3, [1, 3]))

    _, error = await both(agent_side, lambda: raised(InputRefused, lambda: up.agent.session(S).send(b"abc")))
    assert (error.code, error.offset, error.details["to"]) == ("uncertain", 1, 3)


async def test_a_cancelled_send_is_typed_all_the_same_and_once(up: Up, autojump_clock: MockClock) -> None:
    session = up.agent.session(S)
    with trio.move_on_after(1) as scope:
        await session.send(b"abc")
    assert scope.cancelled_caught
    assert await up.wire.hear(Input) == Input(S, 0, b"abc")

    async def agent_side() -> None:
        assert await up.wire.hear(Input) == Input(S, 3, b"d")
        await up.wire.say(Ack(S, 4))

    _, end = await both(agent_side, lambda: session.send(b"d"))
    assert end == 4


async def test_send_without_waiting_is_bounded(up: Up, autojump_clock: MockClock) -> None:
    session = up.agent.session(S)
    piece = bytes(client.INPUT_QUEUE // 4)
    for _ in range(4):
        with trio.fail_after(0.001):
            await session.send(piece, wait=False)
    with trio.move_on_after(5) as scope:
        await session.send(b"x", wait=False)
    assert scope.cancelled_caught

    async def agent_side() -> None:
        taken = 0
        while taken < limits.INPUT_WINDOW:
            taken += len((await up.wire.hear(Input)).data)
        await up.wire.hears_nothing(1)
        await up.wire.say(Ack(S, taken))
        await up.wire.hear(Input)

    await both(agent_side, lambda: session.send(b"y", wait=False))


async def test_the_end_of_input_is_sent_behind_it(up: Up, autojump_clock: MockClock) -> None:
    session = up.agent.session(S)
    await session.send(b"abc", wait=False)
    session.end_input()
    assert [await up.wire.hear_any(), await up.wire.hear_any()] == [Input(S, 0, b"abc"), InputEnd(S, 3)]
    with pytest.raises(ValueError, match="its end was sent"):
        await session.send(b"d")


async def test_removing_a_session_ends_its_lane(up: Up, autojump_clock: MockClock) -> None:
    session = up.agent.session(S)
    await both(lambda: type_and_ack(up.wire), lambda: session.send(b"x"))
    await both(lambda: up.wire.answer("remove"), session.remove)
    assert up.agent.contact.machine.lanes == {}


async def type_and_ack(wire: Wire) -> None:
    frame = await wire.hear(Input)
    await wire.say(Ack(frame.session, frame.offset + len(frame.data)))


# --- the end --------------------------------------------------------------------------------------
async def test_who_waits_when_the_block_ends_gets_connection_lost(
    dials: Dials, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async def agent_side() -> None:
        wire = await dials.greet()
        await wire.attach()

    nursery.start_soon(agent_side)
    async with connect("unix:/memory") as agent:
        stream = await agent.session(S).attach().__aenter__()
        for call in (agent.info, lambda: agent.session(S).send(b"x"), lambda: anext(stream)):
            nursery.start_soon(raised, ConnectionLost, call)
        await trio.testing.wait_all_tasks_blocked()
    await raised(ConnectionLost, agent.info)
    await raised(ConnectionLost, agent.session(S).attach().__aenter__)


async def test_what_the_block_raises_comes_out_as_it_is(dials: Dials, autojump_clock: MockClock) -> None:
    async def client_side() -> None:
        with pytest.raises(ZeroDivisionError):
            async with connect("unix:/memory"):
                raise ZeroDivisionError

    await both(dials.greet, client_side)


async def test_cancelling_the_block_closes_the_connection(dials: Dials, autojump_clock: MockClock) -> None:
    async def agent_side() -> None:
        wire = await dials.greet()
        await wire.hang_up_heard()

    async def client_side() -> None:
        with trio.move_on_after(5) as scope:
            async with connect("unix:/memory"):
                await trio.sleep_forever()
        assert scope.cancelled_caught

    await both(agent_side, client_side)
    assert trio.current_time() == 5
