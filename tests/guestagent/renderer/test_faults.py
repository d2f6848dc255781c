"""What pyte alone gets wrong, fault by fault, and what xterm.js does instead."""

from __future__ import annotations

import pytest

from guestagent.renderer.cells import INVERSE, UNDERLINE, Attr
from guestagent.renderer.terminal import Terminal


def fed(data: str | bytes, columns: int = 10, rows: int = 4) -> Terminal:
    terminal = Terminal(columns, rows, scrollback=20)
    terminal.feed(data.encode() if isinstance(data, str) else data)
    terminal.check()
    return terminal


def lines(terminal: Terminal) -> list[str]:
    return [line.rstrip() for line in terminal.display]


@pytest.mark.parametrize(
    "sequence", ["\x1b[?4m", "\x1b[1;2A", "\x1b[?1r", "\x1b[?6n", "\x1b[9J", "\x1b[9K", "\x1b[99999999999999999999m", "\x1b[" + "1;" * 5000 + "H"]
)  # fmt: skip
def test_odd_arguments_do_not_raise(sequence: str) -> None:
    assert "c" in lines(fed("ab" + sequence + "c"))[0]


@pytest.mark.parametrize("mark", ["\u200d", "\ufe0f", "\u200b", "\u0301"])
def test_zero_width_joins_and_the_run_goes_on(mark: str) -> None:
    terminal = fed("a" + mark + "bc")
    assert terminal.rows[0].chars[:3] == ["a" + mark, "b", "c"]
    assert terminal.cursor.x == 3


def test_an_emoji_behind_zwj_has_cells_of_its_own() -> None:
    assert fed("👨\u200d👩x").rows[0].chars[:5] == ["👨\u200d", "", "👩", "", "x"]


@pytest.mark.parametrize("mode", [47, 1047, 1049])
def test_alternate_screen(mode: int) -> None:
    terminal = fed(f"shell\x1b[?{mode}hvim")
    assert lines(terminal)[0].strip() == "vim"
    terminal.feed(f"\x1b[?{mode}l".encode())
    assert lines(terminal)[0] == "shell"
    assert (terminal.cursor.x == 5) == (mode == 1049)


def test_wide_character_in_the_last_column_wraps() -> None:
    terminal = fed("123456789漢")
    assert lines(terminal)[:2] == ["123456789", "漢"]
    assert terminal.rows[1].wrapped


@pytest.mark.parametrize(("column", "expected"), [(1, "x  b"), (2, " x b")])
def test_overwriting_half_a_wide_character_clears_the_other(column: int, expected: str) -> None:
    assert lines(fed(f"漢 b\x1b[{column}Gx"))[0] == expected


def test_shrinking_keeps_the_cursor_inside() -> None:
    terminal = fed("\x1b[4;9H")
    terminal.resize(5, 2)
    terminal.check()
    assert (terminal.cursor.x, terminal.cursor.y) == (4, 1)


@pytest.mark.parametrize(
    "sequence",
    ["\x1bPqpayload\x1b\\", "\x1b_payload\x1b\\", "\x1b^payload\x1b\\", "\x1bXpayload\x1b\\", "\x1b[<u", "\x1b[=1u", "\x1b[!p", "\x1b[4:3m", "\x1b[38:2::1:2:3m"],
)  # fmt: skip
def test_nothing_of_it_is_printed(sequence: str) -> None:
    assert lines(fed(sequence + "x"))[0] == "x"


def test_modify_other_keys_is_no_underline() -> None:
    terminal = fed("\x1b[>4;2mx")
    assert terminal.rows[0].attrs[0].flags == 0
    assert terminal.modes.modify_other_keys == 2


def test_rep_and_scrolling() -> None:
    assert lines(fed("ab\x1b[3b"))[0] == "abbbb"
    assert lines(fed("a\r\nb\r\nc\x1b[S"))[:2] == ["b", "c"]
    assert lines(fed("a\r\nb\x1b[T"))[:3] == ["", "a", "b"]


def test_erase_3_clears_the_scrollback_only() -> None:
    terminal = fed("1\r\n2\r\n3\r\n4\r\n5")
    assert len(terminal.main.history) == 1
    terminal.feed(b"\x1b[3J")
    assert not terminal.main.history
    assert lines(terminal) == ["2", "3", "4", "5"]


def test_line_drawing_in_utf8() -> None:
    assert lines(fed("\x1b(0lqk\x1b(Bq"))[0] == "┌─┐q"
    assert lines(fed("\x1b)0q\x0eq\x0fq"))[0] == "q─q"


@pytest.mark.parametrize(
    ("sgr", "attr"),
    [
        ("4:3", Attr(flags=UNDERLINE, underline=3)),
        ("4:0", Attr()),
        ("4;58:2::1:2:3", Attr(flags=UNDERLINE, underline=1, underline_color=0x1010203)),
        ("38;5;200;7", Attr(fg=200, flags=INVERSE)),
        ("38:2:1:2:3", Attr(fg=0x1020300)),  # as xterm.js: the first is the colour space
        ("38:2::1:2:3", Attr(fg=0x1010203)),
        ("48;2;1;2;3", Attr(bg=0x1010203)),
        ("91;102", Attr(fg=9, bg=10)),
        ("31;0", Attr()),
    ],
)
def test_sgr(sgr: str, attr: Attr) -> None:
    assert fed(f"\x1b[{sgr}mx").rows[0].attrs[0] == attr
