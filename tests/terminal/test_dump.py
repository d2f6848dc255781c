"""`dump()` at sampled bytes of every stream: both terminals that are fed it are in the state that was dumped."""

from __future__ import annotations

import pytest

from tests.terminal import corpus, dumps
from tests.terminal.mixes import mixes
from tests.terminal.stream import Stream
from tests.terminal.xterm import Xterm

pytestmark = pytest.mark.slow

PLACES = 4  # of each stream
MIXES = 150


@pytest.mark.parametrize("streams", [corpus.load(), mixes(MIXES)], ids=["corpus", "mixes"])
def test_dump(streams: list[Stream], xterm: Xterm) -> None:
    faults = [
        f"{stream.name} at byte {result.position}: {result.fault}"
        for stream in streams
        for result in dumps.check(stream, PLACES, xterm)
        if result.fault
    ]
    assert not faults, "\n".join(faults)
