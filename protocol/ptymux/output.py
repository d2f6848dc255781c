"""The output stream of one attach, both ends.

The agent's end, :class:`OutputSender`, is a position in a history and a credit: no queue, so a slow client costs the
same as a fast one.  :meth:`OutputSender.next_group` says what to send from a position without moving; the writer commits
what really went out.  The client's end, :class:`OutputReceiver`, checks that every byte and mark follows the one before,
keeps the cursor for the next attach, and says when credit is due.

After a discontinuity a terminal needs a picture of the session, which is asked for elsewhere and takes a moment::

    SENDING --(overwritten, or a start that wants a picture)--> AWAITING --(show)--> SENDING, beginning with Gap and Snapshot frames

Invariants
    sender     position.offset <= credit (nothing is sent that was not asked for); marks cost no credit
    receiver   cursor = exactly what was received, in order; a hole is a ProtocolError, never a skip
    both       a change of the cursor that is not contiguous is told by one Gap frame

Time, sockets and sessions are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from ptymux import limits
from ptymux.cursor import Cursor, Discontinuity, Log, Position, Start, overwritten, restart
from ptymux.errors import LocalProtocolError, ProtocolError
from ptymux.messages import Gap, Mark, Output, Snapshot, encode, output_header


class LoggedMark(NamedTuple):
    """A mark as the history keeps it."""

    number: int
    offset: int
    kind: str
    data: dict[str, Any]


class Picture(NamedTuple):
    """A session's terminal at `position`: `data` is escape sequences that replace a terminal's state with it."""

    position: Position
    data: bytes
    columns: int
    rows: int
    approximate: bool


class Source(Log, Protocol):
    """A history that can be sent from."""

    def mark(self, number: int) -> LoggedMark: ...
    def slices(self, start: int, end: int) -> Sequence[memoryview]:
        """Views of the bytes [start, end): one, or two where the ring wraps.  Valid until the next write into the ring."""
        ...


class Group(NamedTuple):
    """Buffers that make whole frames, their size, and the position once they are out."""

    buffers: list[bytes | memoryview]
    size: int
    after: Position
    jump: int | None  # bytes up to here are not sent (a gap or snapshot says so): the window moves along
    gaps: int  # discontinuities told in it
    told: int = 0  # how many of the frames that wait are in it


class OutputSender:
    """The agent's end of an attach."""

    def __init__(
        self,
        channel: int,
        source: Source,
        start: Start,
        *,
        repair: str,
        window: int,
        backlog: int = 0,
        pictures: bool = False,
        owner: Callable[[int], str | None] = lambda mark: None,
    ) -> None:
        """`pictures`: snapshots can be had.  `owner` says who answers queries where the stream goes on at a given mark."""
        self.channel = channel
        self.source = source
        self.repair = repair
        self.window = window
        self.position = start.position
        self.acked = start.position.offset - backlog
        self.credit = self.acked + window
        self._pictures = pictures and repair == "snapshot"
        self._owner = owner
        self.gaps = 0  # discontinuities told so far
        self.awaiting = start.picture  # nothing is sent until :meth:`show`
        self._unseen = list(start.discontinuities) if start.picture else []  # to be told with the picture
        self._untold = (
            [] if start.picture else [self._gap_frame(item, start.replay_to) for item in start.discontinuities]
        )
        self._untold_gaps = len(self._untold)
        self._target: Position | None = None  # where the stream goes on behind them, once the first of them is out
        self._told_alone = False  # they are not followed by output in the same group

    @property
    def lag(self) -> int:
        """Bytes of the stream that the client has not acknowledged."""
        return self.source.head - self.acked

    def on_credit(self, offset: int) -> bool:
        """Take a Credit frame; True if it acknowledged something new."""
        if offset > self.position.offset + self.window:
            raise ProtocolError("malformed Credit: acknowledges bytes that were not sent")
        if offset <= self.credit:
            return False  # late, or from before a gap
        self.credit = offset
        self.acked = offset - self.window
        return True

    def next_group(self, most: int) -> Group | None:
        """Frames to send now, with at most `most` bytes of output in them; None if there is nothing.

        Does not move: call :meth:`commit` once the first byte of the group is out.  The buffers are views of the ring and are
        valid only until it is next written to.
        """
        if self.awaiting:
            return None
        if self._told_alone:
            return self._next_told(most)
        source = self.source
        offset, mark = self.position
        credit = self.credit
        buffers: list[bytes | memoryview] = [*self._untold]
        jump: int | None = None
        told, gaps = len(buffers), self._untold_gaps
        if offset < source.oldest or mark < source.oldest_mark:
            if offset >= credit:
                # Told when the client can take more, or one that takes nothing would get a gap each time that the ring goes round.
                return Group(buffers, sum(map(len, buffers)), self.position, None, gaps, told) if buffers else None
            gap = overwritten(source, self.position, self.repair)
            assert gap is not None
            if self._pictures and gap.to.offset != offset:
                self._unseen = [gap]
                self.awaiting = True
                return Group(buffers, sum(map(len, buffers)), self.position, None, gaps, told) if buffers else None
            buffers.append(self._gap_frame(gap, source.head))
            gaps += 1
            credit += gap.to.offset - offset
            offset, mark = gap.to
            jump = offset
        size = sum(map(len, buffers))
        head, next_mark = source.head, source.next_mark
        while most > 0:
            end = min(head, credit, offset + most, offset + limits.MAX_OUTPUT_DATA)
            if mark < next_mark:
                logged = source.mark(mark)
                if logged.offset <= offset:
                    frame = encode(Mark(self.channel, logged.offset, logged.number, logged.kind, logged.data))
                    buffers.append(frame)
                    size += len(frame)
                    mark += 1
                    most -= len(frame)
                    continue
                end = min(end, logged.offset)
            count = end - offset
            if count <= 0:
                break
            header = output_header(self.channel, offset, count)
            buffers.append(header)
            buffers.extend(source.slices(offset, end))
            size += len(header) + count
            offset = end
            most -= count
        if not buffers:
            return None
        return Group(buffers, size, Position(offset, mark), jump, gaps, told)

    def _next_told(self, most: int) -> Group:
        """The next of the frames that wait.  With the first the position is behind them all: the client may give credit for that."""
        size = told = 0
        for frame in self._untold:
            if told and size + len(frame) > most:
                break
            size += len(frame)
            told += 1
        frames: list[bytes | memoryview] = [*self._untold[:told]]
        if self._target is None:
            return Group(frames, size, self.position, None, 0, told)
        return Group(frames, size, self._target, self._target.offset, self._untold_gaps, told)

    def show(self, picture: Picture | None) -> None:
        """The picture that was waited for, or None if there is none to be had: then the stream goes on with its history."""
        if not self.awaiting:
            return
        self.awaiting = False
        found, self._unseen = self._unseen, []
        if picture is None:
            to = restart(self.source, self.repair)
            lost = found or ([Discontinuity("gap", 0, to, {"reason": "no_screen"})] if to.offset else [])
            told = [item if item.kind == "rewound" else replace(item, to=to) for item in lost]
            self._untold = [self._gap_frame(item, self.source.head) for item in told]
        else:
            to = picture.position
            told = [item if item.kind == "rewound" else replace(item, to=to) for item in found]
            told = [replace(item, detail={**item.detail, "snapshot": True}) for item in told]
            self._untold = [self._gap_frame(item, to.offset) for item in told]
            self._untold.extend(self._picture_frames(picture))
        self._untold_gaps = len(told)
        if self._untold:
            self._target, self._told_alone = to, True

    def _picture_frames(self, picture: Picture) -> Iterator[bytes]:
        size = limits.MAX_OUTPUT_DATA
        parts = [picture.data[at : at + size] for at in range(0, len(picture.data), size)] or [b""]
        detail = {
            "columns": picture.columns,
            "rows": picture.rows,
            "approximate": picture.approximate,
            "owner": self._owner(picture.position.mark),
        }
        for number, part in enumerate(parts, 1):
            last = number == len(parts)
            yield encode(Snapshot(self.channel, *picture.position, last, part, detail if last else {}))

    def commit(self, group: Group) -> None:
        """The group is on its way: its first byte is out, and the rest will be."""
        if group.told:
            del self._untold[: group.told]
            self._target, self._untold_gaps = None, 0
            self._told_alone = self._told_alone and bool(self._untold)
        self.gaps += group.gaps
        if group.jump is not None:
            # What was overwritten needs no acknowledgement, but what the receiver still holds does: its window moves with the
            # gap, and is no more open than before.
            distance = group.jump - self.position.offset
            self.acked += distance
            self.credit += distance
        self.position = group.after

    def _gap_frame(self, item: Discontinuity, replay_to: int) -> bytes:
        owner = self._owner(item.to.mark)
        detail = item.detail if owner is None else {**item.detail, "owner": owner}
        return encode(Gap(self.channel, item.kind, item.start, *item.to, replay_to, detail))


class OutputReceiver:
    """The client's end of an attach, over all its connections.

    Feed it the frames of its channel; it raises ProtocolError for whatever does not follow.  `cursor` is always good for
    the next attach.
    """

    def __init__(self, cursor: Cursor | None, window: int) -> None:
        self.window = window
        self.start = cursor  # what the next attach asks for; None: from the beginning
        self.replay_to = 0
        self._generation = b""
        self._offset = 0
        self._mark = 0
        self._backlog = 0  # bytes received that the caller has not taken
        self._limit = 0  # the agent may send up to here
        self._told = 0  # and knows at least of this
        self._urgent = 0  # what lies below this is acknowledged as soon as it was dealt with
        self._parts: list[bytes] = []  # of a snapshot that is not complete

    @property
    def cursor(self) -> Cursor | None:
        """Behind the last byte and mark received; None before the first one."""
        return self.start

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def backlog(self) -> int:
        """Bytes received that the caller has not taken: the next attach asks for so much less."""
        return self._backlog

    def attached(self, generation: bytes, start: Position, replay_to: int, backlog: int = 0) -> None:
        """The agent answered an attach: the stream goes on at `start`, or where the Gap frame that follows says.

        `backlog` is what the attach said of it; the caller may have taken some of it since.

        The cursor stays where it is until a frame arrives: were it to move now and the connection to break before the Gap,
        the next attach would go on behind the gap and nobody would ever be told of it.
        """
        self._generation = generation
        self._parts.clear()
        self._offset, self._mark = start
        self._open_window(told=start.offset + self.window - backlog)
        self.replay_to = max(self.replay_to, replay_to)  # a cut in the middle of a replay does not make the rest news

    def on_output(self, frame: Output) -> None:
        if self._parts:
            raise ProtocolError("malformed Output: in the middle of a snapshot")
        if frame.offset != self._offset:
            raise ProtocolError(f"malformed Output: offset {frame.offset} where {self._offset} follows")
        end = frame.offset + len(frame.data)
        if end > self._limit:
            raise ProtocolError(f"malformed Output: exceeds the credit of {self._limit}")
        self._backlog += len(frame.data)
        self._offset = end
        self._moved()

    def on_mark(self, frame: Mark) -> None:
        if frame.number != self._mark:
            raise ProtocolError(f"malformed Mark: number {frame.number} where {self._mark} follows")
        if frame.offset > self._offset:
            raise ProtocolError(f"malformed Mark: offset {frame.offset} is ahead of the output")
        self._mark += 1
        self._moved()

    def on_gap(self, frame: Gap) -> None:
        self._offset = frame.to
        self._mark = frame.mark
        self._open_window(told=frame.to)
        self.replay_to = frame.replay_to
        if not frame.detail.get("snapshot"):  # else with the snapshot: cut off in between, all of it is told again
            self._moved()

    def on_snapshot(self, frame: Snapshot) -> bytes | None:
        """The whole picture, once its last part is there."""
        self._parts.append(frame.data)
        if sum(map(len, self._parts)) > limits.MAX_SNAPSHOT:
            raise ProtocolError(f"malformed Snapshot: exceeds max_snapshot ({limits.MAX_SNAPSHOT})")
        if not frame.last:
            return None
        data = b"".join(self._parts)
        self._parts.clear()
        self._offset, self._mark = frame.offset, frame.mark
        self._open_window(told=frame.offset)
        self.replay_to = frame.offset
        self._moved()
        return data

    def consume(self, count: int) -> None:
        """The caller has taken `count` more bytes."""
        if not 0 <= count <= self._backlog:
            raise LocalProtocolError(f"cannot consume {count} bytes: {self._backlog} are there")
        self._backlog -= count

    def acknowledge(self, offset: int) -> None:
        """Have credit sent as soon as everything below `offset` was dealt with: a query that is answered must not be answered again."""
        self._urgent = offset

    def credit_due(self) -> int | None:
        """The offset for a Credit frame if one is worth sending now, else None."""
        taken = self._offset - self._backlog
        credit = taken + self.window
        urgent = max(0, self._told - self.window) < self._urgent <= taken
        if credit <= self._told or (
            not urgent and credit - self._told < min(self.window // 4, limits.MAX_OUTPUT_DATA)
        ):
            return None
        self._limit = max(self._limit, credit)
        self._told = credit
        return credit

    def _open_window(self, told: int) -> None:
        """The stream goes on elsewhere, for a window's worth at most, less what the caller has not taken yet.

        `told` is what the agent surely knows of it.  (At a gap it knows less than we do of what was taken: credit is due early.)
        """
        self._limit = self._offset + self.window - self._backlog
        self._told = told

    def _moved(self) -> None:
        self.start = Cursor(self._generation, self._offset, self._mark)
