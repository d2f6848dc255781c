"""One stream of a session, as the renderer follows it: when it is to look next, and what it may leave out.

The renderer looks when asked to: after every `FOLLOW_EVERY` bytes, so that the ring does not go round unseen, and at once if there may be a
query that is the agent's to answer.  Where it is late all the same, the server looks for it: what only scrolls need not have been seen.

Invariants
    at most one look is under way; nothing that comes meanwhile is missed, because the end of a look asks for the next
    everything in [seen, looked) only scrolls, and a sequence that was cut at `seen` is in it from its beginning on; the history has both for
    the renderer (`vouch`)
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from guestagent import flow
from guestagent.history import History
from guestagent.plain import plain_end
from guestagent.prompts import shell_reads
from guestagent.queries import Asked, Queries
from ptymux import limits

FOLLOW_EVERY = 512 * limits.KIB  # bytes of output after which a stream is followed, or a quarter of its ring
SEQUENCE = 256  # bytes of a sequence that may lie across two looks


class Screens(Protocol):
    def follow(self, stream: Following) -> None: ...


class Hub(Protocol):
    @property
    def screens(self) -> Screens: ...


class Session(Asked, Protocol):
    """The session, as the follower of its stream sees it."""

    id: str
    pid: int
    tty: bool
    status: int | None
    meta: dict[str, Any]

    @property
    def hub(self) -> Hub: ...


class Stream(Protocol):
    key: str
    history: History
    fd: int | None
    gone: bool


class Following:
    def __init__(self, session: Session, stream: Stream) -> None:
        self._session = session
        self._stream = stream
        history = self.history = stream.history
        self.key = stream.key
        self.queries = Queries(session, history, self._foreground)
        self.followed_at = 0.0  # when the renderer looked last; see Screens.follow
        self._part = min(history.size // 4, FOLLOW_EVERY)
        self._follow_at = max(self._part, history.head) if session.tty else flow.NO_LIMIT
        self._following = False  # the renderer is looking, or will be soon
        self._seen = self._looked = history.head  # how far the renderer has looked, and we for it
        self._plain = session.tty  # what lies between the two only scrolls
        self._watchful = (
            False  # have it look at once if there is a sequence that may be a query: it would be ours to answer
        )
        self._unfinished = False  # or if it may complete one

    # --- for the renderer's side ------------------------------------------------------------------
    @property
    def session_id(self) -> str:
        return self._session.id

    @property
    def gone(self) -> bool:
        """The history is unmapped."""
        return self._stream.gone

    @property
    def birth_size(self) -> tuple[int, int]:
        """Columns and rows before the first `resize` mark."""
        meta = self._session.meta
        columns, rows = meta.get("birth_size", meta["size"])
        return columns, rows

    @property
    def prompt(self) -> bool:
        """Is it a shell that reads the terminal now?"""
        session, fd = self._session, self._stream.fd
        return fd is not None and session.status is None and shell_reads(session.pid, fd)

    def answer(self, offset: int, data: bytes) -> None:
        self.queries.answer(offset, data)

    def followed(self, offset: int | None, *, unfinished: int = 0) -> None:
        """The renderer has seen everything below `offset`, with so many bytes of an `unfinished` sequence; None: it failed."""
        history = self.history
        self._unfinished = unfinished > 0
        if offset is not None:
            self._seen = offset - unfinished  # that sequence too is to be plain
            if not self._plain or self._looked < offset:
                self._looked = self._seen
                self._plain = not unfinished or (unfinished <= SEQUENCE and self._begins(self._seen))
            history.vouch(self._seen, self._looked)
        self._following = False
        self._follow_at = history.head if offset is None else offset + self._part
        if offset is None or offset >= history.head:
            return
        if history.head >= self._follow_at or (self._watchful and self._may_ask(max(offset, history.oldest))):
            self.follow()

    # --- for the session's side -------------------------------------------------------------------
    def owner_changed(self) -> None:
        """Another client's terminal answers queries from here on, or ours."""
        self._watchful = self._session.tty and self._session.answerer is None

    def grown(self, before: int) -> None:
        """The head has moved on from `before`."""
        history = self.history
        if self._watchful and self._may_ask(before):
            self.queries.note_asker(before)
            self.follow()
        elif history.head >= self._follow_at:
            self.follow()
        while self._plain and history.head - self._looked > history.size // 2:
            self._look()

    def take_over(self, start: int, end: int) -> None:
        """What a client's terminal was asked in [start, end), and will never answer, is ours to answer."""
        self.queries.take_over(start, end)
        self.follow()  # there may be some that the renderer has not seen

    def follow(self) -> None:
        if not self._following:
            self._following = True
            self._follow_at = flow.NO_LIMIT
            self._session.hub.screens.follow(self)

    def _look(self) -> None:
        """The renderer is late: look at what it may never see whether it is plain, before it is overwritten."""
        history = self.history
        if self._looked < history.oldest:
            self._plain = False
            return
        end = min(history.head, self._looked + history.size // 4)
        data = history.read(self._looked, end)
        plain = plain_end(data, 0, len(data))
        if b"\x1b]" in data or len(data) - plain > SEQUENCE or not plain:
            self._plain = False  # until the renderer is back
        else:
            self._looked += plain
            history.vouch(self._seen, self._looked)

    def _may_ask(self, start: int) -> bool:
        """Can there be the end of a query in what came from `start` on?"""
        return self._unfinished or self.history.has_escape(start, self.history.head)

    def _begins(self, offset: int) -> bool:
        """Does a sequence or a character begin there?"""
        history = self.history
        if not history.oldest <= offset < history.head:
            return False
        first = history.read(offset, offset + 1)[0]
        return first == 0x1B or first >= 0xC0

    def _foreground(self) -> int:
        try:
            return os.tcgetpgrp(self._stream.fd) if self._stream.fd is not None else 0
        except OSError:
            return 0
