"""Every byte that was typed is taken once and in order, or the client is told which were not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from ptymux import connect
from ptymux.client import Session
from ptymux.errors import InputRefused
from ptymux.events import InputDropped
from ptymux.limits import COOKED_LINE, MAX_INPUT_DATA, MIB
from tests.e2e.data import check_equal, random_bytes, sha256
from tests.e2e.programs import ECHO, READY, Reading, python, reader
from tests.harness import PATIENCE, AgentProcess, cutting_proxy, ptymux, spread_budgets, until


# --- exactly once -----------------------------------------------------------------------------------
@pytest.mark.slow
async def test_lines_typed_through_200_cuts_arrive_once_and_in_order(agent: AgentProcess, tmp_path: Path) -> None:
    """case C30: no keystroke is doubled, lost or overtaken by another one, wherever a cut falls."""
    chance = random.Random(5)
    lines = [f"{number} é漢😀 {chance.randrange(10**9)}\n".encode() for number in range(2000)]
    budgets = spread_budgets(200, 500_000, seed=6, least=1500)
    async with (
        cutting_proxy(agent.path, tmp_path, budgets) as proxy,
        connect(proxy.address, wait=PATIENCE) as client,
        trio.open_nursery() as nursery,
    ):
        session = await client.create(ECHO)
        session.keep_input(None)

        async def type_all() -> None:
            for line in lines:
                await session.send(line, wait=chance.random() < 0.9)
            await session.flush_input()

        async with session.attach() as stream:
            reading = Reading(stream)
            await reading.until_text(READY)
            nursery.start_soon(type_all)
            wanted = b"".join(lines)
            await reading.until(lambda: len(reading.data) >= len(wanted))
            check_equal(reading.data, wanted)
        assert (await session.inspect())["input_bytes"] == len(wanted)
        assert proxy.cuts == 200


@pytest.mark.parametrize("cuts", [0, 30])
async def test_a_large_paste_is_taken_whole(agent: AgentProcess, tmp_path: Path, cuts: int) -> None:
    """case C28: 1 MiB of all byte values into a raw terminal."""
    paste = random_bytes(MIB, seed=7)
    budgets = spread_budgets(cuts, 2 * MIB, seed=8, least=20_000) if cuts else []
    async with (
        cutting_proxy(agent.path, tmp_path, budgets) as proxy,
        connect(proxy.address, wait=PATIENCE) as client,
    ):
        session = await client.create(reader(len(paste)))
        session.keep_input(None)
        async with session.attach() as stream:
            reading = Reading(stream)
            await reading.until_text(READY)
            assert await session.send(paste) == len(paste)
            assert (await reading.until_text(b"\n")).strip().decode() == sha256(paste)
        assert proxy.cuts == cuts


# --- lines that are too long ------------------------------------------------------------------------
def poison(witness: Path, size: int = 10_000) -> bytes:
    """One line of commands; whichever part of it is executed, `witness` exists afterwards."""
    command = f"touch {witness};".encode()
    return command * (size // len(command)) + b"\n"


async def check_usable(session: Session, reading: Reading) -> None:
    """The shell answers, to what is typed now and to nothing else."""
    await session.send(b"\necho usable-$((40+2))\n")
    await reading.until_text(b"usable-42")


async def test_a_line_too_long_for_the_terminal_is_refused_whole(agent: AgentProcess, tmp_path: Path) -> None:
    witness = tmp_path / "executed"
    line = poison(witness)
    async with connect(agent.address) as client:
        session = await client.create(["sh"])
        async with session.attach() as stream:
            reading = Reading(stream)
            await check_usable(session, reading)
            before = (await session.inspect())["input_bytes"]
            with pytest.raises(InputRefused) as caught:
                await session.send(line)
            assert caught.value.code == "line_too_long"
            assert str(COOKED_LINE) in str(caught.value)
            assert caught.value.offset == before
            await check_usable(session, reading)
            assert [(event.start, event.to) for event in reading.of(InputDropped)] == [(before, before + len(line))]
    assert not witness.exists()


async def test_a_line_that_grows_too_long_is_taken_back(agent: AgentProcess, tmp_path: Path) -> None:
    """What the terminal already holds of the line must not be executed either, when the rest is refused and Enter pressed."""
    witness = tmp_path / "executed"
    line = poison(witness)
    async with connect(agent.address) as client:
        session = await client.create(["sh"])
        async with session.attach() as stream:
            reading = Reading(stream)
            await check_usable(session, reading)
            await session.send(line[:3000])
            with pytest.raises(InputRefused) as caught:
                await session.send(line[3000:])
            assert caught.value.code == "line_too_long"
            await check_usable(session, reading)
    assert not witness.exists()


async def test_the_longest_line_passes(agent: AgentProcess) -> None:
    """The limit is the terminal's own, to the byte."""
    async with connect(agent.address) as client:
        session = await client.create(["sh", "-c", "stty -echo; echo ready; head -n 2 | wc -c"])
        async with session.attach() as stream:
            reading = Reading(stream)
            await reading.until_text(b"ready\r\n")
            await session.send(b"x" * COOKED_LINE + b"\n")
            with pytest.raises(InputRefused):
                await session.send(b"y" * (COOKED_LINE + 1) + b"\n")
            await session.send(b"z\n")
            await reading.until_text(b"%d\r\n" % (COOKED_LINE + 3))


@pytest.mark.parametrize("how", ["argument", "stdin", "stdin in pieces"])
async def test_send_of_a_line_too_long_is_one_line_on_stderr(agent: AgentProcess, tmp_path: Path, how: str) -> None:
    witness = tmp_path / "executed"
    line = poison(witness)
    if how == "stdin in pieces":  # the long line begins in one piece that `send` reads, and ends in the next
        line = b"true\n" * ((MAX_INPUT_DATA - 2000) // 5) + line
    async with connect(agent.address) as client:
        session = await client.create(["sh"])
        async with session.attach() as stream:
            reading = Reading(stream)
            await check_usable(session, reading)
            arguments = [line.decode().strip(), "--enter"] if how == "argument" else []
            stdin = None if how == "argument" else line
            with trio.fail_after(PATIENCE):
                done = await trio.to_thread.run_sync(
                    lambda: ptymux(agent.address, "send", session.id, *arguments, input=stdin)
                )
            assert done.returncode == 1
            assert done.stdout == b""
            assert done.stderr.startswith(b"ptymux: cannot type: a line is longer than cooked_line")
            assert done.stderr.count(b"\n") == 1
            await check_usable(session, reading)
    assert not witness.exists()


def test_exec_with_a_line_too_long_on_stdin(agent: AgentProcess, tmp_path: Path) -> None:
    witness = tmp_path / "executed"
    done = ptymux(agent.address, "exec", "--", "sh", input=poison(witness))
    assert done.returncode == 1
    assert done.stderr.startswith(b"ptymux: cannot type: a line is longer than cooked_line")
    assert done.stderr.count(b"\n") == 1
    assert not witness.exists()


# --- old keystrokes ---------------------------------------------------------------------------------
async def test_keystrokes_that_got_old_while_contact_was_lost_are_not_typed(
    agent: AgentProcess, tmp_path: Path
) -> None:
    """case C30: they are given up with a notice, and what is typed afterwards follows without a hole."""
    age = 0.3
    async with cutting_proxy(agent.path, tmp_path) as proxy, connect(proxy.address) as client:
        session = await client.create(ECHO)
        session.keep_input(age)
        async with session.attach() as stream:
            reading = Reading(stream)
            await reading.until_text(READY)
            await session.send(b"before\n")
            proxy.refuse = True
            proxy.cut_all()
            await until(lambda: not client.up, "contact to be lost")
            await session.send(b"stale\n", wait=False)
            await trio.sleep(2 * age)  # that they get old is what this is about
            proxy.refuse = False
            await reading.until(lambda: reading.of(InputDropped))
            assert reading.of(InputDropped) == [InputDropped(7, 13, "stale")]
            with pytest.raises(InputRefused) as caught:
                await session.flush_input()
            assert caught.value.code == "stale"
            await session.send(b"after\n")
            await reading.until_text(b"after\n")
            assert (await session.inspect())["input_bytes"] == len(b"before\nafter\n")


async def test_keystrokes_typed_while_contact_is_lost_are_typed_once(agent: AgentProcess, tmp_path: Path) -> None:
    """Up to the age limit they are kept; those that were written before the cut are not typed again."""
    async with cutting_proxy(agent.path, tmp_path) as proxy, connect(proxy.address) as client:
        session = await client.create(ECHO)
        async with session.attach() as stream:
            reading = Reading(stream)
            await reading.until_text(READY)
            proxy.hold_down()  # it is written, but the acknowledgement does not come
            await session.send(b"written\n", wait=False)
            async with connect(agent.address) as other:
                with trio.fail_after(PATIENCE):
                    while (await other.session(session.id).inspect())["input_bytes"] < len(b"written\n"):
                        pass
            proxy.refuse = True
            proxy.cut_all()
            proxy.release_down()
            await until(lambda: not client.up, "contact to be lost")
            for key in b"fresh\n":
                await session.send(bytes([key]), wait=False)
            proxy.refuse = False
            await session.flush_input()
            assert await reading.until_text(b"fresh\n") == b"written\nfresh\n"
            assert reading.of(InputDropped) == []


# --- programs that do not read ----------------------------------------------------------------------
async def test_a_session_that_does_not_read_delays_no_other(agent: AgentProcess) -> None:
    """case C28, case C10: its input waits, in bounded memory and to the last byte; others on the same connection do not notice."""
    paste = random_bytes(MIB, seed=9)
    async with connect(agent.address) as client:
        deaf, lively = await client.create(reader(len(paste), wait=True)), await client.create(ECHO)
        async with deaf.attach() as deaf_stream, lively.attach() as lively_stream:
            deaf_reading, reading = Reading(deaf_stream), Reading(lively_stream)
            await deaf_reading.until_text(READY)
            await reading.until_text(READY)
            await deaf.send(paste, wait=False)

            async def taken() -> Sequence[int]:
                return [(await deaf.inspect())["input_bytes"] for _ in range(2)]

            with trio.fail_after(PATIENCE):
                while (counts := await taken())[0] == 0 or counts[0] != counts[1]:
                    pass
            assert counts[0] < len(paste)
            for number in range(50):
                with trio.fail_after(1):
                    await lively.send(b"%d\n" % number)
                    await reading.until_text(b"%d\n" % number)
                    await client.sessions()
            await deaf.signal("USR1")
            assert (await deaf_reading.until_text(b"\n")).strip().decode() == sha256(paste)


# --- the end of input -------------------------------------------------------------------------------
@pytest.mark.parametrize("data", [b"", b"in the middle of a line", b"a line\n", b"two\nlines and a half"])
@pytest.mark.parametrize("tty", ["--tty", "--no-tty"])
def test_the_end_of_stdin_is_end_of_file(agent: AgentProcess, tty: str, data: bytes) -> None:
    done = ptymux(agent.address, "exec", tty, "--", "sh", "-c", "wc -c; exit 3", input=data)
    assert (done.returncode, done.stderr) == (3, b"")
    newline = b"\r\n" if tty == "--tty" else b"\n"
    echo = data.replace(b"\n", newline) if tty == "--tty" else b""
    assert done.stdout == echo + b"%d" % len(data) + newline


def test_a_large_stdin_passes_pipes_and_ends(agent: AgentProcess) -> None:
    data = random_bytes(5 * MIB, seed=10)
    done = ptymux(agent.address, "exec", "--no-tty", "--", "sha256sum", input=data)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split()[0].decode() == sha256(data)


async def test_the_end_of_stdin_leaves_no_trace_in_the_output(agent: AgentProcess) -> None:
    """It is not typed under a program that is just switching to raw mode, where the character would be echoed."""
    async with connect(agent.address) as client:
        for _ in range(100):
            session = await client.create(["sh", "-c", "stty raw; printf all"])
            session.end_input()
            async with session.attach() as stream:
                reading = Reading(stream)
                await reading.until_exit()
            assert reading.data == b"all"
            await session.remove(force=True)


async def test_the_end_of_input_reaches_a_program_that_polls(agent: AgentProcess) -> None:
    """Nobody can see that it waits for input; it gets the end all the same."""
    program = "import os, select; select.select([0], [], []); print('got', os.read(0, 10))"
    async with connect(agent.address) as client:
        session = await client.create(python(program))
        session.end_input()
        async with session.attach() as stream:
            await Reading(stream).until_text(b"got b''\r\n")


async def test_the_end_of_input_through_cuts(agent: AgentProcess, tmp_path: Path) -> None:
    """It is neither lost with a connection nor given twice: a second one would end the second `cat`."""
    async with cutting_proxy(agent.path, tmp_path) as proxy, connect(proxy.address) as client:
        session = await client.create(["sh", "-c", "stty -echo; echo ready; cat; echo first; cat; echo second"])
        async with session.attach() as stream, connect(agent.address) as other:
            reading = Reading(stream)
            await reading.until_text(b"ready\r\n")
            proxy.refuse = True
            proxy.cut_all()
            await until(lambda: not client.up, "contact to be lost")
            await session.send(b"half a line", wait=False)
            session.end_input()
            proxy.refuse = False
            assert await reading.until_text(b"first\r\n") == b"half a linefirst\r\n"
            for _ in range(3):
                before = client.connections
                proxy.cut_all()
                await until(lambda before=before: client.connections > before, "the next connection")
                await client.sessions()
            await other.session(session.id).send(b"more\n")
            assert await reading.until_text(b"more\r\n") == b"more\r\n"
            assert (await session.inspect())["state"] == "running"
