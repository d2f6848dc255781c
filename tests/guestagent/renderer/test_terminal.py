"""The terminal model, feature by feature."""

from __future__ import annotations

import pytest

from guestagent.renderer import colors, skip
from guestagent.renderer.cells import NUL, STRETCHED, TAIL
from guestagent.renderer.terminal import Terminal
from tests.guestagent.renderer.test_faults import fed, lines


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        ("abc\x1b[2D\x1b[@x", ["axbc"]),
        ("abcd\x1b[3D\x1b[2P", ["ad"]),
        ("abcd\x1b[3D\x1b[2X", ["a  d"]),
        ("a\r\nb\x1b[A\x1b[L", ["", "a", "b"]),
        ("a\r\nb\x1b[A\x1b[M", ["b"]),
        ("abc\x1b[1;2H\x1b[K", ["a"]),
        ("abc\x1b[1;2H\x1b[1K", ["  c"]),
        ("a\r\nb\r\nc\x1b[2;1H\x1b[J", ["a"]),
        ("a\r\nb\r\nc\x1b[2;1H\x1b[1J", ["", "", "c"]),
        ("\x1b[4hbc\x1b[Ha", ["abc"]),
        ("1\r\n2\r\n3\r\n4\x1b[2;3r\x1b[3H\n", ["1", "3", "", "4"]),
        ("1\r\n2\r\n3\x1b[2;3r\x1b[2H\x1bM", ["1", "", "2"]),
        ("\x1b[2;3r\x1b[?6h\x1b[Hx", ["", "x"]),
        ("\x1b[?7l0123456789abc", ["012345678c"]),
        ("\x1b[3g\x1b[3G\x1bH\r\tx", ["  x"]),
        ("\t\x1b[Zx", ["x"]),
        ("\x1b[2;3H\x1b7\x1b[H\x1b8x", ["", "  x"]),
        ("\x1b[?45h0123456789ab\b\b\bx", ["012345678x", "ab"]),
        ("\x1b#8\x1b[2J", [""]),
        ("a\x1b[20hb\nc", ["ab", "c"]),
        ("\xc2\x85", ["\u00c2"]),
        ("a\u0085b", ["a", "b"]),
        ("\x1b[1\r;3Hx", ["  x"]),  # controls inside of sequences
        ("\x1b[3\x18Hx", ["Hx"]),
        ("\x1b[3\x1b[2Gx", [" x"]),
        ("\x1b]2;t\x1b[2Gx", [" x"]),  # any ESC ends a string
    ],
)
def test_screens(stream: str, expected: list[str]) -> None:
    found = lines(fed(stream))
    assert found[: len(expected)] == expected
    assert not any(found[len(expected) :])


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("\x1b[c", "\x1b[?62;22c"),
        ("\x1bZ", "\x1b[?62;22c"),
        ("\x1b[>c", "\x1b[>0;276;0c"),
        ("\x1b[=c", "\x1bP!|00000000\x1b\\"),
        ("\x1b[5n", "\x1b[0n"),
        ("\x1b[2;3H\x1b[6n", "\x1b[2;3R"),
        ("\x1b[2;3r\x1b[?6h\x1b[2;1H\x1b[?6n", "\x1b[?2;1R"),
        ("0123456789\x1b[6n", "\x1b[1;10R"),
        ("\x1b[?1$p", "\x1b[?1;2$y"),
        ("\x1b[?2004h\x1b[?2004$p", "\x1b[?2004;1$y"),
        ("\x1b[?1002h\x1b[?1000$p", "\x1b[?1000;2$y"),
        ("\x1b[?1049h\x1b[?1049$p", "\x1b[?1049;1$y"),
        ("\x1b[?4711$p", "\x1b[?4711;0$y"),
        ("\x1b[4h\x1b[4$p", "\x1b[4;1$y"),
        ("\x1b[>q", "\x1bP>|guestagent\x1b\\"),
        ("\x1b[>5u\x1b[?u", "\x1b[?5u"),
        ("\x1b[1;31m\x1bP$qm\x1b\\", "\x1bP1$r0;1;31m\x1b\\"),
        ("\x1b[2;3r\x1bP$qr\x1b\\", "\x1bP1$r2;3r\x1b\\"),
        ("\x1b[5 q\x1bP$q q\x1b\\", "\x1bP1$r5 q\x1b\\"),
        ("\x1bP$qz\x1b\\", "\x1bP0$r\x1b\\"),
        ("\x1bP+q544e\x1b\\", "\x1bP0+r\x1b\\"),
        ("\x1b]11;?\x07", "\x1b]11;rgb:0000/0000/0000\x1b\\"),
        ("\x1b]10;#102030\x07\x1b]10;?\x1b\\", "\x1b]10;rgb:1010/2020/3030\x1b\\"),
        ("\x1b]4;1;?\x07", "\x1b]4;1;rgb:cdcd/0000/0000\x1b\\"),
        ("\x1b[18t", "\x1b[8;4;10t"),
        ("\x1b[14t", "\x1b[4;64;80t"),
        ("\x1b[16t", "\x1b[6;16;8t"),
        ("\x1b]2;rm -rf\x07\x1b[21t", "\x1b]l\x1b\\"),
    ],
)
def test_a_query_has_one_answer(query: str, answer: str) -> None:
    data = query.encode()
    terminal = fed(data + b"x")
    behind = len(data) - data.endswith(b"\x1b\\")  # a string ends with the ESC of its ST
    assert terminal.answers == [(behind, answer.encode())]
    pieces = Terminal(10, 4)
    for byte in data:
        pieces.feed(bytes((byte,)))
    assert pieces.answers == terminal.answers


def test_answers_carry_the_offset_behind_invalid_and_wide_text() -> None:
    data = "漢\x1b[c".encode() + b"\xff\xe6\xbc" + "é\x1b[c".encode()
    assert [offset for offset, _ in fed(data).answers] == [6, len(data)]


def test_sticky_modes_end_at_the_next_prompt() -> None:
    stream = "\x1b[?1003h\x1b[?1006h\x1b[?2004h\x1b[?1h\x1b=\x1b[?1004h\x1b[>1u\x1b[>4;2m\x1b[?25l"
    terminal = fed(stream)
    assert terminal.state()["modes"]["mouse"] == "any"
    terminal.feed(b"\x1b]133;A\x07")
    clean = Terminal(10, 4, scrollback=20)
    assert terminal.key() == clean.key()


def test_title_stack_and_links_and_palette() -> None:
    terminal = fed(
        "\x1b]0;one\x07\x1b[22t\x1b]2;two\x07\x1b[23t\x1b]8;id=1;http://x/\x1b\\a\x1b]8;;\x07b\x1b]4;1;#fff\x07"
    )
    assert (terminal.title, terminal.icon_name) == ("one", "one")
    assert [attr.link for attr in terminal.rows[0].attrs[:2]] == ["id=1;http://x/", ""]
    assert terminal.palette == {1: 0xF0F0F0}
    terminal.feed(b"\x1b]104\x07")
    assert not terminal.palette


def test_links_are_bounded() -> None:
    terminal = Terminal(80, 24)
    for number in range(3000):
        terminal.feed(f"\x1b]8;;http://{number}/{'x' * 2000}\x07a".encode())
    seen = {attr.link for row in (*terminal.main.history, *terminal.rows) for attr in row.attrs}
    assert sum(map(len, seen)) <= 1 << 20


@pytest.mark.parametrize(
    "payload", [b"\x1b]2;", b"\x1bPq", b"\x1b_", b"\x1b[", b"\x1b[1;", b"\x1b ", b"a", b"e\xcc\x81"]
)
def test_endless_input_is_bounded(payload: bytes) -> None:
    terminal = fed(payload)
    for _ in range(50):
        terminal.feed(payload[-2:].replace(b"\x1b", b"") * 20000)
    assert len(terminal.parser.pending()) < 100_000
    assert len(terminal.dump()) < 200_000


@pytest.mark.parametrize(
    "cut",
    ["\x1b", "\x1b[", "\x1b[3", "\x1b[?10", "\x1b[1 ", "\x1b(", "\x1b]2;tit", "\x1b]2;tä".encode()[:-1], "\x1bP$q", "\x1b_x", "漢".encode()[:2], "\x1b[1<"],
)  # fmt: skip
def test_a_dump_inside_a_sequence_ends_with_it(cut: str | bytes) -> None:
    data = cut.encode() if isinstance(cut, str) else cut
    terminal = fed(b"ab" + data)
    assert terminal.parser.pending()
    again = fed(terminal.dump())
    assert again.key() == terminal.key()


def test_a_dump_is_compact_and_asks_nothing() -> None:
    terminal = Terminal(80, 24)
    terminal.feed(b"x\r\n" * 500 + b"\x1b[c\x1b[?2026h")
    again = Terminal(80, 24)
    again.feed(terminal.dump())
    assert len(terminal.dump()) < 2500
    assert not again.answers
    assert not again.modes.synchronized
    assert len(Terminal(80, 24).dump()) < 200
    assert len(again.main.history) == 477
    again.feed(terminal.dump(scrollback=3))
    assert len(again.main.history) == 3


@pytest.mark.parametrize(
    ("stream", "size", "expected", "scrollback"),
    [
        ("0123456789abc\r\n", (13, 4), ["0123456789abc"], 0),
        ("0123456789abc\r\n", (5, 4), ["01234", "56789", "abc"], 0),
        ("1\r\n2\r\n3\r\n4\r\n5\r\n6", (10, 6), ["1", "2", "3", "4", "5", "6"], 0),
        ("1\r\n2\r\n3\r\n4", (10, 2), ["3", "4"], 2),
        ("1\x1b[?1049h2", (10, 2), ["2"], 0),
    ],
)
def test_resize(stream: str, size: tuple[int, int], expected: list[str], scrollback: int) -> None:
    terminal = fed(stream)
    terminal.resize(*size)
    terminal.check()
    assert [line.strip() for line in lines(terminal)][: len(expected)] == expected
    assert len(terminal.main.history) == scrollback


def test_screen_data() -> None:
    terminal = fed("old\r\n1\r\n2\r\n3\x1b[31m漢\x1b[m\r\n\x1b[4 q\x1b]2;T\x07")
    data = terminal.screen_data(0, 10)
    assert data["text"] == ["1", "2", "3漢", ""]
    assert data["cells"][2] == [["3", 1, 0], ["漢", 2, 1]]
    assert data["styles"] == [{}, {"fg": 1}]
    assert data["cursor"] == {"x": 0, "y": 3, "visible": True, "shape": "underline", "blink": False}
    assert data["scrollback"]["text"] == ["old"]
    assert data["title"] == "T"


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"text \x1b[31mred\x1b[m\r\n\ttab\b\x07", 100),
        (b"ab\x1b[2J", 2),
        (b"ab\x0e", 2),
        ("é漢".encode() + b"\xc2\x9b", 5),
        (b"ab\x1b[3", 2),
        (b"\x1b]0;title\x07x\x1b]133;A\x07", 11),
        (b"\x1b[?25l", 0),
        (b"a\x1b[6n", 1),
        (b"a\x1b[Kb\x1b[4Gc\x1b[A", 10),
    ],
)
def test_plain_end(data: bytes, end: int) -> None:
    for kind in (bytes, bytearray, memoryview):
        assert skip.plain_end(kind(data), 0, len(data)) == min(end, len(data))


def test_plain_end_across_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skip, "WINDOW", 5)
    data = b"abc\x1b[31mx\x1b]0;a long title\x07" * 3
    assert skip.plain_end(data, 0, len(data)) == len(data)
    assert skip.plain_end(b"abcd\xc2\x85", 0, 6) == 4


@pytest.mark.parametrize(
    "modes", ["", "\x1b[?7l", "\x1b[20h", "\x1b[4h", "\x1b(0", "\x1b[?1049h", "\x1b[41m", "\x1b[2;3r", "\x1b[?45h"]
)
def test_a_long_log_is_skipped_to_the_same_end(modes: str) -> None:
    log = b"".join(
        b"\x1b[3%dm[%d]\x1b[0m \x1b]0;t%d\x07line that wraps %s\x1b[1m\r\n" % (n % 8, n, n, b"x" * (n % 40)) for n in range(3000)
    )  # fmt: skip
    one, other = fed(modes, 20, 5), fed(modes, 20, 5)
    one.feed(log)
    skip.advance(other, memoryview(log), 0, len(log))
    assert one.key() == other.key()
    assert one.fed == other.fed


def test_default_palette() -> None:
    assert [colors.default(index) for index in (16, 21, 231, 232, 255)] == [0, 0x0000FF, 0xFFFFFF, 0x080808, 0xEEEEEE]


def test_null_cells_are_no_text() -> None:
    assert fed("\x1b[3Gx").rows[0].chars[:3] == [NUL, NUL, "x"]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        ("漢x", ["漢", "x"]),  # its second half is printed over, and it stays
        ("漢x\x1b[10Gy", [NUL, "y"]),  # unless printing begins at that place
        ("漢字", ["漢", NUL]),
        ("漢字\u0301", ["漢\u0301", NUL]),
        ("ab字\u0301", [STRETCHED + "a\u0301", "b"]),
        ("\x1b[C字\u0301", [STRETCHED + "\u0301", NUL]),
        ("漢x\x1b[10G\x1b[@", [NUL, NUL]),
        ("漢x\x1b[9G\x1b[X", [NUL, NUL]),
    ],
)
def test_without_autowrap_wide_characters_lose_their_second_half(stream: str, expected: list[str]) -> None:
    """As in xterm.js."""
    terminal = fed("\x1b[?7l\x1b[9G" + stream)
    assert terminal.rows[0].chars[-2:] == expected
    terminal.check()
    again = Terminal(terminal.columns, terminal.lines)
    again.feed(terminal.dump())
    assert again.key() == terminal.key()


def test_what_has_no_room_is_not_told() -> None:
    """Texts of a row take the columns that they are said to take."""
    terminal = fed("\x1b[?7l\x1b[9G漢x\x1b[1G\x1b[2Pab漢")
    assert terminal.rows[0].chars == ["a", "b", "漢", TAIL, NUL, NUL, "漢", "x", NUL, NUL]
    assert terminal.screen_data()["text"][0] == "ab漢   x"
