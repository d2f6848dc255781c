"""Attaching: where a stream goes on, and who may slow a program down."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from ptymux import connect
from ptymux.client import Agent, Session
from ptymux.cursor import Cursor
from ptymux.events import Exit, Foreign, Gap, Output, ReplayEnd, Snapshot
from ptymux.limits import DEFAULT_HISTORY, DEFAULT_WINDOW, HOLD_WINDOW, MAX_WINDOW, MIB, MIN_HISTORY
from ptymux.messages import MAGIC, VERSIONS, Hello, Request, encode
from tests.e2e.data import Material, check_equal, numbered_part
from tests.e2e.programs import ECHO, READY, Reading, counter
from tests.harness import (
    PATIENCE,
    AgentProcess,
    clean_environment,
    cutting_proxy,
    ptymux_argv,
    running_agent,
    until,
)

HEAD = 1_000_000  # bytes that `head_of` prints


def head_of(lines: Material, size: int = HEAD, *then: str) -> list[str]:
    return ["sh", "-c", "; ".join(["stty raw", f"head -c {size} {lines.path}", *then])]


@contextlib.contextmanager
def agent_with(folder: Path, **limits: float) -> Iterator[AgentProcess]:
    """An agent with other limits."""
    file = folder / "agent.toml"
    file.write_text("\n".join(["[limits]", *(f"{name} = {value}" for name, value in limits.items())]))
    with running_agent(folder, "--config", str(file)) as agent:
        yield agent


async def stdout(session: Session) -> dict[str, Any]:
    """What `inspect` says of the output stream."""
    stream: dict[str, Any] = (await session.inspect())["streams"]["stdout"]
    return stream


async def until_stdout(session: Session, condition: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
    """Wait until the output stream is as wanted."""

    async def look() -> dict[str, Any] | None:
        stream = await stdout(session)
        return stream if condition(stream) else None

    found: dict[str, Any] = await until(look, what)
    return found


async def until_exited(session: Session) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        row = await session.inspect()
        return row if row["state"] == "exited" else None

    row: dict[str, Any] = await until(look, "the program to end")
    return row


# --- where the stream goes on -----------------------------------------------------------------------
async def test_a_reconnect_repaints_nothing(agent: AgentProcess, tmp_path: Path, lines: Material) -> None:
    """case C19: after an idle reconnect the wire carries a welcome and an answer, and the next byte is the next byte."""
    script = "stty raw -echo; head -c 1000000 $0; exec cat"
    async with cutting_proxy(agent.path, tmp_path) as proxy, connect(proxy.address) as client:
        session = await client.create(["sh", "-c", script, str(lines.path)])
        async with session.attach() as stream:
            reading = Reading(stream)
            await reading.until(lambda: reading.offset == HEAD)
            await reading.until(lambda: reading.of(ReplayEnd) or reading.data)
            for number in range(20):
                contacts, before, events = client.connections, proxy.down, len(reading.events)
                proxy.cut_all()
                await until(
                    lambda contacts=contacts: client.connections > contacts and stream.attached, "the reconnect"
                )
                assert proxy.down - before < 2000
                await session.send(b"%d\n" % number)
                await reading.until_text(b"%d\n" % number)
                assert reading.events[events:] == []
                assert proxy.down - before < 2500
        assert (await client.stats())["resumes"] == 20
        assert (await client.stats())["gaps"] == 0


async def test_attach_is_atomic_under_live_output(agent: AgentProcess) -> None:
    """case C18: nothing is missed or doubled between the history and what comes live, wherever an attach begins."""
    chance = random.Random(11)
    async with connect(agent.address) as client:
        session = await client.create(counter())
        generation = client.generation
        assert generation is not None
        await until_stdout(session, lambda found: found["head"] > 0, "output")
        for number in range(60):
            found = await stdout(session)
            cursor = Cursor(generation, chance.randrange(found["oldest"], found["head"] + 1)) if number % 3 else None
            async with session.attach(cursor, repair="bytes") as stream:
                reading = Reading(stream, cursor.offset if cursor else 0)
                asked_at = stream.answer["head"]
                await reading.until(lambda reading=reading, asked_at=asked_at: reading.offset > asked_at + 100_000)
            check_equal(reading.data, numbered_part(reading.offset - len(reading.data), reading.offset))
            gaps = reading.of(Gap)
            assert [gap.to for gap in gaps] in ([], [reading.offset - len(reading.data)])
            if cursor is None:
                assert [event.offset for event in reading.of(ReplayEnd)] == [asked_at]


async def test_many_attaches_at_once_see_the_same_bytes(agent: AgentProcess) -> None:
    """case C18: twenty clients come while a program writes; each gets the stream from the beginning, none a byte twice."""
    async with connect(agent.address) as creator, trio.open_nursery() as nursery:
        session = await creator.create(counter())

        async def follow() -> None:
            async with connect(agent.address) as client, client.session(session.id).attach() as stream:
                reading = Reading(stream)
                await reading.until(lambda: reading.offset >= MIB)
                check_equal(reading.data, numbered_part(0, reading.offset))

        for _ in range(20):
            nursery.start_soon(follow)


async def test_who_comes_late_sees_the_whole_history(agent: AgentProcess, lines: Material) -> None:
    async with connect(agent.address) as client:
        session = await client.create(head_of(lines, 3 * MIB, "exit 3"))
        await until_exited(session)
        async with session.attach() as stream:
            reading = Reading(stream)
            replayed = []
            while reading.exit is None:
                event = await reading.next()
                if isinstance(event, Output):
                    replayed.append(event.replayed)
        check_equal(reading.data, lines.data[: 3 * MIB])
        assert all(replayed)
        assert [type(event) for event in reading.events] == [ReplayEnd, Exit]
        assert reading.exit.code == 3


@pytest.mark.parametrize("repair", ["bytes", "snapshot"])
@pytest.mark.parametrize("seen", [None, 0, 1000, HEAD - MIN_HISTORY - 1])
async def test_overwritten_history_is_one_exact_gap(
    agent: AgentProcess, lines: Material, seen: int | None, repair: str
) -> None:
    """From where the client was to where the stream goes on, and then every byte."""
    async with connect(agent.address) as client:
        session = await client.create(head_of(lines), history=MIN_HISTORY)
        await until_exited(session)
        oldest = HEAD - MIN_HISTORY
        assert (await stdout(session))["oldest"] == oldest
        assert client.generation is not None
        cursor = None if seen is None else Cursor(client.generation, seen)
        async with session.attach(cursor, repair=repair) as stream:
            reading = Reading(stream, seen or 0)
            await reading.until_exit()
        (gap,) = reading.of(Gap)
        assert reading.events[0] is gap
        assert (gap.start, gap.size) == (seen or 0, gap.to - gap.start)
        if repair == "bytes":
            assert gap.to == oldest
        else:  # nothing was written since the picture
            (picture,) = reading.of(Snapshot)
            assert reading.events[:2] == [gap, picture]
            assert (gap.to, picture.offset) == (HEAD, HEAD)
        check_equal(reading.data, lines.data[gap.to : HEAD])
        # At the oldest byte itself there is no gap.
        async with session.attach(Cursor(client.generation, oldest), repair=repair) as stream:
            reading = Reading(stream, oldest)
            await reading.until_exit()
        assert not reading.of(Gap)
        check_equal(reading.data, lines.data[oldest:HEAD])


@pytest.mark.parametrize("unknown", ["generation", "offset", "mark"])
async def test_a_cursor_from_elsewhere_is_foreign(agent: AgentProcess, lines: Material, unknown: str) -> None:
    """Of a generation that this VM never had, or ahead of what it has: told once, then all there is."""
    async with connect(agent.address) as client:
        session = await client.create(head_of(lines))
        await until_exited(session)
        assert client.generation is not None
        cursor = {
            "generation": Cursor(os.urandom(16), 1000, 0),
            "offset": Cursor(client.generation, HEAD + 1),
            "mark": Cursor(client.generation, 1000, 7),
        }[unknown]
        async with session.attach(cursor, repair="bytes") as stream:
            reading = Reading(stream)
            await reading.until_exit()
        assert reading.events[0] == Foreign(0)
        assert len(reading.of(Foreign)) == 1
        check_equal(reading.data, lines.data[:HEAD])


# --- streams that are cut for good ------------------------------------------------------------------
@contextlib.asynccontextmanager
async def executing(agent: AgentProcess, *options: str) -> Any:
    """`ptymux exec` of a program that never ends; `[status, stdout, stderr]` is filled when it is over."""
    done: list[Any] = []
    argv = ptymux_argv(agent.address, *options, "exec", "--", "sh", "-c", "echo begun; exec sleep 1000")

    async def run() -> None:
        result = await trio.run_process(
            argv,
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=clean_environment(),
        )
        done.extend((result.returncode, result.stdout, result.stderr.decode()))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            yield done


async def begun(client: Agent) -> Session:
    """The session of `executing`, once its program has begun and its client has all of that."""

    async def look() -> str | None:
        for row in await client.sessions():
            found = await stdout(client.session(row["id"]))
            if found["head"] and any(attach["lag"] <= found["head"] for attach in found["attaches"]):
                return str(row["id"])
        return None

    return client.session(await until(look, "the program to begin"))


async def test_exec_fails_when_its_session_is_removed(agent: AgentProcess) -> None:
    async with connect(agent.address) as client:
        async with executing(agent) as done:
            await (await begun(client)).remove(force=True)
        assert await client.sessions() == []
    assert done[0] == 255
    assert done[1] in (b"", b"begun\r\n")
    assert done[2] == "ptymux: the session was removed\n"


async def test_exec_fails_when_the_agent_is_stopped_for_good(tmp_path: Path) -> None:
    with running_agent(tmp_path) as agent:
        async with executing(agent, "--give-up", "1") as done:
            async with connect(agent.address) as client:
                await begun(client)
            await trio.to_thread.run_sync(agent.process.terminate)
    assert done[0] == 255
    assert done[2].startswith(f"ptymux: contact with {agent.address} was lost")
    assert done[2].count("\n") == 1


async def test_exec_fails_when_its_program_is_killed(agent: AgentProcess) -> None:
    """That is an end that was seen: 128 and the signal."""
    async with connect(agent.address) as client:
        async with executing(agent) as done:
            await (await begun(client)).kill()
        assert done == [128 + 9, b"begun\r\n", ""]


# --- hold -------------------------------------------------------------------------------------------
async def test_hold_waits_for_a_controller_and_then_demotes_it(tmp_path: Path, lines: Material) -> None:
    """case C21: one that takes nothing pauses the program for a while; then it goes on, and the one gets an exact gap."""
    with agent_with(tmp_path, demote_after=1) as agent:
        async with connect(agent.address) as witness, connect(agent.address) as client:
            session = await client.create(counter())
            seen = witness.session(session.id)
            async with session.attach(repair="bytes") as stream:
                paused = await until_stdout(seen, lambda found: found["paused"], "the program to be paused")
                since = trio.current_time()
                assert paused["head"] == HOLD_WINDOW
                assert not paused["attaches"][0]["demoted"]
                demoted = await until_stdout(seen, lambda found: found["attaches"][0]["demoted"], "the demotion")
                assert 0.8 < trio.current_time() - since < 5
                assert demoted["head"] >= HOLD_WINDOW
                assert (await witness.stats())["stalls"] == 1
                await until_stdout(seen, lambda found: found["head"] > 2 * DEFAULT_HISTORY, "the program to go on")
                # It reads again: what was on its way, a gap, and from there on every byte, waited for like before.
                reading = Reading(stream)
                await reading.until(lambda: reading.of(Gap))
                (gap,) = reading.of(Gap)
                assert gap.start == len(reading.data) == DEFAULT_WINDOW
                check_equal(reading.data, numbered_part(0, gap.start))
                reading.data.clear()
                await reading.until(lambda: len(reading.data) > 2 * DEFAULT_HISTORY)
                check_equal(reading.data, numbered_part(gap.to, reading.offset))
                assert len(reading.of(Gap)) == 1
                found = await until_stdout(seen, lambda found: found["paused"], "the program to wait again")
                assert not found["attaches"][0]["demoted"]


async def test_a_controller_that_makes_progress_is_waited_for(tmp_path: Path, lines: Material) -> None:
    """However slowly: nothing is lost, and the program is never further ahead than the window."""
    with agent_with(tmp_path, demote_after=1.5) as agent:
        async with connect(agent.address) as witness, connect(agent.address) as client:
            session = await client.create(head_of(lines, 8 * MIB))
            async with session.attach(repair="bytes") as stream:
                reading = Reading(stream)
                for _ in range(10):
                    taken = reading.offset + 128_000
                    await reading.until(lambda taken=taken: reading.offset >= taken)
                    found = await stdout(witness.session(session.id))
                    assert found["head"] <= reading.offset + HOLD_WINDOW
                    assert not found["attaches"][0]["demoted"]
                    await trio.sleep(0.2)
                await reading.until_exit()
            assert (await witness.stats())["stalls"] == 0
        assert reading.of(Gap) == []
        check_equal(reading.data, lines.data[: 8 * MIB])


@pytest.mark.parametrize("how", ["detaches", "is cut off"])
async def test_when_the_slow_one_leaves_the_healthy_one_resumes_at_once(tmp_path: Path, how: str) -> None:
    """case C22: the pause is recomputed when a reader goes, in whichever way it goes."""
    with agent_with(tmp_path, demote_after=600) as agent:
        async with (
            cutting_proxy(agent.path, tmp_path) as proxy,
            connect(agent.address) as healthy,
            connect(proxy.address) as slow,
            contextlib.AsyncExitStack() as leaving,
        ):
            session = await healthy.create(counter())
            await leaving.enter_async_context(slow.session(session.id).attach())
            async with session.attach() as stream:
                reading = Reading(stream)

                async def stuck() -> bool:
                    """Everything that there is was read, and no more comes."""
                    found = await stdout(session)
                    with trio.move_on_after(0.05):
                        await reading.until(lambda: reading.offset > found["head"])
                    return bool(found["paused"]) and reading.offset == (await stdout(session))["head"]

                await until(stuck, "the healthy one to be held up")
                if how == "detaches":
                    await leaving.aclose()
                else:
                    proxy.refuse = True
                    proxy.cut_all()
                with trio.fail_after(1):
                    goal = reading.offset + MIB
                    await reading.until(lambda: reading.offset > goal)
                check_equal(reading.data, numbered_part(0, reading.offset))


async def test_a_flood_that_nobody_takes_stops_nothing_else_on_its_connection(agent: AgentProcess) -> None:
    """case C23: that terminal is paused; the connection lives, and the others on it answer."""
    async with connect(agent.address) as client:
        flood, lively = await client.create(["yes"]), await client.create(ECHO)
        async with flood.attach(), lively.attach() as stream:
            reading = Reading(stream)
            await reading.until_text(READY)
            await until_stdout(flood, lambda found: found["paused"], "the flood to be paused")
            for number in range(50):
                with trio.fail_after(1):
                    await lively.send(b"%d\n" % number)
                    await reading.until_text(b"%d\n" % number)
                    assert len(await client.sessions()) == 2
        assert client.connections == 1


class Mute:
    """A client that attaches as much as it may and reads nothing at all, not even its welcome."""

    def __init__(self, agent: AgentProcess, *sessions: Session) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(agent.path)
        frames = [encode(Hello(MAGIC, list(VERSIONS), os.urandom(16), None, os.urandom(16)))]
        for channel, session in enumerate(sessions):
            params = {"session": session.id, "channel": channel, "window": MAX_WINDOW}
            frames.append(encode(Request(channel, "attach", params)))
        self.socket.sendall(b"".join(frames))


async def test_clients_that_read_nothing_do_not_wedge_the_others(agent: AgentProcess) -> None:
    """case C26: list, kill and attach answer within a second, with ten connections full to the brim."""
    async with connect(agent.address) as client:
        floods = [await client.create(["yes"], policy="overwrite") for _ in range(3)]
        held = await client.create(["yes"])
        mutes = [Mute(agent, *floods, held) for _ in range(10)]
        for flood in floods:  # far more than a socket takes: all ten are full
            await until_stdout(flood, lambda found: min(_lags(found), default=0) > 2 * MIB, "the sockets to be full")
        await until_stdout(held, lambda found: len(_lags(found)) == 10 and found["paused"], "the held one to be paused")
        for flood in [*floods, held]:
            with trio.fail_after(1):
                assert len(await client.sessions()) >= 1
            with trio.fail_after(1):
                async with flood.attach(view=True) as stream:
                    await Reading(stream).until_text(b"y\r\ny\r\n") if flood is held else None
            with trio.fail_after(1):
                await flood.kill()
        for flood in floods:
            assert (await until_exited(flood))["exit"]["signal"] == 9
        for mute in mutes:
            mute.socket.close()
        assert (await until_exited(held))["exit"]["signal"] == 9


def _lags(found: dict[str, Any]) -> list[int]:
    return [attach["lag"] for attach in found["attaches"]]


@pytest.mark.parametrize(("policy", "view"), [("hold", True), ("overwrite", False)])
async def test_who_may_not_slow_a_program_does_not(
    agent: AgentProcess, tmp_path: Path, lines: Material, policy: str, view: bool
) -> None:
    """A viewer anywhere, and anybody where the policy is `overwrite`: the program never waits; they are told what they missed.

    Meanwhile they are sent no more than they asked for, however often the history is overwritten.
    """
    size = 20 * DEFAULT_HISTORY
    async with (
        cutting_proxy(agent.path, tmp_path) as proxy,
        connect(proxy.address) as client,
        connect(agent.address) as witness,
    ):
        session = await client.create(head_of(lines, size), policy=policy)
        async with session.attach(view=view, repair="bytes") as stream:
            await until_exited(witness.session(session.id))
            assert (await witness.stats())["pauses"] == 0
            assert proxy.down < DEFAULT_WINDOW + 20_000
            reading = Reading(stream)
            await reading.until_exit()
    check_with_gaps(reading, lines.data[:size])
    assert len(reading.of(Gap)) == 1


def check_with_gaps(reading: Reading, written: bytes) -> None:
    """Every byte is there or in the range that a gap names."""
    data, position = bytes(reading.data), 0
    for gap in reading.of(Gap):
        check_equal(data[: gap.start - position], written[position : gap.start])
        data, position = data[gap.start - position :], gap.to
    check_equal(data, written[position:])


# --- block and overwrite ----------------------------------------------------------------------------
async def test_block_waits_for_its_holder_while_it_is_away(tmp_path: Path, lines: Material) -> None:
    """The program writes on until the history is full of what the holder has not got, waits, and nothing is lost."""
    with agent_with(tmp_path, demote_after=0.2) as agent:
        async with (
            cutting_proxy(agent.path, tmp_path) as proxy,
            connect(agent.address) as witness,
            connect(proxy.address) as holder,
        ):
            session = await holder.create(head_of(lines, 10 * MIB, "exit 8"), policy="block", history=MIB)
            async with session.attach(repair="bytes") as stream:
                reading = Reading(stream)
                for away in range(3):
                    goal = (2 * away + 1) * MIB
                    await reading.until(lambda goal=goal: reading.offset > goal)
                    proxy.refuse = True
                    proxy.cut_all()
                    await until(lambda: not holder.up, "the holder to be away")
                    seen = witness.session(session.id)
                    full = await until_stdout(seen, lambda found: found["paused"], "the history to be full")
                    assert full["attaches"] == []
                    assert full["head"] - full["oldest"] == MIB
                    assert full["oldest"] <= stream.cursor.offset if stream.cursor else False
                    async with seen.attach(view=True) as other:  # who else comes and goes changes nothing
                        await Reading(other, full["oldest"]).next()
                    await trio.sleep(0.7)  # longer than a controller that is there would be waited for
                    assert await stdout(seen) == full
                    proxy.refuse = False
                await reading.until_exit()
            assert reading.exit is not None
            assert reading.exit.code == 8
            assert reading.of(Gap) == []
            check_equal(reading.data, lines.data[: 10 * MIB])


async def test_block_waits_no_longer_than_its_lease(tmp_path: Path, lines: Material) -> None:
    """A holder that does not come back delays the program for `block_lease`; should it come later, it is told what it missed."""
    with agent_with(tmp_path, block_lease=1) as agent:
        async with (
            cutting_proxy(agent.path, tmp_path) as proxy,
            connect(agent.address) as witness,
            connect(proxy.address) as holder,
        ):
            session = await holder.create(head_of(lines, 10 * MIB), policy="block", history=MIB)
            async with session.attach(repair="bytes") as stream:
                proxy.refuse = True
                proxy.cut_all()
                await until(lambda: not holder.up, "the holder to be away")
                seen = witness.session(session.id)
                await until_stdout(seen, lambda found: found["paused"], "the program to wait")
                await until_exited(seen)
                proxy.refuse = False
                reading = Reading(stream)
                await reading.until_exit()
            check_with_gaps(reading, lines.data[: 10 * MIB])
            assert reading.of(Gap)


async def test_a_program_runs_on_while_nobody_is_attached(agent: AgentProcess, tmp_path: Path, lines: Material) -> None:
    """case C29: nobody was ever there, or the last one was cut off; ten histories' worth of output later it ends by itself."""
    size = 10 * DEFAULT_HISTORY
    async with (
        cutting_proxy(agent.path, tmp_path) as proxy,
        connect(agent.address) as witness,
        connect(proxy.address) as client,
    ):
        # `alone` waits for nobody, `left` for a key.
        alone = await client.create(head_of(lines, size, "exit 11"))
        left = await client.create(
            ["sh", "-c", f"stty raw -echo; echo ready; read go; head -c {size} {lines.path}; exit 12"]
        )
        async with left.attach() as stream:
            await Reading(stream).until_text(READY)
            await left.send(b"\n")
            proxy.refuse = True
            proxy.cut_all()
            for session, code, before in ((alone, 11, b""), (left, 12, READY)):
                seen = witness.session(session.id)
                row = await until_exited(seen)
                assert (row["exit"]["code"], row["offset"]) == (code, len(before) + size)
                async with seen.attach(repair="bytes") as late:
                    reading = Reading(late)
                    await reading.until_exit()
                check_with_gaps(reading, before + lines.data[:size])
                assert len(reading.data) == DEFAULT_HISTORY
