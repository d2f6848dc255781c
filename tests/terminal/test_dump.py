"""`dump()` at sampled bytes of every stream: both terminals that are fed it are in the state that was dumped.

Streams of which DIFFERENCES.md says that xterm.js cannot be told all are still replayed in ours.
"""

from __future__ import annotations

import pytest

from tests.terminal import corpus, differences, dumps
from tests.terminal.mixes import mixes
from tests.terminal.stream import Stream
from tests.terminal.xterm import Xterm

pytestmark = pytest.mark.slow

PLACES = 4  # of each stream
MIXES = 150


@pytest.mark.parametrize("streams", [corpus.load(), mixes(MIXES)], ids=["corpus", "mixes"])
def test_dump(streams: list[Stream], xterm: Xterm) -> None:
    listed = differences.listed_dumps()
    faults = [
        f"{stream.name} at byte {result.position}: {result.fault}"
        for stream in streams
        for result in dumps.check(stream, PLACES, xterm)
        if result.in_ours or (result.in_xterm and stream.name not in listed)
    ]
    assert not faults, "\n".join(faults)
