"""The trio client: ``async with connect(address) as agent``.

It reconnects by itself for as long as the `async with` block runs: at once after a fresh cut, then with growing, jittered pauses.
Everything that the caller holds goes on across connections: attached streams continue at their cursor, requests are asked
again with the same idempotency key, typed bytes that were not acknowledged are sent again, once.  What cannot be made good is a
typed event (see events.py), never silence.

All objects belong to the trio run that made them and may be used from any of its tasks.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

from ptymux import address as addresses
from ptymux import limits
from ptymux.contact import Changes, Contact
from ptymux.cursor import Cursor
from ptymux.errors import AttachEnded, ConnectionLost, InputRefused, RequestFailed
from ptymux.events import Event, Exit, InputDropped, InputUncertain, Output
from ptymux.machine import Attachment, AttachState, InputLane, State
from ptymux.messages import Failure, Response
from ptymux.requests import Call
from ptymux.snapshots import Snapshots

INPUT_QUEUE = 4 * limits.INPUT_WINDOW  # bytes that `send` queues before it waits

Size = tuple[int, int]  # columns, rows


@asynccontextmanager
async def connect(
    address: str | addresses.Address,
    *,
    token: str | bytes | None = None,
    wait: float = 0.0,
    give_up_after: float | None = None,
    ssl_context: ssl.SSLContext | None = None,
    on_state: Callable[[str], None] | None = None,
) -> AsyncGenerator[Agent]:
    """A connected :class:`Agent` for the length of the block.

    :param address: see :mod:`ptymux.address`.
    :param token: what the agent's token file grants a role for; None where the transport is trusted.
    :param wait: seconds to keep dialling until the agent answers for the first time; 0 raises what the first dial met.
    :param give_up_after: seconds without contact after which everything that waits raises ConnectionLost; None: never.
    :param ssl_context: for ``wss://``; the system's authorities by default.
    :param on_state: called with ``"up"`` and ``"down"`` when contact is made and lost.

    Raises AddressError, :class:`DialError` or :class:`HandshakeRefused` on entry.  What the block raises passes through as it is.
    Leaving or cancelling the block closes the connection, and whoever still waits gets ConnectionLost; input that was queued and
    not waited for may not be typed then.  Sessions live on in the guest.
    """
    contact = Contact(address, token=token, give_up_after=give_up_after, ssl_context=ssl_context, on_state=on_state)
    async with contact.kept(wait):
        yield Agent(contact)


class Agent(Snapshots):
    """One agent, over all connections to it.  Made by :func:`connect`.  (`contact` is for this package.)"""

    def __init__(self, contact: Contact) -> None:
        self.contact = contact

    # --- facts ------------------------------------------------------------------------------------
    @property
    def address(self) -> addresses.Address:
        return self.contact.address

    @property
    def connections(self) -> int:
        """How many times contact was made."""
        return self.contact.connections

    @property
    def up(self) -> bool:
        """Is there a connection now?"""
        return self.contact.machine.state is State.UP

    @property
    def client_id(self) -> bytes:
        return self.contact.machine.client

    @property
    def role(self) -> str | None:
        """viewer, controller or admin, as the last welcome said."""
        return self.contact.machine.welcome.role if self.contact.machine.welcome else None

    @property
    def generation(self) -> bytes | None:
        """The VM's present generation, as the last welcome said."""
        return self.contact.machine.welcome.generation if self.contact.machine.welcome else None

    @property
    def limits(self) -> Mapping[str, Any]:
        """The agent's limits by name."""
        return self.contact.machine.welcome.limits if self.contact.machine.welcome else {}

    # --- requests ---------------------------------------------------------------------------------
    async def request(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        keyed: bool = True,
        stamp: Callable[[], dict[str, Any]] = dict,
    ) -> dict[str, Any]:
        """Ask the agent; the result.

        Waits through reconnects.  `keyed` makes a retry the same request, `stamp` adds parameters anew at each sending.  Raises RequestFailed with the agent's answer, or
        ConnectionLost.  Cancelling stops waiting; the request may still be carried out.
        """
        contact = self.contact
        contact.raise_failure()
        call = Call(method, params or {}, secrets.token_bytes(limits.KEY_SIZE) if keyed else None, stamp=stamp)
        changes = contact.changes()
        call.on_answer = changes.tell
        contact.machine.ask(call)
        try:
            while call.answer is None and contact.machine.failure is None:
                await changes.wait()
        except BaseException:  # cancelled, by whichever event loop this runs in
            contact.machine.requests.cancel(call)
            raise
        if isinstance(call.answer, Response):
            return call.answer.result
        if isinstance(call.answer, Failure):
            raise RequestFailed(call.answer.code, call.answer.message, call.answer.details)
        contact.raise_failure()
        raise ConnectionLost("cannot get an answer: contact was lost")

    async def info(self) -> dict[str, Any]:
        """Versions, generation, lineage, pids, limits."""
        return await self.request("info", keyed=False)

    async def stats(self) -> dict[str, Any]:
        """Counters of the server process and the lag of every attach; see :mod:`ptymux.metrics` for Prometheus."""
        return await self.request("stats", keyed=False)

    async def sessions(self) -> list[dict[str, Any]]:
        """Every session, running or ended and kept, ordered by id."""
        rows: list[dict[str, Any]] = []
        while True:
            page = await self.request("list", {"after": rows[-1]["id"] if rows else ""}, keyed=False)
            rows.extend(page["sessions"])
            if not page["more"] or not page["sessions"]:
                return rows

    def session(self, id: str) -> Session:
        """The session with this id.  Asks nothing: an id that does not exist fails at the first use."""
        return Session(self, id)

    async def find(self, name: str) -> Session:
        """The session with this id or name; RequestFailed (``not_found``) if there is none."""
        row = await self.request("inspect", {"session": name}, keyed=False)
        return Session(self, row["id"])

    async def create(
        self,
        argv: Sequence[str] = (),
        *,
        name: str | None = None,
        label: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        size: Size = (80, 24),
        term: str | None = None,
        history: int | None = None,
        policy: str = "hold",
        tty: bool = True,
    ) -> Session:
        """Start a program in a new session (a login shell if `argv` is empty).

        :param size: columns, rows.
        :param history: bytes of output that are kept for later readers.
        :param policy: ``hold``, ``block`` or ``overwrite``: who may slow the program down.  With ``block`` nothing is overwritten
            before this client has it.
        :param tty: False gives pipes, with stdout and stderr as two streams.

        Raises RequestFailed: ``spawn`` (with the cause), ``limit``, ``exists``, ``bad_params``, ``forbidden``.
        """
        params: dict[str, Any] = {
            "argv": list(argv),
            "name": name,
            "label": label,
            "cwd": cwd,
            "env": dict(env or {}),
            "user": user,
            "size": list(size),
            "term": term,
            "history": history,
            "policy": policy,
            "tty": tty,
        }
        result = await self.request("create", {key: value for key, value in params.items() if value is not None})
        return Session(self, result["id"])


class Session:
    """A session in the guest.  A handle: making or dropping one changes nothing there."""

    def __init__(self, agent: Agent, id: str) -> None:
        self.agent = agent
        self.id = id

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    def attach(
        self,
        cursor: Cursor | None = None,
        *,
        stream: str = "stdout",
        view: bool = False,
        size: Size | None = None,
        repair: str = "snapshot",
        begin: str = "history",
        answers: bool = False,
        window: int = limits.DEFAULT_WINDOW,
    ) -> Attach:
        """Follow the session's output: ``async with session.attach() as stream: async for event in stream: ...``.

        :param cursor: where to go on; None: as `begin` says.
        :param stream: ``stdout`` (a terminal has only this) or ``stderr``.
        :param view: never type, size or slow the session.
        :param size: of the caller's terminal; the session takes it, and again when this client types.
        :param repair: how to go on after a discontinuity: with a ``snapshot`` of the terminal, or with ``bytes`` (for logs: at the
            oldest byte).
        :param begin: without a cursor, begin with the ``history`` (the oldest output that is kept) or with a ``snapshot``.
        :param answers: the caller is a terminal: where it owns the size, it answers the program's queries, namely those in
            :class:`~ptymux.events.Output` whose `answer` is set.  Otherwise the agent answers them.
        :param window: bytes that may be on their way or waiting to be taken.
        """
        params: dict[str, Any] = {"stream": stream, "view": view, "repair": repair, "begin": begin, "answers": answers}
        if size is not None:
            params["size"] = list(size)
        return Attach(self.agent, Attachment(self.id, params, cursor, window))

    # --- input ------------------------------------------------------------------------------------
    def keep_input(self, max_age: float | None) -> None:
        """How old unacknowledged input may be, in seconds, to be typed after a reconnect; None: any age.

        To be called before the first :meth:`send`.  The default, 10 s, is for keystrokes; a program that feeds data wants None.
        """
        self.agent.contact.lane(self.id, max_age)

    async def send(self, data: bytes, *, wait: bool = True) -> int:
        """Type `data`, exactly once whatever happens to the connection; the input offset behind it.

        With `wait`, returns when the agent has written all of it to the terminal; without, as soon as it is queued (at most
        INPUT_QUEUE bytes are).  Raises InputRefused: the terminal would not take it (``line_too_long``, ``exited``, ``closed``,
        ``forbidden``, ``not_found``), it got too old while contact was lost (``stale``), or a killed server left open whether it
        was typed (``uncertain``).  Cancelling stops waiting; what is queued is still typed.
        """
        contact = self.agent.contact
        contact.raise_failure()
        lane, _ = contact.lane(self.id)
        start = lane.sender.end
        end = contact.machine.type(lane, data, contact.now())
        await self._settled(start, end, 0 if wait else INPUT_QUEUE)
        return end

    async def flush_input(self) -> None:
        """Wait until everything sent is written to the terminal.

        Raises as :meth:`send` does, for anything that was lost since the last call.
        """
        lane, _ = self.agent.contact.lane(self.id)
        start, lane.flushed = lane.flushed, lane.sender.end
        await self._settled(start, lane.sender.end, 0)

    async def _settled(self, start: int, end: int, queue: int) -> None:
        """Until at most `queue` bytes below `end` are unacknowledged; raises if some from `start` on were lost."""
        lane, changes = self.agent.contact.lane(self.id)
        while end - lane.sender.acked > queue:
            self.agent.contact.raise_failure()
            await changes.wait()
        for event in lane.lost:
            if event.to > start and event.start < end:
                raise _lost(lane, event)

    def end_input(self) -> None:
        """End-of-file for the program, once everything sent before is written."""
        contact = self.agent.contact
        contact.machine.end_input(contact.lane(self.id)[0])

    # --- control ----------------------------------------------------------------------------------
    async def resize(self, columns: int, rows: int) -> None:
        """Set the terminal's size and own it.  Sizes below 2 columns or 1 row, or above 1000, are refused."""
        await self.agent.request("resize", {"session": self.id, "columns": columns, "rows": rows})

    async def signal(self, signal: int | str, *, everyone: bool = False) -> None:
        """Signal the terminal's foreground process group, or with `everyone` every process of the session."""
        to = "session" if everyone else "foreground"
        await self.agent.request("signal", {"session": self.id, "signal": signal, "to": to})

    async def kill(self) -> None:
        """SIGKILL to everything that the session started."""
        await self.agent.request("kill", {"session": self.id})

    async def remove(self, *, force: bool = False) -> None:
        """Forget the session and its history.

        With `force` also if the program still runs, and everything that the session started is killed.  Without, what an ended
        program left in the background lives on.
        """
        await self.agent.request("remove", {"session": self.id, "force": force})
        self.agent.contact.forget_lane(self.id)

    async def screen(self, *, start: int = 0, count: int = 0) -> dict[str, Any]:
        """The terminal as data: what it shows now, exact for the byte offset in `offset`.

        :param start: with `count`, lines of scrollback to include, counted upwards from the one above the screen (0).
        :param count: how many; at most 1000, and fewer may come (see `scrollback` in the result).

        Raises RequestFailed: ``no_screen`` (the renderer failed), ``state`` (no terminal), ``not_found``.
        """
        params = {"session": self.id, "start": start, "count": count}
        return await self.agent.request("screen", params, keyed=False)

    async def inspect(self) -> dict[str, Any]:
        """Everything that the agent knows of the session."""
        return await self.agent.request("inspect", {"session": self.id}, keyed=False)


def _lost(lane: InputLane, event: InputDropped | InputUncertain) -> InputRefused:
    details: dict[str, Any] = {"offset": event.start, "to": event.to}
    if isinstance(event, InputUncertain):
        return InputRefused(
            "uncertain", "cannot say whether this input was typed: the server was killed meanwhile", details
        )
    refusal = lane.refusal
    if event.reason != "stale" and refusal is not None:
        return InputRefused(refusal.code, refusal.message, {**refusal.details, **details})
    return InputRefused(event.reason, f"cannot type: the input was given up ({event.reason})", details)


class Attach:
    """A followed stream: an async context manager and an async iterator of :data:`~ptymux.events.Event`.

    The iterator ends after the session's last mark.  Bytes are taken from the agent only as fast as the iterator is read (at most
    `window` bytes wait here), and acknowledged when the *next* event is asked for: by then the caller has dealt with them.
    Raises AttachEnded if the agent ended the stream early (session removed), ConnectionLost if contact is lost for good.
    """

    def __init__(self, agent: Agent, attachment: Attachment) -> None:
        self._contact = agent.contact
        self._attachment = attachment
        self._changes: Changes = agent.contact.changes()
        self._channel: int | None = None
        self._taken = 0  # bytes of the event that the caller has
        attachment.on_change = self._changes.tell

    @property
    def cursor(self) -> Cursor | None:
        """Behind the last event *received*; events that wait in the iterator are before it."""
        return self._attachment.receiver.cursor

    @property
    def exit(self) -> Exit | None:
        """How the program ended, once that was received."""
        return self._attachment.exit

    @property
    def answer(self) -> Mapping[str, Any]:
        """What the agent answered to the last attach request: head, size, tty, view."""
        return self._attachment.answer

    @property
    def attached(self) -> bool:
        """Is the stream flowing now, as opposed to waiting for a connection?"""
        return self._attachment.state is AttachState.ATTACHED

    def set_size(self, size: Size) -> None:
        """The size to announce on the next reconnect."""
        self._attachment.params["size"] = list(size)

    async def __aenter__(self) -> Attach:
        """Waits for the agent's answer.  RequestFailed if it refuses (``not_found``)."""
        self._contact.raise_failure()
        attachment = self._attachment
        self._channel = channel = self._contact.machine.attach(attachment)
        try:
            while attachment.state is AttachState.WAITING:
                await self._changes.wait()
        except BaseException:  # cancelled, by whichever event loop this runs in
            self._contact.machine.detach(channel)
            raise
        if attachment.error is not None and not attachment.events:
            error = attachment.error
            raise RequestFailed(error.code, error.message, error.details) if isinstance(error, AttachEnded) else error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._channel is not None:
            self._contact.machine.detach(self._channel)
            self._channel = None
            self._changes.tell()

    def __aiter__(self) -> Attach:
        return self

    async def __anext__(self) -> Event:
        attachment = self._attachment
        if self._taken and self._channel is not None:
            self._contact.machine.consumed(self._channel, self._taken)
            self._taken = 0
        if attachment.events:
            await self._changes.pause()  # a flood must not keep the caller's other tasks, or its time-out, from running
        while not attachment.events or self._channel is None:
            if self._channel is None:
                raise RuntimeError("cannot read a stream outside its `async with` block")
            if attachment.complete:
                raise StopAsyncIteration
            if attachment.error is not None:
                raise attachment.error
            await self._changes.wait()
        event = attachment.events.popleft()
        if isinstance(event, Output):
            self._taken = len(event.data)
        return event


__all__ = ["Agent", "Attach", "Session", "connect"]
