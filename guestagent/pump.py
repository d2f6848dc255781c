"""The output path: all terminals in one epoll, drained straight into their histories.

trio waits on the epoll's own descriptor; each tick reads what is ready and wakes the connections, which send by pointing
at the rings.  There is no task and no queue per session.

Fair and responsive
    A session that had input within HOT_FOR seconds is hot and sits in an inner epoll that is looked at between any two reads of
    bulk output, so a keystroke's echo never waits behind more than one quantum.  While anything is hot the ticks are small.
    Bulk sessions take turns: what a tick does not get to is first in the next.

Invariants
    a descriptor is in exactly one of the two epolls while it has an interest, in none otherwise (a paused or hung-up terminal
    must not be watched with an empty mask: EPOLLHUP is always reported, and would spin)
    nothing here awaits between reading into a ring and offering it to the connections
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Protocol

import trio

from ptymux import limits

# Bytes of one session in a turn.  A terminal gives some 4 KB a read and must then be refilled by the kernel, for which a read that
# follows at once has to wait: with larger turns the waits add up (64 KiB: 0.84 of the relay's rate at 8 sessions, 16 KiB: 0.92).
QUANTUM = 16 * limits.KIB
ALONE = 64 * limits.KIB  # and where no other waits
TICK = 256 * limits.KIB  # bytes of bulk output in a tick, which is what one batch may carry
HOT_TICK = 48 * limits.KIB  # the time that typed input may have to wait for the loop
MIN_TURN = limits.KIB  # what a turn counts for at least, so that a tick ends whatever the descriptors do

IN, OUT = select.EPOLLIN, select.EPOLLOUT
HANGUP = select.EPOLLHUP | select.EPOLLERR


class Source(Protocol):
    """A stream that is read from a descriptor."""

    @property
    def fd(self) -> int | None: ...
    def fill(self, most: int) -> int:
        """Read at most `most` bytes; how many came."""
        ...


class Owner(Protocol):
    """A session: what belongs together when it is hot."""

    hot_until: float

    def fds(self) -> list[int]: ...
    def write_input(self) -> None: ...


class Watch:
    """What one descriptor is watched for."""

    __slots__ = ("fd", "hot", "mask", "session", "stream", "turn")

    def __init__(self, fd: int, session: Owner, stream: Source | None) -> None:
        self.fd = fd
        self.session = session
        self.stream = stream
        self.mask = 0
        self.hot = False
        self.turn = 0  # number of its last turn


class Pump:
    """`now` is a clock that never jumps; `flush` has the connections send what has become ready."""

    def __init__(self, now: Callable[[], float], flush: Callable[[], None]) -> None:
        self._now = now
        self._flush = flush
        self._bulk = select.epoll()
        self._hot = select.epoll()
        self._bulk.register(self._hot.fileno(), IN)
        self._watches: dict[int, Watch] = {}
        self._due: dict[
            int, int
        ] = {}  # bulk descriptors that are ready and had no turn yet, in order, with their events
        self.hot_sessions: set[Owner] = set()
        self.ticks = 0
        self._turns = 0

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
            self._due.pop(watch.fd, None)
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
            quantum = QUANTUM if hot or len(self._due) > 1 else ALONE
            while self._due and room > 0:
                fd = next(iter(self._due))
                room -= max(MIN_TURN, self._serve(fd, self._due.pop(fd), quantum))
                if hot:
                    self._serve_hot()
            self._flush()

    def _look(self) -> bool:
        """Is any bulk descriptor ready?"""
        ready = self._bulk.poll(0, 512)
        # The kernel's order is always the same, and a tick seldom ends with a whole round.
        ready.sort(key=lambda item: self._watches[item[0]].turn if item[0] in self._watches else 0)
        for fd, events in ready:
            self._due[fd] = events
        self._due.pop(self._hot.fileno(), None)
        return bool(self._due)

    def _serve_hot(self) -> None:
        served = False
        for fd, events in self._hot.poll(0, 64):
            served = True
            self._serve(fd, events)
        if served:
            self._flush()

    def _serve(self, fd: int, events: int, most: int = QUANTUM) -> int:
        watch = self._watches.get(fd)
        if watch is None:
            return 0
        self._turns += 1
        watch.turn = self._turns
        if watch.mask & OUT and events & (OUT | HANGUP):
            watch.session.write_input()
        if watch.mask & IN and events & (IN | HANGUP) and watch.stream is not None:
            return watch.stream.fill(most)
        return 0

    def close(self) -> None:
        self._hot.close()
        self._bulk.close()
