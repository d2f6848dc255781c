"""The input stream of one client into one session, both ends.

Input is addressed by (client, session, input offset).  The client keeps what is not acknowledged; the agent keeps, per client,
how many bytes it took and how many it wrote to the terminal, drops what it has, refuses a hole, and acknowledges what it wrote.

Sender states (client)::

    OPEN      bytes go out as the window allows
    PROBING   reconnected with unacknowledged bytes: an empty Input was sent, the Ack says what the agent wrote;
              only then is the rest resent, or given up with a Skip where it is too old to type

A Skip that no Ack has confirmed is sent again, before the probe, on every new connection: without it the agent would
see a hole.

Receiver states (agent)::

    OPEN      bytes are queued and written as the terminal takes them
    REFUSED   something could not be written: all further input is ignored until the client skips, so that the rest
              of a refused line is never executed as a line of its own

The first frame of a connection, and a probe (an empty Input), take the receiver back to OPEN with an empty queue: the client resends everything that is not
written, so the Ack is the last word on what was.  Were the queue kept, its bytes could still be typed after the client has
told its user that they were dropped.

Invariants
    sender     acked <= sent <= end; sent - acked <= INPUT_WINDOW
    receiver   written <= received; each offset is written at most once, ever, in order
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from ptymux import limits
from ptymux.errors import ProtocolError
from ptymux.messages import Ack, Input, InputEnd, Refused, Skip


class SenderState(Enum):
    OPEN = "open"
    PROBING = "probing"


class Dropped(NamedTuple):
    """Input [start, to) was given up and will not be typed."""

    start: int
    to: int
    reason: str  # stale | refused | unknown_position


class Uncertain(NamedTuple):
    """Input [start, to) may or may not have been typed: the server was killed in the middle of the write."""

    start: int
    to: int


class _Chunk(NamedTuple):
    offset: int
    data: bytes
    since: float


class InputSender:
    """The client's end.  `max_age` seconds is how old unacknowledged input may be to be resent; None: any age."""

    def __init__(self, session: str, max_age: float | None = limits.INPUT_MAX_AGE) -> None:
        self.session = session
        self.max_age = max_age
        self.state = SenderState.OPEN
        self.acked = 0
        self.sent = 0
        self.end = 0
        self.ended = False
        self._end_sent = False
        self._chunks: deque[_Chunk] = deque()
        self._urgent: list[Input | Skip] = []
        self._unconfirmed: Skip | None = None  # sent, but no answer has shown yet that the agent took it

    def write(self, data: bytes, now: float) -> int:
        """Queue `data`; the offset behind it."""
        if self.ended:
            raise ValueError("cannot send input: its end was sent")
        for i in range(0, len(data), limits.MAX_INPUT_DATA):
            part = bytes(data[i : i + limits.MAX_INPUT_DATA])
            self._chunks.append(_Chunk(self.end, part, now))
            self.end += len(part)
        return self.end

    def finish(self) -> None:
        """No more input: end-of-file for the program once everything before is written."""
        self.ended = True

    def frames(self) -> list[Input | Skip | InputEnd]:
        """What to send now; call again after every write, ack and reconnect."""
        out: list[Input | Skip | InputEnd] = [*self._urgent]
        self._urgent.clear()
        if self.state is SenderState.PROBING:
            return out
        for chunk in self._chunks:
            stop = chunk.offset + len(chunk.data)
            if stop <= self.sent:
                continue
            if stop - self.acked > limits.INPUT_WINDOW:
                break
            skip = max(0, self.sent - chunk.offset)
            out.append(Input(self.session, chunk.offset + skip, chunk.data[skip:]))
            self.sent = stop
        if self.ended and not self._end_sent and self.sent == self.end:
            out.append(InputEnd(self.session, self.end))
            self._end_sent = True
        return out

    def connected(self) -> None:
        """A new connection is up: whatever was in flight on the old one is unknown."""
        self._urgent.clear()
        if self._unconfirmed is not None:
            self._urgent.append(self._unconfirmed)
        self._end_sent = False
        if self.acked < self.end:
            self.state = SenderState.PROBING
            self._urgent.append(Input(self.session, self.acked, b""))
        else:
            self.state = SenderState.OPEN
        self.sent = self.acked

    def on_ack(self, frame: Ack, now: float) -> list[Dropped | Uncertain]:
        """Take an Ack; what it tells about bytes that were not simply written."""
        told: list[Dropped | Uncertain] = []
        if frame.written > self.end:
            raise ProtocolError("malformed Ack: acknowledges input that was not sent")
        self._confirm(frame.written)
        if frame.uncertain is not None and frame.uncertain[1] > self.acked:
            told.append(Uncertain(max(frame.uncertain[0], self.acked), frame.uncertain[1]))
        self._forget(frame.written)
        if self.state is SenderState.PROBING:
            self.state = SenderState.OPEN
            self.sent = self.acked
            told.extend(self._drop_stale(now))
        return told

    def on_refused(self, frame: Refused) -> Dropped:
        """The agent will not write what begins at the frame's offset; everything queued behind it is given up too.

        The range is empty if that was given up before: an agent that has no place for our input (a viewer's, or a session's that
        is gone) refuses every frame of it by itself.
        """
        if frame.offset > self.end:
            raise ProtocolError("malformed Refused: not at input that was sent")
        reason = "unknown_position" if frame.code == "unknown_position" else "refused"
        if frame.offset < self.acked:
            return Dropped(self.acked, self.acked, reason)
        self._confirm(frame.offset)
        self._forget(frame.offset)
        if self.acked == self.end and reason == "refused":
            # Only the end was refused.  A skip of nothing, or the end once more, would be refused again, for ever.
            return Dropped(self.end, self.end, reason)
        return self._give_up(self.end, reason)

    def _drop_stale(self, now: float) -> list[Dropped | Uncertain]:
        if self.max_age is None:
            return []
        to = self.acked
        for chunk in self._chunks:
            if now - chunk.since <= self.max_age:
                break
            to = chunk.offset + len(chunk.data)
        return [self._give_up(to, "stale")] if to > self.acked else []

    def _give_up(self, to: int, reason: str) -> Dropped:
        dropped = Dropped(self.acked, to, reason)
        skip = Skip(self.session, self.acked, to)
        self._urgent.append(skip)
        start = skip.start if self._unconfirmed is None else self._unconfirmed.start
        self._unconfirmed = Skip(self.session, start, to)
        self._forget(to)
        self._end_sent = False  # an agent that refuses ignores the end too
        self.state = SenderState.OPEN
        return dropped

    def _confirm(self, offset: int) -> None:
        """The agent is at `offset`."""
        if self._unconfirmed is not None and self._unconfirmed.to <= offset:
            self._unconfirmed = None

    def _forget(self, offset: int) -> None:
        if offset <= self.acked:
            return
        self.acked = offset
        self.sent = max(self.sent, offset)
        while self._chunks and self._chunks[0].offset + len(self._chunks[0].data) <= offset:
            self._chunks.popleft()


class InputReceiver:
    """The agent's end for one client.  The owner writes :meth:`pending` to the terminal and reports with :meth:`wrote`."""

    def __init__(self, written: int = 0, *, ended: bool = False) -> None:
        self.written = written
        self.received = written
        self.refused = False
        self.end: int | None = written if ended else None
        self._queue: deque[tuple[int, bytes]] = deque()

    def on_input(self, frame: Input) -> bool:
        """Take an Input frame; True if an Ack is due at once (a probe, or nothing new in it)."""
        if not frame.data and frame.offset <= self.received:
            self.give_back()
            return True
        if self.refused:
            return False
        if frame.offset > self.received:
            raise ProtocolError(f"malformed Input: offset {frame.offset} where {self.received} follows")
        data = frame.data[self.received - frame.offset :]
        if not data:
            return True
        if self.received + len(data) - self.written > limits.INPUT_WINDOW:
            raise ProtocolError(f"malformed Input: exceeds input_window ({limits.INPUT_WINDOW})")
        self._queue.append((self.received, data))
        self.received += len(data)
        return False

    def on_skip(self, frame: Skip) -> None:
        """Take a Skip: input [start, to) will never come."""
        if frame.to < frame.start or frame.start > self.received:
            raise ProtocolError("malformed Skip: not a range of input that may come")
        self.refused = False
        if frame.to <= self.written:
            return
        while self._queue and self._queue[-1][0] >= frame.start:
            self._queue.pop()
        if self._queue:
            offset, data = self._queue[-1]
            self._queue[-1] = (offset, data[: frame.start - offset])
            self._queue.append((frame.to, b""))
        else:
            self.written = frame.to
        self.received = frame.to

    def on_end(self, frame: InputEnd) -> None:
        if self.refused:
            return
        if frame.offset > self.received:
            raise ProtocolError("malformed InputEnd: before the input it ends")
        if self.end is None:
            self.end = frame.offset

    def pending(self) -> bytes:
        """The next bytes to write; empty if there are none."""
        while self._queue and not self._queue[0][1]:
            self.written = self._queue.popleft()[0]
        return self._queue[0][1] if self._queue else b""

    def wrote(self, count: int) -> None:
        """`count` bytes of what :meth:`pending` gave are in the terminal."""
        offset, data = self._queue[0]
        self.written = offset + count
        if count == len(data):
            self._queue.popleft()
        else:
            self._queue[0] = (offset + count, data[count:])

    def give_back(self) -> None:
        """Forget what is queued and was not written; the client will send it again on its next connection."""
        self._queue.clear()
        self.received = self.written
        self.refused = False

    @property
    def at_end(self) -> bool:
        """Everything up to the announced end is written: time for end-of-file."""
        return self.end is not None and not self.pending() and self.written >= self.end

    def refuse(self) -> int:
        """Drop what is queued and ignore what follows; the offset for the Refused frame."""
        self._queue.clear()
        self.received = self.written
        self.refused = True
        self.end = None
        return self.written
