"""A history in memory: the smallest thing that satisfies `ptymux.output.Source`, honest about what it has overwritten."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from ptymux.cursor import Ancestor, Position
from ptymux.output import LoggedMark


class Ring:
    """Keeps the last `size` bytes and the last `most_marks` marks.  Asking for anything else fails the test."""

    def __init__(self, size: int, most_marks: int) -> None:
        self.size = size
        self.most_marks = most_marks
        self.head = 0
        self.next_mark = 0
        self._bytes = bytearray(size)
        self._marks: deque[LoggedMark] = deque(maxlen=most_marks)

    @property
    def oldest(self) -> int:
        return max(0, self.head - self.size)

    @property
    def oldest_mark(self) -> int:
        return self._marks[0].number if self._marks else self.next_mark

    def first_mark_from(self, offset: int) -> int:
        return next((mark.number for mark in self._marks if mark.offset >= offset), self.next_mark)

    def safe_boundary(self) -> int:
        """Behind the first newline; the oldest byte if there is none or nothing is missing."""
        if self.oldest == 0:
            return 0
        newline = self.read(self.oldest, self.head).find(b"\n")
        return self.oldest + newline + 1

    def mark(self, number: int) -> LoggedMark:
        assert self.oldest_mark <= number < self.next_mark, "a mark that is not in the history was asked for"
        return self._marks[number - self.oldest_mark]

    def slices(self, start: int, end: int) -> Sequence[memoryview]:
        assert self.oldest <= start <= end <= self.head, "bytes that are not in the history were asked for"
        at, stop = start % self.size, start % self.size + end - start
        view = memoryview(self._bytes)
        return [view[at:stop]] if stop <= self.size else [view[at:], view[: stop - self.size]]

    def read(self, start: int, end: int) -> bytes:
        return b"".join(self.slices(start, end))

    def append(self, data: bytes) -> None:
        for byte in data:
            self._bytes[self.head % self.size] = byte
            self.head += 1

    def add_mark(self, kind: str, data: dict[str, Any]) -> LoggedMark:
        mark = LoggedMark(self.next_mark, self.head, kind, data)
        self._marks.append(mark)
        self.next_mark += 1
        return mark

    def copy(self) -> Ring:
        """As a restored VM finds it."""
        new = Ring(self.size, self.most_marks)
        new.head, new.next_mark = self.head, self.next_mark
        new._bytes[:] = self._bytes
        new._marks.extend(self._marks)
        return new


class World:
    """One VM's life: the history as the agent has it, and everything that was ever written, as only the tests know."""

    def __init__(self, ring: Ring, generation: bytes, lineage: tuple[Ancestor, ...] = (), written: bytes = b"") -> None:
        self.ring = ring
        self.generation = generation
        self.lineage = lineage
        self.written = bytearray(written)
        self.marks: list[LoggedMark] = []

    def write(self, data: bytes) -> None:
        self.ring.append(data)
        self.written += data

    def mark(self, kind: str, data: dict[str, Any] | None = None) -> None:
        self.marks.append(self.ring.add_mark(kind, data or {}))

    def position(self) -> Position:
        return Position(self.ring.head, self.ring.next_mark)

    def restored(self, generation: bytes, stream: str, *, prepared: bool = True) -> World:
        """A VM restored from a snapshot of this one, as it is now.  Unprepared: it cannot know where it forked."""
        lineage = (*self.lineage, Ancestor(self.generation, {stream: self.position()})) if prepared else ()
        new = World(self.ring.copy(), generation, lineage, bytes(self.written))
        new.marks = [*self.marks]
        new.mark("restored", {"by": generation})
        return new
