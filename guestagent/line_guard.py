"""A line longer than a cooked terminal keeps: found before it is written, because the kernel would lose its tail silently.

In canonical mode the line discipline keeps :data:`limits.COOKED_LINE` bytes of a line and drops the rest while every write
reports success.  The guard counts the bytes since the last one that ends or erases a line, over all clients of the session.
"""

from __future__ import annotations

import re
import termios
from typing import Any

from ptymux import limits

LFLAG, IFLAG, CC = 3, 0, 6
_ENDS = (termios.VEOF, termios.VEOL, termios.VKILL)
_SIGNALS = (termios.VINTR, termios.VQUIT, termios.VSUSP)  # they flush the line


class LineGuard:
    def __init__(self, line: int = 0) -> None:
        self._line = line  # bytes of the unfinished line

    @property
    def line(self) -> int:
        """Bytes of the unfinished line: what a later guard of the same terminal begins with."""
        return self._line

    @property
    def in_line(self) -> bool:
        """Something was typed since the last line ended."""
        return self._line > 0

    def admit(self, data: bytes, attributes: list[Any]) -> int:
        """How many bytes of `data` may be written to a terminal with these termios attributes.

        All of them, or up to the beginning of the part that makes a line too long.
        """
        if not attributes[LFLAG] & termios.ICANON:
            return len(data)
        start, room = 0, limits.COOKED_LINE - self._line
        for end in _line_ends(attributes).finditer(data):
            if end.start() - start > room:
                return start
            start, room = end.end(), limits.COOKED_LINE
        return start if len(data) - start > room else len(data)

    def wrote(self, data: bytes, attributes: list[Any]) -> None:
        """`data` went to the terminal."""
        if not attributes[LFLAG] & termios.ICANON:
            self._line = 0
            return
        for end in _line_ends(attributes).finditer(data):
            self._line = -end.end()
        self._line += len(data)


def _line_ends(attributes: list[Any]) -> re.Pattern[bytes]:
    control, input_mode, mode = attributes[CC], attributes[IFLAG], attributes[LFLAG]
    ends = {control[index] for index in _ENDS}
    if mode & termios.IEXTEN:
        ends.add(control[termios.VEOL2])
    if mode & termios.ISIG and not mode & termios.NOFLSH:
        ends.update(control[index] for index in _SIGNALS)
    ends.discard(b"\0")
    if not input_mode & termios.INLCR:
        ends.add(b"\n")
    if input_mode & termios.ICRNL and not input_mode & termios.IGNCR:
        ends.add(b"\r")
    return re.compile(b"[" + b"".join(re.escape(end) for end in sorted(ends)) + b"]" if ends else b"(?!)")
