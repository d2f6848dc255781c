"""Drawing and editing: what text, erases and scrolling do to the cells.

None of it is pyte's, which has neither an alternate screen nor wide characters that wrap nor scrollback.  The behaviour is that of
xterm.js.

Invariant
    `join` is the width of the character just printed; 0 where a mark would stand alone.  So it is where a wide character had no
    room and no autowrap: the cursor is in the last column then, and what follows goes there whatever it cuts
"""

from __future__ import annotations

from guestagent.renderer.cells import (
    BLANK,
    LONGEST_CELL,
    NUL,
    STRETCHED,
    TAIL,
    UNDERLINE,
    WIDTHS,
    Attr,
    Row,
    cell_width,
)
from guestagent.renderer.movement import Movement


class Grid(Movement):
    @property
    def display(self) -> list[str]:
        return [row.text() for row in self.rows]

    # --- text -----------------------------------------------------------------------------------------
    def draw(self, data: str) -> None:
        """Print.  `data` has no control characters."""
        if self.translation is not None:
            data = data.translate(self.translation)
        cursor = self.cursor
        if not self.join and cursor.x and not self.rows[cursor.y].chars[cursor.x - 1].isascii():
            self._part()
        if self.insert:
            self._draw_each(data)
        elif data.isascii() or (widths := [WIDTHS[char] for char in data]).count(1) == len(widths):
            self._draw_narrow(data)
        else:
            self._draw_each(data)

    def interrupted(self) -> None:
        """Printing begins anew, though a mark may still join what is before the cursor."""
        if self.rows[self.cursor.y].wide_before(self.cursor.x):
            self.join = 0

    def _part(self) -> None:
        """No wide character lies across the cursor any more, where printing begins anew."""
        cursor = self.cursor
        row = self.rows[cursor.y]
        if row.wide_before(cursor.x):
            row.punch(cursor.x - 1, self.pen)

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
            row.chars[x:end] = data
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
            row.chars[x : x + count] = data[position : position + count]
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
                        self.join = 2
                        continue
            self.join = width
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
        if 0 < end < columns and row.chars[end] == TAIL:
            row.punch(end, pen)

    def _join(self, row: Row, mark: str) -> None:
        x = self.cursor.x - 1
        if x and not cell_width(row.chars[x]):
            x -= 1
        text = row.chars[x]
        width = cell_width(text)
        if self.join == 2 and width == 1:  # a wide character that had no room came between
            text = STRETCHED + text.replace(NUL, "")
        elif not width or text == NUL:
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
            text = text.removeprefix(STRETCHED)
            self._part()
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
        self.restrict()
        if cursor.y == active.bottom:
            active.scroll(self.erase_attr)
        else:
            cursor.y = min(cursor.y + 1, self.lines - 1)
        self.restrict()

    def next_line(self) -> None:
        self.carriage_return()
        self.index()

    def reverse_index(self) -> None:
        self.restrict()
        active = self.active
        if self.cursor.y == active.top:
            del self.rows[active.bottom]
            self.rows.insert(active.top, Row(self.columns, self.erase_attr))
        else:
            self.cursor.y = max(self.cursor.y - 1, 0)
            self.restrict()

    def insert_lines(self, count: int | None = None) -> None:
        self._shift_lines(self.cursor_row_in_margins(), count, down=True)

    def delete_lines(self, count: int | None = None) -> None:
        self._shift_lines(self.cursor_row_in_margins(), count, down=False)

    def cursor_row_in_margins(self) -> int | None:
        self.restrict()
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
        self.restrict()
        self.rows[self.cursor.y].insert(self.cursor.x, count or 1, self.erase_attr)

    def delete_characters(self, count: int | None = None) -> None:
        self.restrict()
        self.rows[self.cursor.y].delete(self.cursor.x, count or 1, self.erase_attr)

    def erase_characters(self, count: int | None = None) -> None:
        self.restrict()
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
        self.restrict(self.columns)
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
        self.restrict(self.columns)
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
        pen = self.pen
        attr = Attr(pen.fg, pen.bg, pen.flags, 1 if pen.flags & UNDERLINE else 0)
        for row in self.rows[self.cursor.y :]:
            row.chars[:] = ["E"] * self.columns
            row.attrs[:] = [attr] * self.columns
            row.wrapped = False
        self.cursor_position()
