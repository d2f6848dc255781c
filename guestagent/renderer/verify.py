"""A terminal's whole state as one value, and its invariants: for tests, and for whoever doubts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guestagent.renderer.buffers import Buffer
from guestagent.renderer.cells import NUL, TAIL, Attr, cell_width

if TYPE_CHECKING:
    from guestagent.renderer.terminal import Terminal


def key(terminal: Terminal) -> tuple[object, ...]:
    """All of the state: equal keys, equal terminals, now and whatever follows.

    Where the last cell was erased behind a pending wrap, it counts as a space, as only printing brings the wrap back.
    """
    cursor = terminal.cursor
    alternate = terminal.active is terminal.alternate
    return (
        terminal.columns, terminal.lines, alternate, terminal.active.key(cursor.y if cursor.x == terminal.columns else None), terminal.main.key() if alternate else None,
        terminal.alternate.saved, (min(terminal.main.x, terminal.columns - 1), terminal.main.y) if alternate else None,
        cursor.x, cursor.y, bool(cursor.hidden), terminal.pen, terminal.join, tuple(terminal.charsets), terminal.charset,
        terminal.insert, terminal.linefeed_returns, terminal.origin, terminal.wrap, terminal.reverse_wrap, terminal.modes.key(),
        terminal.title, terminal.icon_name, tuple(terminal.titles), tuple(terminal.icon_titles), tuple(sorted(terminal.palette.items())),
        terminal.parser.pending(),
    )  # fmt: skip


def check(terminal: Terminal) -> None:
    """The invariants of all modules."""
    assert 0 <= terminal.cursor.x <= terminal.columns
    assert 0 <= terminal.cursor.y < terminal.lines
    assert terminal.rows is terminal.active.rows
    for buffer in (terminal.main, terminal.alternate):
        _check_buffer(buffer, terminal.columns, terminal.lines)
    assert len(terminal.titles) <= 10
    assert len(terminal.icon_titles) <= 10
    assert len(terminal.title) <= 4096


def _check_buffer(buffer: Buffer, columns: int, height: int) -> None:
    assert len(buffer.rows) == buffer.height == height
    assert len(buffer.history) <= buffer.scrollback
    assert 0 <= buffer.top <= buffer.bottom < height
    assert buffer.top < buffer.bottom or height == 1
    assert -len(buffer.history) <= buffer.saved.y < height
    for row in (*buffer.history, *buffer.rows):
        assert len(row.chars) == len(row.attrs) == columns
        for x, (text, attr) in enumerate(zip(row.chars, row.attrs, strict=True)):
            wide = text not in (NUL, TAIL) and cell_width(text) == 2
            assert not wide or (x + 1 < columns and cell_width(row.chars[x + 1]) < 2), (x, row.chars)
            assert text != TAIL or (x and cell_width(row.chars[x - 1]) == 2), (x, row.chars)
            assert text != NUL or x == columns - 1 or attr == Attr(bg=attr.bg), (x, row.chars, attr)
