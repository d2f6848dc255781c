"""Hyperlinks: bounded, however many a stream opens.

A cell's link is the text of its OSC 8.  Equal texts are one object, and all that can be seen together have at most BUDGET
characters; beyond that, text is printed without its link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guestagent.renderer.terminal import Terminal

LONGEST = 2048 + 256  # characters of a URI and of its id; more than browsers and VTE take
BUDGET = 1 << 20  # characters


class Links:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._known: dict[str, str] = {}
        self._size = 0

    def opened(self, payload: str) -> str | None:
        """The link that begins with this OSC 8, "" where one ends, None where it says nothing."""
        params, separator, uri = payload.partition(";")
        if not separator or (not uri and params.strip()):
            return None
        if not uri or len(payload) > LONGEST:
            return ""
        if (known := self._known.get(payload)) is not None:
            return known
        if self._size + len(payload) > BUDGET:
            self._sweep()
            if self._size + len(payload) > BUDGET:
                return ""
        self._known[payload] = payload
        self._size += len(payload)
        return payload

    def _sweep(self) -> None:
        """Forget what no cell has any more."""
        terminal = self._terminal
        used = {terminal.pen.link}
        for buffer in (terminal.main, terminal.alternate):
            for row in (*buffer.history, *buffer.rows):
                used.update({attr.link for attr in set(row.attrs)})
        used.discard("")
        self._known = {link: link for link in used}
        self._size = sum(map(len, used))
