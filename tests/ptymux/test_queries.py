"""queries.py: what comes out of the filter makes no terminal answer (case C12), and everything else comes out whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptymux.queries import LONGEST, QueryFilter

QUERIES = [
    b"\x1b[c", b"\x1b[0c", b"\x1b[>c", b"\x1b[>0c", b"\x1b[=c",
    b"\x1b[5n", b"\x1b[6n", b"\x1b[?6n", b"\x1b[?996n",
    b"\x1b[x", b"\x1b[1x",
    b"\x1b[?2026$p", b"\x1b[4$p",
    b"\x1b[1$w", b"\x1b[1;1;1;1;24;80*y",
    b"\x1b[>q", b"\x1b[>0q",
    b"\x1b[?1;1;0S", b"\x1b[?4m",
    b"\x1b[11t", b"\x1b[14t", b"\x1b[14;2t", b"\x1b[18t", b"\x1b[21t",
    b"\x1b[?u",
    b"\x1bP$qm\x1b\\", b"\x1bP+q544e;524742\x1b\\",
    b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\",
    b"\x1b]10;?\x07", b"\x1b]11;?\x1b\\", b"\x1b]10;?;?\x07", b"\x1b]4;1;?\x07", b"\x1b]4;0;?;1;?\x1b\\", b"\x1b]52;c;?\x07", b"\x1b]52;;?\x07",
    b"\x1bZ", b"\x05",
]  # fmt: skip

OTHERS = [
    b"plain text, and a second line\r\n",
    "Grüße, 世界 \N{GRINNING FACE}".encode(),
    b"\x1b[1;31mred\x1b[0m", b"\x1b[>4;2m",
    b"\x1b[2J\x1b[H", b"\x1b[10;20H", b"\x1b[?1049h", b"\x1b[?25l", b"\x1b[1S", b"\x1b[3S", b"\x1b[2 q", b"\x1b[!p", b"\x1b[22;0t", b"\x1b[8;24;80t",
    b"\x1b]0;a title with ?\x07", b"\x1b]11;#ffffff\x07", b"\x1b]52;c;aGVsbG8=\x07", b"\x1b]8;;http://example.org/?\x1b\\", b"\x1b]133;A\x07",
    b"\x1b_Ga=T,f=24,s=1,v=1;AAAA\x1b\\", b"\x1bP0;0;0q#0;2;0;0;0~-\x1b\\",
    b"\x1b7", b"\x1b8", b"\x1bM", b"\x1b=", b"\x1b(B",
]  # fmt: skip


def filtered(*pieces: bytes) -> bytes:
    query_filter = QueryFilter()
    return b"".join([*map(query_filter.feed, pieces), query_filter.finish()])


def shown(data: bytes) -> bytes:
    """Without what does nothing."""
    return data.replace(b"\x1b\\", b"")


def bytewise(data: bytes) -> bytes:
    return filtered(*(data[i : i + 1] for i in range(len(data))))


@pytest.mark.parametrize("query", QUERIES, ids=repr)
def test_a_query_is_taken_out_wherever_it_is_cut(query: bytes) -> None:
    text = b"before" + query + b"after"
    assert shown(filtered(text)) == shown(bytewise(text)) == b"beforeafter"
    for cut in range(len(text)):
        assert shown(filtered(text[:cut], text[cut:])) == b"beforeafter"


@pytest.mark.parametrize("data", OTHERS, ids=repr)
def test_everything_else_comes_out_as_it_was(data: bytes) -> None:
    assert filtered(data) == data
    assert bytewise(data) == data


def test_an_unfinished_sequence_waits_and_comes_out_at_the_end() -> None:
    query_filter = QueryFilter()
    assert query_filter.feed(b"text\x1b[6") == b"text"
    assert query_filter.feed(b"") == b""
    assert query_filter.finish() == b"\x1b[6"
    assert query_filter.finish() == b""


def test_what_is_held_is_bounded() -> None:
    """A title that never ends is no query, and is not kept back for ever."""
    query_filter = QueryFilter()
    shown = bytearray()
    data = b"\x1b]0;" + b"x" * 10 * LONGEST
    for i in range(0, len(data), 7):
        shown += query_filter.feed(data[i : i + 7])
        assert i + 7 - len(shown) <= LONGEST + 7
    assert bytes(shown) + query_filter.finish() == data


def test_taking_one_out_does_not_make_another() -> None:
    """A sequence that was broken off by a query would be completed by what follows it."""
    for outer in (b"\x1b[", b"\x1b[6", b"\x1b[?", b"\x1b"):
        for inner in (b"\x1b[c", b"\x1bZ", b"\x05"):
            for tail in (b"n", b"c", b"Z", b"[c"):
                for out in (
                    filtered(outer + inner + tail),
                    bytewise(outer + inner + tail),
                    filtered(outer + inner, tail),
                ):
                    assert filtered(out) == out, (outer, inner, tail)


@given(
    st.lists(st.one_of(st.sampled_from(QUERIES), st.sampled_from(OTHERS), st.binary(max_size=6)), max_size=12),
    st.data(),
)
def test_nothing_that_comes_out_asks_anything(parts: list[bytes], data: st.DataObject) -> None:
    text = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    out = filtered(*pieces)
    assert QueryFilter().feed(out + b"\x18").removesuffix(b"\x18") == out


@given(st.lists(st.one_of(st.sampled_from(QUERIES), st.sampled_from(OTHERS)), max_size=12))
def test_whole_sequences_are_kept_or_taken_out_and_nothing_else_changes(parts: list[bytes]) -> None:
    expected = b"".join(part for part in parts if part in OTHERS)
    text = b"".join(parts)
    assert shown(filtered(text)) == shown(bytewise(text)) == shown(expected)
