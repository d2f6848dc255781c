"""The terminal: bytes in; a screen, modes, titles and answers out.

Its behaviour is that of xterm.js, which draws it for most users; `tests/terminal` compares the two.  On top come what programs ask of other
terminals and xterm.js does not keep: keyboard protocols, title stacks, the palette.

Invariants
    no input raises, and memory is bounded: scrollback, cells, links, titles, stacks, answers
    `fed` counts every byte; the bytes of an unfinished sequence or character are with the parser
    a terminal that is fed :meth:`dump` of another equals it (:meth:`key`)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from guestagent.plain import Buffer
from guestagent.renderer import colors, sgr, skip, state, verify
from guestagent.renderer.answers import Answers
from guestagent.renderer.buffers import MAX_KITTY, Saved
from guestagent.renderer.cells import BLANK, NUL, PROTECTED, TAIL, cell_width, erased
from guestagent.renderer.dump import Dump
from guestagent.renderer.grid import Grid
from guestagent.renderer.links import Links
from guestagent.renderer.modes import ALTERNATE, ANSI, MOUSE, MOUSE_ENCODING, PRIVATE, Modes
from guestagent.renderer.parser import Params, Parser
from guestagent.renderer.reflow import resize_buffer
from guestagent.renderer.tables import csi_table, esc_table

SCROLLBACK = 1000  # rows
MIN_COLUMNS = 2  # as in xterm.js: a narrower screen has no room for a wide character
LONGEST_TITLE = 4096  # characters; window managers show some hundred
TITLES = 10  # depth of the title stacks, as in xterm.js


class Terminal(Grid):
    def __init__(self, columns: int, rows: int, scrollback: int = SCROLLBACK, *, prompt_resets: bool = True) -> None:
        """`prompt_resets`: OSC 133;A ends the modes of a program that died (see :meth:`reset_sticky`)."""
        self.modes = Modes()
        self.titles: list[str] = []
        self.icon_titles: list[str] = []
        self.palette: dict[int, int] = {}  # what differs from colors.default
        self.links = Links(self)
        self.prompt_resets = prompt_resets
        super().__init__(max(columns, MIN_COLUMNS), max(rows, 1), scrollback)
        self._answers = Answers(self)
        self.csi = csi_table(self) | self._answers.csi_table()
        self.esc = esc_table(self) | {b"Z": self._answers.attributes}
        self.control: dict[int, Callable[[], None]] = {
            7: self.bell, 8: self.backspace, 9: self.tab, 10: self.linefeed, 11: self.linefeed, 12: self.linefeed,
            13: self.carriage_return, 14: self.shift_out, 15: self.shift_in,
            0x84: self.index, 0x85: self.next_line, 0x88: self.set_tab_stop,
        }  # fmt: skip
        self.parser = Parser(self)

    # --- in and out -----------------------------------------------------------------------------------
    @property
    def fed(self) -> int:
        return self.parser.fed

    @property
    def answers(self) -> list[tuple[int, bytes]]:
        """(value of `fed` just behind a query, the answer); whoever sends them empties the list."""
        return self._answers.waiting

    def feed(self, data: bytes) -> None:
        self.parser.feed(data)

    def feed_plain(self, data: Buffer) -> None:
        """As :meth:`feed`, for what :func:`skip.plain_end` calls plain: what scrolls away is not drawn."""
        skip.feed_plain(self, data)

    def dump(self, scrollback: int | None = None) -> bytes:
        """Sequences that make any terminal of this size show what this one does; at most `scrollback` rows of history."""
        return Dump(self, scrollback).make()

    def state(self) -> dict[str, Any]:
        return state.normal_form(self)

    def screen_data(self, scrollback_from: int = 0, count: int = 0) -> dict[str, Any]:
        """The screen, and `count` rows of the scrollback from `scrollback_from` on (0 is the oldest)."""
        return state.screen_data(self, scrollback_from, count)

    def key(self) -> tuple[object, ...]:
        """All of the state, to be compared."""
        return verify.key(self)

    def check(self) -> None:
        """Assert the invariants of all modules."""
        verify.check(self)

    # --- whole-terminal operations --------------------------------------------------------------------
    def resize(  # type: ignore[override]  # pyte has the rows first
        self, columns: int | None = None, rows: int | None = None
    ) -> None:
        columns, rows = max(columns or self.columns, MIN_COLUMNS), max(rows or self.lines, 1)
        if (columns, rows) == (self.columns, self.lines):
            return
        cursor = self.cursor
        if self.active is self.alternate:
            main = self.main
            main.x, main.y = resize_buffer(main, columns, rows, main.x, main.y, reflow=True)
            cursor.x, cursor.y = resize_buffer(self.alternate, columns, rows, cursor.x, cursor.y, reflow=False)
        else:
            cursor.x, cursor.y = resize_buffer(self.main, columns, rows, cursor.x, cursor.y, reflow=True)
            self.alternate.columns, self.alternate.height = columns, rows
            saved = self.alternate.saved
            self.alternate.clear(BLANK)
            self.alternate.saved = saved._replace(x=min(saved.x, columns - 1), y=min(saved.y, rows - 1))
        self.columns, self.lines = columns, rows
        if self.join:  # still, if what was printed is still there
            x = cursor.x - self.join
            row = self.rows[cursor.y]
            if (
                x < 0
                or cell_width(row.chars[x]) != self.join
                or NUL in row.chars[x]
                or row.attrs[x] != self.pen
                or row.wide_before(x)
                or (self.join == 2 and row.chars[x + 1] != TAIL)
            ):
                self.join = 0

    def reset(self) -> None:
        super().reset()
        blink = self.modes.cursor_blink  # stays, as in xterm.js
        self.modes = Modes(cursor_blink=blink)
        self.titles.clear()
        self.icon_titles.clear()
        self.palette.clear()

    def soft_reset(self) -> None:
        """DECSTR."""
        self.cursor.hidden = False
        self.active.top, self.active.bottom = 0, self.lines - 1
        self.active.saved = Saved()
        self.active.kitty = [0]
        self.set_pen(BLANK)
        self.charsets = ["B"] * 4
        self.invoke(0)
        self.insert = self.origin = self.reverse_wrap = False
        self.wrap = True
        self.modes.soft_reset()

    def reset_sticky(self) -> None:
        """Undo what a program that died may have left on: else keys, clicks and pastes arrive as garbage."""
        modes = self.modes
        modes.bracketed_paste = modes.app_cursor = modes.app_keypad = False
        modes.modify_other_keys = 0
        self.main.kitty, self.alternate.kitty = [0], [0]
        self.reset_pointer()

    def reset_pointer(self) -> None:
        """Of these the ones that no shell sets at its prompt, where it may have set the others for itself."""
        self.modes.mouse, self.modes.mouse_encoding = "none", "default"
        self.modes.focus = False
        self.cursor.hidden = False

    # --- sequences ------------------------------------------------------------------------------------
    def sgr(self, params: bytes) -> None:
        pen = self.pen = sgr.applied(self.pen, params)
        self.erase_attr = erased(pen)

    def sgr_all(self, sequences: list[bytes]) -> None:
        for params in sequences:
            self.sgr(params)

    def osc(self, ident: int, payload: str) -> None:
        match ident:
            case 0:
                self.set_title(payload[:LONGEST_TITLE])
                self.set_icon_name(payload[:LONGEST_TITLE])
            case 1:
                self.set_icon_name(payload[:LONGEST_TITLE])
            case 2:
                self.set_title(payload[:LONGEST_TITLE])
            case 4:
                self._palette(payload)
            case 8:
                link = self.links.opened(payload)
                if link is not None:
                    self.pen = self.pen._replace(link=link)
            case 10 | 11 | 12:
                for index, spec in zip(range(246 + ident, 259), payload.split(";"), strict=False):
                    self._color(index, spec, f"{index - 246}")
            case 104:
                for text in payload.split(";") if payload else map(str, range(256)):
                    if text.isdecimal() and len(text) < 4 and int(text) < 256:
                        self.palette.pop(int(text), None)
            case 110 | 111 | 112:
                self.palette.pop(146 + ident, None)
            case 133 if payload.partition(";")[0] == "A" and self.prompt_resets:
                self.reset_sticky()

    def _palette(self, payload: str) -> None:
        parts = payload.split(";")
        for text, spec in zip(parts[::2], parts[1::2], strict=False):
            if text.isdecimal() and len(text) < 4 and int(text) < 256:
                self._color(int(text), spec, f"4;{text}")

    def _color(self, index: int, spec: str, query: str) -> None:
        if spec == "?":
            self._answers.color(query, self.palette.get(index, colors.default(index)))
        elif (color := colors.parse(spec)) is not None:
            self.palette[index] = color

    def dcs(self, kind: bytes, payload: str) -> None:
        self._answers.dcs(kind, payload)

    def set_modes(self, params: Params, on: bool) -> None:
        for number in params:
            if number in ANSI:
                setattr(self, ANSI[number], on)

    def set_private_modes(self, params: Params, on: bool) -> None:
        for number in params:
            self._set_private(number, on)

    def _set_private(self, number: int, on: bool) -> None:
        modes = self.modes
        if number == 25:
            self.cursor.hidden = not on
        elif number in MOUSE:
            modes.mouse = MOUSE[number] if on else "none"
        elif number in MOUSE_ENCODING:
            modes.mouse_encoding = MOUSE_ENCODING[number] if on else "default"
        elif number == 1048 or number in ALTERNATE:
            self._alternate(number, on)
        elif number == 2 and on:  # DECANM: VT52 is not there, but its character sets are
            for which in range(4):
                self.designate(which, "B")
        elif number in PRIVATE:
            name = PRIVATE[number]
            setattr(modes if hasattr(modes, name) else self, name, on)
            if number == 6:
                self.cursor_position()

    def _alternate(self, number: int, on: bool) -> None:
        if on:
            if number in (1048, 1049):
                self.save_cursor()
            if number != 1048:
                self.show_alternate()
        else:
            if number != 1048:
                self.show_main()
            if number in (1048, 1049):
                self.restore_cursor()

    def private_mode(self, number: int) -> bool | None:
        """Whether it is set; None if there is no such mode."""
        if number == 25:
            return not self.cursor.hidden
        if number in MOUSE:
            return self.modes.mouse == MOUSE[number]
        if number in MOUSE_ENCODING:
            return self.modes.mouse_encoding == MOUSE_ENCODING[number]
        if number in ALTERNATE:
            return self.active is self.alternate
        if number == 1048:
            return True
        if number in PRIVATE:
            name = PRIVATE[number]
            return bool(getattr(self.modes if hasattr(self.modes, name) else self, name))
        return None

    def set_protection(self, params: Params) -> None:
        """DECSCA."""
        if params[0] <= 2:
            flags = self.pen.flags & ~PROTECTED
            self.pen = self.pen._replace(flags=flags | PROTECTED if params[0] == 1 else flags)

    def set_cursor_style(self, params: Params) -> None:
        if params[0] <= 6:
            self.modes.cursor_style = params[0]

    def window_operation(self, params: Params) -> None:
        which = params[1] if len(params) > 1 else 0
        if params[0] in (22, 23):
            if which in (0, 2):
                self.title = _stack(self.titles, self.title, push=params[0] == 22)
            if which in (0, 1):
                self.icon_name = _stack(self.icon_titles, self.icon_name, push=params[0] == 22)
        else:
            self._answers.window(params[0])

    def change_kitty(self, params: Params, how: str) -> None:
        """Keyboard flags: push, pop, or change those on top."""
        stack = self.active.kitty
        first = params[0]
        if how == ">":
            stack.append(first & 31)
            del stack[1 : len(stack) - MAX_KITTY]
        elif how == "<":
            del stack[max(len(stack) - max(first, 1), 0) :]
            if not stack:
                stack.append(0)
        else:
            mode = params[1] if len(params) > 1 else 1
            old = stack[-1]
            stack[-1] = {1: first, 2: old | first, 3: old & ~first}.get(mode, old) & 31

    def set_other_keys(self, params: Params) -> None:
        if params[0] in (0, 4):
            self.modes.modify_other_keys = min(params[1], 3) if len(params) > 1 and params[0] else 0

    def reset_other_keys(self, params: Params) -> None:
        if params[0] == 4:
            self.modes.modify_other_keys = 0


def _stack(stack: list[str], title: str, *, push: bool) -> str:
    if push:
        stack.append(title)
        del stack[:-TITLES]
        return title
    return stack.pop() if stack else title
