"""history_view.py: what a reader sees of a history that another process goes on writing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import msgpack
import pytest

from guestagent.history import CHECKPOINT_SIZE, H_INTENT, H_INTENT_END, History, memory_size
from guestagent.history_view import HistoryView

SIZE = 4096

# Appends numbered words for ever, announcing each write as a read into the ring is announced.
_WRITER = """
import os, sys
from guestagent.history import H_INTENT, H_INTENT_END, History
history = History(int(sys.argv[1]))
print("up", flush=True)
number, words = 0, history._words
while True:
    data = b"".join(n.to_bytes(8, "big") for n in range(number, number + 64))
    number += 64
    words[H_INTENT_END] = history.head + len(data)
    words[H_INTENT] = history.head + 1
    history.append(data)
    words[H_INTENT] = 0
    if number % 640 == 0:
        history.save_checkpoint((number % 251).to_bytes(1, "big") * (number % 1000 + 1))
        history.add_mark("resize", {"columns": number, "rows": number})
"""


@pytest.fixture
def fd() -> Iterator[int]:
    found = os.memfd_create("test-history", os.MFD_CLOEXEC)
    os.ftruncate(found, memory_size(SIZE))
    yield found
    os.close(found)


@pytest.fixture
def history(fd: int) -> Iterator[History]:
    found = History(os.dup(fd))
    yield found
    found.close()


@pytest.fixture
def view(fd: int, history: History) -> Iterator[HistoryView]:
    found = HistoryView(os.dup(fd))
    yield found
    found.close()


def test_it_sees_what_is_written(history: History, view: HistoryView) -> None:
    assert (view.head, view.oldest, view.checkpoint(), view.marks(0)) == (0, 0, None, [])
    history.append(b"abc" * 2000)
    assert (view.head, view.oldest) == (6000, 6000 - SIZE)
    assert view.read(5997, 6000) == b"abc"
    assert view.read(6000 - SIZE, 6000) == (b"abc" * 2000)[-SIZE:]
    assert view.read(6000 - SIZE - 1, 6000 - SIZE) is None
    assert view.read(10, 10) == b""
    history.vouch(5000, 6000)
    assert view.plain == (5000, 6000)


def test_what_a_read_in_flight_may_overwrite_is_not_there(history: History, view: HistoryView) -> None:
    history.append(b"x" * SIZE)
    history._words[H_INTENT_END], history._words[H_INTENT] = SIZE + 100, SIZE + 1
    assert view.oldest == 100
    assert view.read(99, 200) is None
    assert view.read(100, 200) == b"x" * 100
    history._words[H_INTENT] = 0
    assert view.read(0, 200) is not None


def test_marks_from_a_number_on(history: History, view: HistoryView) -> None:
    for number in range(5000):
        history.add_mark("resize", {"columns": number, "rows": 1})
    marks = view.marks(4990)
    assert [mark.number for mark in marks] == list(range(4990, 5000))
    assert view.marks(0)[0].number == history.oldest_mark > 0


def test_checkpoints_take_turns(history: History, view: HistoryView) -> None:
    for data in (b"first", b"second" * 1000, b"", b"x" * (CHECKPOINT_SIZE - 4)):
        history.save_checkpoint(data)
        assert view.checkpoint() == data
    with pytest.raises(ValueError, match="cannot save checkpoint"):
        history.save_checkpoint(b"x" * (CHECKPOINT_SIZE - 3))
    assert view.checkpoint() == b"x" * (CHECKPOINT_SIZE - 4)


def test_a_checkpoint_that_was_being_written_is_not_seen(history: History, view: HistoryView) -> None:
    history.save_checkpoint(b"good")
    other = view._words[10] % 2 * CHECKPOINT_SIZE
    history._checkpoints[other : other + 8] = b"\xff" * 8  # as far as a killed server came
    assert view.checkpoint() == b"good"


def test_nothing_torn_is_read_while_it_is_overwritten(fd: int) -> None:
    """A writer that goes round the ring as fast as it can: each read is whole, or None."""
    History(os.dup(fd)).close()
    os.set_inheritable(fd, True)
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"up\n"
            view = HistoryView(os.dup(fd))
            whole = lost = saved = 0
            while whole < 3000 or saved < 300:
                start = view.oldest // 8 * 8 + (8 if view.oldest % 8 else 0)
                if start + 1024 > view.head:
                    continue
                data = view.read(start, start + 1024)
                if data is None:
                    lost += 1
                else:
                    whole += 1
                    assert data == b"".join(n.to_bytes(8, "big") for n in range(start // 8, start // 8 + 128))
                checkpoint = view.checkpoint()
                if checkpoint is not None and whole % 10 == 0:
                    saved += 1
                    assert checkpoint == checkpoint[:1] * len(checkpoint)
                    assert all(m.data["columns"] == m.data["rows"] == m.offset // 8 for m in view.marks(0))
            assert lost, "the writer never came near: nothing was shown"
            view.close()
        finally:
            writer.kill()


def test_another_layout_is_refused() -> None:
    fd = os.memfd_create("test-history", os.MFD_CLOEXEC)
    os.ftruncate(fd, memory_size(SIZE))
    with pytest.raises(ValueError, match="cannot map history"):
        HistoryView(fd)


def test_marks_are_msgpack_of_four(history: History, view: HistoryView) -> None:
    history.add_mark("resize", {"columns": 1, "rows": 2})
    (mark,) = view.marks(0)
    assert msgpack.unpackb(msgpack.packb(list(mark))) == [0, 0, "resize", {"columns": 1, "rows": 2}]
