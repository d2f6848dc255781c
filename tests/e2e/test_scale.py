"""A thousand sessions, no descriptors left, little memory, a quick start: what there is much or little of."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from guestagent.keeper_link import FILES_KEPT
from ptymux import connect, limits
from ptymux.client import Agent, Session
from ptymux.errors import RequestFailed
from tests.e2e.raw import RawClient
from tests.e2e.sessions import (
    children_of,
    configured_agent,
    ended,
    eventually,
    following,
    gone,
    histories,
    open_files,
    terminals,
)
from tests.harness import AgentProcess, clean_environment, cutting_proxy, ptymux, running_agent, until, wait_for

RSS_TOGETHER = 45_000_000  # bytes of keeper and server that do nothing
RSS_A_SESSION = 100_000  # and of both for one more idle session
READY_RATIO = 20  # of the time that Python takes to do nothing


async def at_once(limit: int, calls: Sequence[Callable[[], Awaitable[object]]]) -> None:
    """All of them, so many at a time."""
    limiter = trio.CapacityLimiter(limit)

    async def run(call: Callable[[], Awaitable[object]]) -> None:
        async with limiter:
            await call()

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(run, call)


class Holdings:
    """What an agent's processes hold."""

    def __init__(self, agent: AgentProcess) -> None:
        self.pids = (agent.keeper_pid, agent.server_pid())
        self.files = [open_files(pid) for pid in self.pids]
        self.children = set(children_of(agent.keeper_pid))
        group = agent.cgroup()
        self.groups = [] if group is None else [entry.name for entry in os.scandir(group) if entry.is_dir()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Holdings) and vars(self) == vars(other)

    def __hash__(self) -> int:
        raise TypeError


# --- a thousand sessions -------------------------------------------------------------------------------------
@pytest.mark.slow
async def test_a_thousand_sessions_leave_nothing(agent: AgentProcess) -> None:
    """No descriptor, process, cgroup or memory file; and while they are there, everything else is quick."""
    count = 1000
    sessions: list[Session] = []
    async with connect(agent.address) as client, connect(agent.address) as other:
        await client.info()
        before = Holdings(agent)

        async def create() -> None:
            sessions.append(await client.create(["sleep", "100000"]))

        await at_once(16, [create] * count)
        now = Holdings(agent)
        for pid, files, fewer in zip(now.pids, now.files, before.files, strict=True):
            assert len(files) - len(fewer) == 2 * count  # a terminal and a history each
            assert (terminals(pid), histories(pid)) == (count, count)
        assert len(now.children - before.children) == count
        start = time.monotonic()
        rows = await other.sessions()
        assert time.monotonic() - start < 1.0
        assert sorted(row["id"] for row in rows) == sorted(session.id for session in sessions)
        answers: list[int] = []

        async def look() -> None:
            answers.append(len(await client.sessions()))

        await at_once(64, [look] * 64)  # far more in answers than a connection may leave unread
        assert answers == [count] * 64
        assert (client.connections, other.connections) == (1, 1)

        agent.kill_server()  # the next one gets them all back
        await until(lambda: client.connections == 2, "the next server")
        assert len(await client.sessions()) == count
        assert sum(row["state"] == "running" for row in await other.sessions()) == count

        await at_once(16, [session.kill for session in sessions])
        await eventually(
            client.sessions, lambda rows: all(row["state"] == "exited" for row in rows), "all of them to end"
        )
        server = agent.server_pid()
        for pid in (agent.keeper_pid, server):
            wait_for(lambda pid=pid: terminals(pid) == 0, "the terminals to be closed")
        await at_once(16, [session.remove for session in sessions])
        assert await client.sessions() == []
        before.pids = (agent.keeper_pid, server)
        before.children = {server}
        wait_for(lambda: Holdings(agent) == before, "everything to be closed")


@pytest.mark.slow
async def test_the_same_number_over_and_over(tmp_path: Path) -> None:
    """Removed by force at once: nothing adds up."""
    with configured_agent(tmp_path, "[limits]\nmax_sessions = 20\n") as agent:
        async with connect(agent.address) as client:
            await client.info()
            before = Holdings(agent)

            async def one() -> None:
                session = await client.create(["sh", "-c", "sleep 1000 & echo $!"], tty=False)
                async with following(session) as stream:
                    await stream.until(b"\n")
                await session.remove(force=True)

            await at_once(10, [one] * 200)
            wait_for(lambda: Holdings(agent) == before, "everything to be closed")


# --- descriptors run out -----------------------------------------------------------------------------------------
FEW_FILES = ("sh", "-c", 'ulimit -n 96 && exec "$@"', "sh")


@asynccontextmanager
async def full_agent(folder: Path) -> AsyncGenerator[tuple[AgentProcess, Agent, list[Session], RequestFailed]]:
    """An agent that can take no more sessions, and what it said to the one too many."""
    with running_agent(folder, before=FEW_FILES) as agent:
        async with connect(agent.address) as client:
            sessions: list[Session] = []
            refusal = None
            while refusal is None:
                assert len(sessions) < 100
                try:
                    sessions.append(await client.create(["cat"]))
                except RequestFailed as error:
                    refusal = error
            yield agent, client, sessions, refusal


async def echoes(session: Session, text: bytes) -> None:
    async with following(session) as stream:
        await session.send(text + b"\n")
        await stream.until(text + b"\r\n", count=2)


async def test_sessions_until_the_descriptors_run_out(tmp_path: Path) -> None:
    """A clear error; those that are there live on; clients can still come in and make room."""
    async with full_agent(tmp_path) as (agent, client, sessions, error):
        assert len(sessions) >= 20
        assert (error.code, error.message) == ("os", "cannot create: too many open files in the server")
        wait_for(lambda: histories(agent.keeper_pid) == len(sessions), "the one too many to be gone again")
        wait_for(lambda: len(Holdings(agent).groups) in (0, len(sessions)), "its cgroup to be gone")
        wait_for(lambda: len(children_of(agent.keeper_pid)) == len(sessions) + 1, "its process to be gone")
        before = Holdings(agent)
        for number in range(30):  # one too many, again and again, costs nothing
            with pytest.raises(RequestFailed):
                await client.create(["cat"], tty=number % 2 == 0)
        wait_for(lambda: Holdings(agent) == before, "nothing more to be open than before")
        for session in (sessions[0], sessions[-1]):
            await echoes(session, b"still here")
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(FILES_KEPT - 4):  # room that sessions do not get
                other = await stack.enter_async_context(connect(agent.address))
            assert len(await other.sessions()) == len(sessions)
            await other.session(sessions[0].id).remove(force=True)
        await client.create(["cat"])
        agent.kill_server()
        assert len(await client.sessions()) == len(sessions)
        await echoes(sessions[-1], b"and after the next server started")


async def test_the_keeper_runs_out_of_descriptors(agent: AgentProcess) -> None:
    """At each of the points at which it needs one: an error that says so, nothing kept, and it recovers."""
    async with connect(agent.address) as client:
        first = await client.create(["cat"])
        _, hard = resource.prlimit(agent.keeper_pid, resource.RLIMIT_NOFILE)
        before = Holdings(agent)
        highest = max(int(name) for name in os.listdir(f"/proc/{agent.keeper_pid}/fd"))
        texts: list[str] = []
        for tty in (True, False):
            for room in range(13):
                resource.prlimit(agent.keeper_pid, resource.RLIMIT_NOFILE, (highest + 1 + room, hard))
                try:
                    session = await client.create(["true"], tty=tty)
                except RequestFailed as error:
                    texts.append(error.message)
                else:
                    await ended(session)
                    await session.remove()
                finally:
                    resource.prlimit(agent.keeper_pid, resource.RLIMIT_NOFILE, (hard, hard))
                wait_for(lambda: Holdings(agent) == before, "nothing more to be open than before")
        assert len(texts) >= 6
        assert all("Too many open files" in text or "out of pty devices" in text for text in texts), texts
        await echoes(first, b"still here")


def test_no_descriptor_for_a_connection(tmp_path: Path) -> None:
    """Accepting fails, is tried again, and works again; whoever is connected notices nothing."""
    with running_agent(tmp_path, before=FEW_FILES) as agent, RawClient(agent) as inside:
        inside.hello()
        with contextlib.ExitStack() as stack:
            outside = []
            while "cannot accept" not in agent.log():
                assert len(outside) < 200
                outside.append(stack.enter_context(RawClient(agent)))
                outside[-1].socket.sendall(b"\0")
                inside.request("info")  # so that the loop has had a turn
            assert "Too many open files; trying again every 0.1 s" in agent.log()
        done = ptymux(agent.address, "--wait", "10", "ls")
        assert (done.returncode, done.stderr) == (0, b"")
        assert agent.log().count("cannot accept") == 1  # said once, not for every try
        wait_for(
            lambda: "again" in agent.log().rpartition("cannot accept")[2].partition("\n")[2], "the end of it to be said"
        )


# --- memory and time ---------------------------------------------------------------------------------------------------
def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
async def test_memory(agent: AgentProcess, record_property: Callable[[str, object], None]) -> None:
    """Two Python processes and little else; an idle session is a few pages and a few objects."""
    pids = (agent.keeper_pid, agent.server_pid())
    idle = [resident(pid) for pid in pids]
    assert sum(idle) <= RSS_TOGETHER, idle
    async with connect(agent.address) as client:
        for _ in range(10):
            await client.create(["sleep", "100000"])
        before = sum(map(resident, pids))
        for _ in range(100):
            await client.create(["sleep", "100000"])
        a_session = (sum(map(resident, pids)) - before) / 100
        assert a_session <= RSS_A_SESSION
    record_property("idle keeper and server", idle)
    record_property("a session", a_session)
    print(
        f"\nidle RSS: keeper {idle[0] / 1e6:.1f} MB, server {idle[1] / 1e6:.1f} MB; a session {a_session / 1e3:.1f} KB"
    )


@pytest.mark.slow
def test_time_to_ready(tmp_path: Path) -> None:
    """From the command to READY, against Python doing nothing; medians of runs that take turns."""
    python, ready = [], []
    environment = clean_environment(NOTIFY_SOCKET=str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        for number in range(8):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
            python.append(time.perf_counter() - start)
            folder = tmp_path / str(number)
            folder.mkdir()
            start = time.perf_counter()
            with subprocess.Popen(
                [sys.executable, "-m", "guestagent.cli", "serve", "--unix", str(folder / "agent.sock")],
                stderr=subprocess.DEVNULL,
                env=environment,
            ) as agent:
                assert manager.recv(1000).startswith(b"READY=1")
                ready.append(time.perf_counter() - start)
                agent.terminate()
                assert manager.recv(1000) == b"STOPPING=1"
    ratio = statistics.median(ready[1:]) / statistics.median(python[1:])  # the first ones may have compiled
    print(f"\nready after {statistics.median(ready[1:]) * 1000:.0f} ms, {ratio:.1f} times `python -c pass`")
    assert ratio <= READY_RATIO


# --- C34: detached sessions ------------------------------------------------------------------------------------------------
async def test_c34_detached_sessions_are_listed_and_bounded(tmp_path: Path) -> None:
    """Case C34: whoever comes next sees what others left, can name it, and cannot be crowded out by it for ever."""
    with configured_agent(tmp_path, "[limits]\nmax_sessions = 5\nretention = 1.0\n") as agent:
        async with connect(agent.address) as client:
            for number in range(4):
                await client.create(["sleep", "1000"], name=f"left-{number}", label="by somebody")
            short = await client.create(["sh", "-c", "exit 3"])
            await ended(short)
        async with connect(agent.address) as client:
            rows = await client.sessions()
            assert sorted(row["name"] or "" for row in rows) == ["", "left-0", "left-1", "left-2", "left-3"]
            assert {row["attached"] for row in rows} == {0}
            assert all(row["started"] <= time.time() for row in rows)
            with pytest.raises(RequestFailed) as caught:
                await client.create(["cat"])
            assert caught.value.details == {"limit": "max_sessions", "value": 5}
            await gone(client, short.id)  # ended ones go by themselves
            await client.create(["cat"])
            with pytest.raises(RequestFailed):
                await client.create(["cat"])
            await (await client.find("left-2")).remove(force=True)
            await client.create(["cat"])


# --- C33: acknowledgements at our level ----------------------------------------------------------------------------------------
async def test_c33_a_send_is_done_when_the_agent_says_so(agent: AgentProcess, tmp_path: Path) -> None:
    """Case C33: the transport took the bytes and even delivered them; without the agent's word that is nothing.

    The word is asked for on the next connection, and nothing is typed twice.
    """
    done: list[int] = []

    async def send(session: Session) -> None:
        done.append(await session.send(b"once\n"))

    async with (
        cutting_proxy(agent.path, tmp_path) as proxy,
        connect(proxy.address) as client,
        connect(agent.address) as witness,
    ):
        session = await client.create(["cat"])
        async with following(witness.session(session.id)) as stream, trio.open_nursery() as nursery:
            proxy.hold_down()
            nursery.start_soon(send, session)
            await stream.until(b"once\r\nonce\r\n")  # echo and output: the program has it
            await trio.testing.wait_all_tasks_blocked()
            assert done == []
            proxy.cut_all()
            proxy.release_down()
            await until(lambda: done, "the acknowledgement")
            await session.send(b"next\n")
            assert await stream.until(b"next\r\n", count=2) == b"once\r\n" * 2 + b"next\r\n" * 2
    assert done == [5]


async def test_c33_bytes_that_a_transport_swallowed_are_sent_again(agent: AgentProcess, tmp_path: Path) -> None:
    """It took them, said nothing, and died."""
    async with connect(agent.address) as witness:
        session = await witness.create(["cat"])
        # Enough for the hello and a request; then a cut in the middle of the typed line.
        async with cutting_proxy(agent.path, tmp_path, [("up", 120)]) as proxy, connect(proxy.address) as client:
            line = b"x" * 1000 + b"\n"
            assert await client.session(session.id).send(line) == len(line)
            assert (proxy.cuts, client.connections) == (1, 2)
            async with following(session) as stream:
                assert await stream.until(b"\r\n", count=2) == (b"x" * 1000 + b"\r\n") * 2
            assert (await session.inspect())["input_bytes"] == len(line)


def test_the_limits_fit_each_other() -> None:
    """Two descriptors a session in each process, and the usual hard limit of 4096."""
    assert 2 * limits.MAX_SESSIONS + limits.MAX_CONNECTIONS + FILES_KEPT < 4096
