"""The trio client: ``async with connect(address) as agent``.

It reconnects by itself for as long as the `async with` block runs: at once after a fresh cut, then with growing, jittered pauses.
Everything that the caller holds goes on across connections: attached streams continue at their cursor, requests are asked
again with the same idempotency key, typed bytes that were not acknowledged are sent again, once.  What cannot be made good is a
typed event (see events.py), never silence.

All objects belong to the trio run that made them and may be used from any of its tasks.
"""

from __future__ import annotations

import random
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import trio

from ptymux import address as addresses
from ptymux import limits
from ptymux.backoff import Backoff
from ptymux.cursor import Cursor
from ptymux.errors import (
    AttachEnded,
    ConnectionLost,
    DialError,
    HandshakeRefused,
    InputRefused,
    ProtocolError,
    PtymuxError,
    RequestFailed,
)
from ptymux.events import Event, Exit, InputDropped, InputUncertain, Output
from ptymux.liveness import Verdict
from ptymux.machine import Attachment, AttachState, ClientMachine, InputLane, State
from ptymux.messages import Failure, Response
from ptymux.requests import Call
from ptymux.streams import dial

READ_SIZE = 256 * limits.KIB
DIAL_TIME = 10.0  # a dial that takes longer is tried again; Firecracker's own time-out is 2 s
CHECK_EVERY = 2.0  # seconds between two looks at the link
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
) -> AsyncIterator[Agent]:
    """A connected :class:`Agent` for the length of the block.

    :param address: see :mod:`ptymux.address`.
    :param token: what the agent's token file grants a role for; None where the transport is trusted.
    :param wait: seconds to keep dialling until the agent answers for the first time; 0 raises what the first dial met.
    :param give_up_after: seconds without contact after which everything that waits raises ConnectionLost; None: never.
    :param ssl_context: for ``wss://``; the system's authorities by default.
    :param on_state: called with ``"up"`` and ``"down"`` when contact is made and lost.

    Raises AddressError, :class:`DialError` or :class:`HandshakeRefused` on entry.  What the block raises passes through as it is.
    Leaving or cancelling the block closes the connection; sessions live on in the guest.
    """
    target = addresses.parse(address) if isinstance(address, str) else address
    secret = token.encode() if isinstance(token, str) else token
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        agent = Agent(target, secret, nursery, ssl_context, give_up_after, on_state)
        nursery.start_soon(agent._run)
        try:
            await agent._first_contact(wait)
            yield agent
        except trio.Cancelled:
            raise
        except BaseException as error:  # noqa: BLE001 - passed on below, outside the nursery, which would wrap it in a group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


class _Changes:
    """Wakes whoever waits for anything to change."""

    def __init__(self) -> None:
        self._lot = trio.lowlevel.ParkingLot()

    def tell(self) -> None:
        self._lot.unpark_all()

    async def wait(self) -> None:
        await self._lot.park()


class Agent:
    """One agent, over all connections to it.  Made by :func:`connect`."""

    def __init__(
        self,
        address: addresses.Address,
        token: bytes | None,
        nursery: trio.Nursery,
        ssl_context: ssl.SSLContext | None,
        give_up_after: float | None,
        on_state: Callable[[str], None] | None,
    ) -> None:
        self.address = address
        self._machine = ClientMachine(secrets.token_bytes(limits.CLIENT_ID_SIZE), token)
        self._machine.on_send = self._wake_writer
        self._machine.on_state = self._state_changed
        self._nursery = nursery
        self._ssl = ssl_context
        self._give_up_after = give_up_after
        self._on_state = on_state
        self._states = _Changes()
        self._last_state = State.DOWN
        self._writer_wake = trio.Event()
        self._backoff = Backoff()
        self._dial_error: DialError | None = None
        self._ever_up = False
        self.connections = 0  # how many times contact was made

    # --- facts ------------------------------------------------------------------------------------
    @property
    def up(self) -> bool:
        """Is there a connection now?"""
        return self._machine.state is State.UP

    @property
    def client_id(self) -> bytes:
        return self._machine.client

    @property
    def role(self) -> str | None:
        """viewer, controller or admin, as the last welcome said."""
        return self._machine.welcome.role if self._machine.welcome else None

    @property
    def generation(self) -> bytes | None:
        """The VM's present generation, as the last welcome said."""
        return self._machine.welcome.generation if self._machine.welcome else None

    @property
    def limits(self) -> Mapping[str, Any]:
        """The agent's limits by name."""
        return self._machine.welcome.limits if self._machine.welcome else {}

    # --- requests ---------------------------------------------------------------------------------
    async def request(self, method: str, params: dict[str, Any] | None = None, *, keyed: bool = True) -> dict[str, Any]:
        """Ask the agent; the result.

        Waits through reconnects.  `keyed` makes a retry the same request.  Raises RequestFailed with the agent's answer, or
        ConnectionLost.  Cancelling stops waiting; the request may still be carried out.
        """
        key = secrets.token_bytes(limits.KEY_SIZE) if keyed else None
        call = Call(method, params or {}, key)
        done = trio.Event()
        call.on_answer = done.set
        self._raise_failure()
        self._machine.ask(call)
        try:
            await done.wait()
        except trio.Cancelled:
            self._machine.requests.cancel(call)
            raise
        if isinstance(call.answer, Response):
            return call.answer.result
        if isinstance(call.answer, Failure):
            raise RequestFailed(call.answer.code, call.answer.message, call.answer.details)
        self._raise_failure()
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

    # --- the connection ---------------------------------------------------------------------------
    async def _first_contact(self, wait: float) -> None:
        with trio.move_on_after(wait) if wait > 0 else trio.CancelScope():
            while self._machine.state is not State.UP:
                self._raise_failure()
                if self._dial_error is not None and wait <= 0:
                    raise self._dial_error
                await self._states.wait()
            return
        self._raise_failure()
        raise self._dial_error or DialError(f"cannot reach {self.address}: no answer within {wait:g} s")

    def _raise_failure(self) -> None:
        if self._machine.failure is not None:
            raise self._machine.failure

    def _state_changed(self) -> None:
        state = self._machine.state
        if state is State.UP:
            self._ever_up = True
            self.connections += 1
        if self._on_state is not None and (state is State.UP) != (self._last_state is State.UP):
            self._on_state("up" if state is State.UP else "down")
        self._last_state = state
        self._states.tell()

    def _wake_writer(self) -> None:
        self._writer_wake.set()

    async def _run(self) -> None:
        """Keep a connection up until cancelled or refused for good."""
        machine = self._machine
        last_contact = trio.current_time()
        while machine.state is not State.FAILED:
            if self._give_up_after is not None and self._ever_up:
                left = last_contact + self._give_up_after - trio.current_time()
                if left <= 0:
                    cause = f": {self._dial_error}" if self._dial_error else ""
                    machine.fail(ConnectionLost(f"contact with {self.address} was lost{cause}"))
                    return
            try:
                with trio.fail_after(DIAL_TIME):
                    stream = await dial(self._nursery, self.address, ssl_context=self._ssl)
            except trio.TooSlowError:
                self._dial_error = DialError(f"cannot dial {self.address}: no answer within {DIAL_TIME:g} s")
            except DialError as error:
                self._dial_error = error
            else:
                self._dial_error = None
                await self._converse(stream)
                if self._last_up:
                    last_contact = trio.current_time()
            self._states.tell()
            if machine.worked:
                self._backoff.worked()
                machine.worked = False
            await trio.sleep(self._backoff.next_delay(random.random()))

    async def _converse(self, stream: trio.abc.Stream) -> None:
        """Speak on one connection until it ends, whatever the reason."""
        machine = self._machine
        self._last_up = False
        machine.connected(secrets.token_bytes(16), trio.current_time())
        self._writer_wake.set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, stream)
                nursery.start_soon(self._watch, nursery.cancel_scope)
                await self._read(stream)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except* ProtocolError as group:
            machine.fail(
                group.exceptions[0] if isinstance(group.exceptions[0], PtymuxError) else ProtocolError(str(group))
            )
        finally:
            machine.disconnected()
            await trio.aclose_forcefully(stream)

    async def _read(self, stream: trio.abc.ReceiveStream) -> None:
        machine = self._machine
        while data := await stream.receive_some(READ_SIZE):
            machine.receive(bytes(data), trio.current_time())
            if machine.state is State.UP:
                self._last_up = True
            elif machine.state is not State.GREETING:
                return

    async def _write(self, stream: trio.abc.SendStream) -> None:
        while True:
            await self._writer_wake.wait()
            self._writer_wake = trio.Event()
            while data := self._machine.data_to_send():
                await stream.send_all(data)

    async def _watch(self, scope: trio.CancelScope) -> None:
        await trio.sleep(DIAL_TIME)
        if self._machine.state is not State.UP:
            scope.cancel()  # accepted, and then silence: after a restore a vsock connection may be so
        while True:
            await trio.sleep(CHECK_EVERY)
            if self._machine.check(trio.current_time()) is Verdict.DEAD:
                scope.cancel()

    _last_up = False


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
        window: int = limits.DEFAULT_WINDOW,
    ) -> Attach:
        """Follow the session's output: ``async with session.attach() as stream: async for event in stream: ...``.

        :param cursor: where to go on; None: from the oldest output that is kept.
        :param stream: ``stdout`` (a terminal has only this) or ``stderr``.
        :param view: never type, size or slow the session.
        :param size: of the caller's terminal; the session takes it, and again when this client types.
        :param repair: where to go on after a discontinuity: ``snapshot`` (for terminals) or ``bytes`` (for logs: the oldest byte).
        :param window: bytes that may be on their way or waiting to be taken.
        """
        params: dict[str, Any] = {"stream": stream, "view": view, "repair": repair}
        if size is not None:
            params["size"] = list(size)
        return Attach(self.agent, Attachment(self.id, params, cursor, window))

    # --- input ------------------------------------------------------------------------------------
    def _lane(self, max_age: float | None = limits.INPUT_MAX_AGE) -> InputLane:
        return self.agent._machine.lane(self.id, max_age)

    def keep_input(self, max_age: float | None) -> None:
        """How old unacknowledged input may be, in seconds, to be typed after a reconnect; None: any age.

        To be called before the first :meth:`send`.  The default, 10 s, is for keystrokes; a program that feeds data wants None.
        """
        self._lane(max_age)

    async def send(self, data: bytes, *, wait: bool = True) -> int:
        """Type `data`, exactly once whatever happens to the connection; the input offset behind it.

        With `wait`, returns when the agent has written all of it to the terminal; without, as soon as it is queued (at most
        INPUT_QUEUE bytes are).  Raises InputRefused: the terminal would not take it (``line_too_long``, ``exited``, ``closed``,
        ``forbidden``, ``not_found``), it got too old while contact was lost (``stale``), or a killed server left open whether it
        was typed (``uncertain``).  Cancelling stops waiting; what is queued is still typed.
        """
        lane = self._lane()
        agent = self.agent
        agent._raise_failure()
        start = lane.sender.end
        end = lane.sender.write(data, trio.current_time())
        agent._wake_writer()
        await self._settled(lane, start, end, 0 if wait else INPUT_QUEUE)
        return end

    async def flush_input(self) -> None:
        """Wait until everything sent is written to the terminal.

        Raises as :meth:`send` does, for anything that was lost since the last call.
        """
        lane = self._lane()
        start, lane.flushed = lane.flushed, lane.sender.end
        await self._settled(lane, start, lane.sender.end, 0)

    async def _settled(self, lane: InputLane, start: int, end: int, queue: int) -> None:
        """Until at most `queue` bytes below `end` are unacknowledged; raises if some from `start` on were lost."""
        changes = _lane_changes(lane)
        while end - lane.sender.acked > queue:
            await changes.wait()
            self.agent._raise_failure()
        for event in lane.lost:
            if event.to > start and event.start < end:
                raise _lost(lane, event)

    def end_input(self) -> None:
        """End-of-file for the program, once everything sent before is written."""
        self._lane().sender.finish()
        self.agent._wake_writer()

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

    async def inspect(self) -> dict[str, Any]:
        """Everything that the agent knows of the session."""
        return await self.agent.request("inspect", {"session": self.id}, keyed=False)


def _lane_changes(lane: InputLane) -> _Changes:
    found = getattr(lane.on_change, "__self__", None)
    if isinstance(found, _Changes):
        return found
    changes = _Changes()
    lane.on_change = changes.tell
    return changes


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
        self._agent = agent
        self._attachment = attachment
        self._changes = _Changes()
        self._channel: int | None = None
        self._taken: int | None = None
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
        self._agent._raise_failure()
        attachment = self._attachment
        self._channel = self._agent._machine.attach(attachment)
        try:
            while attachment.state is AttachState.WAITING:
                await self._changes.wait()
        except trio.Cancelled:
            self._agent._machine.detach(self._channel)
            raise
        if attachment.error is not None and not attachment.events:
            error = attachment.error
            raise RequestFailed(error.code, error.message, error.details) if isinstance(error, AttachEnded) else error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._channel is not None:
            self._agent._machine.detach(self._channel)

    def __aiter__(self) -> Attach:
        return self

    async def __anext__(self) -> Event:
        attachment = self._attachment
        if self._channel is None:
            raise RuntimeError("cannot read a stream outside its `async with` block")
        if self._taken is not None:
            self._agent._machine.consumed(self._channel, self._taken)
            self._taken = None
        if attachment.events:
            await trio.lowlevel.cancel_shielded_checkpoint()
        while not attachment.events:
            if attachment.complete:
                raise StopAsyncIteration
            if attachment.error is not None:
                raise attachment.error
            await self._changes.wait()
        event = attachment.events.popleft()
        if isinstance(event, Output):
            self._taken = event.offset + len(event.data)
        return event


__all__ = ["Agent", "Attach", "HandshakeRefused", "Session", "connect"]
