"""Where the cursor is and what it will print: movements, margins, tab stops, character sets, the two buffers.

Built on :class:`pyte.Screen`, whose cursor, names and simple operations are used; see grid.py for what it does to cells.  The
behaviour is that of xterm.js, its reading of origin mode included.

Invariants
    0 <= cursor.x <= columns; at `columns` the next character wraps
    `rows` is the active buffer's list, and lives as long as the buffer
"""

from __future__ import annotations

import pyte

from guestagent.renderer.buffers import Buffer, Saved
from guestagent.renderer.cells import BLANK, NUL, UNDERLINE, Attr, erased
from guestagent.renderer.charsets import CHARSETS, Charset


class Movement(pyte.Screen):
    def __init__(self, columns: int, rows: int, scrollback: int) -> None:
        self.scrollback = scrollback
        self.insert = self.linefeed_returns = self.origin = self.reverse_wrap = False
        self.wrap = True
        super().__init__(columns, rows)

    def reset(self) -> None:
        """RIS.  As in xterm.js, whether the cursor is hidden and LNM stay, and the titles."""
        hidden = self.cursor.hidden if hasattr(self, "cursor") else False
        self.title = getattr(self, "title", "")
        self.icon_name = getattr(self, "icon_name", "")
        self.main = Buffer(self.columns, self.lines, self.scrollback)
        self.alternate = Buffer(self.columns, self.lines, 0)
        self.cursor = pyte.screens.Cursor(0, 0)
        self.cursor.hidden = hidden
        self.join = 0
        self.charsets = ["B", "B", "B", "B"]
        self.charset = 0  # which of G0 to G3 is GL
        self.translation: Charset | None = None  # of GL
        self.insert = self.origin = self.reverse_wrap = False
        self.wrap = True
        self.set_pen(BLANK)
        self.show(self.main)

    def show(self, buffer: Buffer) -> None:
        self.active = buffer
        self.rows = buffer.rows

    def set_pen(self, pen: Attr) -> None:
        self.pen = pen
        self.erase_attr = erased(pen)

    # --- the cursor -----------------------------------------------------------------------------------
    def restrict(self, last: int | None = None) -> None:
        cursor, active = self.cursor, self.active
        if cursor.x >= self.columns:
            cursor.x = self.columns - 1 if last is None else last
        if self.origin:
            cursor.y = min(max(cursor.y, active.top), active.bottom)

    def go(self, x: int, y: int) -> None:
        """In origin mode rows count from the top margin.  (xterm.js counts relative movements so as well.)"""
        cursor, active = self.cursor, self.active
        cursor.x = min(max(x, 0), self.columns - 1)
        if self.origin:
            cursor.y = min(max(active.top + y, active.top), active.bottom)
        else:
            cursor.y = min(max(y, 0), self.lines - 1)

    def move(self, x: int, y: int) -> None:
        self.restrict()
        self.go(self.cursor.x + x, self.cursor.y + y)

    def cursor_position(self, line: int | None = None, column: int | None = None) -> None:
        self.go((column or 1) - 1, (line or 1) - 1)

    def cursor_to_column(self, column: int | None = None) -> None:
        self.go((column or 1) - 1, self.cursor.y)

    def cursor_to_line(self, line: int | None = None) -> None:
        self.go(self.cursor.x, (line or 1) - 1)

    def cursor_up(self, count: int | None = None) -> None:
        room = self.cursor.y - self.active.top
        self.move(0, -min(room, count or 1) if room >= 0 else -(count or 1))

    def cursor_down(self, count: int | None = None) -> None:
        room = self.active.bottom - self.cursor.y
        self.move(0, min(room, count or 1) if room >= 0 else count or 1)

    def cursor_forward(self, count: int | None = None) -> None:
        self.move(count or 1, 0)

    def cursor_back(self, count: int | None = None) -> None:
        self.move(-(count or 1), 0)

    def backspace(self) -> None:
        cursor = self.cursor
        self.restrict(self.columns if self.reverse_wrap else None)
        row = self.rows[cursor.y]
        if cursor.x:
            cursor.x -= 1
        elif self.reverse_wrap and self.active.top < cursor.y <= self.active.bottom and row.wrapped:
            row.wrapped = False
            cursor.y -= 1
            cursor.x = self.columns - 1
            if self.rows[cursor.y].chars[cursor.x] == NUL and cursor.x:
                cursor.x -= 1  # left empty by a wide character
        self.restrict()

    def tab(self) -> None:
        if self.cursor.x < self.columns:
            self.cursor.x = self.active.next_tab(self.cursor.x)

    def tabs(self, count: int, *, back: bool) -> None:
        """CHT and CBT."""
        x = self.cursor.x
        if x < self.columns:
            for _ in range(min(count or 1, self.columns)):
                x = self.active.previous_tab(x) if back else self.active.next_tab(x)
            self.cursor.x = x

    def set_tab_stop(self) -> None:
        if self.cursor.x < self.columns:
            self.active.tabs.add(self.cursor.x)

    def clear_tab_stop(self, how: int = 0) -> None:
        if how == 0:
            self.active.tabs.discard(self.cursor.x)
        elif how == 3:
            self.active.tabs.clear()

    def set_margins(self, top: int | None = None, bottom: int | None = None) -> None:
        first = top or 1
        last = bottom if bottom and bottom <= self.lines else self.lines
        if last > first:
            self.active.top, self.active.bottom = first - 1, last - 1
            self.cursor_position()

    def save_cursor(self) -> None:
        pen = self.pen
        self.active.saved = Saved(
            min(self.cursor.x, self.columns - 1), self.cursor.y, pen.fg, pen.bg, pen.flags, self.charsets[self.charset]
        )

    def restore_cursor(self) -> None:
        saved, pen = self.active.saved, self.pen
        self.cursor.x, self.cursor.y = min(saved.x, self.columns - 1), min(max(saved.y, 0), self.lines - 1)
        style = (pen.underline or 1) if saved.flags & UNDERLINE else 0
        self.set_pen(pen._replace(fg=saved.fg, bg=saved.bg, flags=saved.flags, underline=style))
        self.designate(self.charset, saved.charset)
        self.restrict()

    # --- character sets -------------------------------------------------------------------------------
    def designate(self, which: int, charset: str) -> None:
        self.charsets[which] = charset
        self.translation = CHARSETS[self.charsets[self.charset]]

    def invoke(self, which: int) -> None:
        self.charset = which
        self.translation = CHARSETS[self.charsets[which]]

    def shift_in(self) -> None:
        self.invoke(0)

    def shift_out(self) -> None:
        self.invoke(1)

    # --- buffers --------------------------------------------------------------------------------------
    def show_alternate(self) -> None:
        if self.active is self.main:
            self.main.x, self.main.y = self.cursor.x, self.cursor.y
            self.alternate.clear(self.erase_attr)
            self.show(self.alternate)

    def show_main(self) -> None:
        if self.active is self.alternate:
            self.alternate.clear(BLANK)
            self.show(self.main)
