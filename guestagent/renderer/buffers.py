"""The primary and the alternate buffer: the rows, and what each of the two has of its own.

Invariants
    `rows` is always the height of the screen; only the primary has a `history`, the rows that scrolled off its top
    0 <= top < bottom < height, or both 0 where the screen has one row
    the saved cursor lies on the screen or in the history, where its row is negative
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from guestagent.renderer.cells import BLANK, NUL, Attr, Row

MAX_KITTY = 16  # depth of the keyboard flags' stack; programs nest two or three deep


class Saved(NamedTuple):
    """DECSC.  Origin mode is not in it, as in xterm.js."""

    x: int = 0
    y: int = 0
    fg: int = -1
    bg: int = -1
    flags: int = 0
    charset: str = "B"


def default_tabs(columns: int) -> set[int]:
    return set(range(0, columns, 8))


@dataclass
class Buffer:
    columns: int
    height: int
    scrollback: int
    rows: list[Row] = field(default_factory=list)
    history: deque[Row] = field(default_factory=deque)
    top: int = 0
    bottom: int = 0
    x: int = 0  # the cursor, while the other buffer is shown
    y: int = 0
    saved: Saved = field(default_factory=Saved)
    tabs: set[int] = field(default_factory=set)
    kitty: list[int] = field(default_factory=lambda: [0])  # keyboard flags; the last one counts

    def __post_init__(self) -> None:
        self.history = deque(maxlen=self.scrollback)
        self.clear(BLANK)

    def clear(self, attr: Attr) -> None:
        """As new, but for the saved cursor, which stays."""
        self.rows[:] = [Row(self.columns, attr) for _ in range(self.height)]
        self.history.clear()
        self.top, self.bottom = 0, self.height - 1
        self.tabs = default_tabs(self.columns)
        self.kitty = [0]

    def scroll(self, attr: Attr, wrapped: bool = False) -> None:
        """A new row at the bottom margin.  The row at the top margin goes, into the history if that is the screen's top.

        Where the history grows, the saved cursor follows its text.  (xterm.js has it as an absolute row.)
        """
        rows = self.rows
        gone = rows.pop(self.top)
        rows.insert(self.bottom, Row(self.columns, attr, wrapped))
        if not self.top:
            history = self.history
            if len(history) < self.scrollback:
                self.saved = self.saved._replace(y=self.saved.y - 1)
                history.append(gone)
            elif self.scrollback:
                history.append(gone)

    def clear_history(self) -> None:
        """ED 3.  The saved cursor's absolute row stays, as in xterm.js, and so it moves down the screen."""
        lost = len(self.history)
        self.history.clear()
        self.saved = self.saved._replace(y=min(self.saved.y + lost, self.height - 1))

    def unwrap(self, index: int) -> None:
        """ED 1 cut the row before.  xterm.js counts from the oldest row that it has, and so do we."""
        history, rows = self.history, self.rows
        if index < len(history) + len(rows):
            row = history[index] if index < len(history) else rows[index - len(history)]
            row.wrapped = False

    def next_tab(self, x: int) -> int:
        return min((tab for tab in self.tabs if x < tab < self.columns), default=self.columns - 1)

    def previous_tab(self, x: int) -> int:
        return max((tab for tab in self.tabs if tab < x), default=0)

    def key(self, full: int | None = None) -> tuple[object, ...]:
        """All of it.  Whether the very first row continues one that is gone cannot be seen, nor rebuilt.

        The last cell of row `full` counts as printed.
        """
        rows = [row.key() for row in (*self.history, *self.rows)]
        if full is not None:
            chars, attrs, wrapped = rows[len(self.history) + full]
            rows[len(self.history) + full] = ((*chars[:-1], chars[-1].replace(NUL, " ")), attrs, wrapped)
        rows[0] = (*rows[0][:2], False)
        return (
            len(self.history), tuple(rows), self.top, self.bottom, self.saved, frozenset(self.tabs), tuple(self.kitty),
        )  # fmt: skip
