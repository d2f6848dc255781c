"""Drawing and editing: what text, cursor movements, erases and scrolling do to the cells.

Built on :class:`pyte.Screen`, whose cursor, names and simple operations are used; what touches cells is our own, because
pyte has neither an alternate screen nor wide characters that wrap nor scrollback.  The behaviour is that of xterm.js, its
reading of origin mode included.

Invariants
    0 <= cursor.x <= columns; at `columns` the next character wraps
    `rows` is the active buffer's list, and lives as long as the buffer
    `join` is the width of the character just printed; 0 where a mark would stand alone
"""

from __future__ import annotations

import pyte

from guestagent.renderer.buffers import Buffer, Saved
from guestagent.renderer.cells import BLANK, LONGEST_CELL, NUL, TAIL, UNDERLINE, WIDTHS, Attr, Row, cell_width, erased
from guestagent.renderer.charsets import CHARSETS, Charset


class Grid(pyte.Screen):
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
        self._show(self.main)

    def _show(self, buffer: Buffer) -> None:
        self.active = buffer
        self.rows = buffer.rows

    def set_pen(self, pen: Attr) -> None:
        self.pen = pen
        self.erase_attr = erased(pen)

    @property
    def display(self) -> list[str]:
        return [row.text() for row in self.rows]

    # --- text -----------------------------------------------------------------------------------------
    def draw(self, data: str) -> None:
        """Print.  `data` has no control characters."""
        if self.translation is not None:
            data = data.translate(self.translation)
        if self.insert:
            self._draw_each(data)
        elif data.isascii() or (widths := [WIDTHS[char] for char in data]).count(1) == len(widths):
            self._draw_narrow(data)
        else:
            self._draw_each(data)

    def _draw_narrow(self, data: str) -> None:
        """One column each: whole slices of rows at once."""
        cursor, pen, columns = self.cursor, self.pen, self.columns
        x = cursor.x
        end = x + len(data)
        self.join = 1
        if end > columns:
            end = self._draw_over_edge(data)
        else:
            row = self.rows[cursor.y]
            chars = row.chars
            if chars[x] == TAIL:
                row.punch(x - 1, pen)
            chars[x:end] = data
            row.attrs[x:end] = [pen] * (end - x)
        if end < columns:
            row = self.rows[cursor.y]
            if row.chars[end] == TAIL:
                row.punch(end, pen)
        cursor.x = end

    def _draw_over_edge(self, data: str) -> int:
        """The column behind what was printed; row by row."""
        cursor, pen, columns = self.cursor, self.pen, self.columns
        x = cursor.x
        position, size = 0, len(data)
        if not self.wrap and size > columns - x:  # all that has no room is printed over the last column
            x = min(x, columns - 1)
            data = data[: columns - 1 - x] + data[-1]
            size = len(data)
        while position < size:
            if x >= columns:
                self._wrap()
                x = 0
            count = min(size - position, columns - x)
            row = self.rows[cursor.y]
            chars = row.chars
            row.part(x, pen)
            chars[x : x + count] = data[position : position + count]
            row.attrs[x : x + count] = [pen] * count
            x += count
            position += count
        return x

    def _wrap(self) -> None:
        cursor, active = self.cursor, self.active
        cursor.x = 0
        if cursor.y == active.bottom:
            active.scroll(self.erase_attr, wrapped=True)
        else:
            cursor.y = min(cursor.y + 1, self.lines - 1)
            self.rows[cursor.y].wrapped = True

    def _draw_each(self, data: str) -> None:
        """Any text: wide characters, marks that join, insert mode."""
        cursor, pen, columns = self.cursor, self.pen, self.columns
        row = self.rows[cursor.y]
        if cursor.x < columns and row.chars[cursor.x] == TAIL:
            row.punch(cursor.x - 1, pen)
        for char in data:
            width = WIDTHS[char]
            if not width and self.join and cursor.x:
                self._join(row, char)
                continue
            x = cursor.x
            if x + width > columns:
                if self.wrap:
                    for rest in range(x, columns):
                        row.part(rest, pen)
                        row.chars[rest], row.attrs[rest] = NUL, pen
                    self._wrap()
                    row = self.rows[cursor.y]
                    x = 0
                    if width > columns:
                        continue
                else:
                    x = cursor.x = columns - 1
                    if width == 2:
                        self.join = 0
                        continue
            self.join = width
            if not self.wrap and x < columns:
                row.part(x, pen)  # here the cursor may stand on half a wide character
            if x == columns:
                continue  # a mark that stands alone, behind the last column
            if self.insert and width:
                row.insert(x, width, pen)
            row.chars[x], row.attrs[x] = char, pen
            cursor.x = x + 1
            if width == 2:
                row.chars[x + 1], row.attrs[x + 1] = TAIL, pen
                cursor.x = x + 2
        end = cursor.x
        if 0 < end < columns and row.chars[end] == TAIL and cell_width(row.chars[end - 1]) != 2:
            row.punch(end, pen)

    def _join(self, row: Row, mark: str) -> None:
        x = self.cursor.x - 1
        if row.chars[x] == TAIL and x:
            x -= 1
        text = row.chars[x]
        if text == NUL:
            return
        if len(text) < LONGEST_CELL:
            row.chars[x] = text + mark

    def repeat(self, count: int) -> None:
        """REP.  More than two screens are not to be told from two, but for the scrollback."""
        x = self.cursor.x - self.join
        if not self.join or x < 0:
            return
        text = self.rows[self.cursor.y].chars[x]
        if text not in (NUL, TAIL):
            most = 2 * self.columns * (self.lines + self.scrollback)
            self.draw(text * min(count, most - most % self.columns + count % self.columns))

    # --- lines ----------------------------------------------------------------------------------------
    def newline(self) -> None:
        """CR and LF."""
        cursor, active = self.cursor, self.active
        cursor.x = 0
        y = cursor.y
        if y == active.bottom:
            active.scroll(self.erase_attr)
        elif y < self.lines - 1:
            cursor.y = y + 1
            self.rows[y + 1].wrapped = False

    def linefeed(self) -> None:
        x = 0 if self.linefeed_returns else min(self.cursor.x, self.columns - 1)
        self.newline()
        self.cursor.x = x

    def index(self) -> None:
        cursor, active = self.cursor, self.active
        self._restrict()
        if cursor.y == active.bottom:
            active.scroll(self.erase_attr)
        else:
            cursor.y = min(cursor.y + 1, self.lines - 1)
        self._restrict()

    def next_line(self) -> None:
        self.carriage_return()
        self.index()

    def reverse_index(self) -> None:
        self._restrict()
        active = self.active
        if self.cursor.y == active.top:
            del self.rows[active.bottom]
            self.rows.insert(active.top, Row(self.columns, self.erase_attr))
        else:
            self.cursor.y = max(self.cursor.y - 1, 0)
            self._restrict()

    def insert_lines(self, count: int | None = None) -> None:
        self._shift_lines(self.cursor_row_in_margins(), count, down=True)

    def delete_lines(self, count: int | None = None) -> None:
        self._shift_lines(self.cursor_row_in_margins(), count, down=False)

    def cursor_row_in_margins(self) -> int | None:
        self._restrict()
        active = self.active
        if not active.top <= self.cursor.y <= active.bottom:
            return None
        self.cursor.x = 0
        return self.cursor.y

    def scroll_up(self, count: int | None = None) -> None:
        self._shift_lines(self.active.top, count, down=False)

    def scroll_down(self, count: int | None = None) -> None:
        self._shift_lines(self.active.top, count, down=True, attr=BLANK)

    def _shift_lines(self, first: int | None, count: int | None, *, down: bool, attr: Attr | None = None) -> None:
        if first is None:
            return
        rows, bottom = self.rows, self.active.bottom
        for _ in range(min(count or 1, bottom - first + 1)):
            new = Row(self.columns, self.erase_attr if attr is None else attr)
            del rows[bottom if down else first]
            rows.insert(first if down else bottom, new)

    # --- columns --------------------------------------------------------------------------------------
    def insert_characters(self, count: int | None = None) -> None:
        self._restrict()
        self.rows[self.cursor.y].insert(self.cursor.x, count or 1, self.erase_attr)

    def delete_characters(self, count: int | None = None) -> None:
        self._restrict()
        self.rows[self.cursor.y].delete(self.cursor.x, count or 1, self.erase_attr)

    def erase_characters(self, count: int | None = None) -> None:
        self._restrict()
        x = self.cursor.x
        self.rows[self.cursor.y].erase(x, x + (count or 1), self.erase_attr)

    def shift_columns(self, x: int, count: int, *, right: bool) -> None:
        """DECIC, DECDC, SL and SR: all rows between the margins, if the cursor is there."""
        active = self.active
        if active.top <= self.cursor.y <= active.bottom:
            for row in self.rows[active.top : active.bottom + 1]:
                (row.insert if right else row.delete)(x % self.columns, count or 1, self.erase_attr)
                row.wrapped = False

    # --- erasing --------------------------------------------------------------------------------------
    def erase_in_line(self, how: int = 0, private: bool = False) -> None:
        self._restrict(self.columns)
        x, row = self.cursor.x, self.rows[self.cursor.y]
        erase = row.erase_unprotected if private else row.erase
        if how == 0:
            erase(x, self.columns, self.erase_attr)
            if x == 0:
                row.wrapped = False
        elif how == 1:
            erase(0, x + 1, self.erase_attr)
        elif how == 2:
            erase(0, self.columns, self.erase_attr)
            row.wrapped = False

    def erase_in_display(self, how: int = 0, *_: object, private: bool = False, **__: object) -> None:
        self._restrict(self.columns)
        y, rows = self.cursor.y, self.rows
        if how == 0:
            self.erase_in_line(0, private)
            self._erase_rows(y + 1, self.lines, private)
        elif how == 1:
            self.erase_in_line(1, private)
            rows[y].wrapped = False
            if self.cursor.x + 1 >= self.columns:
                self.active.unwrap(y + 1)
            self._erase_rows(0, y, private)
        elif how == 2:
            self._erase_rows(0, self.lines, private)
        elif how == 3:
            self.active.clear_history()

    def _erase_rows(self, first: int, end: int, private: bool) -> None:
        for y in range(first, end):
            if private:
                self.rows[y].erase_unprotected(0, self.columns, self.erase_attr)
                self.rows[y].wrapped = False
            else:
                self.rows[y] = Row(self.columns, self.erase_attr)

    def alignment_display(self) -> None:
        self.cursor_position()
        attr = self.pen._replace(underline=0, underline_color=-1, link="")
        for row in self.rows[self.cursor.y :]:
            row.chars[:] = ["E"] * self.columns
            row.attrs[:] = [attr] * self.columns
            row.wrapped = False
        self.cursor_position()

    # --- the cursor -----------------------------------------------------------------------------------
    def _restrict(self, last: int | None = None) -> None:
        cursor, active = self.cursor, self.active
        if cursor.x >= self.columns:
            cursor.x = self.columns - 1 if last is None else last
        if self.origin:
            cursor.y = min(max(cursor.y, active.top), active.bottom)

    def _go(self, x: int, y: int) -> None:
        """In origin mode rows count from the top margin.  (xterm.js counts relative movements so as well.)"""
        cursor, active = self.cursor, self.active
        cursor.x = min(max(x, 0), self.columns - 1)
        if self.origin:
            cursor.y = min(max(active.top + y, active.top), active.bottom)
        else:
            cursor.y = min(max(y, 0), self.lines - 1)

    def move(self, x: int, y: int) -> None:
        self._restrict()
        self._go(self.cursor.x + x, self.cursor.y + y)

    def cursor_position(self, line: int | None = None, column: int | None = None) -> None:
        self._go((column or 1) - 1, (line or 1) - 1)

    def cursor_to_column(self, column: int | None = None) -> None:
        self._go((column or 1) - 1, self.cursor.y)

    def cursor_to_line(self, line: int | None = None) -> None:
        self._go(self.cursor.x, (line or 1) - 1)

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
        self._restrict(self.columns if self.reverse_wrap else None)
        row = self.rows[cursor.y]
        if cursor.x:
            cursor.x -= 1
        elif self.reverse_wrap and self.active.top < cursor.y <= self.active.bottom and row.wrapped:
            row.wrapped = False
            cursor.y -= 1
            cursor.x = self.columns - 1
            if self.rows[cursor.y].chars[cursor.x] == NUL and cursor.x:
                cursor.x -= 1  # left empty by a wide character
        self._restrict()

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
        self._restrict()

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
            self._show(self.alternate)

    def show_main(self) -> None:
        if self.active is self.alternate:
            self.alternate.clear(BLANK)
            self._show(self.main)
