"""Which sequence does what: prefix, intermediates and final byte to an operation of the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from guestagent.renderer.charsets import CHARSETS
from guestagent.renderer.parser import Params

if TYPE_CHECKING:
    from guestagent.renderer.terminal import Terminal


def csi_table(terminal: Terminal) -> dict[bytes, Callable[[Params], None]]:
    def count(operation: Callable[[int], None]) -> Callable[[Params], None]:
        return lambda params: operation(params[0])

    def line_and_column(params: Params) -> None:
        terminal.cursor_position(params[0], params[1] if len(params) > 1 else 0)

    table: dict[bytes, Callable[[Params], None]] = {
        b"@": count(terminal.insert_characters),
        b" @": lambda params: terminal.shift_columns(0, params[0], right=False),
        b"A": count(terminal.cursor_up),
        b" A": lambda params: terminal.shift_columns(0, params[0], right=True),
        b"B": count(terminal.cursor_down),
        b"C": count(terminal.cursor_forward),
        b"D": count(terminal.cursor_back),
        b"E": count(terminal.cursor_down1),
        b"F": count(terminal.cursor_up1),
        b"G": count(terminal.cursor_to_column),
        b"H": line_and_column,
        b"I": lambda params: terminal.tabs(params[0], back=False),
        b"J": count(terminal.erase_in_display),
        b"?J": lambda params: terminal.erase_in_display(params[0], private=True),
        b"K": count(terminal.erase_in_line),
        b"?K": lambda params: terminal.erase_in_line(params[0], private=True),
        b"L": count(terminal.insert_lines),
        b"M": count(terminal.delete_lines),
        b"P": count(terminal.delete_characters),
        b"S": count(terminal.scroll_up),
        b"T": count(terminal.scroll_down),
        b"X": count(terminal.erase_characters),
        b"Z": lambda params: terminal.tabs(params[0], back=True),
        b"`": count(terminal.cursor_to_column),
        b"a": count(terminal.cursor_forward),
        b"b": lambda params: terminal.repeat(params[0] or 1),
        b"d": count(terminal.cursor_to_line),
        b"e": lambda params: terminal.move(0, params[0] or 1),
        b"f": line_and_column,
        b"g": count(terminal.clear_tab_stop),
        b"h": lambda params: terminal.set_modes(params, True),
        b"l": lambda params: terminal.set_modes(params, False),
        b"?h": lambda params: terminal.set_private_modes(params, True),
        b"?l": lambda params: terminal.set_private_modes(params, False),
        b"!p": lambda params: terminal.soft_reset(),
        b" q": terminal.set_cursor_style,
        b'"q': terminal.set_protection,
        b"r": lambda params: terminal.set_margins(params[0], params[1] if len(params) > 1 else 0),
        b"s": lambda params: terminal.save_cursor(),
        b"u": lambda params: terminal.restore_cursor(),
        b"t": terminal.window_operation,
        b"'}": lambda params: terminal.shift_columns(terminal.cursor.x, params[0], right=True),
        b"'~": lambda params: terminal.shift_columns(terminal.cursor.x, params[0], right=False),
        b">u": lambda params: terminal.change_kitty(params, ">"),
        b"<u": lambda params: terminal.change_kitty(params, "<"),
        b"=u": lambda params: terminal.change_kitty(params, "="),
        b">m": terminal.set_other_keys,
        b">n": terminal.reset_other_keys,
    }
    return table


def esc_table(terminal: Terminal) -> dict[bytes, Callable[[], None]]:
    def charset(which: int, name: str) -> Callable[[], None]:
        return lambda: terminal.designate(which, name)

    def keypad(on: bool) -> Callable[[], None]:
        return lambda: setattr(terminal.modes, "app_keypad", on)

    def ascii_only() -> None:
        terminal.invoke(0)
        terminal.designate(0, "B")

    table: dict[bytes, Callable[[], None]] = {
        b"7": terminal.save_cursor,
        b"8": terminal.restore_cursor,
        b"D": terminal.index,
        b"E": terminal.next_line,
        b"H": terminal.set_tab_stop,
        b"M": terminal.reverse_index,
        b"=": keypad(True),
        b">": keypad(False),
        b"c": terminal.reset,
        b"n": lambda: terminal.invoke(2),
        b"o": lambda: terminal.invoke(3),
        b"|": lambda: terminal.invoke(3),
        b"}": lambda: terminal.invoke(2),
        b"~": lambda: terminal.invoke(1),
        b"%@": ascii_only,
        b"%G": ascii_only,
        b"#8": terminal.alignment_display,
    }
    for introducer, which in ((b"(", 0), (b")", 1), (b"*", 2), (b"+", 3), (b"-", 1), (b".", 2)):
        for name in CHARSETS:
            table[introducer + name.encode()] = charset(which, name)
    return table
