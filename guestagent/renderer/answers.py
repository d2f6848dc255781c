"""Answers to what programs ask their terminal: exactly one a query, in the order of the queries.

Nothing of what a program wrote is ever in an answer (titles are not reported), or a file that is printed could type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from guestagent.renderer import colors, sgr
from guestagent.renderer.cells import PROTECTED
from guestagent.renderer.modes import ANSI
from guestagent.renderer.parser import Params

if TYPE_CHECKING:
    from guestagent.renderer.terminal import Terminal

WAITING = 4096  # answers nobody fetched; later ones are dropped
CELL = (16, 8)  # pixels, height and width: a guess, as nobody may be looking
NAME = "guestagent"

_SET, _RESET, _ALWAYS, _NEVER = 1, 2, 3, 4
_DEVICES = {
    15: "?13",
    25: "?20",
    26: "?27;1;0;0",
    53: "?50",
    55: "?50",
    56: "?57;0",
    75: "?70",
    85: "?83",
    996: "?997;1",
}


class Answers:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.waiting: list[tuple[int, bytes]] = []

    def _say(self, answer: str) -> None:
        if len(self.waiting) < WAITING:
            self.waiting.append((self._terminal.parser.at, answer.encode()))

    def csi_table(self) -> dict[bytes, Callable[[Params], None]]:
        return {
            b"c": lambda params: None if params[0] else self.attributes(),
            b">c": lambda params: None if params[0] else self._say("\x1b[>0;276;0c"),
            b"=c": lambda params: None if params[0] else self._say("\x1bP!|00000000\x1b\\"),
            b"n": self._status,
            b"?n": self._private_status,
            b"$p": self._ansi_mode,
            b"?$p": self._private_mode,
            b">q": lambda params: None if params[0] else self._say(f"\x1bP>|{NAME}\x1b\\"),
            b"?u": lambda params: self._say(f"\x1b[?{self._terminal.active.kitty[-1]}u"),
            b"?m": self._key_options,
            b"x": lambda params: self._say(f"\x1b[{2 + params[0]};1;1;128;128;1;0x") if params[0] < 2 else None,
            b"$w": lambda params: self._say("\x1bP0$u\x1b\\"),
            b"?S": lambda params: self._say(f"\x1b[?{params[0]};3;0S"),
        }

    def attributes(self) -> None:
        """DA1: a VT220 with colours."""
        self._say("\x1b[?62;22c")

    def _position(self) -> str:
        terminal = self._terminal
        y = terminal.cursor.y - (terminal.active.top if terminal.origin else 0)
        return f"{y + 1};{min(terminal.cursor.x, terminal.columns - 1) + 1}"

    def _status(self, params: Params) -> None:
        if params[0] == 5:
            self._say("\x1b[0n")
        elif params[0] == 6:
            self._say(f"\x1b[{self._position()}R")

    def _private_status(self, params: Params) -> None:
        if params[0] == 6:
            self._say(f"\x1b[?{self._position()}R")
        elif params[0] in _DEVICES:
            self._say(f"\x1b[{_DEVICES[params[0]]}n")

    def _ansi_mode(self, params: Params) -> None:
        number = params[0]
        if number in ANSI:
            value = _SET if getattr(self._terminal, ANSI[number]) else _RESET
        else:
            value = {2: _NEVER, 12: _ALWAYS}.get(number, 0)
        self._say(f"\x1b[{number};{value}$y")

    def _private_mode(self, params: Params) -> None:
        number = params[0]
        known = self._terminal.private_mode(number)
        value = {8: _ALWAYS, 67: _NEVER}.get(number, 0) if known is None else _SET if known else _RESET
        self._say(f"\x1b[?{number};{value}$y")

    def _key_options(self, params: Params) -> None:
        if params[0] == 4:
            self._say(f"\x1b[>4;{self._terminal.modes.modify_other_keys}m")

    def window(self, kind: int) -> None:
        rows, columns = self._terminal.lines, self._terminal.columns
        height, width = CELL
        answers = {
            11: "\x1b[1t",
            13: "\x1b[3;0;0t",
            14: f"\x1b[4;{rows * height};{columns * width}t",
            15: f"\x1b[5;{rows * height};{columns * width}t",
            16: f"\x1b[6;{height};{width}t",
            18: f"\x1b[8;{rows};{columns}t",
            19: f"\x1b[9;{rows};{columns}t",
            20: "\x1b]L\x1b\\",
            21: "\x1b]l\x1b\\",
        }
        if kind in answers:
            self._say(answers[kind])

    def color(self, query: str, color: int) -> None:
        self._say(f"\x1b]{query};{colors.spec(color)}\x1b\\")

    def dcs(self, kind: bytes, payload: str) -> None:
        if kind == b"$q":
            setting = self._setting(payload)
            self._say("\x1bP0$r\x1b\\" if setting is None else f"\x1bP1$r{setting}{payload}\x1b\\")
        elif kind == b"+q":
            self._say("\x1bP0+r\x1b\\")  # XTGETTCAP: ask terminfo

    def _setting(self, payload: str) -> str | None:
        terminal = self._terminal
        match payload:
            case "m":
                return sgr.parameters(terminal.pen)
            case "r":
                return f"{terminal.active.top + 1};{terminal.active.bottom + 1}"
            case " q":
                return str(terminal.modes.cursor_style or 1)
            case '"q':
                return "1" if terminal.pen.flags & PROTECTED else "0"
            case '"p':
                return "62;1"
            case "t":
                return str(max(terminal.lines, 24))
            case "*|":
                return str(terminal.lines)
            case "$|":
                return str(terminal.columns)
        return None
