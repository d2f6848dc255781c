"""One output stream of a session inside the server: its history, the descriptor it is read from, and who reads along.

A session on a PTY has one, a session on pipes has two (`stdout` and `stderr`).  The pump calls :meth:`SessionStream.fill`;
everything here is synchronous.

States::

    OPEN      the descriptor may bring more
    SILENT    hung up while the process lives (it closed its terminal and may open it again): probed now and then
    CLOSED    end of output, for good
"""

from __future__ import annotations

import os
from collections import deque
from enum import Enum
from typing import Any, Protocol

from guestagent import flow
from guestagent.history import Filled, History
from guestagent.plain import plain_end
from guestagent.screens import FOLLOW_EVERY, SHELLS
from guestagent.services import Client, Services
from ptymux import limits
from ptymux.output import OutputSender

KERNEL_BUFFER = limits.MIB  # more than any terminal or pipe holds of what a process wrote before it was reaped
SEQUENCE = 256  # bytes of a sequence that may lie across two looks
PROBE_SIZE = 4096  # bytes that a probe of a silent terminal reads; the pump reads the rest


def _runs_script(arguments: list[str]) -> bool:
    """Was a shell started with these to run something, and not to read commands?"""
    options = [word for word in arguments if word[:1] == "-" and word[:2] != "--"]
    return (arguments[:1] != [] and arguments[0][:1] not in ("-", "+")) or any("c" in word for word in options)


class StreamState(Enum):
    OPEN = "open"
    SILENT = "silent"
    CLOSED = "closed"


class Parent(Protocol):
    """The session, as its streams see it."""

    id: str
    pid: int
    tty: bool
    status: int | None
    meta: dict[str, Any]
    answerer: bytes | None
    hub: Services
    hot_until: float

    @property
    def policy(self) -> str: ...
    @property
    def holder(self) -> bytes | None: ...
    @property
    def lease_runs(self) -> bool: ...
    def fds(self) -> list[int]: ...
    def answer(self, data: bytes) -> None: ...
    def write_input(self) -> None: ...
    def attach(self, attach: Attach) -> None: ...
    def detach(self, attach: Attach) -> None: ...
    def stream_changed(self) -> None: ...


class Attach:
    """A connection's subscription to a stream."""

    __slots__ = ("answers", "asked", "asked_at", "channel", "demoted", "last_ack", "peer", "sender", "size", "stream", "view")

    def __init__(
        self,
        peer: Client,
        stream: SessionStream,
        sender: OutputSender,
        *,
        view: bool,
        size: tuple[int, int] | None,
        now: float,
        answers: bool = False,
    ) -> None:
        self.peer = peer
        self.stream = stream
        self.sender = sender
        self.channel = sender.channel
        self.view = view  # never slows, never sizes
        self.size = size
        self.answers = answers  # it is a terminal: when it owns the size, it answers the program's queries
        self.asked = False  # for a picture
        self.asked_at = 0  # head then
        self.demoted = False
        self.last_ack = now

    @property
    def acked(self) -> int:
        return self.sender.acked

    @property
    def waits(self) -> bool:
        return not self.view and not self.demoted and not self.sender.awaiting

    def on_credit(self, offset: int, now: float) -> None:
        if not self.sender.on_credit(offset):
            return
        self.last_ack = now
        if self.demoted:
            self.demoted = False
            self.peer.notice("promoted", {"session": self.stream.session.id, "channel": self.channel})
        self.stream.acknowledged(self)


class SessionStream:
    """`key` names the stream in cursors and lineages: the session's id, or ``id/stderr``."""

    def __init__(self, session: Parent, name: str, history: History, fd: int | None) -> None:
        self.session = session
        self.name = name
        self.key = session.id if name != "stderr" else f"{session.id}/stderr"
        self.history = history
        self.fd = fd
        self.state = StreamState.OPEN if fd is not None else StreamState.CLOSED
        self.attaches: set[Attach] = set()
        self.paused = False
        self.paused_since = 0.0
        self.reaped_at: int | None = None  # head when the process was reaped
        self.drained = False  # everything that the process wrote is in the history
        self.limit = flow.NO_LIMIT
        self.gone = False  # the history is unmapped
        self._part = min(history.size // 4, FOLLOW_EVERY)
        # Where the renderer is to look next; see screens.py.
        self._follow_at = max(self._part, history.head) if session.tty else flow.NO_LIMIT
        self._seen = self._looked = history.head  # how far the renderer has looked, and we for it
        self._plain = session.tty  # what lies between the two only scrolls
        self._following = False  # the renderer is looking, or will be soon
        self.followed_at = 0.0  # when it looked last
        self._watchful = False  # have it look at once if there is a sequence that may be a query: it would be ours to answer
        self._askers: deque[tuple[int, int]] = deque(maxlen=32)  # (offset, foreground process group from there on)
        self._unfinished = False  # or if it may complete one
        self._left: deque[tuple[int, bytes]] = deque(maxlen=64)  # answers that were a client's to give

    # --- flow -------------------------------------------------------------------------------------
    def update_limit(self) -> None:
        """Recompute how far the head may run; resume if that opened it.  Call after every change of the readers."""
        session = self.session
        self.limit = flow.head_limit(
            session.policy,
            self.attaches,
            hold_window=session.hub.config.limits.hold_window,
            ring=self.history.size,
            holder_acked=self.history.holder_acked if session.lease_runs else None,
        )
        if session.policy != "overwrite":
            # A picture that was overtaken before it could be sent would only be the first of many.
            for attach in self.attaches:
                if attach.asked and not attach.view:
                    self.limit = min(self.limit, attach.asked_at + self.history.size // 2)
        if self.paused and self.history.head < self.limit:
            self.paused = False
            session.hub.pump.resume(self)

    def acknowledged(self, attach: Attach) -> None:
        if attach.peer.client == self.session.holder and attach.acked > self.history.holder_acked:
            self.history.holder_acked = attach.acked
        self.update_limit()

    def demote_stalled(self, now: float) -> None:
        """Stop waiting for readers that acknowledged nothing while the program waited for them."""
        if not self.paused:
            return
        after = self.session.hub.config.limits.demote_after
        for attach in self.attaches:
            if attach.waits and attach.sender.lag > 0 and now - max(attach.last_ack, self.paused_since) >= after:
                attach.demoted = True
                self.session.hub.stats.stalls += 1
                attach.peer.notice(
                    "demoted", {"session": self.session.id, "channel": attach.channel, "lag": attach.sender.lag}
                )
        self.update_limit()

    # --- reading ----------------------------------------------------------------------------------
    def fill(self, most: int) -> int:
        """Read at most `most` bytes as far as the limit allows; how many came.  Pauses, closes and wakes readers as needed."""
        history = self.history
        before = history.head
        room = self.limit - before
        if room < most:
            most = room
        if most <= 0:
            self._pause()
            return 0
        assert self.fd is not None
        result = history.fill(self.fd, most)
        count = history.head - before
        if self.reaped_at is not None and (result is not Filled.MORE or history.head - self.reaped_at >= KERNEL_BUFFER):
            self.drained = True
        if count:
            self.wake()
            if self._watchful and self._may_ask(before):
                self._note_asker(before)
                self._follow()
            elif history.head >= self._follow_at:
                self._follow()
            while self._plain and history.head - self._looked > history.size // 2:
                self._look()
        if result is Filled.ENDED:
            self._ended()
        elif history.head >= self.limit:
            self._pause()
        return count

    def catch_up(self) -> None:
        """Read what the kernel holds now, as far as one turn and the limit allow."""
        if self.state is StreamState.OPEN and not self.paused:
            self.fill(limits.MAX_OUTPUT_DATA)

    def wake(self) -> None:
        """Something is new for every reader."""
        for attach in self.attaches:
            attach.peer.output_ready(attach)

    # --- the screen -------------------------------------------------------------------------------
    @property
    def session_id(self) -> str:
        return self.session.id

    @property
    def birth_size(self) -> tuple[int, int]:
        """Columns and rows before the first `resize` mark."""
        columns, rows = self.session.meta.get("birth_size", self.session.meta["size"])
        return columns, rows

    @property
    def prompt(self) -> bool:
        """Is it a shell that reads the terminal now?  What a full-screen program before it left armed is nobody's then."""
        if self.fd is None or self.session.status is not None:
            return False
        pid = self.session.pid
        try:
            with open(f"/proc/{pid}/comm") as file:
                if os.tcgetpgrp(self.fd) != pid or file.read().strip() not in SHELLS:
                    return False
            with open(f"/proc/{pid}/cmdline") as file:
                if _runs_script(file.read().split("\0")[1:-1]):
                    return False
            # Its programs have process groups of their own, unless it is one without job control.
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                return all(os.getpgid(int(child)) != pid for child in file.read().split())
        except OSError:
            return False

    def show(self, attach: Attach) -> None:
        """Get the attach the picture that it waits for."""
        if attach.asked:
            return
        attach.asked, attach.asked_at = True, self.history.head
        self.update_limit()
        hub = self.session.hub

        async def get() -> None:
            picture = await hub.screens.picture(self)
            attach.asked = False
            if attach in self.attaches:
                self._answer_unseen(attach, self.history.head if picture is None else picture.position.offset)
                attach.sender.show(picture)
                attach.last_ack = hub.now()
                self.update_limit()
                attach.peer.output_ready(attach)
                hub.flush()

        hub.start(get)

    def _answer_unseen(self, attach: Attach, end: int) -> None:
        """The client will not be sent what lies before `end`, and so its terminal cannot answer what it was asked there."""
        if attach.answers and attach.peer.client == self.session.answerer:
            owner = self.history.last_mark("size_owner")
            self.take_over(max(attach.sender.position.offset, owner.offset if owner is not None else 0), end)

    def owner_changed(self) -> None:
        """Another client's terminal answers queries from here on, or ours."""
        self._watchful = self.session.tty and self.session.answerer is None

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

    def _follow(self) -> None:
        if not self._following:
            self._following = True
            self._follow_at = flow.NO_LIMIT
            self.session.hub.screens.follow(self)

    def _foreground(self) -> int:
        try:
            return os.tcgetpgrp(self.fd) if self.fd is not None else 0
        except OSError:
            return 0

    def _note_asker(self, offset: int) -> None:
        """Whoever asks at `offset` or later is in the group that is in the foreground now."""
        group = self._foreground()
        if not self._askers or self._askers[-1][1] != group:
            self._askers.append((offset, group))

    def _still_there(self, offset: int) -> bool:
        """Would the program that asked at `offset` read the answer?  A shell that it left would take it for commands."""
        groups = [group for start, group in self._askers if start < offset]
        return not groups or groups[-1] == self._foreground()

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
            self._follow()

    def answer(self, offset: int, data: bytes) -> None:
        """The answer to a query that ends at `offset`: ours to give if nobody's terminal was there to do it."""
        history = self.history
        if offset <= history.answered:
            return
        owner = history.last_mark("size_owner", before=offset)
        theirs = owner.data["client"] is not None if owner is not None else self.session.answerer is not None
        if theirs and not history.taken_from < offset <= history.taken:
            if offset > history.taken:
                self._left.append((offset, data))
            return
        history.answered = offset
        if self._still_there(offset):
            self.session.answer(data)

    def take_over(self, start: int, end: int) -> None:
        """What a client's terminal was asked in [start, end), and will never answer, is ours to answer."""
        history = self.history
        history.take(start, end)
        left, later = list(self._left), [item for item in self._left if item[0] > end]
        self._left.clear()
        self._left.extend(later)
        for offset, data in left:
            if start < offset <= end:
                self.answer(offset, data)
        self._follow()  # there may be some that the renderer has not seen

    def _pause(self) -> None:
        if not self.paused:
            self.paused = True
            self.paused_since = self.session.hub.now()
            self.session.hub.stats.pauses += 1
            self.session.hub.pump.pause(self)

    def _ended(self) -> None:
        # EIO on a master means that no slave is open now; a living process may open its terminal again.
        alive = self.session.status is None
        self.state = StreamState.SILENT if alive and self.session.tty else StreamState.CLOSED
        self.session.hub.pump.pause(self)
        self.session.stream_changed()

    def drain(self) -> None:
        """The process was reaped: read what the kernel still holds of it, as far as the limit allows.

        A read that finds nothing has flushed the kernel's buffers, so that is proof enough; a descendant that floods on is cut
        off at KERNEL_BUFFER.  What a pause leaves is read when the readers catch up.
        """
        self.probe()
        self.reaped_at = self.history.head
        while self.state is StreamState.OPEN and not self.drained and not self.paused:
            self.fill(limits.MAX_OUTPUT_DATA)

    def probe(self) -> None:
        """Look whether a silent terminal was opened again, or is closed for good."""
        if self.state is StreamState.SILENT:
            self.state = StreamState.OPEN
            self.fill(PROBE_SIZE)
            if self.state is StreamState.OPEN and not self.paused:
                self.session.hub.pump.resume(self)
