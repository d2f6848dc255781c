"""history.py: the ring and its marks against a plain model, across wraps, reopenings and real kills."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import tty
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guestagent import history as history_module
from guestagent.history import (
    EMPTY,
    ENDED,
    H_HEAD,
    H_INTENT,
    H_INTENT_END,
    H_MAGIC,
    H_MARK_HEAD,
    H_MARK_TAIL,
    H_SIZE,
    READ_SIZE,
    History,
    memory_size,
)
from ptymux import limits
from ptymux.output import LoggedMark
from tests.ptymux.streams.tools import descriptors

SIZES = (1, 2, 7, 64, 1000, 4096)


def memfd(size: int) -> int:
    fd = os.memfd_create("test-history", os.MFD_CLOEXEC)
    os.ftruncate(fd, memory_size(size))
    return fd


class Memory:
    """A memfd as the keeper holds it, from which one server after the other maps its history."""

    def __init__(self, size: int) -> None:
        self.fd = memfd(size)
        self.history = self.map()

    def map(self) -> History:
        return History(os.dup(self.fd))

    def reopen(self) -> History:
        """As the server that comes after one that was killed; the killed one's mapping just vanishes."""
        self.history.close()
        self.history = self.map()
        return self.history

    def close(self) -> None:
        self.history.close()
        os.close(self.fd)


@contextlib.contextmanager
def memory(size: int) -> Iterator[Memory]:
    found = Memory(size)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() == before


class Model:
    """Everything that was ever written, and what of it must be there."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.written = bytearray()
        self.marks: list[LoggedMark] = []

    @property
    def head(self) -> int:
        return len(self.written)

    @property
    def oldest(self) -> int:
        return max(0, self.head - self.size)

    def check(self, real: History) -> None:
        assert (real.head, real.oldest, real.size) == (self.head, self.oldest, self.size)
        assert real.read(self.oldest, self.head) == self.written[self.oldest :]
        assert real.next_mark == len(self.marks)
        kept = [real.mark(number) for number in range(real.oldest_mark, real.next_mark)]
        assert kept == self.marks[real.oldest_mark :]
        if real.oldest_mark > 0:  # no mark is given up while there is room for it
            records = [record(mark) for mark in self.marks[real.oldest_mark - 1 :]]
            assert sum(records) > limits.MARK_AREA
        for offset in {0, self.oldest, self.head, self.head + 1, *(mark.offset for mark in self.marks[-3:])}:
            expected = next((mark.number for mark in kept if mark.offset >= offset), len(self.marks))
            assert real.first_mark_from(offset) == expected


def record(mark: LoggedMark) -> int:
    return 4 + len(msgpack.packb(list(mark)))


OPERATIONS = st.one_of(
    st.tuples(st.just("fill"), st.binary(max_size=300), st.integers(1, 200)),
    st.tuples(st.just("append"), st.binary(max_size=300)),
    st.tuples(st.just("mark"), st.sampled_from(["resize", "title"]), st.integers(0, 3500)),
    st.tuples(st.just("many"), st.integers(1, 60), st.integers(500, 3500)),
    st.tuples(st.just("reopen")),
)


@settings(max_examples=150)
@given(size=st.sampled_from(SIZES), operations=st.lists(OPERATIONS, max_size=25))
def test_against_a_model(size: int, operations: list[tuple[Any, ...]]) -> None:
    """Whatever is read, appended and marked, in whatever pieces: the last `size` bytes and as many marks as fit are there."""
    model = Model(size)
    with memory(size) as mem, pipe() as (source, target):
        for operation in operations:
            match operation:
                case "fill", data, most:
                    fill_all(mem.history, source, target, data, most)
                    model.written += data
                case "append", data:
                    mem.history.append(data)
                    model.written += data
                case "mark", kind, extra:
                    add(mem.history, model, kind, extra)
                case "many", count, extra:
                    for _ in range(count):
                        add(mem.history, model, "title", extra)
                case _:
                    mem.reopen()
                    assert not mem.history.recover()
            model.check(mem.history)


def add(history: History, model: Model, kind: str, extra: int) -> None:
    data = {"text": "x" * extra}
    mark = history.add_mark(kind, data)
    model.marks.append(LoggedMark(len(model.marks), model.head, kind, data))
    assert mark == model.marks[-1]
    assert history.last_mark(kind) == mark


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    source, target = os.pipe()
    os.set_blocking(source, False)
    yield source, target
    os.close(source)
    os.close(target)


def fill_all(history: History, source: int, target: int, data: bytes, most: int) -> None:
    """Have the history read `data`, at most `most` bytes at a time, and find nothing more after it."""
    if data:
        os.write(target, data)
    left = len(data)
    while left > 0:
        before = history.head
        count = history.receive(source, most)
        assert count == history.head - before
        assert 0 < count <= most
        left -= count
    assert history.receive(source, most) == EMPTY


# --- reading ----------------------------------------------------------------------------------------
def test_end_of_a_pipe() -> None:
    source, target = os.pipe()
    os.write(target, b"tail")
    os.close(target)
    with memory(64) as mem:
        assert mem.history.receive(source, 4) == 4  # the quota is used up before the end is seen
        assert mem.history.receive(source, 4) == ENDED
        assert mem.history.read(0, 4) == b"tail"
    os.close(source)


def test_a_hang_up_ends_only_after_everything_was_read() -> None:
    """EIO of a PTY master means the end, and comes after the last byte (case C4)."""
    master, slave = os.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    try:
        with memory(64 * limits.KIB) as mem:
            os.write(slave, b"x" * 3000)
            os.close(slave)
            assert mem.history.receive(master, 1000) == 1000
            assert mem.history.receive(master, READ_SIZE) == 2000
            assert mem.history.receive(master, READ_SIZE) == ENDED
            assert mem.history.read(0, mem.history.head) == b"x" * 3000
    finally:
        os.close(master)


def test_other_errors_of_a_read_are_raised_and_leave_a_whole_history() -> None:
    with memory(64) as mem, pipe() as (source, target):
        os.write(target, b"abc")
        mem.history.receive(source, 3)
        folder = os.open("/", os.O_RDONLY)
        with pytest.raises(IsADirectoryError):
            mem.history.receive(folder, 10)
        os.close(folder)
        assert mem.history.head == 3
        assert mem.reopen().head == 3
        assert not mem.history.recover()


def test_one_read_never_brings_more_than_read_size() -> None:
    """What recovery gives up after a kill is sized by that."""
    calls: list[int] = []

    def readv(fd: int, buffers: tuple[memoryview]) -> int:
        calls.append(len(buffers[0]))
        return len(buffers[0])

    with memory(1 << 20) as mem, pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_module.os, "readv", readv)
        assert mem.history.receive(0, 10 * READ_SIZE + 1) == READ_SIZE
    assert calls == [READ_SIZE]


def test_slices_are_one_or_two() -> None:
    with memory(10) as mem:
        history = mem.history
        history.append(b"0123456789abcd")
        assert history.oldest == 4
        assert [bytes(part) for part in history.slices(4, 10)] == [b"456789"]
        assert [bytes(part) for part in history.slices(10, 14)] == [b"abcd"]
        assert [bytes(part) for part in history.slices(4, 14)] == [b"456789", b"abcd"]
        assert [bytes(part) for part in history.slices(9, 11)] == [b"9", b"a"]
        assert history.read(7, 7) == b""


@pytest.mark.parametrize(
    ("written", "boundary"),
    [
        (b"", 0),
        (b"not overwritten\n", 0),
        (b"#" * 36 + b"rest of a line\nnext", 36 + 15),
        (b"#" * 36 + b"no newline \x1b[1mbold", 36 + 11),
        (b"#" * 36 + "\u20ac".encode()[1:] + b"plain", 38),  # two bytes of a character whose first one is gone
        (b"#" * 36 + b"plain text, no seam", 36),
        (b"#" * 36 + b"\x80\x80\x80\x80binary", 39),  # no character has more than three of these
    ],
)
def test_safe_boundary(written: bytes, boundary: int) -> None:
    """Of what is left behind the 36 bytes that the ring lost."""
    size = max(1, len(written) - 36) if written.startswith(b"#") else 100
    with memory(size) as mem:
        mem.history.append(written)
        assert mem.history.safe_boundary() == boundary


# --- marks ------------------------------------------------------------------------------------------
def test_a_mark_that_is_too_large_is_refused_and_changes_nothing() -> None:
    with memory(64) as mem:
        with pytest.raises(ValueError, match="max_mark"):
            mem.history.add_mark("title", {"text": "x" * limits.MAX_MARK})
        assert mem.history.next_mark == 0
        assert mem.history.add_mark("title", {}).number == 0


def test_marks_of_all_sizes_round_the_area_many_times() -> None:
    """Records lie across the end of the area, and their length fields too."""
    model = Model(64)
    with memory(64) as mem:
        sizes = [1 + (7 * i) % 3001 for i in range(400)]
        for number, size in enumerate(sizes):
            add(mem.history, model, "title", size)
            mem.history.append(b"x")
            model.written += b"x"
            if number % 50 == 49:
                mem.reopen()
            model.check(mem.history)
        assert mem.history.oldest_mark > 0
        assert mem.history.last_mark("resize") is None


def test_a_mark_exists_from_one_store_on() -> None:
    """A server that is killed before that store has made no mark, and has lost only what it had to."""
    with memory(64) as mem:
        mem.history.add_mark("title", {"n": 1})
        words = mem.history._words
        head = words[H_MARK_HEAD]
        mem.history.add_mark("title", {"n": 2})
        words[H_MARK_HEAD] = head  # as if the kill had come before it
        again = mem.reopen()
        assert [again.mark(number).data for number in range(again.oldest_mark, again.next_mark)] == [{"n": 1}]
        assert again.add_mark("title", {"n": 3}).number == 1
        assert again._words[H_MARK_TAIL] == 0


# --- what outlives the server --------------------------------------------------------------------------
def test_reopened_it_is_the_same() -> None:
    with memory(1000) as mem:
        mem.history.append(os.urandom(2500))
        mem.history.holder_acked = 77
        mem.history.line = 4000
        mem.history.inputs.take(b"c" * 16, ()).wrote(9)
        for number in range(5):
            mem.history.add_mark("resize", {"columns": number})
        before = mem.history
        first = facts(before)
        second = mem.map()  # while the other is still there, as for a renderer
        assert facts(second) == first
        second.close()
        assert facts(mem.reopen()) == first


def facts(history: History) -> list[Any]:
    slot = history.inputs.find(b"c" * 16)
    return [
        history.head,
        history.oldest,
        history.read(history.oldest, history.head),
        [history.mark(number) for number in range(history.oldest_mark, history.next_mark)],
        history.holder_acked,
        history.line,
        None if slot is None else slot.written,
    ]


def test_recover_after_a_kill_in_the_middle_of_a_read() -> None:
    """The read may have overwritten as many of the oldest bytes as it asked for, and nobody knows how much it brought."""
    size, asked = 4 * READ_SIZE, 5000
    with memory(size) as mem:
        mem.history.append(os.urandom(size + 1000))
        head = mem.history.head
        mem.history._words[H_INTENT_END] = head + asked
        mem.history._words[H_INTENT] = head + 1
        again = mem.reopen()
        assert again.recover()
        assert (again.head, again.oldest) == (head, head + asked - size)
        assert not again.recover()  # told once
        assert mem.reopen().oldest == head + asked - size  # and still trimmed for the server after that
        mem.history.append(b"x" * READ_SIZE)
        assert mem.history.oldest == mem.history.head - size
        mem.history.append(b"x")
        assert mem.history.oldest == mem.history.head - size


def test_recover_with_an_old_intent() -> None:
    """The kill came between the two stores after a read: `head` counts it, so nothing is uncertain."""
    with memory(64) as mem:
        mem.history.append(b"abc")
        mem.history._words[H_INTENT] = 3  # for the read at 2, which is done
        again = mem.reopen()
        assert not again.recover()
        assert (again.oldest, again.head) == (0, 3)


def test_recover_in_a_ring_no_larger_than_a_read() -> None:
    with memory(limits.MIN_HISTORY) as mem:
        mem.history.append(b"x" * 100)
        mem.history._words[H_INTENT_END] = mem.history.head + limits.MIN_HISTORY - 100
        mem.history._words[H_INTENT] = 101
        again = mem.reopen()
        assert again.recover()
        assert again.oldest <= again.head
        assert again.safe_boundary() == again.oldest


@pytest.mark.parametrize(("word", "value"), [(H_MAGIC, 12345), (H_SIZE, 999)])
def test_another_layout_is_refused(word: int, value: int) -> None:
    fd = memfd(64)
    first = History(os.dup(fd))
    first._words[word] = value
    first.close()
    with pytest.raises(ValueError, match="not a history of this layout"):
        History(os.dup(fd))
    os.close(fd)


def test_untouched_pages_cost_nothing() -> None:
    fd = memfd(limits.DEFAULT_HISTORY)
    history = History(os.dup(fd))
    try:
        assert os.fstat(fd).st_blocks * 512 <= 3 * 4096
        history.append(b"x" * 100)
        history.add_mark("resize", {"columns": 80})
        history.inputs.take(b"c" * 16, ())
        assert os.fstat(fd).st_blocks * 512 <= 6 * 4096
    finally:
        history.close()
        os.close(fd)


CHILD = """
import os, sys
from guestagent.history import ENDED, History
history = History(int(sys.argv[1]))
source = int(sys.argv[2])
sys.stdout.write("up\\n")
sys.stdout.flush()
while history.receive(source, 5000) != ENDED:
    if history.head % 7 == 0:
        history.add_mark("title", {"at": history.head})
"""


@pytest.mark.slow
def test_killed_while_it_reads() -> None:
    """SIGKILL anywhere: what the memfd says it has is what was written, up to one unknown read, which it admits to.

    Every byte of the source says where it is, so a hole or a repetition in the ring would show.
    """
    size = 256 * limits.KIB
    text = b"".join(b"%07d\n" % number for number in range(1 << 18))
    for kill_at in range(50_000, 50_000 + 16 * 61_001, 61_001):
        fd = memfd(size)
        watch = History(os.dup(fd))
        source, target = os.pipe()
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(fd), str(source)], pass_fds=(fd, source), stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        feeder = threading.Thread(target=feed, args=(target, text))
        feeder.start()
        while watch._words[H_HEAD] < kill_at:
            os.sched_yield()
        child.kill()
        child.wait()
        child.stdout.close()
        os.close(source)  # the feeder gets EPIPE
        feeder.join()
        watch.close()
        history = History(os.dup(fd))
        history.recover()
        assert history.head >= kill_at
        got = history.read(history.oldest, history.head)
        assert got == text[history.oldest : history.head]
        marks = [history.mark(number) for number in range(history.oldest_mark, history.next_mark)]
        assert [mark.data["at"] for mark in marks] == [mark.offset for mark in marks]
        assert [mark.number for mark in marks] == list(range(history.oldest_mark, history.next_mark))
        history.close()
        os.close(fd)


def feed(target: int, text: bytes) -> None:
    view = memoryview(text)
    try:
        while view:
            select.select([], [target], [])
            view = view[os.write(target, view[:65536]) :]
    except BrokenPipeError:
        pass
    finally:
        os.close(target)
