"""How sessions end: every byte before `exit`, exit and the end of output as two facts, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from guestagent import cgroups
from ptymux import connect
from ptymux.client import Agent, Session
from ptymux.errors import AttachEnded, InputRefused, RequestFailed
from ptymux.events import Exit, Marked
from tests.e2e.data import Material, check_equal, random_bytes
from tests.e2e.sessions import (
    WITHOUT_CGROUPS,
    Gate,
    alive,
    children_of,
    command,
    configured_agent,
    descendants,
    ended,
    eventually,
    following,
    foreground,
    gone,
    histories,
    open_files,
    output_of,
    state,
    stream_is,
    terminals,
)
from tests.harness import PATIENCE, AgentProcess, ptymux, until, wait_for


# --- C1, C2, C3: every byte comes before exit -----------------------------------------------------------------
@pytest.fixture(scope="module")
def tail(tmp_path_factory: pytest.TempPathFactory) -> Material:
    """What is left in the kernel when its writer exits is only the end of this."""
    return Material.write(tmp_path_factory.mktemp("tail") / "tail", random_bytes(300_000, seed=11))


async def check_run(agent: Agent, tail: Material, number: int, **arguments: Any) -> None:
    """One program that writes and exits at once, attached to before, during or after its end."""
    session = await agent.create(
        tail.printing("raw", number % 256)
        if arguments.get("tty", True)
        else ["sh", "-c", f"cat {tail.path}; exit {number % 256}"],
        **arguments,
    )
    if number % 3 == 2:
        await ended(session)
    async with following(session) as stream:
        end = await stream.to_exit()
        check_equal(stream.data, tail.data)
        assert (end.code, end.offset, end.output_closed) == (number % 256, len(tail.data), True)
        assert await stream.to_end() == tail.data
    await session.remove()


async def test_c2_output_of_an_ended_program_is_still_there(agent: AgentProcess, tail: Material) -> None:
    """Case C2: whoever looks after the end sees it all, as often as it likes."""
    async with connect(agent.address) as client:
        session = await client.create(tail.printing("raw"))
        row = await ended(session)
        assert (row["exit"]["code"], row["offset"]) == (0, len(tail.data))
        for _ in range(3):
            async with following(session) as stream:
                assert await stream.to_end() == tail.data
        assert ptymux(agent.address, "read", session.id).stdout == tail.data


async def test_c3_nothing_follows_an_exit_that_closed_the_output(agent: AgentProcess) -> None:
    """Case C3: the exit is the last event, at the offset where the output ends."""
    async with connect(agent.address) as client:
        session = await client.create(["sh", "-c", "printf 12345"])
        async with following(session) as stream:
            await stream.to_end()
        assert [type(event) for event in stream.events[-1:]] == [Exit]
        assert stream.events[-1].offset == 5


# --- C4: EIO -----------------------------------------------------------------------------------------------------
async def test_c4_a_program_that_closes_its_terminal_lives_on(agent: AgentProcess, tmp_path: Path) -> None:
    """Case C4: EIO is no end while the program lives; it may open /dev/tty again."""
    gate = Gate(tmp_path / "gate")
    script = f"echo one; exec <&- >&- 2>&-; {gate.wait}; exec >/dev/tty; echo two; exit 3"
    async with connect(agent.address) as client:
        session = await client.create(["bash", "-c", script])
        async with following(session) as stream:
            await stream.until(b"one\r\n")
            await stream_is(session, state="silent")
            assert (await session.inspect())["state"] == "running"
            await gate.open()
            end = await stream.to_exit()
            assert (bytes(stream.data), end.code, end.output_closed) == (b"one\r\ntwo\r\n", 3, True)


async def test_c4_a_program_that_closes_its_terminal_and_ends(agent: AgentProcess, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    async with connect(agent.address) as client:
        session = await client.create(["bash", "-c", f"echo one; exec <&- >&- 2>&-; {gate.wait}; exit 4"])
        async with following(session) as stream:
            await stream_is(session, state="silent")
            await gate.open()
            end = await stream.to_exit()
            assert (bytes(stream.data), end.code, end.offset, end.output_closed) == (b"one\r\n", 4, 5, True)


async def test_c4_reopened_and_flooding_a_reader_that_lags(tmp_path: Path) -> None:
    """A terminal that was silent is found open while its reader has no room: it is read when there is room, and the server does
    not spin meanwhile."""
    gate = Gate(tmp_path / "gate")
    window = 65536
    first, size = window - 1000, 3 * window
    script = (
        f"stty raw; head -c {first} /dev/zero; exec <&- >&- 2>&-; {gate.wait}; exec >/dev/tty; head -c {size} /dev/zero"
    )
    with configured_agent(tmp_path, f"[limits]\nhold_window = {window}\ndemote_after = 60.0\n") as agent:
        async with connect(agent.address) as client:
            session = await client.create(["bash", "-c", script])
            async with following(session, window=window) as stream:
                await stream_is(session, state="silent")
                await gate.open()
                await stream_is(session, paused=True)
                ticks = (await client.stats())["ticks"]
                await trio.sleep(1.0)  # what is looked at is that nothing happens
                assert (await client.stats())["ticks"] - ticks < 100
                await stream.to_end()
                assert len(stream.data) == first + size


async def test_c4_exit_while_the_reader_lags(tmp_path: Path) -> None:
    """The program ends while its output is paused: what the kernel holds is read when there is room, then `exit` is said."""
    window = 65536
    data = random_bytes(window + 3000, seed=5)  # the last 3,000 stay in the kernel
    file = Material.write(tmp_path / "data", data)
    with configured_agent(tmp_path, f"[limits]\nhold_window = {window}\ndemote_after = 60.0\n") as agent:
        async with connect(agent.address) as client:
            session = await client.create(["bash", "-c", "read go; stty raw; cat " + str(file.path)])
            async with following(session, window=window) as stream:
                await session.send(b"\n")
                row = await eventually(session.inspect, lambda row: row["ended"], "its end")
                assert row["state"] == "running"  # `exit` is not said before the last byte
                assert row["streams"]["stdout"]["paused"]
                end = await stream.to_exit()
                check_equal(stream.data[-len(data) :], data)
                assert (end.code, end.offset, end.output_closed) == (0, len(stream.data), True)


# --- C5: exit and the end of output are two facts --------------------------------------------------------------------
async def test_c5_a_job_in_the_background(agent: AgentProcess) -> None:
    """Case C5: the hang-up that goes with the end of the first process takes the job with it."""
    async with connect(agent.address) as client:
        session = await client.create(["sh", "-c", "sleep 1000 & echo done"])
        async with following(session) as stream:
            start = time.monotonic()
            end = await stream.to_exit()
            assert time.monotonic() - start < 5
            assert (bytes(stream.data), end.code) == (b"done\r\n", 0)
            await stream.to_end()


@pytest.mark.parametrize("tty", [True, False], ids=["terminal", "pipes"])
async def test_c5_a_job_that_keeps_the_output_open(agent: AgentProcess, tmp_path: Path, tty: bool) -> None:
    """`exit` comes promptly and says so; what the job writes still arrives; the end of output is a mark of its own."""
    gate, second = Gate(tmp_path / "gate"), Gate(tmp_path / "second")
    newline = b"\r\n" if tty else b"\n"
    async with connect(agent.address) as client:
        script = f"trap '' HUP; ({gate.wait}; echo late; {second.wait}) & echo done; exit 6"
        session = await client.create(["bash", "-c", script], tty=tty)
        async with following(session) as stream:
            await stream.until(b"done" + newline)
            start = time.monotonic()
            end = await stream.to_exit()
            assert time.monotonic() - start < 5
            assert (end.code, end.offset, end.output_closed) == (6, 4 + len(newline), False)
            row = await session.inspect()
            assert (row["state"], row["streams"]["stdout"]["state"]) == ("exited", "open")
            with pytest.raises(InputRefused) as caught:
                await session.send(b"too late\n")
            assert caught.value.code == "exited"
            await gate.open()
            await stream.until(b"late" + newline)
            await second.open()
            closed = await stream.event(Marked)
            assert (closed.kind, closed.offset) == ("output_closed", len(stream.data))
            assert await stream.to_end() == b"done" + newline + b"late" + newline
        async with following(session) as again:
            assert await again.to_end() == bytes(stream.data)
            assert [type(event).__name__ for event in again.events] == ["Exit", "ReplayEnd", "Marked"]


async def test_c5_several_readers_and_the_next_server_see_the_same(agent: AgentProcess, tmp_path: Path) -> None:
    """A server that is killed after `exit` and before the end of output says each of them once."""
    gate = Gate(tmp_path / "gate")
    async with connect(agent.address, wait=PATIENCE) as client:
        session = await client.create(["bash", "-c", f"trap '' HUP; ({gate.wait}; echo late) & echo done"], tty=False)
        async with following(session) as stream, following(session, stream="stderr") as errors:
            await stream.to_exit()
            await errors.to_exit()
            agent.kill_server()
            await gate.open()
            assert await stream.to_end() == b"done\nlate\n"
            assert await errors.to_end() == b""
            for each in (stream, errors):
                marks = [event for event in each.events if isinstance(event, (Exit, Marked))]
                assert [getattr(mark, "kind", "exit") for mark in marks] == ["exit", "output_closed"]


# --- C6, C8: descriptors --------------------------------------------------------------------------------------------
async def test_c6_ended_sessions_keep_only_their_data(agent: AgentProcess) -> None:
    """Case C6: no terminal and no pipe stays open, in either process; after removal nothing at all."""
    pids = (agent.keeper_pid, agent.server_pid())
    async with connect(agent.address) as client:
        before = [open_files(pid) for pid in pids]
        sessions = [await client.create(["echo", "x"], tty=number % 2 == 0) for number in range(20)]
        for session in sessions:
            await ended(session)
        for pid in pids:
            wait_for(lambda pid=pid: terminals(pid) == 0, "the terminals to be closed")
            wait_for(lambda pid=pid: sum("pipe:" in name for name in open_files(pid)) == 0, "the pipes to be closed")
            assert histories(pid) == 30  # one for a terminal, two for pipes
        for session in sessions:
            async with following(session) as stream:
                assert (await stream.to_end()).split() == [b"x"]
            await session.remove()
        for pid, files in zip(pids, before, strict=True):
            wait_for(lambda pid=pid, files=files: open_files(pid) == files, "everything to be closed")


async def test_c6_a_start_that_fails_leaves_nothing_open(agent: AgentProcess) -> None:
    pids = (agent.keeper_pid, agent.server_pid())
    async with connect(agent.address) as client:
        before = [open_files(pid) for pid in pids]
        for number in range(10):
            for argv, cwd in ((["/nonexistent"], None), (["sh"], "/nonexistent"), (["nothing-of-that-name"], None)):
                with pytest.raises(RequestFailed):
                    await client.create(argv, cwd=cwd, tty=number % 2 == 0)
        for pid, files in zip(pids, before, strict=True):
            wait_for(lambda pid=pid, files=files: open_files(pid) == files, "everything to be closed")
        wait_for(lambda: set(children_of(agent.keeper_pid)) == {agent.server_pid()}, "the failed children to be reaped")
        group = agent.cgroup()
        if group is not None:
            wait_for(lambda: not any(entry.is_dir() for entry in os.scandir(group)), "their cgroups to be gone")


@pytest.mark.parametrize("tty", [True, False], ids=["terminal", "pipes"])
async def test_c8_a_program_has_its_three_descriptors_and_no_other(
    agent: AgentProcess, tmp_path: Path, tty: bool
) -> None:
    """Case C8: no master, no socket, no other session's terminal is inherited."""
    async with connect(agent.address) as client:
        others = [await client.create(["sleep", "1000"], tty=number % 2 == 0) for number in range(4)]
        lines = (await output_of(client, "ls", "-l", "/proc/self/fd", tty=tty)).decode().splitlines()
        found = {line.split()[-3]: line.split()[-1] for line in lines if " -> " in line}
        folder = found.pop("3")  # which `ls` itself has open
        assert folder.startswith("/proc/")
        assert sorted(found) == ["0", "1", "2"]
        kinds = {target.split(":")[0].rstrip("0123456789") for target in found.values()}
        assert kinds == {"/dev/pts/" if tty else "pipe"}
        for session in others:
            await session.remove(force=True)


# --- C7: zombies ---------------------------------------------------------------------------------------------------
async def test_c7_every_child_and_orphan_is_reaped(agent: AgentProcess) -> None:
    """Case C7: an end is a wait status, and no zombie stays, neither of a session nor of what it left behind."""
    async with connect(agent.address) as client:
        for number in range(10):
            session = await client.create(["sh", "-c", f"(setsid sh -c 'exit 1' &); exit {number}"])
            assert (await ended(session))["exit"]["code"] == number
        wait_for(lambda: set(children_of(agent.keeper_pid)) == {agent.server_pid()}, "everybody to be reaped")


async def test_c7_a_zombie_inside_a_session_is_the_sessions_business(agent: AgentProcess) -> None:
    code = "import os, time\nif os.fork() == 0: os._exit(0)\nprint('up', flush=True); time.sleep(1000)"
    async with connect(agent.address) as client:
        session = await client.create([sys.executable, "-c", code])
        async with following(session) as stream:
            await stream.until(b"up")
            pid = (await session.inspect())["pid"]
            wait_for(lambda: "Z" in children_of(pid).values(), "the zombie")
            assert (await session.inspect())["state"] == "running"
            await session.kill()
            assert (await stream.to_exit()).signal == signal.SIGKILL
        wait_for(lambda: set(children_of(agent.keeper_pid)) == {agent.server_pid()}, "both to be reaped")


async def test_c7_a_stopped_program_has_not_ended(agent: AgentProcess) -> None:
    async with connect(agent.address) as client:
        session = await client.create(["sleep", "1000"])
        await session.signal("STOP")
        pid = (await session.inspect())["pid"]
        wait_for(lambda: state(pid) == "T", "it to stop")
        assert (await session.inspect())["state"] == "running"
        await session.signal("TERM")
        await session.signal("CONT")
        assert (await ended(session))["exit"]["signal"] == signal.SIGTERM


# --- C9: kill leaves nobody -----------------------------------------------------------------------------------------
# A family: each child says who it is in a file of its own and sleeps.
FAMILY = """
import os, signal, sys, time
folder, kinds = sys.argv[1], sys.argv[2].split(",")
def child(kind):
    if os.fork():
        return
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if kind == "group":
        os.setpgid(0, 0)
    if kind in ("setsid", "daemon"):
        os.setsid()
    if kind == "daemon" and os.fork():
        os._exit(0)
    if kind == "daemon":
        for fd in range(3):
            os.close(fd)
    path = f"{folder}/{kind}"
    open(path + ".new", "w").write(str(os.getpid()))
    os.rename(path + ".new", path)
    time.sleep(1000)
for kind in kinds:
    child(kind)
print("up", flush=True)
time.sleep(1000)
"""
KINDS = ("nohup", "group", "setsid", "daemon")


async def start_family(client: Agent, folder: Path, kinds: tuple[str, ...]) -> tuple[Session, dict[str, int]]:
    session = await client.create([sys.executable, "-c", FAMILY, str(folder), ",".join(kinds)])
    await until(lambda: all((folder / kind).exists() for kind in kinds), "the family to be there")
    return session, {kind: int((folder / kind).read_text()) for kind in kinds}


@pytest.fixture
def with_cgroups() -> None:
    if not cgroups.mount_points():
        pytest.skip("cgroup v2 is not mounted")


@pytest.mark.usefixtures("with_cgroups")
@pytest.mark.parametrize("how", ["kill", "remove", "remove after exit", "stop"])
async def test_c9_nobody_survives(tmp_path: Path, how: str) -> None:
    """Case C9: in sessions of their own, orphaned, without the terminal, deaf to signals: a session's cgroup has them all."""
    with configured_agent(tmp_path, "") as agent:
        async with connect(agent.address) as client:
            session, family = await start_family(client, tmp_path, KINDS)
            group = (await session.inspect())["cgroup"]
            assert set(family.values()) < set(cgroups.processes(group))
            if how == "kill":
                await session.kill()
                assert (await ended(session))["exit"]["signal"] == signal.SIGKILL
            elif how == "remove":
                with pytest.raises(RequestFailed, match="still running"):
                    await session.remove()
                await session.remove(force=True)
            elif how == "remove after exit":
                os.kill((await session.inspect())["pid"], signal.SIGKILL)
                await ended(session)
                assert all(map(alive, family.values()))
                await session.remove(force=True)
        if how == "stop":
            agent.stop()
        await until(lambda: not any(map(alive, family.values())), "the family to be gone")
        if how.startswith("remove"):
            await until(lambda: not os.path.exists(group), "its cgroup to be gone")
            assert set(children_of(agent.keeper_pid)) == {agent.server_pid()}


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_c9_without_cgroups_the_process_session_goes(tmp_path: Path, how: str) -> None:
    """What the fallback reaches: background jobs and those that ignore hang-ups.  It says that it is one."""
    with configured_agent(tmp_path, "", before=WITHOUT_CGROUPS) as agent:
        escaped: list[int] = []
        try:
            async with connect(agent.address) as client:
                info = await client.info()
                assert (info["cgroups"], info["no_cgroups"]) == (None, "cgroup v2 is not mounted")
                session, family = await start_family(client, tmp_path, KINDS)
                escaped = [family["setsid"], family["daemon"]]
                if how == "kill":
                    await session.kill()
                    assert (await ended(session))["exit"]["signal"] == signal.SIGKILL
            if how == "stop":
                agent.stop()
            await until(lambda: not alive(family["nohup"]) and not alive(family["group"]), "them to be gone")
        finally:
            for pid in escaped:
                os.kill(pid, signal.SIGKILL)
            await until(lambda: not any(map(alive, escaped)), "those that escaped to end")


async def test_c9_a_fork_bomb(tmp_path: Path, agent: AgentProcess) -> None:
    """What forks all the time is killed all the same."""
    code = "import os, time\nwhile True:\n    if os.fork() == 0: os.setsid()\n    else: time.sleep(0.02)"
    async with connect(agent.address) as client:
        session = await client.create([sys.executable, "-c", code], tty=False)
        group = (await session.inspect())["cgroup"]
        if group is None:
            await session.remove(force=True)
            pytest.skip("without cgroups nothing can be promised")
        await until(lambda: len(cgroups.processes(group)) > 20, "some of them")
        await session.kill()
        await ended(session)
        await until(lambda: not cgroups.processes(group), "all to be gone")
        wait_for(lambda: set(children_of(agent.keeper_pid)) == {agent.server_pid()}, "all to be reaped")


# --- C10: a stuck session harms nothing else ----------------------------------------------------------------------------
@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


async def type_for_ever(session: Session) -> None:
    """More than the kernel takes; the kill at the end gives the rest back."""
    with pytest.raises(InputRefused):
        await session.send(bytes(200_000))


async def test_c10_stuck_sessions_harm_nothing_else(agent: AgentProcess) -> None:
    """Case C10 (and C26): one that does not read its input, one that nobody reads, one that is stopped, one that floods."""
    async with connect(agent.address) as client, connect(agent.address) as stuck, trio.open_nursery() as nursery:
        deaf = await stuck.create(["sh", "-c", "stty raw -echo; echo up; exec sleep 1000"])
        async with following(deaf, view=True) as stream:
            await stream.until(b"up")
        nursery.start_soon(type_for_ever, deaf)
        unread = await stuck.create(["yes"])
        stopped = await stuck.create(["cat"])
        await stopped.signal("STOP")
        await stopped.send(b"is anybody there?\n")
        flood = await stuck.create(["sh", "-c", "trap '' INT QUIT TERM HUP; exec yes"], policy="overwrite")
        async with unread.attach() as held, flood.attach(view=True):
            await stream_is(unread, paused=True)
            session = await client.create(["cat"])
            async with following(session) as echo:
                for number in range(20):
                    with within(1.0):
                        await session.send(b"%d\n" % number)
                        await echo.until(b"%d\r\n" % number, count=1)
                with within(1.0):
                    assert len(await client.sessions()) == 5
                with within(1.0):
                    await client.session(unread.id).inspect()
                for each in (deaf, unread, stopped, flood):
                    with within(2.0):
                        await client.session(each.id).kill()
                    with within(2.0):  # `exit` is said once the readers have the rest of the output, or are given up
                        await eventually(client.session(each.id).inspect, lambda row: row["ended"], "its end")
            assert held.exit is None  # nobody has read so far
        nursery.cancel_scope.cancel()


# --- C11: signal dispositions ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("tty", [True, False], ids=["terminal", "pipes"])
async def test_c11_signals_are_at_their_defaults(agent: AgentProcess, tty: bool) -> None:
    """Case C11: `yes | head` ends quietly, because nothing is ignored or blocked."""
    async with connect(agent.address) as client:
        script = "yes | head -n 1; echo ${PIPESTATUS[0]}"
        assert await output_of(client, "bash", "-c", script, tty=tty) == b"y\n141\n"
        masks = await output_of(client, "grep", "-E", "^Sig(Ign|Blk):", "/proc/self/status", tty=tty)
        assert signals_in(masks) == [0, 0]


def signals_in(masks: bytes) -> list[int]:
    """The masks in lines of /proc/PID/status, without the two signals that the C library keeps for itself.

    It lets nobody set them, and leaves them ignored in what make starts.
    """
    return [int(line.split()[1], 16) & ~(0b11 << 31) for line in masks.splitlines()]


async def test_c11_also_where_the_agent_was_started_with_signals_ignored(tmp_path: Path) -> None:
    """As under nohup, or by a service manager that blocks some."""
    before = ("sh", "-c", "trap '' HUP PIPE QUIT USR1; exec \"$@\"", "sh")
    with configured_agent(tmp_path, "", before=before) as agent:
        async with connect(agent.address) as client:
            masks = await output_of(client, "grep", "-E", "^Sig(Ign|Blk):", "/proc/self/status")
            assert signals_in(masks) == [0, 0]


# --- what exit says ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "PIPE", "HUP"])
async def test_the_end_by_a_signal(agent: AgentProcess, name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    done = ptymux(agent.address, "exec", "--", "sh", "-c", f"echo last; ulimit -c 0; kill -{name} $$")
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, b"last\r\n", b"")
    async with connect(agent.address) as client:
        session = await client.create(["sh", "-c", f"ulimit -c 0; kill -{name} $$"])
        async with following(session) as stream:
            end = await stream.to_exit()
            assert (end.code, end.signal, end.status) == (None, number, 128 + number)
            assert end.data["core"] is False
            assert "by" not in end.data  # it was not one of us


async def test_who_sent_the_signal(agent: AgentProcess) -> None:
    """Case C51: a 143 has its cause in the record, where we know it."""
    async with connect(agent.address) as client:
        session = await client.create(["sleep", "1000"])
        async with following(session) as stream:
            await session.signal("TERM")
            by = (await stream.to_exit()).data["by"]
            assert (by["signal"], by["client"]) == (15, client.client_id.hex())
        killed = await client.create(["sleep", "1000"])
        async with following(killed) as stream:
            await killed.kill()
            assert (await stream.to_exit()).data["by"]["client"] == client.client_id.hex()
        survivor = await client.create(
            ["sh", "-c", "trap 'kill -INT $$' TERM; trap - INT; echo up; while :; do sleep 0.05; done"]
        )
        async with following(survivor) as stream:
            await stream.until(b"up")
            await survivor.signal("TERM")
            end = await stream.to_exit()
            assert end.signal == signal.SIGINT
            assert "by" not in end.data  # ours was another signal


async def test_exit_statuses(agent: AgentProcess) -> None:
    async with connect(agent.address) as client:
        for code in (0, 1, 127, 255):
            session = await client.create(["sh", "-c", f"exit {code}"])
            async with following(session) as stream:
                end = await stream.to_exit()
            assert (end.code, end.signal, end.status) == (code, None, code)
            row = await session.inspect()
            assert row["exit"]["ended"] == row["ended"]
            assert row["started"] <= row["ended"] <= time.time()


# --- signals -----------------------------------------------------------------------------------------------------------
async def test_a_signal_goes_to_the_foreground_or_to_everybody(agent: AgentProcess) -> None:
    script = "set -m; sleep 1000 & echo bg=$!; sleep 1001; echo status=$?; wait; echo over"
    async with connect(agent.address) as client:
        session = await client.create(["bash", "-c", script])
        async with following(session) as stream:
            data = await stream.until(b"\r\n")
            background = int(data.split(b"=")[1])
            leader = (await session.inspect())["pid"]
            await until(lambda: command(foreground(leader)) == "sleep 1001", "it to have the terminal")
            await session.signal("TERM")
            await stream.until(b"status=143\r\n")
            assert alive(background)
            assert alive(leader)
            done = ptymux(agent.address, "signal", session.id, "SIGTERM", "--all")
            assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
            assert (await stream.to_exit()).signal == signal.SIGTERM
            assert not alive(background)
            with pytest.raises(RequestFailed) as caught:
                await session.signal("TERM")
            assert caught.value.code == "exited"


async def test_a_signal_to_pipes_goes_to_the_programs_group(agent: AgentProcess) -> None:
    async with connect(agent.address) as client:
        session = await client.create(["sh", "-c", "echo up; sleep 1000; echo over"], tty=False)
        leader = (await session.inspect())["pid"]
        await until(lambda: "sleep 1000" in map(command, descendants(leader)), "both to run")
        await session.signal("INT")
        assert (await ended(session))["exit"]["signal"] == signal.SIGINT
        assert (await session.inspect())["offset"] == len(b"up\n")


@pytest.mark.parametrize("value", ["NOPE", "SIG", "", 0, 65, -1, 1.5, None, ["TERM"], "x" * 300_000])
async def test_signals_that_are_none(agent: AgentProcess, value: Any) -> None:
    """The answer is short however long the question, and the agent goes on."""
    async with connect(agent.address) as client:
        session = await client.create(["sleep", "1000"])
        for _ in range(2):
            with pytest.raises(RequestFailed) as caught:
                await session.signal(value)
            assert caught.value.code == "bad_params"
            assert len(caught.value.message) < 200
        assert (await session.inspect())["state"] == "running"


# --- what is kept of an ended session -------------------------------------------------------------------------------------
async def test_retention(tmp_path: Path) -> None:
    """Ended sessions can be read for a while; then they are gone, and whoever was still attached is told."""
    with configured_agent(tmp_path, "[limits]\nretention = 1.0\n") as agent:
        async with connect(agent.address) as client:
            session = await client.create(["echo", "kept"])
            lives = await client.create(["sleep", "1000"])
            row = await ended(session)
            async with following(session) as late:
                assert await late.to_end() == b"kept\r\n"
            async with following(session) as waiting:
                await waiting.to_exit()
                await gone(client, session.id)
            assert time.time() - row["ended"] >= 1.0
            assert [found["id"] for found in await client.sessions()] == [lives.id]
            with pytest.raises(RequestFailed) as caught:
                await session.inspect()
            assert caught.value.code == "not_found"
            for pid in (agent.keeper_pid, agent.server_pid()):
                wait_for(lambda pid=pid: histories(pid) == 1, "the history to be freed")


async def test_retention_counts_from_the_end_of_output(tmp_path: Path) -> None:
    """What a job writes long after the program's end can be read for as long as anything else."""
    gate = Gate(tmp_path / "gate")
    with configured_agent(tmp_path, "[limits]\nretention = 1.0\n") as agent:
        async with connect(agent.address) as client:
            script = f"trap '' HUP; ({gate.wait}; echo late) & echo done"
            session = await client.create(["bash", "-c", script])
            row = await ended(session)
            await until(lambda: time.time() > row["ended"] + 1.2, "retention to have passed")
            await gate.open()
            await stream_is(session, state="closed")
            async with following(session) as stream:
                assert await stream.to_end() == b"done\r\nlate\r\n"
            await gone(client, session.id)


async def test_removed_under_a_reader(agent: AgentProcess) -> None:
    """A stream that is cut short is an error, never an end."""
    async with connect(agent.address) as client:
        session = await client.create(["sh", "-c", "echo up; exec sleep 1000"])
        async with following(session) as stream:
            await stream.until(b"up\r\n")
            await session.remove(force=True)
            with pytest.raises(AttachEnded) as caught:
                await stream.to_end()
            assert caught.value.code == "removed"
        with pytest.raises(RequestFailed) as refused:
            async with following(session):
                pass
        assert refused.value.code == "not_found"


async def test_output_after_everything_was_read_is_not_made_up(agent: AgentProcess) -> None:
    """Attaching again and again to an ended session gives the same bytes and marks."""
    async with connect(agent.address) as client:
        session = await client.create(["sh", "-c", "echo a; echo b; exit 2"])
        await ended(session)
        seen = []
        for _ in range(3):
            async with following(session) as stream:
                await stream.to_end()
            seen.append((bytes(stream.data), [event for event in stream.events if isinstance(event, Exit)]))
        assert seen[0] == seen[1] == seen[2]
