"""The local terminal: raw mode while a session is on it, and everything as it was afterwards, whatever happens."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import termios
import tty
from collections.abc import Generator


def size(fd: int) -> tuple[int, int] | None:
    """Columns and rows, or None if `fd` is no terminal."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        return None
    return (columns, rows) if columns >= 2 and rows >= 1 else None


@contextlib.contextmanager
def raw(fd: int) -> Generator[None]:
    """Raw mode for the block; restored at its end, and at the process's if the block is never left."""
    before = termios.tcgetattr(fd)

    def restore() -> None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSADRAIN, before)

    atexit.register(restore)
    try:
        tty.setraw(fd, termios.TCSADRAIN)  # its default would drop what was typed ahead
        yield
    finally:
        restore()
        atexit.unregister(restore)


RESET = b"\x18\x1bc"  # what a snapshot begins with: CAN, RIS


def cleared(rows: int) -> bytes:
    """In place of RESET, on a terminal that others use too: what it shows goes into the scrollback, and is not lost."""
    scrolled = b"\x1b[%d;1H" % rows + b"\n" * rows
    return b"\x18\x1b[?1049l\x1b[!p\x1b[r\x1b(B\x0f\x1b[0m" + scrolled + b"\x1b[H\x1b[J"


_MODE = re.compile(rb"\x1b\[\?([0-9;]+)([hl])")
_TAIL = re.compile(rb"\x1b(?:\[(?:\?[0-9;]*)?)?\Z")

# Modes that make a terminal unusable for the shell that comes after us, and how each is left.
_STICKY = {
    b"1049": b"\x1b[?1049l",
    b"1047": b"\x1b[?1047l",
    b"47": b"\x1b[?47l",
    **{
        mode: b"\x1b[?" + mode + b"l"
        for mode in (b"1", b"9", b"1000", b"1002", b"1003", b"1004", b"1005", b"1006", b"1015", b"1016", b"2004")
    },
}
_DEFAULT_ON = {b"25": b"\x1b[?25h", b"7": b"\x1b[?7h"}


class ModeTracker:
    """Which modes the output shown so far has left switched, to undo them when the session leaves the screen."""

    def __init__(self) -> None:
        self._tail = b""
        self._undo: dict[bytes, bytes] = {}

    def feed(self, data: bytes) -> None:
        data = self._tail + data
        for modes, switch in _MODE.findall(data):
            for mode in modes.split(b";"):
                undo = _STICKY.get(mode) if switch == b"h" else _DEFAULT_ON.get(mode)
                if undo is not None:
                    self._undo[mode] = undo
                else:
                    self._undo.pop(mode, None)
        match = _TAIL.search(data, max(0, len(data) - 64))
        self._tail = match.group() if match else b""

    def reset(self) -> bytes:
        """What to write to leave the terminal as a shell expects it."""
        return b"".join(self._undo.values()) + b"\x1b[0m\x1b>"
