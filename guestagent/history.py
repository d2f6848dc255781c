"""A stream's history: a bounded ring of raw bytes in a memfd, with its marks.

The memfd outlives the server: the keeper holds it, and the next server (or a renderer, read-only) maps the same pages.  So
everything that must survive a SIGKILL is in here, and every update is one aligned 8-byte store, which the kernel cannot
cut in half.

Layout (native words of 8 bytes)::

    0            header           words named H_*
    PAGE         marks            MARK_AREA bytes, a ring of (u32 size, msgpack [number, offset, kind, data])
    INPUTS       input positions  see input_table.py
    CHECKPOINTS  two slots        of (u32 size, bytes): the renderer's state at some offset, so that it can be killed at any moment
    RING         output           `size` bytes; the byte at offset o is at o % size

Invariants
    bytes [oldest, head) are there; head only grows
    H_INTENT is head + 1 while a read may be in flight: a server that finds it so cannot know how much that read brought,
    and says so with a `gap` mark of unknown size; H_INTENT_END is the offset up to which it may have overwritten the ring
    untouched pages cost nothing, so a large history of a quiet session is free
"""

from __future__ import annotations

import errno
import mmap
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgpack

from guestagent.input_table import TABLE_BYTES, InputTable
from ptymux import limits
from ptymux.output import LoggedMark

PAGE = 4096
INPUTS = PAGE + limits.MARK_AREA
CHECKPOINTS = INPUTS + TABLE_BYTES
CHECKPOINT_SIZE = (
    128 * limits.KIB
)  # of one slot: a screen and a hundred lines or so; it is saved without scrollback if need be
RING = CHECKPOINTS + 2 * CHECKPOINT_SIZE
MAGIC = 0x7074796D75780002  # "ptymux", layout 2

H_MAGIC, H_SIZE, H_HEAD, H_INTENT, H_TRIMMED, H_MARK_TAIL, H_MARK_HEAD, H_INTENT_END = range(8)
H_HOLDER_ACKED = 8  # `block`: how far the named holder has acknowledged
H_LINE = 9  # bytes of the line that is being typed; see line_guard.py
H_CHECKPOINT = 10  # how many checkpoints were saved; the slots take turns
H_ANSWERED = 11  # terminal queries below this offset need no answer of the agent any more
H_TAKEN = 12  # and those below this one no client's either
H_TAKEN_FROM = 15  # of those, the ones from here on that a client was asked are the agent's to answer
H_PLAIN_FROM, H_PLAIN_TO = 13, 14  # the server looked at these bytes, and they only scroll; see stream.py

READ_SIZE = 64 * limits.KIB  # most that one read brings, and so the most that a killed server can leave uncertain

EMPTY, ENDED = 0, -1  # what a read may say in place of a count


def memory_size(size: int) -> int:
    """Bytes of a memfd for a ring of `size` bytes."""
    return RING + size


def read_marks(area: memoryview | bytes, position: int, head: int) -> Iterator[tuple[LoggedMark, int]]:
    """The marks at [position, head) of a mark area, and the bytes that each takes in it."""

    def get(position: int, size: int) -> bytes:
        at = position % limits.MARK_AREA
        first = min(size, limits.MARK_AREA - at)
        return bytes(area[at : at + first]) + bytes(area[: size - first])

    while position < head:
        size = int.from_bytes(get(position, 4), "little")
        yield LoggedMark(*msgpack.unpackb(get(position + 4, size))), 4 + size
        position += 4 + size


class History:
    """One stream's log.  `fd` is the memfd (closed here after mapping)."""

    def __init__(self, fd: int) -> None:
        total = os.fstat(fd).st_size
        self._map = mmap.mmap(fd, total)
        os.close(fd)  # the mapping holds a duplicate
        view = memoryview(self._map)
        self._words = view[:PAGE].cast("Q")
        self._marks = view[PAGE:INPUTS]
        self._ring = view[RING:]
        self.size = total - RING
        self._checkpoints = view[CHECKPOINTS:RING]
        self.inputs = InputTable(view[INPUTS:CHECKPOINTS].cast("Q"))
        self._log: deque[LoggedMark] = deque()
        self._sizes: deque[int] = deque()  # bytes that each kept mark takes in the area
        words = self._words
        if words[H_MAGIC] == 0:
            words[H_SIZE] = self.size
            words[H_MAGIC] = MAGIC
        elif words[H_MAGIC] != MAGIC or words[H_SIZE] != self.size:
            raise ValueError("cannot map history: not a history of this layout")
        self.head = words[H_HEAD]
        self._load_marks()

    # --- recovery ---------------------------------------------------------------------------------
    def recover(self) -> bool:
        """After a server died: True if a read was in flight, so that output of unknown size may be missing at head."""
        words = self._words
        uncertain = words[H_INTENT] == self.head + 1
        if uncertain:  # that read may also have overwritten the oldest bytes
            words[H_TRIMMED] = max(words[H_TRIMMED], words[H_INTENT_END] - self.size, 0)
        words[H_INTENT] = 0
        return uncertain

    # --- output -----------------------------------------------------------------------------------
    @property
    def oldest(self) -> int:
        oldest = self.head - self.size
        trimmed = self._words[H_TRIMMED]
        return trimmed if trimmed > oldest else max(oldest, 0)

    def receive(self, fd: int, most: int) -> int:
        """Read once from the non-blocking `fd` into the ring, at most `most` bytes (and READ_SIZE, and up to the ring's end).

        How many bytes came; EMPTY: the kernel has nothing more now; ENDED: end of file, or a hang-up after everything was read.
        A hang-up (EIO on a PTY master) is believed when it is met twice in a row: the kernel looks for data first and for the
        other side then, so what is written and closed in between comes with the read after a first EIO (4 of 40,000 exits).
        """
        count = self._receive(fd, most)
        return self._receive(fd, most) if count == ENDED else count

    def _receive(self, fd: int, most: int) -> int:
        # A terminal gives some 4 KB a read whatever is asked for, so this runs 250 times for a megabyte.
        words, head, size = self._words, self.head, self.size
        at = head % size
        stop = at + (most if most < READ_SIZE else READ_SIZE)
        if stop > size:
            stop = size
        words[H_INTENT_END] = head + stop - at
        words[H_INTENT] = head + 1
        try:
            count = os.readv(fd, (self._ring[at:stop],))
        except BlockingIOError:
            count = EMPTY
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            count = ENDED
        else:
            if count:
                self.head = words[H_HEAD] = head + count
            else:
                count = ENDED
        finally:
            words[H_INTENT] = 0
        return count

    def append(self, data: bytes) -> None:
        """Write `data` into the ring as if it had been read."""
        for start in range(0, len(data), self.size):
            part = data[start : start + self.size]
            at = self.head % self.size
            first = min(len(part), self.size - at)
            self._ring[at : at + first] = part[:first]
            self._ring[: len(part) - first] = part[first:]
            self.head += len(part)
            self._words[H_HEAD] = self.head

    def slices(self, start: int, end: int) -> list[memoryview]:
        """Views of the bytes [start, end): one, or two where the ring wraps."""
        at = start % self.size
        stop = at + end - start
        if stop <= self.size:
            return [self._ring[at:stop]]
        return [self._ring[at:], self._ring[: stop - self.size]]

    def read(self, start: int, end: int) -> bytes:
        """A copy of the bytes [start, end), which must be there."""
        return b"".join(self.slices(start, end))

    def safe_boundary(self) -> int:
        """The oldest offset that does not lie inside a line, and so (nearly always) not inside a sequence or character."""
        oldest = self.oldest
        if oldest == 0:
            return 0
        head = self.read(oldest, min(self.head, oldest + 64 * limits.KIB))
        newline = head.find(b"\n")
        if newline >= 0:
            return oldest + newline + 1
        escape = head.find(b"\x1b")
        if escape >= 0:
            return oldest + escape
        start = 0
        while start < min(3, len(head)) and head[start] & 0xC0 == 0x80:
            start += 1
        return oldest + start

    # --- the holder of a `block` session ------------------------------------------------------------
    @property
    def holder_acked(self) -> int:
        return self._words[H_HOLDER_ACKED]

    @holder_acked.setter
    def holder_acked(self, offset: int) -> None:
        self._words[H_HOLDER_ACKED] = offset

    # --- the screen ---------------------------------------------------------------------------------
    def has_escape(self, start: int, end: int) -> bool:
        """Is there an ESC in [start, end), which must be there?  (Searching a copy is ten times faster than searching the map.)"""
        return any(b"\x1b" in bytes(part) for part in self.slices(start, end))

    def save_checkpoint(self, data: bytes) -> None:
        """Keep the renderer's state; see renderer/follower.py.  ValueError if it is larger than a slot."""
        if len(data) > CHECKPOINT_SIZE - 4:
            raise ValueError(f"cannot save checkpoint: {len(data)} bytes")
        count = self._words[H_CHECKPOINT]
        at = count % 2 * CHECKPOINT_SIZE
        self._checkpoints[at : at + 4] = len(data).to_bytes(4, "little")
        self._checkpoints[at + 4 : at + 4 + len(data)] = data
        self._words[H_CHECKPOINT] = count + 1

    def vouch(self, start: int, end: int) -> None:
        """Tell the renderer that [start, end) is plain, in case it comes too late to see it."""
        self._words[H_PLAIN_FROM], self._words[H_PLAIN_TO] = start, end

    @property
    def answered(self) -> int:
        return self._words[H_ANSWERED]

    @answered.setter
    def answered(self, offset: int) -> None:
        self._words[H_ANSWERED] = offset

    @property
    def taken(self) -> int:
        return self._words[H_TAKEN]

    @property
    def taken_from(self) -> int:
        return self._words[H_TAKEN_FROM]

    def take(self, start: int, end: int) -> None:
        self._words[H_TAKEN_FROM], self._words[H_TAKEN] = start, end

    # --- the line that is being typed ---------------------------------------------------------------
    @property
    def line(self) -> int:
        return self._words[H_LINE]

    @line.setter
    def line(self, size: int) -> None:
        self._words[H_LINE] = size

    # --- marks ------------------------------------------------------------------------------------
    @property
    def next_mark(self) -> int:
        return self._log[-1].number + 1 if self._log else 0

    @property
    def oldest_mark(self) -> int:
        return self._log[0].number if self._log else 0

    def mark(self, number: int) -> LoggedMark:
        return self._log[number - self._log[0].number]

    def first_mark_from(self, offset: int) -> int:
        index = bisect_left(self._log, offset, key=lambda mark: mark.offset)
        number = self._log[index].number if index < len(self._log) else self.next_mark
        end = self.last_mark("exit")  # whoever goes on behind it, in a descendant's output, still has to hear of it
        return number if end is None else min(number, end.number)

    def add_mark(self, kind: str, data: dict[str, Any]) -> LoggedMark:
        """Pin an event to the present head.  The oldest marks make room where the area is full."""
        mark = LoggedMark(self.next_mark, self.head, kind, data)
        body: bytes = msgpack.packb(list(mark))
        if len(body) > limits.MAX_MARK:
            raise ValueError(f"cannot add mark: {len(body)} bytes exceed max_mark")
        record = len(body).to_bytes(4, "little") + body
        words = self._words
        head = words[H_MARK_HEAD]
        while head + len(record) - words[H_MARK_TAIL] > limits.MARK_AREA:
            self._log.popleft()
            words[H_MARK_TAIL] += self._sizes.popleft()
        self._put(head, record)
        words[H_MARK_HEAD] = head + len(record)  # the mark exists from here on
        self._log.append(mark)
        self._sizes.append(len(record))
        return mark

    def last_mark(self, kind: str, before: int | None = None) -> LoggedMark | None:
        """The last of this kind; with `before`, of those at lower offsets."""
        return next(
            (mark for mark in reversed(self._log) if mark.kind == kind and (before is None or mark.offset < before)),
            None,
        )

    def owner(self, number: int) -> str | None:
        """Who answers a terminal's queries, as the marks below `number` say: a client's id in hex; None: the agent."""
        for mark in reversed(self._log):
            if mark.kind == "size_owner" and mark.number < number:
                client: str | None = mark.data["client"]
                return client
        return None

    def _load_marks(self) -> None:
        for mark, size in read_marks(self._marks, self._words[H_MARK_TAIL], self._words[H_MARK_HEAD]):
            self._log.append(mark)
            self._sizes.append(size)

    def _put(self, position: int, data: bytes) -> None:
        at = position % limits.MARK_AREA
        first = min(len(data), limits.MARK_AREA - at)
        self._marks[at : at + first] = data[:first]
        self._marks[: len(data) - first] = data[first:]

    def close(self) -> None:
        """Unmap.  No view from :meth:`slices` may be in use."""
        self.inputs.release()
        for view in (self._words, self._marks, self._checkpoints, self._ring):
            view.release()
        self._map.close()
