"""stdio.py: local files, pipes and terminals, which are shared with others and so never made non-blocking."""

from __future__ import annotations

import os
import pty
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing

from ptymux import limits
from ptymux.cli import stdio
from tests.harness import PATIENCE


class Pipe:
    def __init__(self) -> None:
        self.source, self.target = os.pipe()
        self._open = {self.source, self.target}

    def close(self, *ends: int) -> None:
        for end in ends or tuple(self._open):
            self._open.remove(end)
            os.close(end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


# --- reading --------------------------------------------------------------------------------------
async def test_what_is_there_is_read_and_then_the_end(pipe: Pipe) -> None:
    os.write(pipe.target, b"abc")
    assert await stdio.read_some(pipe.source) == b"abc"
    pipe.close(pipe.target)
    assert await stdio.read_some(pipe.source) == b""


async def test_reading_waits_without_stopping_the_loop(pipe: Pipe) -> None:
    found: list[bytes] = []

    async def read() -> None:
        found.append(await stdio.read_some(pipe.source))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert found == []
        os.write(pipe.target, b"late")
    assert found == [b"late"]


async def test_a_cancelled_read_takes_nothing(pipe: Pipe) -> None:
    with trio.move_on_after(0.01):
        await stdio.read_some(pipe.source)
    os.write(pipe.target, b"abc")
    with trio.CancelScope() as scope:
        scope.cancel()
        await stdio.read_some(pipe.source)
    assert await stdio.read_some(pipe.source) == b"abc"


async def test_files_can_be_read_though_epoll_refuses_them(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (limits.MAX_INPUT_DATA + 1))
    with path.open("rb") as file:
        assert len(await stdio.read_some(file.fileno())) == limits.MAX_INPUT_DATA
        assert len(await stdio.read_some(file.fileno())) == 1
        assert await stdio.read_some(file.fileno()) == b""


async def test_dev_null_is_at_its_end() -> None:
    fd = os.open(os.devnull, os.O_RDONLY)
    assert await stdio.read_some(fd) == b""
    os.close(fd)


async def test_a_terminal_that_was_hung_up_is_at_its_end() -> None:
    master, slave = pty.openpty()
    os.close(master)
    assert await stdio.read_some(slave) == b""
    os.close(slave)


async def test_descriptors_stay_blocking(pipe: Pipe) -> None:
    """They belong to the shell that started us as well."""
    os.write(pipe.target, b"abc")
    await stdio.read_some(pipe.source)
    await stdio.Writer(pipe.target).write(b"abc")
    assert os.get_blocking(pipe.source)
    assert os.get_blocking(pipe.target)


# --- writing --------------------------------------------------------------------------------------
async def test_more_than_a_pipe_holds_is_written_while_the_loop_runs(pipe: Pipe) -> None:
    data = os.urandom(1_000_000)
    found = bytearray()

    def read() -> None:
        while len(found) < len(data):
            found.extend(os.read(pipe.source, 65536))

    writer = stdio.Writer(pipe.target)
    written = trio.Event()

    async def write() -> None:
        await writer.write(data)
        written.set()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.lowlevel.checkpoint()
            assert not written.is_set()
            reader = threading.Thread(target=read)
            reader.start()
            await written.wait()
    reader.join()
    assert bytes(found) == data


async def test_writing_to_a_full_pipe_can_be_cancelled(pipe: Pipe) -> None:
    with trio.move_on_after(0.05) as scope:
        await stdio.Writer(pipe.target).write(bytes(1_000_000))
    assert scope.cancelled_caught
    # Let the abandoned thread end.
    left = 1_000_000
    while left:
        left -= len(os.read(pipe.source, left))


async def test_files_are_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        writer = stdio.Writer(file.fileno())
        await writer.write(b"abc")
        await writer.write(b"")
        await writer.write(b"def")
    assert path.read_bytes() == b"abcdef"


async def test_nobody_reads_any_more(pipe: Pipe) -> None:
    pipe.close(pipe.source)
    with pytest.raises(BrokenPipeError):
        await stdio.Writer(pipe.target).write(b"abc")
