"""Contact with one agent: dials, speaks, notices silence, dials again.  The I/O shell around :class:`~ptymux.machine.ClientMachine`.

The rest of the client never touches a stream: it changes the machine, calls :meth:`Contact.wake_writer`, and waits on a
:class:`Changes`.  Those are the only points at which it meets an event loop, so the same client serves trio and asyncio
programs: `aio` brings its own `Changes`.
"""

from __future__ import annotations

import random
import secrets
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from ptymux import address as addresses
from ptymux import limits
from ptymux.backoff import Backoff
from ptymux.errors import ConnectionLost, DialError, ProtocolError, PtymuxError
from ptymux.liveness import Verdict
from ptymux.machine import ClientMachine, InputLane, State
from ptymux.streams import dial

READ_SIZE = 256 * limits.KIB
DIAL_TIME = 10.0  # a dial, or a greeting, that takes longer is tried again; Firecracker's own time-out is 2 s
CHECK_EVERY = 2.0  # seconds between two looks at the link


class Changes(Protocol):
    """Wakes whoever waits for anything to change; look first, then wait."""

    def tell(self) -> None:
        """Wake everybody."""

    async def wait(self) -> None:
        """Until the next :meth:`tell`.  Cancelling is safe."""

    async def pause(self) -> None:
        """Let others run.  Cancelling is safe."""


class TrioChanges:
    """Changes for trio tasks."""

    def __init__(self) -> None:
        self._lot = trio.lowlevel.ParkingLot()

    def tell(self) -> None:
        self._lot.unpark_all()

    async def wait(self) -> None:
        await self._lot.park()

    async def pause(self) -> None:
        await trio.lowlevel.checkpoint()


class Contact:
    """`changes` makes what the caller's tasks wait on; everything else runs in trio."""

    def __init__(
        self,
        address: str | addresses.Address,
        *,
        token: str | bytes | None,
        give_up_after: float | None,
        ssl_context: ssl.SSLContext | None,
        on_state: Callable[[str], None] | None,
        changes: Callable[[], Changes] = TrioChanges,
    ) -> None:
        self.address = addresses.parse(address) if isinstance(address, str) else address
        self.machine = ClientMachine(
            secrets.token_bytes(limits.CLIENT_ID_SIZE), token.encode() if isinstance(token, str) else token
        )
        self.machine.on_send = self.wake_writer
        self.machine.on_state = self._state_changed
        self.changes = changes
        self.connections = 0  # how many times contact was made
        self._give_up_after = give_up_after
        self._ssl = ssl_context
        self._on_state = on_state
        self._was_up = False
        self._states = TrioChanges()
        self._writer_wake = trio.Event()
        self._backoff = Backoff()
        self._backoff.next_delay(0.0)  # the dial at once is for a connection that worked
        self._trouble: ConnectionLost | None = None  # what the last attempt met
        self._lane_changes: dict[str, Changes] = {}

    # --- for the client's objects -----------------------------------------------------------------
    def now(self) -> float:
        """Seconds of the clock that the machine lives by."""
        return trio.current_time()

    def raise_failure(self) -> None:
        """Raise what ended contact for good, if anything did."""
        if self.machine.failure is not None:
            raise self.machine.failure

    def wake_writer(self) -> None:
        """There may be something to send."""
        self._writer_wake.set()

    def lane(self, session: str, max_age: float | None = limits.INPUT_MAX_AGE) -> tuple[InputLane, Changes]:
        """The input lane into a session, and what tells of its changes."""
        lane = self.machine.lane(session, max_age)
        changes = self._lane_changes.get(session)
        if changes is None:
            changes = self._lane_changes[session] = self.changes()
            lane.on_change = changes.tell
        return lane, changes

    def forget_lane(self, session: str) -> None:
        """The session was removed: there will be no more input for it."""
        self.machine.forget_lane(session)
        if session not in self.machine.lanes:
            self._lane_changes.pop(session, None)

    @asynccontextmanager
    async def kept(self, wait: float) -> AsyncGenerator[None]:
        """Contact, from the first greeting on, for the length of the block; see :func:`ptymux.connect`.

        At its end everybody who still waits gets ConnectionLost.
        """
        failure: BaseException | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run)
            try:
                await self._first_contact(wait)
                yield
            except trio.Cancelled:
                raise
            except BaseException as error:  # noqa: BLE001 - passed on below, outside the nursery, which would wrap it in a group
                failure = error
            finally:
                self.machine.fail(ConnectionLost(f"contact with {self.address} was closed on this side"))
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _first_contact(self, wait: float) -> None:
        with trio.move_on_after(wait) if wait > 0 else trio.CancelScope():
            while not self._up:
                self.raise_failure()
                if self._trouble is not None and wait <= 0:
                    raise self._trouble
                await self._states.wait()
            return
        self.raise_failure()
        raise self._trouble or DialError(f"cannot reach {self.address}: no answer within {wait:g} s")

    @property
    def _up(self) -> bool:
        return self.machine.state is State.UP

    async def _until(self, *, up: bool) -> None:
        while self._up != up:
            await self._states.wait()

    def _state_changed(self) -> None:
        up = self._up
        self.connections += up
        if up != self._was_up:
            self._was_up = up
            if self._on_state is not None:
                self._on_state("up" if up else "down")
        self._states.tell()

    # --- connections ------------------------------------------------------------------------------
    async def _run(self) -> None:
        """Keep a connection up until cancelled, refused for good, or without contact for too long."""
        machine = self.machine
        async with trio.open_nursery() as nursery:
            if self._give_up_after is not None:
                nursery.start_soon(self._give_up, self._give_up_after, nursery.cancel_scope)
            while machine.state is not State.FAILED:
                await self._attempt(nursery)
                self._states.tell()
                if machine.worked:
                    self._backoff.worked()
                    machine.worked = False
                await trio.sleep(self._backoff.next_delay(random.random()))
            nursery.cancel_scope.cancel()

    async def _give_up(self, after: float, scope: trio.CancelScope) -> None:
        """After the first contact, end it all once contact has been away for `after` seconds."""
        while True:
            await self._until(up=True)
            await self._until(up=False)
            with trio.move_on_after(after):
                await self._until(up=True)
                continue
            cause = f": {self._trouble}" if self._trouble else ""
            self.machine.fail(ConnectionLost(f"contact with {self.address} was lost{cause}"))
            scope.cancel()
            return

    async def _attempt(self, nursery: trio.Nursery) -> None:
        """One connection, from dialling to its end."""
        try:
            with trio.fail_after(DIAL_TIME):
                stream = await dial(nursery, self.address, ssl_context=self._ssl)
        except trio.TooSlowError:
            self._trouble = DialError(f"cannot dial {self.address}: no answer within {DIAL_TIME:g} s")
        except DialError as error:
            self._trouble = error
        else:
            before = self.connections
            self._trouble = None
            await self._converse(stream)
            if self.connections == before:
                self._trouble = self.machine.refusal or DialError(f"cannot reach {self.address}: it did not greet")

    async def _converse(self, stream: trio.abc.Stream) -> None:
        """Speak on one connection until it ends, whatever the reason."""
        machine = self.machine
        machine.connected(secrets.token_bytes(16), trio.current_time())
        self.wake_writer()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, stream)
                nursery.start_soon(self._watch, nursery.cancel_scope)
                await self._read(stream)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except* ProtocolError as group:
            first = group.exceptions[0]
            machine.fail(first if isinstance(first, PtymuxError) else ProtocolError(str(group)))
        finally:
            machine.disconnected()
            await trio.aclose_forcefully(stream)

    async def _read(self, stream: trio.abc.ReceiveStream) -> None:
        machine = self.machine
        while data := await stream.receive_some(READ_SIZE):
            machine.receive(bytes(data), trio.current_time())
            if machine.state not in (State.GREETING, State.UP):
                return

    async def _write(self, stream: trio.abc.SendStream) -> None:
        while True:
            await self._writer_wake.wait()
            self._writer_wake = trio.Event()
            while data := self.machine.data_to_send():
                await stream.send_all(data)

    async def _watch(self, scope: trio.CancelScope) -> None:
        greeted_by = trio.current_time() + DIAL_TIME
        while True:
            await trio.sleep(CHECK_EVERY)
            now = trio.current_time()
            # Accepted, and then silence: after a restore a vsock connection may be so.
            late = self.machine.state is State.GREETING and now >= greeted_by
            if self.machine.check(now) is Verdict.DEAD or late:
                scope.cancel()
