"""A terminal stream as data: what a program wrote, and where the terminal's size changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Size = tuple[int, int]  # columns, rows
Chunk = bytes | Size  # output, or a resize

SCROLLBACK = 1000  # rows; as much as the agent's own model keeps


class Stream(NamedTuple):
    """What both terminals are fed."""

    name: str
    columns: int
    rows: int
    chunks: tuple[Chunk, ...]
    scrollback: int = SCROLLBACK

    @property
    def size(self) -> int:
        """Bytes of output."""
        return sum(len(chunk) for chunk in self.chunks if isinstance(chunk, bytes))

    def cut(self, position: int) -> Stream:
        """The stream up to a byte of its output; resizes at that very place are not in it, unless it is the end."""
        kept: list[Chunk] = []
        for chunk in self.chunks:
            if isinstance(chunk, bytes):
                if len(chunk) > position:
                    if position:
                        kept.append(chunk[:position])
                    break
                position -= len(chunk)
            kept.append(chunk)
        return self._replace(chunks=tuple(kept))

    def in_pieces(self, length: int) -> Stream:
        """The same stream with its output in chunks of at most `length` bytes."""
        pieces: list[Chunk] = []
        for chunk in self.chunks:
            if isinstance(chunk, bytes):
                pieces += [chunk[start : start + length] for start in range(0, len(chunk), length)]
            else:
                pieces.append(chunk)
        return self._replace(chunks=tuple(pieces))


def joined(chunks: Sequence[Chunk]) -> tuple[Chunk, ...]:
    """One chunk of output between two resizes."""
    found: list[Chunk] = []
    pending: list[bytes] = []
    for chunk in chunks:
        if isinstance(chunk, bytes):
            pending.append(chunk)
            continue
        if pending:
            found.append(b"".join(pending))
            pending.clear()
        found.append(chunk)
    if pending:
        found.append(b"".join(pending))
    return tuple(found)
