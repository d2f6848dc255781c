"""One output stream of a session inside the server: its history, the descriptor it is read from, and who reads along.

A session on a PTY has one, a session on pipes has two (`stdout` and `stderr`).  The pump reads with :meth:`SessionStream.take`, and tells
with :meth:`SessionStream.settle` what came; everything here is synchronous.

States::

    OPEN      the descriptor may bring more
    SILENT    hung up while the process lives (it closed its terminal and may open it again): probed now and then
    CLOSED    end of output, for good

Invariants
    what was taken is settled before anything awaits: the readers were woken, the follower knows, an end or a limit has been acted on
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from guestagent import flow
from guestagent.following import Following, Session
from guestagent.history import EMPTY, ENDED, History
from guestagent.services import Client, Services
from ptymux import limits
from ptymux.output import OutputSender

KERNEL_BUFFER = limits.MIB  # more than any terminal or pipe holds of what a process wrote before it was reaped
PROBE_SIZE = 4096  # bytes that a probe of a silent terminal reads; the pump reads the rest


class StreamState(Enum):
    OPEN = "open"
    SILENT = "silent"
    CLOSED = "closed"


class Parent(Session, Protocol):
    """The session, as its streams see it."""

    hub: Services
    hot_until: float

    @property
    def policy(self) -> str: ...
    @property
    def holder(self) -> bytes | None: ...
    @property
    def lease_runs(self) -> bool: ...
    def fds(self) -> list[int]: ...
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
        self._settled = history.head  # up to where everybody was told
        self._hung_up = False  # the last read said so
        self.attaches: set[Attach] = set()
        self.paused = False
        self.paused_since = 0.0
        self.reaped_at: int | None = None  # head when the process was reaped
        self.drained = False  # everything that the process wrote is in the history
        self.limit = flow.NO_LIMIT
        self.gone = False  # the history is unmapped
        self.following = Following(session, self)

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
    def take(self, most: int) -> int:
        """Read once, at most `most` bytes and as far as the limit allows: how many came, or EMPTY or ENDED.  To be settled."""
        history = self.history
        room = self.limit - history.head
        if room <= 0:
            return EMPTY
        assert self.fd is not None
        count = history.receive(self.fd, most if most < room else room)
        if count <= 0:
            self._hung_up = count == ENDED
            self.drained = self.reaped_at is not None
        return count

    def settle(self) -> None:
        """Act on what was taken: wake the readers, pause, close."""
        head, before = self.history.head, self._settled
        if head > before:
            self._settled = head
            if self.reaped_at is not None and head - self.reaped_at >= KERNEL_BUFFER:
                self.drained = True
            self.wake()
            self.following.grown(before)
        if self._hung_up:
            self._hung_up = False
            self._ended()
        elif head >= self.limit:
            self._pause()

    def fill(self, most: int) -> int:
        """Take at most `most` bytes, and settle; how many came."""
        before = self.history.head
        stop = before + most
        while (left := stop - self.history.head) > 0 and self.take(left) > 0:
            pass
        self.settle()
        return self.history.head - before

    def catch_up(self) -> None:
        """Read what the kernel holds now, as far as one turn and the limit allow."""
        if self.state is StreamState.OPEN and not self.paused:
            self.fill(limits.MAX_OUTPUT_DATA)

    def wake(self) -> None:
        """Something is new for every reader."""
        for attach in self.attaches:
            attach.peer.output_ready(attach)

    # --- the screen -------------------------------------------------------------------------------
    def show(self, attach: Attach) -> None:
        """Get the attach the picture that it waits for."""
        if attach.asked:
            return
        attach.asked, attach.asked_at = True, self.history.head
        self.update_limit()
        hub = self.session.hub

        async def get() -> None:
            picture = await hub.screens.picture(self.following)
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
            self.following.take_over(max(attach.sender.position.offset, owner.offset if owner is not None else 0), end)

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
