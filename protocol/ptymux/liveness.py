"""Is the peer still there?  Pure: time is an argument.

Dead means "quiet for `dead_after` *and* we ourselves were running": a process that was stopped, or a machine that was
suspended, finds old timestamps when it wakes and must not blame its peer for them.  The check therefore has to be called at least
every :attr:`Liveness.interval` seconds; a check that comes much later was asleep and begins the silence anew.
"""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    OK = "ok"
    PING = "ping"  # quiet: ask
    DEAD = "dead"


class Liveness:
    def __init__(self, now: float, ping_after: float, dead_after: float) -> None:
        if not 0 < ping_after < dead_after:
            raise ValueError("cannot watch a link: 0 < ping_after < dead_after must hold")
        self._ping_after = ping_after
        self._dead_after = dead_after
        self.interval = ping_after / 3
        # A check that comes later than this was asleep.  A second for a busy machine, but never so long that one nap is a death.
        self._nap = min(2 * self.interval + 1.0, dead_after / 2)
        self._heard = now
        self._checked = now
        self._pinged = now - ping_after

    def heard(self, now: float) -> None:
        """Any bytes arrived."""
        self._heard = now

    def check(self, now: float) -> Verdict:
        asleep = now - self._checked > self._nap
        self._checked = now
        if asleep:
            self._heard = now
            self._pinged = now
            return Verdict.PING
        quiet = now - self._heard
        if quiet >= self._dead_after:
            return Verdict.DEAD
        if quiet >= self._ping_after and now - self._pinged >= self._ping_after:
            self._pinged = now
            return Verdict.PING
        return Verdict.OK
