"""How long to wait before the next dial.  Pure: chance is an argument."""

from __future__ import annotations

from ptymux import limits


class Backoff:
    """At once after a connection that worked was cut, then longer and longer, with jitter.

    "Worked" means that something came after the welcome: an agent that accepts and drops in a loop is dialled ever more slowly.
    """

    def __init__(self, first: float = limits.BACKOFF_FIRST, most: float = limits.BACKOFF_MAX) -> None:
        self._first = first
        self._most = most
        self._failures = 0

    def worked(self) -> None:
        self._failures = 0

    def next_delay(self, chance: float) -> float:
        """Seconds to wait now; `chance` is uniform in [0, 1)."""
        failures, self._failures = self._failures, self._failures + 1
        if failures == 0:
            return 0.0
        ceiling: float = min(self._most, self._first * 2 ** min(failures - 1, 16))
        return ceiling * (0.5 + 0.5 * chance)
