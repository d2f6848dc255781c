"""Sessions outlive the server process: killed, they lose at most what is reported; upgraded, nothing.

A kill can hit the server in the middle of a read (then the stream has a Gap without a size at that offset, and at most one read's
worth of bytes is missing there) or in the middle of a write (then the client is told which input is uncertain).
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from guestagent.history import READ_SIZE
from ptymux import connect
from ptymux.client import Agent, Session
from ptymux.errors import InputRefused, RequestFailed
from ptymux.events import Gap, InputDropped, InputUncertain, Marked
from ptymux.limits import DEFAULT_HISTORY, MIN_HISTORY
from tests.e2e.crosshair import Crosshair
from tests.e2e.data import LINE, Material, check_equal, missing_at, numbered, sha256
from tests.e2e.programs import READY, Reading, avenger, sink
from tests.harness import PATIENCE, AgentProcess, clean_environment, cutting_proxy, ptymux_argv, until

TIMES = 20


def pieces(reading: Reading) -> list[bytes]:
    """What arrived, split where the stream says that something of unknown size may be missing."""
    data, seams = bytes(reading.data), [event.start for event in reading.of(Gap)]
    return [data[start:end] for start, end in zip([0, *seams], [*seams, len(data)], strict=True)]


async def kill_server(agent: AgentProcess) -> None:
    agent.kill_server()


async def upgrade_server(agent: AgentProcess) -> None:
    await trio.run_process(
        [sys.executable, "-m", "guestagent.cli", "upgrade", "--unix", agent.path],
        stdout=subprocess.DEVNULL,
        env=clean_environment(),
    )


# --- under load -------------------------------------------------------------------------------------
@dataclass
class Load:
    """An interactive shell that a client types commands into, and 100 MB of output at the same time."""

    agent: AgentProcess
    client: Agent
    folder: Path
    lines: Material
    uncertain: set[int] = field(default_factory=set)  # commands whose fate is unknown
    typed: int = 0
    disturbed: int = 0
    flood: Reading = field(init=False)
    shell: Reading = field(init=False)

    @property
    def log(self) -> Path:
        """Where every command that is executed leaves a line."""
        return self.folder / "log"

    async def run(self, disturb: Callable[[AgentProcess], Awaitable[None]]) -> None:
        """Disturb the agent's server TIMES times, each time once both sessions have got on since the last time."""
        self.log.touch()
        shell = await self.client.create(["bash", "--norc", "--noprofile", "-i"], policy="block")
        flood = await self.client.create(self.lines.printing("raw", status=9), policy="block")
        shell.keep_input(None)
        pid = (await shell.inspect())["pid"]
        async with (
            shell.attach(repair="bytes") as shell_stream,
            flood.attach(repair="bytes") as flood_stream,
            trio.open_nursery() as nursery,
        ):
            self.shell, self.flood = Reading(shell_stream), Reading(flood_stream)
            nursery.start_soon(self._read_shell)
            nursery.start_soon(self._type, shell, nursery.cancel_scope)
            nursery.start_soon(self._disturb, disturb)
            await self._read_flood()
        row = await shell.inspect()
        assert (row["pid"], row["state"]) == (pid, "running")
        assert self.flood.exit is not None
        assert self.flood.exit.code == 9

    def _due(self) -> int:
        """The output offset at which the next disturbance is due."""
        return (self.disturbed + 1) * len(self.lines.data) // (TIMES + 1)

    async def _read_flood(self) -> None:
        while self.flood.exit is None:
            await self.flood.next()
            if self.disturbed < TIMES and self.flood.offset > self._due() + 3_000_000:
                # Never so far ahead that the output ends before the last disturbance.
                count = self.disturbed
                await until(lambda count=count: self.disturbed > count, "the disturbance")

    async def _read_shell(self) -> None:
        while True:
            await self.shell.next()

    async def _disturb(self, disturb: Callable[[AgentProcess], Awaitable[None]]) -> None:
        while self.disturbed < TIMES:
            before = self.typed
            await until(
                lambda before=before: self.flood.offset >= self._due() and self.typed > before, "both to get on"
            )
            await disturbed(self.agent, self.client, disturb)
            self.disturbed += 1

    async def _type(self, shell: Session, scope: trio.CancelScope) -> None:
        while self.flood.exit is None or self.disturbed < TIMES:
            number = self.typed + 1
            if await typed(shell, f"echo {number}-$(({number}*{number})) | tee -a {self.log}\n"):
                text = f"{number}-{number**2}\n"
                await until(lambda text=text: text in self.log.read_text(), f"command {number}")
            else:
                self.uncertain.add(number)
            self.typed = number
        # No more disturbances: what this one leaves comes after all others.
        assert await typed(shell, f"echo the-$((0))-end | tee -a {self.log}\n")
        await until(lambda: b"the-0-end\r\n" in self.shell.data, "the last command")
        scope.cancel()

    def check_commands(self) -> None:
        """Each was executed once, or it was said to be uncertain and was executed at most once."""
        texts = [f"{number}-{number**2}" for number in range(1, self.typed + 1)]
        executed = Counter(self.log.read_text().split())
        assert max(executed.values()) == 1
        assert set(executed) <= {*texts, "the-0-end"}
        certain = {text for number, text in enumerate(texts, 1) if number not in self.uncertain}
        assert certain <= set(executed)
        shown = Counter(match.decode() for match in re.findall(rb"(?<!\d)(\d+-\d+)\r\n", self.shell.data))
        assert shown <= executed
        if not self.shell.of(Gap):
            assert {*shown, "the-0-end"} == set(executed)


async def typed(session: Session, line: str) -> bool:
    """Type a line; False if nobody can say whether it was typed."""
    try:
        await session.send(line.encode())
    except InputRefused as error:
        if error.code != "uncertain":
            raise
        return False
    return True


async def disturbed(agent: AgentProcess, client: Agent, disturb: Callable[[AgentProcess], Awaitable[None]]) -> None:
    """Disturb, and wait until the client is connected to another server process."""
    contacts = client.connections
    await disturb(agent)
    await until(lambda: client.connections > contacts, "contact with the next server")


@pytest.mark.slow
async def test_kills_under_load(agent: AgentProcess, tmp_path: Path, lines: Material) -> None:
    """kill -9 of the server 20 times: commands at most once, output equal but for spots that were reported."""
    async with connect(agent.address) as client:
        load = Load(agent, client, tmp_path, lines)
        await load.run(kill_server)
        assert (await client.info())["restarts"] == TIMES
    load.check_commands()
    gaps = load.flood.of(Gap)
    assert all(gap.size is None for gap in [*gaps, *load.shell.of(Gap)])
    missing = missing_at(pieces(load.flood), lines.data, READ_SIZE)
    assert missing is not None, f"the output does not fit what was written, gaps at {[gap.start for gap in gaps]}"
    assert len(load.shell.of(InputUncertain)) == len(load.uncertain)
    assert not load.shell.of(InputDropped)
    print(
        f"\n{TIMES} kills, {load.typed} commands, {len(load.uncertain)} of them uncertain; {load.flood.offset} bytes of output, "
        f"{len(gaps)} spots uncertain, {sum(map(bool, missing))} of them with bytes missing: {missing}"
    )


@pytest.mark.slow
async def test_upgrades_under_load(agent: AgentProcess, tmp_path: Path, lines: Material) -> None:
    """`guestagent upgrade` 20 times: exact, and nothing is reported because there is nothing."""
    async with connect(agent.address) as client:
        load = Load(agent, client, tmp_path, lines)
        await load.run(upgrade_server)
        assert (await client.info())["restarts"] == TIMES
        assert (await client.stats())["uncertain"] == 0
    load.check_commands()
    assert load.uncertain == set()
    for reading in (load.flood, load.shell):
        assert not [*reading.of(Gap), *reading.of(InputUncertain), *reading.of(InputDropped)]
    assert load.flood.offset == len(lines.data)
    assert sha256(load.flood.data) == lines.raw


@pytest.mark.slow
async def test_kills_under_exec(agent: AgentProcess, tmp_path: Path, lines: Material) -> None:
    """`ptymux exec` goes on over five kills: its status is the command's, and stderr names each spot that is uncertain."""
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = await trio.lowlevel.open_process(
            ptymux_argv(agent.address, "exec", "--", *lines.printing("raw", status=6)),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.PIPE,
            env=clean_environment(),
        )
        for kill in range(1, 6):
            await until(lambda kill=kill: out.stat().st_size > kill * 15_000_000, "output")
            agent.kill_server()
        assert process.stderr is not None
        err = bytearray()
        async for data in process.stderr:
            err += data
        assert await process.wait() == 6
    reports = err.decode().splitlines()
    found = [
        re.fullmatch(r"ptymux: an unknown number of bytes may be missing at offset (\d+): .*", line) for line in reports
    ]
    assert all(found), reports
    data, seams = out.read_bytes(), [int(match[1]) for match in found if match]
    parts = [data[start:end] for start, end in zip([0, *seams], [*seams, len(data)], strict=True)]
    assert missing_at(parts, lines.data, READ_SIZE) is not None


# --- in the middle of it ----------------------------------------------------------------------------
SHOTS = 10


@pytest.mark.slow
@pytest.mark.parametrize("history", [MIN_HISTORY, DEFAULT_HISTORY])
async def test_kills_in_the_middle_of_a_read(agent: AgentProcess, lines: Material, history: int) -> None:
    """Each is told as a gap without a size, where at most one read is missing.  Nothing else is, however small the history is:
    what its holder has not got is not given up for the sake of what that read may have overwritten."""
    async with connect(agent.address) as client:
        session = await client.create(lines.printing("raw"), policy="block", history=history)
        crosshair = Crosshair(agent)

        async def shoot(scope: trio.CancelScope) -> None:
            for _ in range(SHOTS):
                await disturbed(agent, client, lambda _: crosshair.kill(crosshair.reading))
            scope.cancel()

        async with session.attach(repair="bytes") as stream, trio.open_nursery() as nursery:
            reading = Reading(stream)
            nursery.start_soon(shoot, nursery.cancel_scope)
            while reading.exit is None:
                await reading.next()
            raise AssertionError("the output ended before the last kill")
        gaps = reading.of(Gap)
        assert [gap.size for gap in gaps] == [None] * len(gaps)
        assert len(gaps) >= SHOTS - 1  # the last one may not have been read
    missing = missing_at(pieces(reading), lines.data, READ_SIZE, whole=False)
    assert missing is not None, f"the output does not fit what was written, gaps at {[gap.start for gap in gaps]}"
    print(f"\n{SHOTS} kills in the middle of a read; missing: {missing}")


@pytest.mark.slow
async def test_kills_in_the_middle_of_a_write(agent: AgentProcess, tmp_path: Path) -> None:
    """Each is told as uncertain input; the program got all other input once and in order."""
    file, end = tmp_path / "typed", "the end\n"
    data = numbered(40_000_000 // LINE)
    async with connect(agent.address) as client:
        session = await client.create(sink(file, end))
        session.keep_input(None)
        crosshair = Crosshair(agent)
        sent = 0

        async def paste() -> None:
            nonlocal sent
            while True:
                with contextlib.suppress(InputRefused):  # the events tell of all of them
                    sent += 50_000
                    await session.send(data[sent - 50_000 : sent], wait=False)

        async with session.attach() as stream:
            reading = Reading(stream)
            await reading.until_text(READY)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(paste)
                for _ in range(SHOTS):
                    await disturbed(agent, client, lambda _: crosshair.kill(crosshair.writing))
                nursery.cancel_scope.cancel()
            assert sent < len(data), "everything was typed before the last kill"
            with contextlib.suppress(InputRefused):
                await session.flush_input()
            await session.send(end.encode())
            await reading.until_text(b"done\n")
            ranges = [(event.start, event.to) for event in reading.of(InputUncertain)]
            assert not reading.of(InputDropped)
    assert len(ranges) == SHOTS
    left_out = check_typed(file.read_bytes(), data[:sent] + end.encode(), ranges)
    print(f"\n{SHOTS} kills in the middle of a write of {sent} bytes; uncertain {ranges}, left out of them {left_out}")


def check_typed(got: bytes, sent: bytes, uncertain: list[tuple[int, int]]) -> list[int]:
    """What is certain was taken once and in order, of an uncertain range the beginning; how much of each was left out."""
    left_out: list[int] = []
    at, position = 0, 0  # in `got` and in `sent`
    for start, to in uncertain:
        check_equal(got[at : at + start - position], sent[position:start])
        at += start - position
        taken = got.find(sent[to : to + 4 * LINE], at, at + to - start + 4 * LINE) - at
        assert 0 <= taken <= to - start
        check_equal(got[at : at + taken], sent[start : start + taken])
        left_out.append(to - start - taken)
        at, position = at + taken, to
    check_equal(got[at:], sent[position:])
    return left_out


# --- requests ---------------------------------------------------------------------------------------
@pytest.mark.slow
async def test_each_create_makes_one_session(agent: AgentProcess, tmp_path: Path) -> None:
    """Kills while sessions are created: every request succeeds, and there is one session for each."""
    done: list[str] = []
    async with connect(agent.address) as client, trio.open_nursery() as nursery:

        async def create(worker: int) -> None:
            for number in range(15):
                session = await client.create(["sh", "-c", "exec sleep 1000"], name=f"{worker}-{number}")
                done.append(session.id)

        for worker in range(8):
            nursery.start_soon(create, worker)
        for kill in range(1, 11):
            await until(lambda kill=kill: len(done) >= 10 * kill, "sessions to be created")
            await disturbed(agent, client, kill_server)
    async with connect(agent.address, wait=PATIENCE) as client:
        rows = await client.sessions()
        assert (await client.info())["restarts"] == 10
    assert sorted(row["id"] for row in rows) == sorted(done)
    assert {row["name"] for row in rows} == {f"{worker}-{number}" for worker in range(8) for number in range(15)}


async def test_requests_whose_answer_died_with_the_server(agent: AgentProcess, tmp_path: Path) -> None:
    """A kill between a request and its answer: asked again on the next connection, it is the same request."""
    log = tmp_path / "log"
    counter = f"trap 'echo signal >>{log}' USR1; echo ready; while :; do read line; echo read; done"
    async with (
        connect(agent.address) as witness,
        cutting_proxy(agent.path, tmp_path) as proxy,
        connect(proxy.address) as client,
    ):

        async def while_held(request: Callable[[], Awaitable[Any]], happened: Callable[[], Awaitable[object]]) -> Any:
            """Ask, hold the answer back, kill the server once the request was carried out; the answer."""
            answers: list[Any] = []

            async def ask() -> None:
                answers.append(await request())

            async with trio.open_nursery() as nursery:
                proxy.hold_down()
                nursery.start_soon(ask)
                await until(happened, "the request to be carried out")
                agent.kill_server()
                proxy.cut_all()
                proxy.release_down()
            return answers[0]

        async def created() -> bool:
            return len(await witness.sessions()) == 1

        session = await while_held(lambda: client.create(["sh", "-c", counter]), created)
        assert [row["id"] for row in await witness.sessions()] == [session.id]

        async def signalled() -> bool:
            return log.exists() and log.read_text() == "signal\n"

        async with session.attach() as stream:
            reading = Reading(stream)
            await reading.until_text(b"ready\r\n")
            await while_held(lambda: session.signal("USR1"), signalled)
            await session.send(b"\n")
            await reading.until_text(b"read\r\n")
            assert log.read_text() == "signal\n"

            async def resized() -> bool:
                return (await witness.session(session.id).inspect())["size"] == [100, 50]

            await while_held(lambda: session.resize(100, 50), resized)
            await session.resize(90, 40)
            await reading.until(lambda: len(reading.of(Marked)) >= 2)
            assert [event.data for event in reading.of(Marked)] == [
                {"columns": 100, "rows": 50},
                {"columns": 90, "rows": 40},
            ]

        async def removed() -> bool:
            return await witness.sessions() == []

        await while_held(lambda: session.remove(force=True), removed)


@pytest.mark.slow
async def test_a_signal_that_kills_the_server_is_sent_once(agent: AgentProcess) -> None:
    """The program kills the server as soon as it gets the signal: in the middle of the request.

    The client is told that it succeeded, or that nobody can say; it never comes twice.
    """
    uncertain = 0
    async with connect(agent.address) as client:
        session = await client.create(avenger())
        async with session.attach() as stream:
            reading = Reading(stream)
            for _ in range(TIMES):
                await reading.until_text(b"whom? ")
                await session.send(b"%d\n" % agent.server_pid())
                await reading.until_text(b"armed\r\n")
                try:
                    await session.signal(signal.SIGRTMIN)
                except RequestFailed as error:
                    if error.code != "uncertain":
                        raise
                    uncertain += 1
                await session.send(b"\n")
                await reading.until_text(b"signals: ")
                assert await reading.until_text(b"\r\n") == b"1\r\n"
    print(f"\n{TIMES} kills, {uncertain} signals uncertain")


# --- what survives ----------------------------------------------------------------------------------
FLEETING = {"attached", "input_bytes"}  # of one server process


def lasting(row: dict[str, Any]) -> dict[str, Any]:
    """An `inspect` without what belongs to connections."""
    streams = {name: {**stream, "attaches": []} for name, stream in row["streams"].items()}
    return {**{key: value for key, value in row.items() if key not in FLEETING}, "streams": streams}


@pytest.mark.parametrize("disturb", [kill_server, upgrade_server])
async def test_everything_about_sessions_survives(
    agent: AgentProcess, disturb: Callable[[AgentProcess], Awaitable[None]]
) -> None:
    """Running and ended, on terminals and pipes: names, labels, exit records, sizes, marks, histories, input positions."""
    async with connect(agent.address) as client:
        shell = await client.create(["sh"], name="shell", label="a label", size=(100, 30), history=100_000)
        await client.create(["sh", "-c", "seq 100000; exit 7"], name="ended", history=65_536)
        await client.create(["sh", "-c", "kill -TERM $$"], name="killed")
        await client.create(["sh", "-c", "echo out; echo err >&2; exit 1"], name="pipes", tty=False)
        waiting = await client.create(["cat"], name="waiting", tty=False, policy="block")
        async with shell.attach(size=(100, 30)) as stream:
            reading = Reading(stream)
            await shell.send(b"echo $((6*7))\n")
            await reading.until_text(b"42\r\n")
            await shell.resize(120, 40)
            await shell.resize(80, 25)
        position = await shell.send(b"stty -echo; PS1=; echo quiet-$((1))\n")
        await waiting.send(b"to be read\n")

        async def at_rest() -> bool:
            rows = await client.sessions()
            shown = (await shell.inspect())["streams"]["stdout"]["head"]
            echoed = (await waiting.inspect())["streams"]["stdout"]["head"]
            ended = [row["state"] for row in rows].count("exited") == 3
            return ended and echoed == len(b"to be read\n") and shown > position

        async def facts() -> dict[str, Any]:
            return {row["name"]: lasting(await client.session(row["id"]).inspect()) for row in await client.sessions()}

        async def texts() -> dict[str, bytes]:
            return {
                row["name"]: await output(client.session(row["id"]), row["offset"]) for row in await client.sessions()
            }

        await until(at_rest, "everything to be at rest")
        async with shell.attach() as stream:
            reading = Reading(stream)
            await reading.until_text(b"quiet-1\r\n")
        before, before_texts = await facts(), await texts()
        info = await client.info()
        assert {row["name"]: row.get("exit", {}).get("code") for row in await client.sessions()} == {
            "shell": None, "ended": 7, "killed": None, "pipes": 1, "waiting": None,
        }  # fmt: skip

        await disturbed(agent, client, disturb)

        after = await client.info()
        assert after["server_pid"] != info["server_pid"]
        for key in ("agent", "generation", "lineage", "keeper_pid"):
            assert after[key] == info[key], key
        assert await facts() == before
        assert await texts() == before_texts
        assert (await client.find("shell")).id == shell.id
        assert await shell.send(b"echo still-$((6*7))\n") == position + len(b"echo still-$((6*7))\n")
        async with shell.attach() as stream:
            reading = Reading(stream)
            await reading.until_text(b"still-42\r\n")
            marks = [(event.kind, event.data["columns"]) for event in reading.of(Marked)]
            assert marks == [("resize", 120), ("resize", 80)]


async def output(session: Session, head: int) -> bytes:
    """What is kept of a session's output, up to `head`."""
    async with session.attach(view=True, repair="bytes") as stream:
        reading = Reading(stream)
        await reading.until(lambda: reading.offset >= head)
        return bytes(reading.data)


async def test_end_of_input_in_the_middle_of_a_line_after_an_upgrade(agent: AgentProcess) -> None:
    """That a line was begun is known to the next server: it takes two EOF characters to end the input there."""
    async with connect(agent.address) as client:
        session = await client.create(["sh", "-c", "wc -c"])
        async with session.attach() as stream:
            reading = Reading(stream)
            await session.send(b"half a line")
            await disturbed(agent, client, upgrade_server)
            session.end_input()
            await reading.until_text(b"half a line11\r\n")
            assert (await reading.until_exit()).code == 0


async def test_a_long_line_around_an_upgrade_is_refused(agent: AgentProcess) -> None:
    """How much of a line the terminal has is known to the next server."""
    async with connect(agent.address) as client:
        session = await client.create(["sh", "-c", "cat | wc -c"])
        await session.send(b"x" * 3000)
        await disturbed(agent, client, upgrade_server)
        with pytest.raises(InputRefused) as caught:
            await session.send(b"x" * 3000 + b"\n")
        assert caught.value.code == "line_too_long"
