"""Nothing here may hang: a guest that stays frozen would take the whole run with it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

LONGEST = 90  # seconds; the longest test takes a third of it


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test takes longer than {LONGEST} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
