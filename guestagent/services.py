"""What every part of the server may use: configuration, clocks, counters, the pump, the keeper, who is connected.

The lower parts (streams, sessions) know this and nothing above it; the hub is this and the sessions.  All in one trio thread.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from guestagent.config import Config
from guestagent.pump import Pump
from guestagent.screens import Screens
from guestagent.stats import Stats
from ptymux.messages import Message


class Client(Protocol):
    """A greeted connection, as sessions and streams see it."""

    client: bytes
    role: str
    kick: Callable[[], None]

    def send(self, message: Message) -> None: ...
    def notice(self, kind: str, data: dict[str, Any]) -> None: ...
    def output_ready(self, attach: Any) -> None: ...
    def end_attach(self, attach: Any, code: str, message: str) -> None: ...
    def hang_up(self) -> None: ...
    def drop(self, code: str, message: str) -> None: ...


class Keeper(Protocol):
    """The link to the keeper, as far as telling goes."""

    def send(self, message: dict[str, Any]) -> None: ...
    async def borrow(self, session: str) -> int: ...


class Services:
    held = False  # quiesced: nothing is written to a terminal

    def __init__(self, config: Config, link: Keeper) -> None:
        self.config = config
        self.link = link
        self.stats = Stats()
        self.pump = Pump(self.now, self.flush)
        self.screens = Screens(link, self.start)
        self.peers: dict[bytes, Client] = {}  # greeted connections by client
        self.nursery: trio.Nursery | None = None
        self._dirty: dict[Client, None] = {}

    # --- time and tasks ---------------------------------------------------------------------------
    def now(self) -> float:
        """Seconds of a clock that never jumps."""
        return trio.current_time()

    def wall(self) -> float:
        """Unix time."""
        return time.time()

    def start(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run in the background; not tied to the connection that asked."""
        assert self.nursery is not None
        self.nursery.start_soon(function, *args)

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Call `function` then, and send what it led to."""

        async def later() -> None:
            await trio.sleep(seconds)
            function()
            self.flush()

        self.start(later)

    # --- sending ----------------------------------------------------------------------------------
    def dirty(self, peer: Client) -> None:
        """The peer has something to send; the next :meth:`flush` sends it."""
        self._dirty[peer] = None

    def flush(self) -> None:
        """Call at the end of whatever an event led to."""
        while self._dirty:
            peer, _ = self._dirty.popitem()
            peer.kick()
