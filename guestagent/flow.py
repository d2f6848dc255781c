"""Who may slow a program down: pure arithmetic over a stream's readers.

=============  ==================================================================================================
policy         how far the head may run
=============  ==================================================================================================
``overwrite``  without limit
``hold``       hold window beyond the slowest attached controller that makes progress
``block``      as `hold`, and never more than the ring beyond what the named holder has acknowledged, connected or not,
               while its lease lasts
=============  ==================================================================================================

Viewers never slow anything.  A reader that acknowledges nothing for `demote_after` seconds while the program waits for it
is demoted: it is not waited for until it acknowledges again.  The limit is recomputed whenever a reader comes, goes,
acknowledges or is demoted, so no pause outlives its cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

POLICIES = ("hold", "block", "overwrite")

NO_LIMIT = 1 << 64


class Reader(Protocol):
    """An attach, as far as flow control goes."""

    @property
    def acked(self) -> int: ...
    @property
    def waits(self) -> bool:
        """It is a controller that was not demoted."""
        ...


def head_limit(policy: str, readers: Iterable[Reader], *, hold_window: int, ring: int, holder_acked: int | None) -> int:
    """The offset up to which the program's output may be taken now.  `holder_acked` is None where no lease is running."""
    if policy == "overwrite":
        return NO_LIMIT
    limit = min((reader.acked + hold_window for reader in readers if reader.waits), default=NO_LIMIT)
    if policy == "block" and holder_acked is not None:
        limit = min(limit, holder_acked + ring)
    return limit
