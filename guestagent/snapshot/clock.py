"""The wall clock: stale in a restored VM by as long as the snapshot lay about.

It is set before anything runs, so that no program sees it jump between two of its own steps, and timers that became due are not a
storm of their own making.  The agent itself lives by CLOCK_MONOTONIC, which a restore does not move.
"""

from __future__ import annotations

import time


def wall() -> float:
    return time.time()


def set_wall(seconds: float) -> None:
    """OSError (EPERM without CAP_SYS_TIME)."""
    time.clock_settime(time.CLOCK_REALTIME, seconds)
