"""The output path: all terminals in one epoll, drained straight into their histories.

trio waits on the epoll's own descriptor; each tick reads what is ready and wakes the connections, which send by pointing
at the rings.  There is no task and no queue per session.

One read of each in turn
    A terminal gives some 4 KB a read, and the kernel refills it when the read ends; a second read that follows at once sleeps until that
    is done.  So after each read the next terminal has its turn, while the kernel works for the last one, and a tick is bounded by what all
    brought.  (Reading 64 KiB from one before the next gives 0.8 of the rate of a C relay at 8 cooked logs, this 1.1.)

Fair and responsive
    A session that had input within HOT_FOR seconds is hot and sits in an inner epoll that is looked at between any two reads of
    bulk output, so a keystroke's echo never waits behind more than one quantum.  While anything is hot the ticks are small.
    Bulk sessions wait in a queue: who had a turn goes to its end, and what a tick does not get to is first in the next.

Invariants
    a descriptor is in exactly one of the two epolls while it has an interest, in none otherwise (a paused or hung-up terminal
    must not be watched with an empty mask: EPOLLHUP is always reported, and would spin)
    nothing here awaits between reading into a ring and offering it to the connections
    a watch is in the queue at most once; what has become of it meanwhile (paused, hot, removed) is looked at when its turn comes
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

from ptymux import limits

QUANTUM = 16 * limits.KIB  # bytes of one read at most, and of a hot session in a turn
TICK = 256 * limits.KIB  # bytes of bulk output in a tick, which is what one batch may carry
SHARE = 60 * limits.KIB  # bytes of each session until all is sent: a frame's worth, less what the last read may bring too much
HOT_TICK = 48 * limits.KIB  # the time that typed input may have to wait for the loop
MIN_TURN = limits.KIB  # what a turn counts for at least, so that a tick ends whatever the descriptors do

IN, OUT = select.EPOLLIN, select.EPOLLOUT
HANGUP = select.EPOLLHUP | select.EPOLLERR


class Source(Protocol):
    """A stream that is read from a descriptor."""

    @property
    def fd(self) -> int | None: ...
    def take(self, most: int) -> int:
        """Read once, at most `most` bytes: how many came, or less than 1."""
        ...

    def settle(self) -> None:
        """Tell of what was taken."""
        ...

    def fill(self, most: int) -> int:
        """Take up to `most` bytes and settle; how many came."""
        ...


class Owner(Protocol):
    """A session: what belongs together when it is hot."""

    hot_until: float

    def fds(self) -> list[int]: ...
    def write_input(self) -> None: ...


class Watch:
    """What one descriptor is watched for."""

    __slots__ = ("due", "events", "fd", "hot", "mask", "session", "stream")

    def __init__(self, fd: int, session: Owner, stream: Source | None) -> None:
        self.fd = fd
        self.session = session
        self.stream = stream
        self.mask = 0
        self.hot = False
        self.due = False
        self.events = 0  # that it is due for


class Pump:
    """`now` is a clock that never jumps; `flush` has the connections send what has become ready."""

    def __init__(self, now: Callable[[], float], flush: Callable[[], None]) -> None:
        self._now = now
        self._flush = flush
        self._bulk = select.epoll()
        self._hot = select.epoll()
        self._bulk.register(self._hot.fileno(), IN)
        self._watches: dict[int, Watch] = {}
        self._due: deque[Watch] = deque()  # what may be ready, in the order of the turns
        self.hot_sessions: set[Owner] = set()
        self.ticks = 0

    # --- interest ---------------------------------------------------------------------------------
    def add(self, fd: int, session: Owner, stream: Source | None) -> None:
        """Know this descriptor; with a stream, begin to read it."""
        watch = self._watches[fd] = Watch(fd, session, stream)
        watch.hot = session in self.hot_sessions
        if stream is not None:
            self._set(watch, IN)

    def remove(self, fd: int) -> None:
        """Forget this descriptor; call before it is closed."""
        watch = self._watches.pop(fd, None)
        if watch is not None:
            self._set(watch, 0)

    def pause(self, stream: Source) -> None:
        self._change(stream.fd, off=IN)

    def resume(self, stream: Source) -> None:
        self._change(stream.fd, on=IN)

    def want_write(self, fd: int, wanted: bool) -> None:
        self._change(fd, on=OUT if wanted else 0, off=0 if wanted else OUT)

    def _change(self, fd: int | None, on: int = 0, off: int = 0) -> None:
        watch = None if fd is None else self._watches.get(fd)
        if watch is not None:
            self._set(watch, (watch.mask | on) & ~off)

    def _set(self, watch: Watch, mask: int) -> None:
        if mask == watch.mask:
            return
        epoll = self._hot if watch.hot else self._bulk
        if not mask:
            epoll.unregister(watch.fd)
        elif watch.mask:
            epoll.modify(watch.fd, mask)
        else:
            epoll.register(watch.fd, mask)
        watch.mask = mask

    # --- hot --------------------------------------------------------------------------------------
    def heat(self, session: Owner) -> None:
        """The session had input just now."""
        session.hot_until = self._now() + limits.HOT_FOR
        if session not in self.hot_sessions:
            self.hot_sessions.add(session)
            self._move(session, hot=True)

    def cool(self, session: Owner) -> None:
        if session in self.hot_sessions:
            self.hot_sessions.discard(session)
            self._move(session, hot=False)

    def _move(self, session: Owner, *, hot: bool) -> None:
        for fd in session.fds():
            watch = self._watches.get(fd)
            if watch is not None and watch.hot != hot:
                mask = watch.mask
                self._set(watch, 0)
                watch.hot = hot
                self._set(watch, mask)

    def _cool_down(self) -> None:
        now = self._now()
        for session in [session for session in self.hot_sessions if session.hot_until < now]:
            self.cool(session)

    # --- the loop ---------------------------------------------------------------------------------
    async def run(self) -> None:
        """Until cancelled; cancelling leaves every history consistent."""
        fd = self._bulk.fileno()
        while True:
            await trio.lowlevel.wait_readable(fd)
            self.tick()

    def tick(self) -> None:
        """Read what is ready, within bounds, and let the connections send it."""
        self.ticks += 1
        hot = bool(self.hot_sessions)
        if hot:
            self._cool_down()
            self._serve_hot()
        room = HOT_TICK if hot else TICK
        while room > 0 and self._look():
            room -= self._take_turns(min(room, SHARE * len(self._due)), hot=hot)
            self._flush()

    def _look(self) -> bool:
        """Is any bulk descriptor ready?"""
        for fd, events in self._bulk.poll(0, 512):
            watch = self._watches.get(fd)
            if watch is None:
                continue  # the hot ones
            watch.events = events
            if not watch.due:
                watch.due = True
                self._due.append(watch)
        return bool(self._due)

    def _take_turns(self, room: int, *, hot: bool) -> int:
        """One read of each that is due, in turn, until `room` bytes came or all are empty; how much it counts for."""
        due, used = self._due, 0
        taken: set[Source] = set()
        while due and used < room:
            watch = due.popleft()
            count = 0
            if not watch.hot:
                stream, mask, events = watch.stream, watch.mask, watch.events
                if mask & OUT and events & (OUT | HANGUP):
                    watch.session.write_input()
                if stream is not None and watch.mask & IN and events & (IN | HANGUP):
                    taken.add(stream)
                    count = stream.take(QUANTUM)
            if count > 0:
                watch.events = IN
                due.append(watch)
            else:
                watch.due = False
            used += count if count > MIN_TURN else MIN_TURN
            if hot:
                self._serve_hot()
        for stream in taken:
            stream.settle()
        return used

    def _serve_hot(self) -> None:
        served = False
        for fd, events in self._hot.poll(0, 64):
            watch = self._watches.get(fd)
            if watch is None:
                continue
            served = True
            if watch.mask & OUT and events & (OUT | HANGUP):
                watch.session.write_input()
            if watch.mask & IN and events & (IN | HANGUP) and watch.stream is not None:
                watch.stream.fill(QUANTUM)
        if served:
            self._flush()

    def close(self) -> None:
        self._hot.close()
        self._bulk.close()
