"""aio.py: the client in an asyncio loop, against a real agent.

Each test runs a loop of its own, in debug mode; whatever a loop leaves behind (a task, a future that nobody looked at, an abandoned
trio run) is a warning, and warnings are errors here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from ptymux import (
    AddressError,
    AttachEnded,
    ConnectionLost,
    Exit,
    HandshakeRefused,
    InputRefused,
    LocalProtocolError,
    Output,
    RequestFailed,
    aio,
    client,
    limits,
)
from ptymux.errors import DialError
from tests.dying import dying_agent
from tests.harness import PATIENCE, AgentProcess, running_agent


def in_asyncio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine function, in a loop of its own; stuck ones fail."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(3 * PATIENCE):
                await test(*arguments, **named)
            assert asyncio.all_tasks() == {asyncio.current_task()}, "the client left tasks behind"
            assert not aio._guests, "the client left a trio run behind"

        asyncio.run(bounded(), debug=True)

    # pytest looks at the signature through __wrapped__, and pytest-trio at what kind of function that is.
    signature = inspect.signature(test)
    del run.__wrapped__  # type: ignore[attr-defined]
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


@pytest.fixture(scope="module")
def agent_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with running_agent(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


@pytest.fixture
def address(agent_process: AgentProcess) -> str:
    return agent_process.address


async def output(stream: aio.Attach) -> bytes:
    """Everything up to the exit."""
    data = bytearray()
    async for event in stream:
        if isinstance(event, Output):
            assert event.offset == len(data)
            data += event.data
    assert stream.exit is not None
    return bytes(data)


async def expect(stream: aio.Attach, text: bytes) -> bytes:
    """Output up to and with `text`."""
    seen = bytearray()
    while text not in seen:
        event = await anext(stream)
        assert not isinstance(event, Exit), f"ended before {text!r}: {bytes(seen)!r}"
        if isinstance(event, Output):
            seen += event.data
    return bytes(seen)


# --- the whole surface ----------------------------------------------------------------------------
@in_asyncio
async def test_everything_that_the_client_can_do(address: str) -> None:
    states: list[str] = []
    async with aio.connect(address, wait=5, on_state=states.append) as agent:
        assert states == ["up"]
        assert (agent.up, agent.role, agent.connections) == (True, "admin", 1)
        assert str(agent.address) == address
        assert len(agent.client_id) == limits.CLIENT_ID_SIZE
        assert agent.limits["max_frame"] == limits.MAX_FRAME
        info = await agent.info()
        assert agent.generation is not None
        assert info["generation"] == agent.generation.hex()
        assert (await agent.request("info", keyed=False))["agent"] == info["agent"]

        session = await agent.create(["cat"], name="aio-cat", label="a cat", size=(100, 30))
        assert session.id in [row["id"] for row in await agent.sessions()]
        assert (await agent.find("aio-cat")).id == session.id
        assert (await agent.session(session.id).inspect())["size"] == [100, 30]
        session.keep_input(None)
        async with session.attach(view=True) as stream:
            assert stream.attached
            assert stream.answer["size"] == [100, 30]
            assert await session.send(b"hello\r") == 6
            await session.flush_input()
            seen = await expect(stream, b"hello\r\nhello\r\n")
            assert stream.cursor is not None
            assert stream.cursor.offset == len(seen)
            await session.resize(90, 20)
            assert (await session.inspect())["size"] == [90, 20]
            stream.set_size((90, 20))
            assert (await agent.stats())["attaches"] == 1
            session.end_input()
            assert [event async for event in stream if isinstance(event, Exit)] == [stream.exit]
            assert stream.exit is not None
            assert stream.exit.status == 0
        await session.remove()
        assert session.id not in [row["id"] for row in await agent.sessions()]
    assert states == ["up", "down"]


@in_asyncio
async def test_signals_and_kills(address: str) -> None:
    async with aio.connect(address) as agent:
        for number in (signal.SIGTERM, signal.SIGKILL):
            session = await agent.create(["sleep", "1000"])
            async with session.attach() as stream:
                await (session.kill() if number == signal.SIGKILL else session.signal("TERM"))
                await output(stream)
                assert stream.exit is not None
                assert stream.exit.status == 128 + number
            await session.remove()


def test_the_objects_are_those_of_the_trio_client() -> None:
    """Names, signatures and documentation cannot drift apart."""
    assert (aio.Agent, aio.Attach, aio.Session) == (client.Agent, client.Attach, client.Session)
    assert inspect.signature(aio.connect).parameters == inspect.signature(client.connect).parameters


# --- cancelling -----------------------------------------------------------------------------------
@in_asyncio
async def test_a_cancelled_read_loses_no_event(address: str) -> None:
    """However often a time-out strikes, at whatever instant, each byte comes once and in order."""
    async with aio.connect(address) as agent:
        # A line at a time and a small window, so that the reader waits again and again and is met in every state.
        script = "stty -opost; i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); done"
        session = await agent.create(["sh", "-c", script])
        data = bytearray()
        timeouts = 0
        async with session.attach(window=4096) as stream:
            for attempt in itertools.count():
                try:
                    async with asyncio.timeout(0.0001 * (attempt % 7)):
                        async for event in stream:
                            if isinstance(event, Output):
                                assert event.offset == len(data)
                                data += event.data
                        break
                except TimeoutError:
                    timeouts += 1
        assert timeouts > 0
        assert data.decode() == "".join(f"line {i}\n" for i in range(400))
        await session.remove()


@in_asyncio
async def test_a_time_out_is_felt_in_the_middle_of_a_flood(address: str) -> None:
    """A stream that always has something ready must not keep its reader from being cancelled, or other tasks from running."""
    async with aio.connect(address) as agent:
        session = await agent.create(["yes"])
        async with session.attach() as stream:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(read_for_ever(stream), 0.3)
            reading = asyncio.create_task(read_for_ever(stream))
            assert (await agent.info())["role"] == "admin"
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        await session.remove(force=True)


async def read_for_ever(stream: aio.Attach) -> None:
    async for _ in stream:
        pass


@in_asyncio
async def test_a_cancelled_wait_ends_nothing_but_itself(address: str) -> None:
    async with aio.connect(address) as agent:
        session = await agent.create(["sh", "-c", "stty raw -echo; echo ready; read x"])
        async with session.attach() as stream:
            await expect(stream, b"ready")
            reading = asyncio.create_task(read_for_ever(stream))
            # More than a terminal takes while nobody reads it: `sending` waits, and so does what comes after.
            sending = asyncio.create_task(session.send(b"x" * limits.INPUT_WINDOW))
            flushing = asyncio.create_task(session.flush_input())
            asking = asyncio.create_task(agent.info())
            attaching = asyncio.create_task(session.attach(view=True).__aenter__())
            creating = asyncio.create_task(agent.create(["true"], name="half-asked"))
            await asyncio.sleep(0)
            waiting = (flushing, asking, attaching, creating)
            for task in waiting:
                task.cancel()  # all at once: answers are on their way
            for task in waiting:
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert (await agent.info())["role"] == "admin"
            assert not sending.done()
            assert not reading.done()
            assert agent.connections == 1
            stats = await agent.stats()
            assert stats["attaches"] == 1, "the cancelled attach is let go"
            reading.cancel()
            sending.cancel()
            await asyncio.gather(reading, sending, return_exceptions=True)
        await session.remove(force=True)


@in_asyncio
async def test_input_whose_wait_was_cancelled_is_still_typed_once(address: str) -> None:
    async with aio.connect(address) as agent:
        session = await agent.create(["sh", "-c", "stty raw -echo; echo ready; exec cat"])
        async with session.attach() as stream:
            await expect(stream, b"ready")
            for letter in (b"a", b"b", b"c"):
                task = asyncio.create_task(session.send(letter))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await session.send(b"!")
            assert (await expect(stream, b"!")).split()[-1] == b"abc!"
        await session.remove(force=True)


async def stopped(pid: int) -> None:
    """Until the process is."""
    status = Path(f"/proc/{pid}/status")
    async with asyncio.timeout(PATIENCE):
        while "(stopped)" not in await asyncio.to_thread(status.read_text):  # noqa: ASYNC110 - it does not set our events
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("how", "code"), [("exit", "exited"), ("kill", "exited"), ("remove", "not_found")])
@in_asyncio
async def test_input_that_waits_when_the_session_ends_is_refused(address: str, how: str, code: str) -> None:
    """Not lost in silence, with its sender waiting for ever."""
    async with aio.connect(address) as agent:
        session = await agent.create(["sh", "-c", "stty raw -echo; echo ready; kill -STOP $$; exit 3"])
        async with session.attach() as stream:
            await expect(stream, b"ready")
            sending = asyncio.create_task(session.send(b"x" * limits.INPUT_WINDOW))
            await agent.info()  # the agent has it, and has written what the terminal takes
            assert not sending.done()
            await stopped((await session.inspect())["pid"])  # a CONT that comes before the STOP would be lost
            if how == "exit":
                await session.signal("CONT")
            else:
                await (session.kill() if how == "kill" else session.remove(force=True))
            with pytest.raises(InputRefused) as refused:
                await sending
            assert refused.value.code == code
        if how != "remove":
            await session.remove()


@in_asyncio
async def test_connecting_can_be_cancelled_at_any_instant(tmp_path: Path, address: str) -> None:
    """Also to an agent that accepts and says nothing."""
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "silent"))
    silent.listen()
    with silent:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), aio.connect(f"unix:{tmp_path}/silent"):
                pass
        with pytest.raises(DialError, match=r"no answer within 0\.1 s"):
            async with aio.connect(f"unix:{tmp_path}/silent", wait=0.1):
                pass

    async def use() -> None:
        async with aio.connect(address) as agent:
            await agent.info()

    for turns in range(40):
        task = asyncio.create_task(use())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not aio._guests
    await use()


@in_asyncio
async def test_what_was_cancelled_can_still_use_the_agent_to_clean_up(address: str) -> None:
    """As the main task does when Ctrl-C cancels it."""
    cleaned: list[str] = []
    started = asyncio.Event()

    async def work() -> None:
        async with aio.connect(address) as agent:
            session = await agent.create(["sleep", "1000"])
            try:
                async with session.attach() as stream:
                    started.set()
                    await read_for_ever(stream)
            finally:
                await session.remove(force=True)
                cleaned.append(session.id)

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(cleaned) == 1
    async with aio.connect(address) as agent:
        assert cleaned[0] not in [row["id"] for row in await agent.sessions()]


@in_asyncio
async def test_a_second_cancellation_does_not_abandon_the_connection(address: str) -> None:
    """Leaving the block is bounded, so it is waited for; the cancellation comes out behind it."""
    started = asyncio.Event()

    async def work() -> None:
        async with aio.connect(address):
            started.set()
            await asyncio.sleep(3600)

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    await asyncio.sleep(0)  # it is on its way out now
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not aio._guests


# --- errors ---------------------------------------------------------------------------------------
@in_asyncio
async def test_errors_are_those_of_the_trio_client(tmp_path: Path, address: str) -> None:
    with pytest.raises(AddressError):
        async with aio.connect("nonsense"):
            pass
    with pytest.raises(DialError, match="cannot dial"):
        async with aio.connect(f"unix:{tmp_path}/nobody"):
            pass
    with pytest.raises(HandshakeRefused) as refused:
        async with aio.connect(address, token="wrong"):
            pass
    assert refused.value.code == "unauthorized"
    async with aio.connect(address) as agent:
        with pytest.raises(RequestFailed) as failed:
            await agent.find("nobody")
        assert failed.value.code == "not_found"
        with pytest.raises(RequestFailed) as failed:
            await agent.create(["/no/such/program"])
        assert failed.value.code == "spawn"
        with pytest.raises(RequestFailed):
            async with agent.session("nobody").attach():
                pass
        with pytest.raises(InputRefused) as not_typed:
            await agent.session("nobody").send(b"x")
        assert not_typed.value.code == "not_found"
        with pytest.raises(LocalProtocolError):
            await agent.request("info", {"what": object()})
        session = await agent.create(["sleep", "1000"])
        async with session.attach() as stream:
            await session.remove(force=True)
            with pytest.raises(AttachEnded):
                await output(stream)
        with pytest.raises(RuntimeError, match="outside its `async with` block"):
            await anext(stream)
        assert (await agent.info())["role"] == "admin"


@in_asyncio
async def test_what_the_block_raises_comes_out_as_it_is(address: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with aio.connect(address):
            raise ZeroDivisionError
    with pytest.raises(ExceptionGroup) as group:
        async with aio.connect(address), asyncio.TaskGroup():
            raise ZeroDivisionError
    assert group.group_contains(ZeroDivisionError)


@in_asyncio
async def test_a_callback_that_fails_ends_the_connection_and_is_seen(address: str) -> None:
    def fail(state: str) -> None:
        if state == "down":
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as group:
        async with aio.connect(address, on_state=fail):
            pass
    assert group.group_contains(ZeroDivisionError)


# --- several, and the end -------------------------------------------------------------------------
@in_asyncio
async def test_several_connections_are_closed_in_any_order(address: str) -> None:
    for order in itertools.permutations(range(3)):
        stacks = [contextlib.AsyncExitStack() for _ in range(3)]
        agents = [await stack.enter_async_context(aio.connect(address)) for stack in stacks]
        assert len({agent.client_id for agent in agents}) == 3
        assert len(aio._guests) == 1
        for position, index in enumerate(order):
            await stacks[index].aclose()
            with pytest.raises(ConnectionLost, match="closed on this side"):
                await agents[index].info()
            for other in order[position + 1 :]:
                assert (await agents[other].info())["role"] == "admin"
        assert not aio._guests


@in_asyncio
async def test_connections_come_and_go_at_once(address: str) -> None:
    """Some begin while the last of the others ends, so that a trio run is on its way out when the next is wanted."""

    async def use(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        async with aio.connect(address, wait=PATIENCE) as agent:
            assert (await agent.info())["role"] == "admin"

    for _ in range(3):
        await asyncio.gather(*(use(7 * i) for i in range(20)))


@in_asyncio
async def test_who_waits_when_the_block_ends_gets_connection_lost(address: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        agent = await stack.enter_async_context(aio.connect(address))
        session = await agent.create(["sh", "-c", "stty raw -echo; echo ready; read x"])
        stream = await session.attach().__aenter__()
        await expect(stream, b"ready")
        waiting = [
            asyncio.create_task(read_for_ever(stream)),
            asyncio.create_task(session.send(b"x" * limits.INPUT_WINDOW)),
        ]
        await agent.info()
    for task in waiting:
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await task
    async with aio.connect(address) as agent:
        await agent.session(session.id).remove(force=True)


def test_a_loop_that_ends_leaves_nothing_though_nobody_left_the_block(address: str) -> None:
    """`asyncio.run` closes asynchronous generators; the same thread can then do anything, trio included."""
    kept: list[Any] = []

    async def careless() -> None:
        for _ in range(2):
            manager = aio.connect(address)
            agent = await manager.__aenter__()
            kept.append((manager, agent))
            await agent.info()

    for _ in range(2):
        asyncio.run(careless(), debug=True)
        assert not aio._guests

    async def in_trio() -> str:
        async with client.connect(address) as agent:
            return str((await agent.info())["role"])

    assert trio.run(in_trio) == "admin"


def test_ctrl_c_leaves_through_the_block(address: str) -> None:
    left: list[str] = []

    async def work() -> None:
        try:
            async with aio.connect(address) as agent:
                await agent.info()
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(3600)
        finally:
            left.append("left")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work(), debug=True)
    assert left == ["left"]
    assert not aio._guests


def test_loops_in_several_threads_do_not_meet(address: str) -> None:
    roles: list[str] = []

    async def use() -> None:
        async with aio.connect(address) as agent:
            for _ in range(20):
                roles.append((await agent.info())["role"])

    threads = [threading.Thread(target=lambda: asyncio.run(use(), debug=True)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert roles == ["admin"] * 60


async def test_inside_a_trio_program_it_says_so(address: str) -> None:
    async def use() -> None:
        async with aio.connect(address):
            pass

    loop = asyncio.new_event_loop()
    with contextlib.closing(loop), pytest.raises(RuntimeError, match="from inside a run"):
        loop.run_until_complete(use())


@in_asyncio
async def test_an_agent_is_of_one_loop(address: str) -> None:
    """Its futures say so, rather than a wait that never ends."""

    async def elsewhere(agent: aio.Agent) -> None:
        await agent.info()

    async with aio.connect(address) as agent:
        with pytest.raises(RuntimeError):
            await asyncio.to_thread(lambda: asyncio.run(elsewhere(agent)))


# --- flow -----------------------------------------------------------------------------------------
@in_asyncio
async def test_a_slow_reader_holds_the_program_and_not_its_own_memory(address: str) -> None:
    window = 128 * limits.KIB
    async with aio.connect(address) as agent:
        session = await agent.create(["sh", "-c", "stty -opost; exec head -c 3000000 /dev/zero"])
        async with session.attach(window=window) as stream:
            await anext(stream)
            while (await agent.stats())["paused"] == 0:
                pass
            written = (await session.inspect())["offset"]
            assert written < 3_000_000
            assert stream.cursor is not None
            assert stream.cursor.offset <= window
            size = stream.cursor.offset
            assert size > 0
            data = 0
            async for event in stream:
                if isinstance(event, Output):
                    data = event.offset + len(event.data)
            assert data == 3_000_000
        await session.remove()


# --- an agent that dies ---------------------------------------------------------------------------
@in_asyncio
async def test_a_killed_server_is_survived(tmp_path: Path) -> None:
    """The stream goes on at its byte, typed input is typed once, a request waits for the next server."""
    states: list[str] = []
    with running_agent(tmp_path) as process:
        async with aio.connect(process.address, on_state=states.append) as agent:
            session = await agent.create(["sh", "-c", "stty raw -echo; echo ready; exec cat"])
            async with session.attach() as stream:
                await expect(stream, b"ready")
                for round_ in range(2):
                    before = process.kill_server()
                    assert (await agent.info())["server_pid"] != before
                    await session.send(b"round %d!" % round_)
                    assert (await expect(stream, b"!")).strip() == b"round %d!" % round_
                session.end_input()
                await session.signal("HUP")
                await read_for_ever(stream)
                assert stream.exit is not None
            assert agent.connections == 3
    assert states == ["up", "down"] * 3


@in_asyncio
async def test_an_agent_that_is_gone_for_good(tmp_path: Path) -> None:
    """Everything that waits raises ConnectionLost, and so does everything after."""
    with dying_agent(tmp_path) as process:
        async with aio.connect(process.address, give_up_after=0.5) as agent:
            session = await agent.create(["sh", "-c", "stty raw -echo; echo ready; read x"])
            async with session.attach() as stream:
                await expect(stream, b"ready")
                waiting: list[asyncio.Task[Any]] = [
                    asyncio.create_task(read_for_ever(stream)),
                    asyncio.create_task(session.send(b"x" * limits.INPUT_WINDOW)),
                ]
                await agent.info()
                await asyncio.to_thread(process.die)
                waiting.append(asyncio.create_task(agent.info()))
                for task in waiting:
                    with pytest.raises(ConnectionLost):
                        await task
                assert not agent.up
                for call in (agent.info, session.inspect, lambda: session.send(b"x"), lambda: anext(stream)):
                    with pytest.raises(ConnectionLost):
                        await call()
            with pytest.raises(ConnectionLost):
                async with session.attach():
                    pass


@in_asyncio
async def test_without_give_up_it_waits_for_as_long_as_it_takes(tmp_path: Path) -> None:
    with dying_agent(tmp_path) as process:
        async with aio.connect(process.address) as agent:
            await asyncio.to_thread(process.die)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await agent.info()
            assert not agent.up
