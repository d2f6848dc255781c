"""Whose answer a terminal query gets.  The renderer meets every query in a stream; each is answered once, or by nobody.

=====================================================  ===========================================================
where the query ends                                   who answers
=====================================================  ===========================================================
below `answered`                                       nobody: it was, or a restart has met it again
while a client's terminal owned the size               that terminal, as soon as it is sent the query
there, and the client left before it acknowledged it   the agent: :meth:`take_over`, once `taken` is past it
while nobody owned the size                            the agent
=====================================================  ===========================================================

`answered`, `taken` and `taken_from` are words of the history, so that the next server knows them too.  What the agent answers is typed
only if the process group that asked is still in the foreground: a shell would take it for commands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from guestagent.history import History


class Asked(Protocol):
    """The session whose program asks."""

    answerer: bytes | None

    def answer(self, data: bytes) -> None: ...


class Queries:
    """`foreground` is the process group that reads the terminal now, 0 if nobody can tell."""

    def __init__(self, session: Asked, history: History, foreground: Callable[[], int]) -> None:
        self._session = session
        self._history = history
        self._foreground = foreground
        self._askers: deque[tuple[int, int]] = deque(maxlen=32)  # (offset, foreground process group from there on)
        self._left: deque[tuple[int, bytes]] = deque(maxlen=64)  # answers that are a client's to give

    def note_asker(self, offset: int) -> None:
        """Whoever asks at `offset` or later is in the group that is in the foreground now."""
        group = self._foreground()
        if not self._askers or self._askers[-1][1] != group:
            self._askers.append((offset, group))

    def answer(self, offset: int, data: bytes) -> None:
        """The answer to a query that ends at `offset`: ours to give if nobody's terminal was there to do it."""
        history = self._history
        if offset <= history.answered:
            return
        owner = history.last_mark("size_owner", before=offset)
        theirs = owner.data["client"] is not None if owner is not None else self._session.answerer is not None
        if theirs and not history.taken_from < offset <= history.taken:
            if offset > history.taken:
                self._left.append((offset, data))
            return
        history.answered = offset
        if self._still_there(offset):
            self._session.answer(data)

    def take_over(self, start: int, end: int) -> None:
        """What a client's terminal was asked in [start, end), and will never answer, is ours to answer."""
        self._history.take(start, end)
        left, later = list(self._left), [item for item in self._left if item[0] > end]
        self._left.clear()
        self._left.extend(later)
        for offset, data in left:
            if start < offset <= end:
                self.answer(offset, data)

    def _still_there(self, offset: int) -> bool:
        """Would the program that asked at `offset` read the answer?"""
        groups = [group for start, group in self._askers if start < offset]
        return not groups or groups[-1] == self._foreground()
