"""Modes: their numbers, what of a program's they are, and how to ask for and set them.

`insert`, `origin`, `wrap` and the like live in the grid, which they change; here are those that only the terminal's user
feels, and the table that names all.
"""

from __future__ import annotations

from dataclasses import dataclass

# DEC private modes that are on or off, and the attribute of the terminal that holds them.
PRIVATE = {
    1: "app_cursor",
    5: "reverse_video",
    6: "origin",
    7: "wrap",
    12: "cursor_blink",
    45: "reverse_wrap",
    66: "app_keypad",
    1004: "focus",
    1007: "alternate_scroll",
    2004: "bracketed_paste",
    2026: "synchronized",
}
ANSI = {4: "insert", 20: "linefeed_returns"}
MOUSE = {9: "x10", 1000: "vt200", 1002: "drag", 1003: "any"}
MOUSE_ENCODING = {1005: "utf8", 1006: "sgr", 1015: "urxvt", 1016: "sgr_pixels"}
ALTERNATE = (47, 1047, 1049)


@dataclass
class Modes:
    """What a program asked of the terminal around the screen."""

    app_cursor: bool = False
    app_keypad: bool = False
    reverse_video: bool = False
    cursor_blink: bool = False
    focus: bool = False
    alternate_scroll: bool = False
    bracketed_paste: bool = False
    synchronized: bool = False
    mouse: str = "none"
    mouse_encoding: str = "default"
    cursor_style: int = 0  # DECSCUSR; 0 is whatever the user likes
    modify_other_keys: int = 0

    def soft_reset(self) -> None:
        """DECSTR: not the mouse."""
        self.app_cursor = self.app_keypad = self.focus = self.bracketed_paste = self.synchronized = False
        self.reverse_video = False
        self.cursor_style = self.modify_other_keys = 0

    def key(self) -> tuple[object, ...]:
        """All but synchronized output, which is the business of whoever draws."""
        return (
            self.app_cursor, self.app_keypad, self.reverse_video, self.cursor_blink, self.focus, self.alternate_scroll,
            self.bracketed_paste, self.mouse, self.mouse_encoding, self.cursor_style, self.modify_other_keys,
        )  # fmt: skip
