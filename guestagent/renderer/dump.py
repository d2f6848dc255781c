"""The whole state of a terminal as the output that makes it: for one that joins late, or that missed something.

It replaces what the terminal showed.  It begins with CAN, which ends any sequence the terminal is in, and RIS: only RIS puts
back everything, modes unknown to us among it, where DECSTR leaves the mouse, the tab stops and the alternate screen.  What
xterm.js keeps through RIS (LNM, the hidden cursor, the title, the palette) follows by name.

Order: scrollback and primary screen as a stream of lines; what the primary has of its own; the alternate screen the same
way; titles, palette, modes; margins, origin and cursor; the pen; and the bytes of the sequence the stream is in the middle of.
No queries, and no ?2026.

Four things are more than printing:

- That a row continues the one above can only be said by wrapping into it.  Where the text does not do that by itself, two
  characters are printed across the edge and erased again.
- A character that did not fit into the last column leaves the pen's attributes there and no text.  Half a wide character,
  overwritten, does the same.
- A wide character without its second half is printed in the last columns, as that needs DECAWM off, and then moved by DCH.
- A pending wrap, and that a mark would join the character before the cursor, are there only behind that character: it is
  printed again.

Not exact: a screen of one row does not say which rows are continued.  That a mark would join a character is lost where the present
character set cannot print that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from guestagent.renderer import colors, sgr
from guestagent.renderer.buffers import Buffer, Saved, default_tabs
from guestagent.renderer.cells import BLANK, NUL, PROTECTED, STRETCHED, TAIL, UNDERLINE, Attr, Row, cell_width, erased
from guestagent.renderer.charsets import CHARSETS
from guestagent.renderer.modes import MOUSE, MOUSE_ENCODING

if TYPE_CHECKING:
    from guestagent.renderer.terminal import Terminal

_RESET = (
    "\x18\x1bc\x1b[20l\x1b[?12l\x1b[?25h"
    "\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\"
)  # fmt: skip
_WIDE = "\u3000"
_INVOKE = ("\x0f", "\x0e", "\x1bn", "\x1bo")


class Dump:
    def __init__(self, terminal: Terminal, scrollback: int | None) -> None:
        self._terminal = terminal
        self._scrollback = scrollback
        self._out: list[str] = []
        self._pen = BLANK  # of the terminal that reads this
        self._columns = terminal.columns

    def make(self) -> bytes:
        terminal, put = self._terminal, self._out.append
        main, alternate = terminal.main, terminal.alternate
        shows_alternate = terminal.active is alternate
        put(_RESET)
        if not shows_alternate and alternate.saved != Saved():
            put("\x1b[?47h")
            self._save(alternate.saved)
            put("\x1b[?47l\x1b[H")
            self._set_pen(BLANK)
        history = list(main.history)
        if self._scrollback is not None:
            history = history[len(history) - min(self._scrollback, len(history)) :]
        self._draw(history + main.rows if history else _used(main.rows, main.saved), main.saved, len(history))
        self._own(main, len(history))
        if shows_alternate:
            self._margins(main)
            put(f"\x1b[{main.y + 1};{min(main.x, self._columns - 1) + 1}H")
            self._set_pen(BLANK)
            put("\x1b[?47h\x1b[H")
            self._draw(_used(alternate.rows, alternate.saved), alternate.saved, 0)
            self._own(alternate, 0)
        self._names()
        self._modes()
        self._finish()
        return "".join(self._out).encode() + terminal.parser.pending()

    # --- attributes -----------------------------------------------------------------------------------
    def _set_pen(self, attr: Attr) -> None:
        old = self._pen
        if attr is old or attr == old:
            return
        self._pen = attr
        if attr.link != old.link:
            self._out.append(f"\x1b]8;{attr.link or ';'}\x1b\\")
        if attr._replace(link="") != old._replace(link=""):
            self._out.append(sgr.sequence(attr))  # ends DECSCA too
            if attr.flags & PROTECTED:
                self._out.append('\x1b[1"q')

    # --- rows -----------------------------------------------------------------------------------------
    def _draw(self, rows: list[Row], saved: Saved, history: int) -> None:
        """From the top left corner of an empty screen on; one row a line.

        A cursor that was saved in what is history now is saved again on its way there.
        """
        put, columns = self._out.append, self._columns
        saved_row = max(saved.y + history, 0) if saved.y < 0 and saved != Saved(y=-history) else -1
        flows = self._flows(rows, saved_row)
        for index, row in enumerate(rows):
            if index == saved_row:
                self._save(saved._replace(y=min(index, self._terminal.lines - 1)))
                put("\r")
            last = index == len(rows) - 1
            continued = not last and rows[index + 1].wrapped
            forced = continued and not flows[index] and self._terminal.lines > 1
            if forced:
                self._set_pen(BLANK)
                put(f"\x1b[{columns}Gxx\x1b[A\x1b[{columns}G\x1b[X\r")
            halves = row.halves()
            for x in halves:
                if x < columns - 2:
                    self._half(row, x)
            if _torn(row) and not flows[index]:
                self._set_pen(row.attrs[-1])
                if columns - 3 in halves:
                    put(f"\x1b[{columns}G ")
                else:
                    put(f"\x1b[{columns - 1}G{_WIDE}\x1b[{columns - 1}G \x1b[{columns - 1}G")
                    self._set_pen(BLANK)
                    put("\x1b[X")
                put("\r")
            if halves and halves[-1] == columns - 2:
                self._half(row, columns - 2)
            self._row(row, halves)
            if forced:
                self._set_pen(BLANK)
                put("\x1b[B\r\x1b[X")
            elif not last and not flows[index]:
                if self._pen.bg != -1:
                    self._set_pen(BLANK)  # the new row is filled with the background
                put("\r\n")

    def _flows(self, rows: list[Row], saved_row: int) -> list[bool]:
        """Whether printing a row's successor wraps into it and leaves this row as it is."""
        flows = [False] * len(rows)
        # The cursor must leave the successor before it is printed.
        aside = _torn(rows[-1]) or len(rows) - 1 == saved_row or bool(rows[-1].halves())
        for index in range(len(rows) - 2, -1, -1):
            row, following = rows[index], rows[index + 1]
            first, attr = following.chars[0], following.attrs[0]
            halves = bool(row.halves())
            if following.wrapped and not aside and not halves and attr.bg == -1 and first != NUL:
                if row.chars[-1] != NUL:
                    flows[index] = cell_width(first) > 0
                else:
                    flows[index] = (
                        cell_width(first) == 2 and row.attrs[-1] == attr and row.printed() == self._columns - 1
                    )
            aside = (not flows[index] and (following.wrapped or _torn(row))) or index == saved_row or halves
        return flows

    def _row(self, row: Row, halves: list[int]) -> None:
        """All but the halves, which are there."""
        x = skip = 0
        for half in halves:
            skip = self._part(row, x, half, skip) + 2
            x = half + 2
        self._part(row, x, len(row.chars), skip)

    def _part(self, row: Row, x: int, end: int, skip: int) -> int:
        """`skip`: columns that the cursor is behind."""
        put, chars, attrs = self._out.append, row.chars, row.attrs
        while x < end:
            attr = attrs[x]
            stop = x + 1
            if chars[x] == NUL:
                while stop < end and chars[stop] == NUL and attrs[stop] == attr:
                    stop += 1
                if attr != BLANK and attr == erased(attr):
                    skip = self._skip(skip)
                    self._set_pen(attr)
                    put(f"\x1b[{stop - x}X" if stop - x > 1 else "\x1b[X")
                skip += stop - x
            else:
                while stop < end and chars[stop] != NUL and (attrs[stop] is attr or attrs[stop] == attr):
                    stop += 1
                skip = self._skip(skip)
                self._set_pen(attr)
                put(_printable(chars[x:stop]))
            x = stop
        return skip

    def _skip(self, columns: int) -> int:
        if columns:
            self._out.append(f"\x1b[{columns}C" if columns > 1 else "\x1b[C")
        return 0

    # --- halves of wide characters --------------------------------------------------------------------
    def _half(self, row: Row, x: int) -> None:
        """The half at x and the cell behind it, in a row that has nothing to the right yet; the cursor goes to the left."""
        put, last = self._out.append, self._columns - 1
        put("\x1b[?7l")
        lead = self._lead(row, x, lambda column: put(f"\x1b[{column + 1}G"))
        text, attr = row.chars[x + 1], row.attrs[x + 1]
        if lead and text == NUL:
            if attr == erased(attr) != BLANK:
                self._set_pen(attr)
                put("\x1b[X")
        elif lead and not cell_width(text):
            self._set_pen(attr)
            put(f"\0{text}\x1b[{last + 1}G")
        else:
            self._set_pen(attr)
            lead += text if text != NUL else _WIDE  # which has no room, and leaves NUL
        put(lead)
        if x < last - 1:
            self._set_pen(BLANK)  # what comes in at the edge is filled with the background
            put(f"\x1b[{x + 1}G\x1b[{last - 1 - x}P")
        put("\x1b[?7h\r")

    def _lead(self, row: Row, x: int, go: Callable[[int], None]) -> str:
        """The wide character at x into the columns before the last; what to print for it before anything else, if anything.

        DECAWM is off.  Where nothing is to be printed, the cursor is behind the last column.
        """
        put, last = self._out.append, self._columns - 1
        text, attr = row.chars[x], row.attrs[x]
        go(last - 1)
        if text[0] != STRETCHED:
            self._set_pen(attr)
            put(text)
            return ""
        if cell_width(text[1:]):
            self._set_pen(attr)
            put(text[1])
            marks = text[2:]
        else:  # nothing was printed there
            put(" ")
            go(last - 1)
            self._set_pen(attr)
            put("\x1b[X")
            marks = text[1:]
        go(last)
        return _WIDE + marks

    # --- the rest -------------------------------------------------------------------------------------
    def _save(self, saved: Saved) -> None:
        style = 1 if saved.flags & UNDERLINE else 0
        self._set_pen(Attr(saved.fg, saved.bg, saved.flags, style))
        self._out.append(f"\x1b({saved.charset}\x1b[{saved.y + 1};{saved.x + 1}H\x1b7\x1b(B")

    def _own(self, buffer: Buffer, history: int) -> None:
        """Tab stops, keyboard flags and the saved cursor."""
        put = self._out.append
        if buffer.tabs != default_tabs(self._columns):
            put("\x1b[3g")
            for tab in sorted(buffer.tabs):
                put(f"\x1b[{tab + 1}G\x1bH")
        if buffer.kitty != [0]:
            put(f"\x1b[={buffer.kitty[0]}u")
            for flags in buffer.kitty[1:]:
                put(f"\x1b[>{flags}u")
        if buffer.saved.y >= 0 and buffer.saved != Saved(y=-history):
            self._save(buffer.saved)

    def _margins(self, buffer: Buffer) -> None:
        if (buffer.top, buffer.bottom) != (0, buffer.height - 1):
            self._out.append(f"\x1b[{buffer.top + 1};{buffer.bottom + 1}r")

    def _names(self) -> None:
        terminal, put = self._terminal, self._out.append
        for kind, stack, title in ((2, terminal.titles, terminal.title), (1, terminal.icon_titles, terminal.icon_name)):
            for earlier in stack:
                put(f"\x1b]{kind};{earlier}\x1b\\\x1b[22;{kind}t")
            put(f"\x1b]{kind};{title}\x1b\\")
        for index, color in sorted(terminal.palette.items()):
            code = f"4;{index}" if index < 256 else f"{index - 246}"
            put(f"\x1b]{code};{colors.spec(color)}\x1b\\")

    def _modes(self) -> None:
        terminal, modes, put = self._terminal, self._terminal.modes, self._out.append
        on = (
            (modes.app_cursor, "?1"), (modes.reverse_video, "?5"), (modes.cursor_blink, "?12"),
            (terminal.reverse_wrap, "?45"), (modes.app_keypad, "?66"), (modes.focus, "?1004"),
            (modes.alternate_scroll, "?1007"), (modes.bracketed_paste, "?2004"), (terminal.linefeed_returns, "20"),
        )  # fmt: skip
        put("".join(f"\x1b[{number}h" for is_on, number in on if is_on))
        for number, name in (*MOUSE.items(), *MOUSE_ENCODING.items()):
            if name in (modes.mouse, modes.mouse_encoding):
                put(f"\x1b[?{number}h")
        if terminal.cursor.hidden:
            put("\x1b[?25l")
        if modes.cursor_style:
            put(f"\x1b[{modes.cursor_style} q")
        if modes.modify_other_keys:
            put(f"\x1b[>4;{modes.modify_other_keys}m")

    def _charsets(self) -> None:
        terminal, put = self._terminal, self._out.append
        for which, introducer in enumerate("()*+"):
            if terminal.charsets[which] != "B":
                put(f"\x1b{introducer}{terminal.charsets[which]}")
        if terminal.charset:
            put(_INVOKE[terminal.charset])

    def _finish(self) -> None:
        """Margins, origin and the cursor, which they move; the pen; what is there only behind a printed character."""
        terminal, put = self._terminal, self._out.append
        active, cursor, columns = terminal.active, terminal.cursor, self._columns
        self._margins(active)
        if terminal.origin:
            put("\x1b[?6h")
        row = terminal.rows[cursor.y]
        x = min(cursor.x, columns - 1)
        again = cursor.x == columns or bool(terminal.join)
        if again:
            x = cursor.x - 1
            if row.chars[x] == TAIL:
                x -= 1
        self._go(x, cursor.y)
        if not terminal.wrap:
            put("\x1b[?7l")
        if terminal.join == 2 and cursor.x == columns - 1 and not terminal.wrap:
            self._without_room(row)
            return
        if cursor.x == columns and row.chars[-1] != TAIL and row.wide_before(columns - 1):
            self._pend_behind_half(row)
            return
        if again and terminal.join:
            if terminal.insert:
                put(f"\x1b[4h\x1b[{terminal.join}P")
            self._set_pen(terminal.pen)
            self._charsets()  # in which it was printed, as nothing came after it
            put(self._untranslated(row.chars[x]))
            return
        if again and row.chars[x] == NUL:
            self._pend_over_blank(row)
        elif again:
            self._set_pen(row.attrs[x])
            put(_printable([row.chars[x]]) + "\0")
        self._charsets()
        if terminal.insert:
            put("\x1b[4h")
        self._set_pen(terminal.pen)

    def _rest(self) -> None:
        """What must not be there while anything is printed for the picture."""
        self._charsets()
        if self._terminal.insert:
            self._out.append("\x1b[4h")
        self._set_pen(self._terminal.pen)

    def _without_room(self, row: Row) -> None:
        """A wide character had no room, with the cursor in the last column now; a mark joins what is before the cursor."""
        put, last, y = self._out.append, self._columns - 1, self._terminal.cursor.y
        if not row.wide_before(last):
            self._go(last, y)
            self._rest()
            put(_WIDE)
            return
        lead = self._lead(row, last - 1, lambda column: self._go(column, y))
        if not lead and row.chars[last] not in (NUL, TAIL):
            self._set_pen(row.attrs[last])
            put(row.chars[last])
        self._rest()
        put(lead or _WIDE)

    def _pend_behind_half(self, row: Row) -> None:
        """A pending wrap; the character in the last column must not be printed alone, which would cut the half before it."""
        terminal, put = self._terminal, self._out.append
        text, y = row.chars[-1], terminal.cursor.y
        if terminal.join or terminal.active is terminal.alternate:
            put("\x1b[?7l")
            lead = self._lead(row, self._columns - 2, lambda column: self._go(column, y))
            if terminal.join:
                self._rest()
                put(lead + self._untranslated(text))
                return
            self._set_pen(row.attrs[-1])
            put(lead + text.replace(NUL, " ") + "\0")
            if terminal.wrap:
                put("\x1b[?7h")
        else:
            self._set_pen(BLANK)
            put("\x1b[?47h \0\x1b[?47l")
        self._rest()

    def _pend_over_blank(self, row: Row) -> None:
        """A pending wrap, though nothing is printed in the last column.

        It comes along from the other screen, or stays when the row is erased; else the last column gets a space.
        """
        terminal, put = self._terminal, self._out.append
        attr = row.attrs[-1]
        self._set_pen(attr)
        if terminal.active is terminal.main:
            put("\x1b[?47h \0\x1b[?47l")
        elif row.printed() == 0 and row.attrs.count(attr) == self._columns:
            put(" \x1b[1K")
        else:
            put(" \0")

    def _go(self, x: int, y: int) -> None:
        terminal, put = self._terminal, self._out.append
        active = terminal.active
        if terminal.origin and not active.top <= y <= active.bottom:  # only by way of the other screen's margins
            put(f"\x1b[?47h\x1b[{y + 1};{x + 1}H\x1b[?47l")
        else:
            put(f"\x1b[{y + 1 - (active.top if terminal.origin else 0)};{x + 1}H")

    def _untranslated(self, text: str) -> str:
        """What prints `text` in the present character set."""
        terminal = self._terminal
        name = terminal.charsets[terminal.charset]
        translation = CHARSETS[name]
        if translation is None or ord(text[0]) not in translation:
            return _printable([text])
        inverse = {by: chr(code) for code, by in translation.items()}
        if text[0] in inverse:
            return inverse[text[0]] + text[1:]
        # Nothing prints it; in ASCII, and that a mark would join it is lost.
        introducer = "()*+"[terminal.charset]
        return f"\x1b{introducer}B{_printable([text])}\x1b{introducer}{name}"


def _special(row: Row) -> bool:
    """The last column has attributes and no text."""
    return row.chars[-1] == NUL and row.attrs[-1] != erased(row.attrs[-1])


def _printable(texts: list[str]) -> str:
    """What prints these cells.  NUL is a control, so a mark behind it stands alone as it did before."""
    found = "".join(texts)
    if found.isascii():
        return found
    return "".join("\0" + text if text and not cell_width(text) else text for text in texts)


def _torn(row: Row) -> bool:
    """Did a wide character not fit into the last column, or lose its second half there?"""
    return row.chars[-1] == NUL and row.attrs[-1] != erased(row.attrs[-1])


def _used(rows: list[Row], saved: Saved) -> list[Row]:
    """Without the empty rows at the end, which are there after a reset: a smaller terminal that shows this need not scroll then."""
    end = len(rows)
    while end > max(1, saved.y + 1) and not rows[end - 1].wrapped and rows[end - 1].key() == Row(len(rows[0].chars), BLANK).key():
        end -= 1
    return rows[:end]
