"""The lifecycle's methods: who may call them, and their parameters."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from guestagent.params import Params, bad
from guestagent.snapshot import callers
from guestagent.snapshot.restoration import Wishes, generation
from ptymux.errors import RequestFailed
from ptymux.messages import Request

if TYPE_CHECKING:
    from guestagent.hub import Hub
    from guestagent.peer import Peer

BUDGET_MOST = 3600.0  # seconds; whoever waits longer for a quiesce has forgotten it
TICKET_MAX = 64  # characters

Result = dict[str, Any]


class SnapshotRequests:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def prepare(self, peer: Peer, params: Params, request: Request) -> Result:
        self._check(peer)
        budget = _seconds("budget", params.raw("budget"), self._hub.config.snapshot.budget)
        return await self._hub.lifecycle.prepare(_ticket(params), budget)

    async def resume(self, peer: Peer, params: Params, request: Request) -> Result:
        self._check(peer)
        ticket = _ticket(params)
        if ticket is None:
            raise bad("ticket is missing")
        return await self._hub.lifecycle.resume(ticket)

    async def abort(self, peer: Peer, params: Params, request: Request) -> Result:
        self._check(peer)
        return await self._hub.lifecycle.abort(_ticket(params))

    async def restore(self, peer: Peer, params: Params, request: Request) -> Result:
        asked = time.monotonic()  # it may have to wait for what a killed server left half done
        self._check(peer)
        lifecycle = self._hub.lifecycle
        ticket, new = _ticket(params), generation(params)
        # A retry of one that has ended is told so, whatever else is in it.
        return await lifecycle.restore(ticket, new, lambda: Wishes.of(params, new, self._hub, asked), peer)

    def status(self, peer: Peer, params: Params, request: Request) -> Result:
        self._check(peer)
        return self._hub.lifecycle.status()

    def _check(self, peer: Peer) -> None:
        """RequestFailed if this is not the host."""
        hub = self._hub
        accepted = peer.connected_at if peer.origin.accepted is None else peer.origin.accepted
        why = callers.refusal(
            peer.origin,
            network=hub.config.snapshot.network,
            root=hub.cgroups,
            keeper=hub.keeper_pid,
            server=os.getpid(),
            connected_for=hub.now() - accepted,
        )
        if why is not None:
            raise RequestFailed("forbidden", f"{why}, and only the host may")


def _ticket(params: Params) -> str | None:
    ticket = params.text("ticket", TICKET_MAX)
    if ticket is not None and not ticket.isprintable():
        raise bad("ticket must be printable")
    return ticket


def _seconds(name: str, value: Any, default: float) -> float:
    if value is None:
        return default
    if type(value) not in (int, float) or not 0 < value <= BUDGET_MOST:
        raise bad(f"{name} must be seconds, more than 0 and at most {BUDGET_MOST:g}")
    return float(value)
