"""Where a client is in a stream, and where the stream goes on for it: pure functions, no state.

A cursor is (generation, offset, mark number): every byte below `offset` and every mark below `mark` has been seen, in that
generation's history.  :func:`resolve` compares it with what this agent has and answers either with the same position (resume
without loss) or with an explicit discontinuity.  There is no third answer: never a clamp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ptymux.errors import ProtocolError
from ptymux.messages import is_list

REPAIRS = ("snapshot", "bytes")
BEGINNINGS = ("history", "snapshot")


class Position(NamedTuple):
    """A place in one stream of this generation: the next byte and the next mark."""

    offset: int
    mark: int


class Cursor(NamedTuple):
    """A place in one stream of a given generation.

    `mark` None means "the first mark at or after `offset`", for a caller that knows only an offset.
    """

    generation: bytes
    offset: int
    mark: int | None = None

    def to_wire(self) -> list[Any]:
        return [self.generation, self.offset, self.mark]

    @classmethod
    def from_wire(cls, value: Any) -> Cursor | None:
        """None for nil; ProtocolError for anything that is not a cursor."""
        if value is None:
            return None
        if is_list(value) and len(value) == 3:
            generation, offset, mark = value
            if _is_id(generation) and _is_u64(offset) and (mark is None or _is_u64(mark)):
                return cls(generation, offset, mark)
        raise ProtocolError("malformed cursor: must be [generation, offset, mark or nil]")

    def __str__(self) -> str:
        mark = "" if self.mark is None else f"+{self.mark}"
        return f"{self.generation.hex()}:{self.offset}{mark}"


def _is_id(value: Any) -> bool:
    return type(value) is bytes and len(value) == 16


def _is_u64(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


class Ancestor(NamedTuple):
    """An earlier generation, and where in each stream the generation after it forked off.

    A stream that is missing in `forks` did not exist at the fork.
    """

    generation: bytes
    forks: Mapping[str, Position]


class Log(Protocol):
    """What the protocol needs to know of a stream's history.  Bytes [oldest, head) and marks [oldest_mark, next_mark) are there."""

    @property
    def oldest(self) -> int: ...
    @property
    def head(self) -> int: ...
    @property
    def oldest_mark(self) -> int: ...
    @property
    def next_mark(self) -> int: ...

    def first_mark_from(self, offset: int) -> int:
        """Number of the first mark at or after `offset` (next_mark if there is none), or of an `exit` that comes before it."""
        ...

    def safe_boundary(self) -> int:
        """The oldest offset from which output can be shown to a terminal: not inside a line, sequence or character."""
        ...


@dataclass(frozen=True, slots=True)
class Discontinuity:
    """The stream goes on elsewhere than at the cursor."""

    kind: str  # gap | rewound | foreign
    start: int | None  # where the client was; None if that offset means nothing here
    to: Position
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """The answer to an attach: `position` to go on from, after telling `discontinuities` in order."""

    position: Position
    discontinuities: tuple[Discontinuity, ...]
    replay_to: int  # bytes below were in the history before the attach and are not news to whoever looked then
    picture: bool = False  # a snapshot comes first, and the stream goes on where it was taken


def restart(log: Log, repair: str) -> Position:
    """Where a stream goes on after a discontinuity whose target is not in the history any more."""
    if repair == "bytes":
        return Position(log.oldest, max(log.oldest_mark, log.first_mark_from(log.oldest)))
    offset = log.safe_boundary()
    return Position(offset, log.first_mark_from(offset))


def overwritten(log: Log, at: Position, repair: str) -> Discontinuity | None:
    """The gap that a reader at `at` has because the ring went on without it, or None."""
    if at.offset >= log.oldest and at.mark >= log.oldest_mark:
        return None
    if at.offset >= log.oldest:  # only marks are missing: every byte is still there
        to = Position(at.offset, log.oldest_mark)
    else:
        to = restart(log, repair)
    return Discontinuity("gap", at.offset, to, {"marks": [at.mark, to.mark], "reason": "overwritten"})


def resolve(
    cursor: Cursor | None,
    log: Log,
    *,
    stream: str,
    generation: bytes,
    lineage: Sequence[Ancestor],
    repair: str,
    pictures: bool = False,
    begin: str = "history",
) -> Start:
    """Where `stream` goes on for a client at `cursor` (None: it has seen nothing, and wants to `begin` with the history or a snapshot).

    `pictures`: a snapshot of the terminal can be had, which is what a discontinuity is repaired with unless the client wants bytes.
    """
    found: list[Discontinuity] = []
    if cursor is None:
        position, fresh = Position(0, 0), True
    else:
        position, fresh = _locate(cursor, log, stream, generation, lineage, repair, found)
    gap = overwritten(log, position, repair)
    if gap is not None:
        found.append(gap)
        position = gap.to
    if pictures and repair == "snapshot" and (found or (cursor is None and begin == "snapshot")):
        if cursor is None and begin == "snapshot":
            found.clear()  # nobody has missed anything
        # The picture will be of a later offset; from here the stream goes on if there is none, so a credit never moves backwards.
        return Start(restart(log, repair), tuple(found), log.head, picture=True)
    replay_to = log.head if fresh or found else position.offset
    return Start(position, tuple(found), replay_to)


def _locate(
    cursor: Cursor,
    log: Log,
    stream: str,
    generation: bytes,
    lineage: Sequence[Ancestor],
    repair: str,
    found: list[Discontinuity],
) -> tuple[Position, bool]:
    mark = log.first_mark_from(cursor.offset) if cursor.mark is None else cursor.mark
    here = Position(cursor.offset, mark)
    if cursor.generation == generation:
        if here.offset <= log.head and here.mark <= log.next_mark:
            return here, False
    else:
        for ancestor in lineage:
            if ancestor.generation != cursor.generation:
                continue
            fork = ancestor.forks.get(stream)
            if fork is None:
                break  # the stream is younger than the fork: what the client saw was another branch's
            if cursor.mark is None:  # the marks at `offset` may be overwritten, up to one behind the fork
                mark = min(mark, fork.mark)
            # What both branches have of what the client saw.  (It may have seen marks behind the fork and not all bytes
            # before it, where marks were overwritten under it.)
            common = Position(min(cursor.offset, fork.offset), min(mark, fork.mark))
            if common != (cursor.offset, mark):
                found.append(Discontinuity("rewound", cursor.offset, common, {}))
            return common, False
    to = restart(log, repair)
    found.append(Discontinuity("foreign", None, to, {}))
    return to, True
