"""A history as another process sees it that maps it read-only while the server goes on writing: the renderer.

Nothing is locked.  Whoever reads copies first and looks afterwards whether the writer may have come near meanwhile; the words that say
so are written by the server before it touches the ring.
"""

from __future__ import annotations

import mmap
import os

from guestagent.history import (
    CHECKPOINT_SIZE,
    CHECKPOINTS,
    H_CHECKPOINT,
    H_HEAD,
    H_INTENT,
    H_INTENT_END,
    H_MAGIC,
    H_MARK_HEAD,
    H_MARK_TAIL,
    H_PLAIN_FROM,
    H_PLAIN_TO,
    H_TRIMMED,
    INPUTS,
    MAGIC,
    PAGE,
    RING,
    read_marks,
)
from ptymux.output import LoggedMark


class HistoryView:
    """`fd` is the memfd, closed here after mapping."""

    def __init__(self, fd: int) -> None:
        total = os.fstat(fd).st_size
        self._map = mmap.mmap(fd, total, prot=mmap.PROT_READ)
        os.close(fd)
        view = memoryview(self._map)
        self._words = view[:PAGE].cast("Q")
        self._marks = view[PAGE:INPUTS]
        self._checkpoints = view[CHECKPOINTS:RING]
        self._ring = view[RING:]
        self.size = total - RING
        if self._words[H_MAGIC] != MAGIC:
            raise ValueError("cannot map history: not a history of this layout")

    @property
    def head(self) -> int:
        return self._words[H_HEAD]

    @property
    def oldest(self) -> int:
        """Bytes from here on are whole; a read that is in flight may be overwriting those before."""
        words = self._words
        # In this order: a read that ended before the first of these has moved the head before the last.
        intended = words[H_INTENT_END] if words[H_INTENT] else 0
        reach = max(words[H_HEAD], intended)
        return max(reach - self.size, words[H_TRIMMED], 0)

    @property
    def plain(self) -> tuple[int, int]:
        """[from, to) that the server vouches for."""
        return self._words[H_PLAIN_FROM], self._words[H_PLAIN_TO]

    def read(self, start: int, end: int) -> bytes | None:
        """A copy of the bytes [start, end); None if some of them were overwritten."""
        if end <= start:
            return b""
        if end - start > self.size:
            return None
        at = start % self.size
        first = min(end - start, self.size - at)
        data = bytes(self._ring[at : at + first])
        if first < end - start:
            data += self._ring[: end - start - first]
        return data if start >= self.oldest else None

    def marks(self, number: int) -> list[LoggedMark]:
        """Those of `number` and above that are kept."""
        words = self._words
        while True:
            tail, head = words[H_MARK_TAIL], words[H_MARK_HEAD]
            area = bytes(self._marks)  # decoded afterwards: a writer that is faster than that would never let us end
            if words[H_MARK_TAIL] == tail:
                return [mark for mark, _ in read_marks(area, tail, head) if mark.number >= number]

    def checkpoint(self) -> bytes | None:
        """What the server saved last."""
        while count := self._words[H_CHECKPOINT]:
            at = (count - 1) % 2 * CHECKPOINT_SIZE
            size = int.from_bytes(self._checkpoints[at : at + 4], "little")
            data = bytes(self._checkpoints[at + 4 : at + 4 + min(size, CHECKPOINT_SIZE - 4)])
            if self._words[H_CHECKPOINT] == count:  # the other slot is written before the word changes
                return data
        return None

    def close(self) -> None:
        for view in (self._words, self._marks, self._checkpoints, self._ring):
            view.release()
        self._map.close()
