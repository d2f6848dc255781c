"""Our terminal equals xterm.js: the whole corpus and a fixed sample of the mixes, but for what DIFFERENCES.md lists."""

from __future__ import annotations

import pytest

from tests.terminal import corpus, differences
from tests.terminal.equality import Difference, corpus_differences, mix_differences, terminal_after
from tests.terminal.mixes import mixes
from tests.terminal.xterm import Xterm

pytestmark = pytest.mark.slow

MIXES = 300
SHARE = 0.99  # of the streams, those among them at which xterm.js raises; see DIFFERENCES.md
PIECED = 4000  # bytes of each recording that are fed one by one


def test_corpus_and_mixes(xterm: Xterm) -> None:
    streams = corpus.load()
    assert len(streams) >= 60
    _judge(corpus_differences(streams, xterm) | mix_differences(MIXES, xterm))


@pytest.mark.parametrize("length", [1, 7])
def test_pieces(length: int) -> None:
    """Where a write is cut makes no difference to the state, nor to the answers."""
    for stream in [*(stream.cut(PIECED) for stream in corpus.load()), *mixes(MIXES)]:
        whole, pieced = terminal_after(stream), terminal_after(stream.in_pieces(length))
        assert whole.key() == pieced.key(), stream.name
        assert whole.answers == pieced.answers, stream.name


def _judge(found: dict[str, Difference | None]) -> None:
    different = [one for one in found.values() if one is not None]
    listed = differences.listed()
    unlisted = [f"{one.name}: {one}" for one in different if one.name not in listed]
    assert not unlisted, "\n".join(unlisted)
    assert len(different) <= (1 - SHARE) * len(found)
    gone = [name for name in listed if name in found and found[name] is None]
    assert not gone, f"equal by now, and still listed: {gone}"


def test_reasons() -> None:
    """Each difference refers to a reason that is given."""
    reasons = differences.reasons()
    given = {*differences.listed().values(), *differences.listed_dumps().values()}
    assert given == set(reasons)
