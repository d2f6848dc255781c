"""The client for asyncio programs: the same objects as :mod:`ptymux.client`, in an asyncio loop.

::

    import asyncio

    from ptymux import Exit, Output, aio


    async def main() -> int:
        async with aio.connect("vsock:3:5252", wait=5) as agent:
            session = await agent.create(["make", "-C", "/src"], size=(120, 40))
            async with session.attach() as stream:
                async for event in stream:
                    match event:
                        case Output(data=data):
                            print(data.decode(errors="replace"), end="")
                        case Exit():
                            return event.status
        raise AssertionError("a stream ends with Exit, or raises")


    asyncio.run(main())

:func:`connect` yields a :class:`~ptymux.client.Agent`: every method, argument, event and error is the one documented there, and
where it says "cancelling", that is what ``task.cancel()`` and ``asyncio.timeout()`` do here.  A cancelled wait ends nothing but
itself: no event of a stream is lost by it, no other task notices, the connection stays.

How it works: all connections of a loop share one trio run in guest mode, which lives from the first `connect` to the last one's
end and takes its turns as callbacks of the loop.  Only the transport runs in it.  The client's objects wait on asyncio futures,
which the machine's hooks wake in the same thread: no locks, no hand-over between threads, and nothing in between that a
cancellation could catch holding an event.

Objects belong to the loop that made them.  A loop that is blocked for long by its own program does not lose the agent, since
liveness counts only while we run.  Several loops in several threads are fine; a loop inside a trio program is not (use the trio
client there).
"""

from __future__ import annotations

import asyncio
import contextvars
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import trio

from ptymux import address as addresses
from ptymux.client import Agent, Attach, Session
from ptymux.contact import Contact
from ptymux.errors import ConnectionLost

if TYPE_CHECKING:
    from outcome import Outcome  # trio's own

__all__ = ["Agent", "Attach", "Session", "connect"]


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
    """A connected :class:`~ptymux.client.Agent` for the length of the block; arguments and errors as of :func:`ptymux.connect`.

    A block that nobody left is left when the loop shuts its asynchronous generators down (``asyncio.run`` does), so a loop ends
    without a trace of this module.
    """
    async with _guest() as guest:
        contact = Contact(
            address,
            token=token,
            give_up_after=give_up_after,
            ssl_context=ssl_context,
            on_state=on_state,
            changes=_Changes,
        )
        held = guest.hold(contact, wait)
        try:
            await asyncio.wait([held.ready, held.ended], return_when=asyncio.FIRST_COMPLETED)
            if held.ended.done():
                held.ended.result()  # raises why there is no contact
            yield Agent(contact)
        finally:
            held.scope.cancel()
            await _outlast(held.ended)
        held.ended.result()  # raises if the client itself broke meanwhile


class _Changes:
    """:class:`ptymux.contact.Changes` for the tasks of an asyncio loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)

    async def pause(self) -> None:
        await asyncio.sleep(0)


class _Held(NamedTuple):
    """A contact that is kept: when it was made, when it ended and why, and what ends it."""

    ready: asyncio.Future[None]
    ended: asyncio.Future[None]
    scope: trio.CancelScope


class _Guest:
    """A trio run inside a running asyncio loop, and how many blocks use it; at 0 it is on its way out."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0
        self.ended: asyncio.Future[None] = loop.create_future()
        self.stop = trio.Event()
        self._loop = loop
        trio.lowlevel.start_guest_run(
            self.stop.wait,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=loop.call_soon,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,
        )

    def _done(self, result: Outcome[None]) -> None:
        del _guests[self._loop]
        self.ended.set_result(None)
        result.unwrap()  # KeyboardInterrupt, or a bug of trio: the loop's to deal with

    def hold(self, contact: Contact, wait: float) -> _Held:
        """Keep contact in a trio task of its own."""
        held = _Held(self._loop.create_future(), self._loop.create_future(), trio.CancelScope())

        async def hold() -> None:
            failure: Exception = ConnectionLost("the client's trio run ended")
            try:
                with held.scope:
                    async with contact.kept(wait):
                        held.ready.set_result(None)
                        await trio.sleep_forever()
                held.ended.set_result(None)
            except Exception as error:  # noqa: BLE001 - raised on the other side
                failure = error
            finally:
                if not held.ended.done():
                    held.ended.set_exception(failure)

        trio.lowlevel.spawn_system_task(hold, context=contextvars.copy_context())
        return held


_guests: dict[asyncio.AbstractEventLoop, _Guest] = {}


@asynccontextmanager
async def _guest() -> AsyncGenerator[_Guest]:
    """The running loop's guest; started by its first user, ended by its last."""
    loop = asyncio.get_running_loop()
    while (guest := _guests.get(loop)) is not None and guest.users == 0:
        await asyncio.shield(guest.ended)
    if guest is None:
        guest = _guests[loop] = _Guest(loop)
    guest.users += 1
    try:
        yield guest
    finally:
        guest.users -= 1
        if guest.users == 0:
            guest.stop.set()
            await _outlast(guest.ended)


async def _outlast(future: asyncio.Future[None]) -> None:
    """Wait for the end of something that nobody may abandon: a cancellation meanwhile is passed on afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    future.exception()  # looked at: asyncio need not complain that nobody did
    if cancelled is not None:
        raise cancelled
