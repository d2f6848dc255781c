"""A terminal's state as plain data: the normal form that is compared with xterm.js, and the screen that clients are told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from guestagent.renderer.cells import BLANK, NUL, STRETCHED, Attr, Row, cell_width

if TYPE_CHECKING:
    from guestagent.renderer.terminal import Terminal

SEEN = 0x1FF  # flags that make a difference to the eye


# --- the normal form ------------------------------------------------------------------------------------
def _cells(row: Row) -> list[list[Any]]:
    chars, attrs = row.chars, row.attrs
    end = len(chars)
    while end and chars[end - 1] in (NUL, " ") and (attrs[end - 1] is BLANK or _plain(attrs[end - 1])):
        end -= 1
    return [
        [" " if text == NUL else text.removeprefix(STRETCHED), cell_width(text), attr.fg, attr.bg, attr.flags & SEEN]
        for text, attr in zip(chars[:end], attrs[:end], strict=True)
    ]


def _plain(attr: Attr) -> bool:
    return attr.fg == attr.bg == -1 and not attr.flags & SEEN


def _rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [{"wrapped": row.wrapped, "cells": _cells(row)} for row in rows]


def normal_form(terminal: Terminal) -> dict[str, Any]:
    cursor, modes = terminal.cursor, terminal.modes
    alternate = terminal.active is terminal.alternate
    return {
        "columns": terminal.columns,
        "rows": terminal.lines,
        "cursor": {
            "x": min(cursor.x, terminal.columns - 1),
            "y": cursor.y,
            "pending_wrap": cursor.x == terminal.columns,
            "visible": not cursor.hidden,
        },
        "alternate": alternate,
        "screen": _rows(terminal.rows),
        "main": _rows(terminal.main.rows) if alternate else None,
        "scrollback": _rows(terminal.main.history),
        "modes": {
            "app_cursor": modes.app_cursor,
            "app_keypad": modes.app_keypad,
            "bracketed_paste": modes.bracketed_paste,
            "insert": terminal.insert,
            "origin": terminal.origin,
            "wraparound": terminal.wrap,
            "reverse_wraparound": terminal.reverse_wrap,
            "focus": modes.focus,
            "mouse": modes.mouse,
        },
        "title": terminal.title,
    }


# --- for clients ----------------------------------------------------------------------------------------
_SHAPES = ("block", "block", "block", "underline", "underline", "bar", "bar")


class _Styles:
    """Each look once; runs of text name it by its index."""

    def __init__(self) -> None:
        self._index: dict[Attr, int] = {}
        self.table: list[dict[str, Any]] = []

    def of(self, attr: Attr) -> int:
        found = self._index.get(attr)
        if found is None:
            found = self._index[attr] = len(self.table)
            names = ("fg", "bg", "flags", "underline", "underline_color", "link")
            self.table.append(
                {name: value for name, value in zip(names, attr, strict=True) if value != getattr(BLANK, name)}
            )
        return found


def _runs(row: Row, styles: _Styles) -> list[list[Any]]:
    """[text, width, style] of equal cells; trailing blanks left out.  A wide character is one character of text."""
    chars, attrs = row.shown(), row.attrs
    end = len(chars)
    while end and chars[end - 1] == NUL and attrs[end - 1] == BLANK:
        end -= 1
    runs: list[list[Any]] = []
    start = 0
    while start < end:
        attr = attrs[start]
        stop = start + 1
        while stop < end and (attrs[stop] is attr or attrs[stop] == attr):
            stop += 1
        runs.append(["".join(chars[start:stop]).replace(NUL, " "), stop - start, styles.of(attr)])
        start = stop
    return runs


def screen_data(terminal: Terminal, scrollback_from: int = 0, count: int = 0) -> dict[str, Any]:
    cursor, modes, main = terminal.cursor, terminal.modes, terminal.main
    history = main.history
    first = min(max(scrollback_from, 0), len(history))
    page: Sequence[Row] = [history[index] for index in range(first, min(first + max(count, 0), len(history)))]
    styles = _Styles()
    blinks = modes.cursor_style in (1, 3, 5) or (modes.cursor_style == 0 and modes.cursor_blink)
    return {
        "columns": terminal.columns,
        "rows": terminal.lines,
        "text": [row.text().rstrip() for row in terminal.rows],
        "cells": [_runs(row, styles) for row in terminal.rows],
        "wrapped": [row.wrapped for row in terminal.rows],
        "cursor": {
            "x": min(cursor.x, terminal.columns - 1),
            "y": cursor.y,
            "visible": not cursor.hidden,
            "shape": _SHAPES[modes.cursor_style],
            "blink": blinks,
        },
        "title": terminal.title,
        "icon_title": terminal.icon_name,
        "alternate": terminal.active is terminal.alternate,
        "modes": {
            "app_cursor": modes.app_cursor,
            "app_keypad": modes.app_keypad,
            "bracketed_paste": modes.bracketed_paste,
            "focus": modes.focus,
            "mouse": modes.mouse,
            "mouse_encoding": modes.mouse_encoding,
            "insert": terminal.insert,
            "origin": terminal.origin,
            "wraparound": terminal.wrap,
            "reverse_video": modes.reverse_video,
            "kitty_keyboard": terminal.active.kitty[-1],
            "modify_other_keys": modes.modify_other_keys,
        },
        "palette": {str(index): color for index, color in sorted(terminal.palette.items())},
        "scrollback": {
            "length": len(history),
            "from": first,
            "text": [row.text().rstrip() for row in page],
            "cells": [_runs(row, styles) for row in page],
            "wrapped": [row.wrapped for row in page],
        },
        "styles": styles.table,
    }
