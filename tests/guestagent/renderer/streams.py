"""Streams for property tests: pieces of terminal output, whole and broken."""

from __future__ import annotations

from hypothesis import strategies as st

_PARAMS = st.lists(
    st.sampled_from(["", "0", "1", "2", "3", "4", "5", "7", "8", "20", "47", "99", "1049", "4:3"]), max_size=3
)
_CSI = st.builds(
    lambda prefix, params, final: f"\x1b[{prefix}{';'.join(params)}{final}".encode(),
    st.sampled_from(["", "", "", "?", ">", "<", "="]),
    _PARAMS,
    st.sampled_from(
        [*"@ABCDEFGHIJKLMPSTXZ`abcdefghlmnqrstu", "!p", " q", '"q', "'}", "'~", " @", " A", "$p"],
    ),
)
_MODES = st.builds(
    lambda number, final: f"\x1b[?{number}{final}".encode(),
    st.sampled_from([1, 5, 6, 7, 12, 25, 45, 47, 66, 1000, 1003, 1004, 1006, 1047, 1048, 1049, 2004, 2026]),
    st.sampled_from("hl"),
)
_SGR = st.sampled_from(
    [b"\x1b[m", b"\x1b[1;31m", b"\x1b[44m", b"\x1b[38;2;1;2;3m", b"\x1b[48:5:200m", b"\x1b[4:3;58:5:9m", b"\x1b[7;53m"]
)
_OTHER = st.sampled_from(
    [
        b"\r\n", b"\r\n", b"\n", b"\r", b"\b", b"\t", b"\x0e", b"\x0f", b"\x00", b"\x7f", b"\x18", b"\x1b",
        b"\x1b7", b"\x1b8", b"\x1bD", b"\x1bE", b"\x1bM", b"\x1bH", b"\x1bc", b"\x1b(0", b"\x1b(B", b"\x1b)0", b"\x1b*4", b"\x1bn", b"\x1b#8",
        b"\x1b]0;title\x07", b"\x1b]2;t\xc3\xa4\x1b\\", b"\x1b[22;0t", b"\x1b[23t", b"\x1b]8;;http://x/\x1b\\", b"\x1b]8;;\x07",
        b"\x1b]4;1;#123456\x07", b"\x1b]11;rgb:10/20/30\x07", b"\x1b]104\x07", b"\x1b]133;A\x07", b"\x1bP$qm\x1b\\", b"\x1b_x\x1b\\",
        b"\x1b[>5u", b"\x1b[=3;1u", b"\x1b[<u", b"\x1b[>4;2m", b"\x1b[5;8r", b"\x1b[2;3r", b"\x1b[3b", b"\x1b[4h", b"\x1b[4l", b"\x1b[20h",
        b"\xc2\x9b", b"\xc2\x85", b"\xff", b"\xe6\xbc", b"\x1b[3", b"\x1b]2;cut", b"\x1bPq",
    ]
)  # fmt: skip
_TEXT = st.one_of(
    st.text(st.sampled_from("ab xq~"), min_size=1, max_size=30),
    st.text(st.sampled_from("a漢字😀é\u0301\u200d\ufe0f│"), min_size=1, max_size=12),
).map(str.encode)

piece = st.one_of(_TEXT, _TEXT, _CSI, _SGR, _MODES, _OTHER, st.binary(max_size=6))
stream = st.lists(piece, max_size=40).map(b"".join)
size = st.tuples(st.sampled_from([2, 3, 5, 10, 21]), st.sampled_from([2, 3, 6, 9]))

_plain_piece = st.one_of(
    _TEXT, _SGR, st.just(b"\r\n"), st.just(b"\r\n"), st.just(b"\r\n"), st.sampled_from([b"\r", b"\b", b"\t", b"\a", b"\n"]),
    st.sampled_from([b"\x1b[K", b"\x1b[1K", b"\x1b[3G", b"\x1b[2C", b"\x1b[D", b"\x1b[2P", b"\x1b[X", b"\x1b[@"]),
    st.sampled_from([b"\x1b]0;one\x07", b"\x1b]2;two\x1b\\", b"\x1b]8;;http://y/\x07", b"\x1b]8;;\x1b\\", b"\x1b[0m", b"\x1b[0;1m"]),
)  # fmt: skip
plain = st.lists(_plain_piece, max_size=120).map(b"".join)

# On a narrow screen without autowrap: wide characters that lose their second half, and marks that find what is before them.
overlapping = st.lists(
    st.sampled_from(
        ["漢", "漢", "字", "a", "ab", "\u0301", "\u0308\u0301", "\r\n", "\r", "\b", "\0", "\x1b[?7l", "\x1b[?7h", "\x1b[@", "\x1b[2@", "\x1b[P", "\x1b[2P",
         "\x1b[X", "\x1b[K", "\x1b[1K", "\x1b[41m", "\x1b[1m", "\x1b[m", "\x1b[99C", "\x1b[99C", "\x1b[D", "\x1b[2D", "\x1b[b", "\x1b[3b", "\x1b[?47h", "\x1b[?47l",
         "\x1b(0", "\x1b(B", "\x1b[?6h", "\x1b[2;3r", "\x1b[H", "\x1b[A", "\x1b['}", "\x1b['~", "\x1b[?K", "\x1b[2;2H", "\x1b[1\u0080", "\x9c"]
    ),
    max_size=30,
).map(lambda pieces: b"\x1b[?7l" + "".join(pieces).encode())  # fmt: skip
narrow = st.tuples(st.sampled_from([2, 3, 4, 5, 8]), st.sampled_from([2, 3, 4]))
