"""flow.py: who may slow a program down."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from guestagent.flow import NO_LIMIT, head_limit

WINDOW, RING = 100, 1000


@dataclass
class Reader:
    acked: int
    waits: bool = True


@pytest.mark.parametrize(
    ("policy", "readers", "holder", "expected"),
    [
        ("overwrite", [], None, NO_LIMIT),
        ("overwrite", [Reader(5)], 0, NO_LIMIT),
        ("hold", [], None, NO_LIMIT),
        ("hold", [Reader(5)], None, 105),
        ("hold", [Reader(50), Reader(7), Reader(30)], None, 107),  # the slowest
        ("hold", [Reader(5, waits=False)], None, NO_LIMIT),  # viewers and demoted readers slow nothing (case C21)
        ("hold", [Reader(5, waits=False), Reader(60)], None, 160),
        ("hold", [Reader(5)], 3, 105),  # a lease means nothing here
        ("block", [], None, NO_LIMIT),  # the lease is over
        ("block", [], 30, 1030),  # the holder is away: a whole ring beyond what it has
        ("block", [Reader(30)], 30, 130),  # it is here: as `hold`
        ("block", [Reader(950)], 30, 1030),
        ("block", [Reader(5, waits=False)], 30, 1030),
    ],
)
def test_limit(policy: str, readers: list[Reader], holder: int | None, expected: int) -> None:
    assert head_limit(policy, readers, hold_window=WINDOW, ring=RING, holder_acked=holder) == expected


def test_no_limit_is_beyond_every_offset() -> None:
    assert NO_LIMIT > (1 << 64) - 1
