"""The host's use of the snapshot lifecycle: quiesce, snapshot, go on; or restore.

::

    async with agent.quiesced(budget=5) as report:
        await my_hypervisor.snapshot("/snapshots/base")  # nothing in the guest moves meanwhile

and in each branch, once its VM runs::

    async with ptymux.connect(address_of_the_branch, token=old, wait=10) as agent:
        await agent.restore(report["ticket"], token=new)

Every call may be repeated with the same ticket, also after its answer got lost, and is the same call.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio

from ptymux import limits
from ptymux.contact import Contact
from ptymux.errors import PtymuxError
from ptymux.machine import State

ENTROPY = 64  # bytes for a restored VM: twice what seeds a kernel's generator
GOODBYE = 5.0  # seconds that a cancelled block takes to let the guest go on
LOOK = 0.02  # between two looks whether there is still somebody to tell

Report = dict[str, Any]


class Snapshots:
    """The part of :class:`ptymux.client.Agent` that is about snapshots.  Only the host may use it."""

    contact: Contact

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        keyed: bool = True,
        stamp: Callable[[], dict[str, Any]] = dict,
    ) -> dict[str, Any]:
        raise NotImplementedError  # the agent's

    async def snapshot_prepare(self, *, ticket: str | None = None, budget: float | None = None) -> Report:
        """Quiesce the guest; the report, whose `ticket` the other calls want.

        RequestFailed: ``not_quiesced`` (a step failed or took longer than `budget` seconds; everything was undone, ``details`` is the
        report), ``state`` (it is not running, or the ticket was used), ``forbidden``.
        """
        params: dict[str, Any] = {"ticket": ticket or new_ticket()}
        if budget is not None:
            params["budget"] = budget
        return await self.request("snapshot_prepare", params, keyed=False)

    async def snapshot_resume(self, ticket: str) -> Report:
        """The same VM goes on, in the same generation.  RequestFailed ``state`` if it went on by itself meanwhile."""
        return await self.request("snapshot_resume", {"ticket": ticket}, keyed=False)

    async def snapshot_abort(self, ticket: str | None = None) -> Report:
        """There will be no snapshot: undo a quiesce that is complete, or still under way."""
        return await self.request("snapshot_abort", {"ticket": ticket}, keyed=False)

    async def snapshot_status(self) -> Report:
        """State, ticket, time until the guest thaws by itself, and how the last quiesce or restore ended."""
        return await self.request("snapshot_status", keyed=False)

    async def snapshot_restore(
        self,
        ticket: str | None = None,
        *,
        generation: bytes | None = None,
        wall_time: float | None = None,
        entropy: bytes | None = None,
        token: str | None = None,
        tokens: str | None = None,
        keep_tokens: bool = False,
        env: Mapping[str, str] | None = None,
        hostname: str | None = None,
        machine_id: str | None = None,
        boot_id: bool = False,
        random_seed: bool = False,
        set_clock: bool = True,
    ) -> Report:
        """This VM was restored from a snapshot: make it one of its own, and let it go on.

        :param ticket: of the quiesce before the snapshot; None: there was none, and no earlier cursor will be known.
        :param generation: the new one, 16 bytes; None: made here.  Without a ticket it is what a retry is known by.
        :param wall_time: unix time at the moment of this call; None: this host's, unless `set_clock` is False.  What the guest is
            sent is the time at which the request is really sent, however long contact was away.
        :param entropy: 32 to 512 random bytes; None: from this host.
        :param token: the admin token that replaces all earlier ones; or `tokens`, the text of a token file.  An agent with tokens
            refuses a restore without, unless `keep_tokens`.
        :param env: variables for sessions that are started from now on.
        :param machine_id: 32 hex digits, or ``random``.
        :param boot_id: give it another /proc/sys/kernel/random/boot_id.
        :param random_seed: renew the file that seeds the next boot.

        All connections end, this one after its answer (it comes back by itself, with the new token).  RequestFailed:
        ``not_restored`` (details say which step; it can be tried again), ``state``, ``bad_params``, ``forbidden``.
        """
        machine = self.contact.machine
        if token is not None or tokens is not None:
            machine.next_token = (token or _admin_token(tokens or "")).encode()
        params: dict[str, Any] = {
            "ticket": ticket,
            "generation": generation or secrets.token_bytes(limits.GENERATION_SIZE),
            "entropy": entropy or secrets.token_bytes(ENTROPY),
            "token": token,
            "tokens": tokens,
            "keep_tokens": keep_tokens,
            "env": dict(env or {}),
            "hostname": hostname,
            "machine_id": machine_id,
            "boot_id": boot_id,
            "random_seed": random_seed,
        }
        answer = await self.request(
            "snapshot_restore",
            {key: value for key, value in params.items() if value is not None},
            keyed=False,
            stamp=_clock(wall_time) if set_clock else dict,
        )
        machine.take_next_token()
        return answer

    restore = snapshot_restore

    @asynccontextmanager
    async def quiesced(self, *, ticket: str | None = None, budget: float | None = None) -> AsyncGenerator[Report]:
        """The guest is quiesced for the length of the block; the report of :meth:`snapshot_prepare`.

        It goes on afterwards, whatever the block raises.  RequestFailed (``state``) at the end if the guest went on by itself before:
        a snapshot that was taken late is then not one of a quiesced guest.  If the block is cancelled together with the
        connection, the guest's own watchdog is left to do it.
        """
        ticket = ticket or new_ticket()
        try:
            report = await self.snapshot_prepare(ticket=ticket, budget=budget)
        except BaseException as error:
            if not isinstance(error, PtymuxError):  # cancelled: it may be quiesced, or about to be
                await _outlast(self.contact, lambda: self.snapshot_abort(ticket))
            raise
        try:
            yield report
        except BaseException:
            await _outlast(self.contact, lambda: self.snapshot_resume(ticket))
            raise
        await self.snapshot_resume(ticket)


def new_ticket() -> str:
    return secrets.token_hex(16)


def _clock(now: float | None) -> Callable[[], dict[str, Any]]:
    """A stamp: the host's time, or one that goes on from `now`."""
    if now is None:
        return lambda: {"wall_time": time.time()}
    ahead = now - time.monotonic()
    return lambda: {"wall_time": ahead + time.monotonic()}


def _admin_token(text: str) -> str:
    """The first admin token in the text of a token file; empty if there is none."""
    for line in text.splitlines():
        *role, token = line.split() or [""]
        if token and not line.startswith("#") and role in ([], ["admin"]):
            return token
    return ""


async def _outlast(contact: Contact, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Do this although we are cancelled, as long as there is contact, and for a bounded time; its errors are not ours."""
    if trio.lowlevel.in_trio_task():
        with trio.move_on_after(GOODBYE, shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_down, contact, nursery.cancel_scope)
                with suppress(PtymuxError):
                    await function()
                nursery.cancel_scope.cancel()
        return
    import asyncio

    task = asyncio.ensure_future(function())
    waited = 0.0
    while not task.done() and waited < GOODBYE and contact.machine.state is State.UP:
        with suppress(asyncio.CancelledError):  # once more; the first one goes on when we are done
            await asyncio.wait([task], timeout=LOOK)
        waited += LOOK
    if not task.done():
        task.cancel()
    elif not task.cancelled():
        task.exception()


async def _until_down(contact: Contact, scope: trio.CancelScope) -> None:
    while contact.machine.state is State.UP:  # noqa: ASYNC110 - whoever waits for its changes is somebody else's
        await trio.sleep(LOOK)
    scope.cancel()
