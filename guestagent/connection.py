"""The I/O shell of one connection: one task that reads, one that writes, around a Peer.

The writer never queues output.  On a socket it is mostly the pump that sends, synchronously and straight from the rings
(:meth:`SocketWriter.kick`); the task only waits for room when the socket is full.  On other transports the task copies one batch
at a time.  A write is never cancelled in the middle of a frame: to give up on a write is to give up the connection.
"""

from __future__ import annotations

import contextlib
import logging

import trio

from guestagent.hub import Hub
from guestagent.listeners import Peer as Origin
from guestagent.methods import Methods
from guestagent.peer import Batch, Closing, Peer
from ptymux import limits
from ptymux.handshake import State
from ptymux.liveness import Verdict
from ptymux.messages import Error
from ptymux.streams.sockets import SocketByteStream

log = logging.getLogger("guestagent.connection")

READ_SIZE = 64 * limits.KIB
LINGER = 1.0  # how long a goodbye may take to be sent


class SocketWriter:
    """Sends without copying, from whoever has something to send."""

    def __init__(self, peer: Peer, stream: SocketByteStream) -> None:
        self._peer = peer
        self._stream = stream
        self._rest = b""  # of a frame that the socket took in part: it must follow before anything else
        self._blocked = False
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()

    def kick(self) -> None:
        """Send what there is, now; called by the hub after each change."""
        if not self._blocked and not self._flush():
            self._blocked = True
            self._idle = trio.Event()
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            await self._stream.wait_writable()
            if self._flush():
                self._blocked = False
                self._wake = trio.Event()
                self._idle.set()

    async def sent(self) -> None:
        """Until the socket has taken all."""
        await self._idle.wait()

    async def drain(self) -> None:
        """Until all is sent."""
        while not self._flush():
            await self._stream.wait_writable()

    def _flush(self) -> bool:
        """True if everything is sent, False if the socket is full."""
        try:
            while True:
                if self._rest:
                    count = self._stream.try_send([self._rest])
                    self._rest = self._rest[count:]
                    if self._rest:
                        return False
                batch = self._peer.collect(limits.MAX_BATCH)
                if batch is None:
                    return True
                if not self._send(batch):
                    return False
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._peer.hang_up()
            return True

    def _send(self, batch: Batch) -> bool:
        left = self._stream.try_send(batch.buffers())
        if left < len(batch.control):
            self._rest = batch.control[left:]
            return False
        left -= len(batch.control)
        for attach, group in batch.groups:
            if left < group.size:
                if left > 0:
                    # Half a frame is out: what is left of it must not be overwritten in the ring meanwhile.
                    self._rest = b"".join(group.buffers)[left:]
                    self._peer.commit(attach, group)
                return False
            left -= group.size
            self._peer.commit(attach, group)
        return True


class BatchWriter:
    """Sends one copied batch at a time: for WebSocket, where a batch is a message, and for other streams."""

    def __init__(self, peer: Peer, stream: trio.abc.SendStream) -> None:
        self._peer = peer
        self._stream = stream
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()

    def kick(self) -> None:
        if not self._wake.is_set():
            self._wake.set()
            self._idle = trio.Event()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            idle = self._idle
            await self.drain()
            idle.set()

    async def sent(self) -> None:
        """Until the transport has taken all."""
        await self._idle.wait()

    async def drain(self) -> None:
        while data := self._next():
            await self._stream.send_all(data)

    def _next(self) -> bytes:
        """The next batch as bytes of its own.

        No view of a ring may live on while we wait for the transport: its session may be removed meanwhile, and its history
        unmapped.
        """
        batch = self._peer.collect(limits.MAX_BATCH)
        if batch is None:
            return b""
        data = b"".join(batch.buffers())
        for attach, group in batch.groups:
            self._peer.commit(attach, group)
        return data


async def serve(hub: Hub, methods: Methods, stream: trio.abc.Stream, origin: Origin) -> None:
    """Speak the protocol on `stream` until it ends.  Never raises for what the other side does."""
    peer = Peer(hub, origin, methods.begin, hub.now())
    writer = SocketWriter(peer, stream) if isinstance(stream, SocketByteStream) else BatchWriter(peer, stream)
    peer.kick = writer.kick
    hub.add_peer(peer)
    try:
        async with trio.open_nursery() as nursery:
            peer.on_hang_up = nursery.cancel_scope.cancel
            nursery.start_soon(writer.run)
            nursery.start_soon(_watch, hub, peer)
            await _read(hub, peer, writer, stream)
            nursery.cancel_scope.cancel()
    except* (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the other side is gone
    finally:
        peer.closed()
        with trio.move_on_after(LINGER, shield=True):
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await writer.drain()


async def _read(hub: Hub, peer: Peer, writer: SocketWriter | BatchWriter, stream: trio.abc.Stream) -> None:
    try:
        while data := await stream.receive_some(READ_SIZE):
            for _ in peer.take(bytes(data)):
                hub.flush()
                await writer.sent()
            hub.flush()
    except Closing as reason:
        log.info("closing the connection of %s: %s", peer.origin.description, reason)


async def _watch(hub: Hub, peer: Peer) -> None:
    """Drop a stranger who does not say hello, and a client that is gone."""
    since = peer.connected_at if peer.origin.accepted is None else peer.origin.accepted
    most = hub.config.limits.greeting_time
    await trio.sleep_until(since + most)
    if peer.state is not State.UP:
        log.info("dropping %s: no hello within greeting_time", peer.origin.description)
        text = f"cannot connect: no hello within greeting_time ({most:g} s)"
        peer.send(Error("limit", text, True, {"limit": "greeting_time", "value": most}))
        peer.hang_up()
    while True:
        await trio.sleep(min(5.0, hub.config.limits.ping_after / 3))
        if peer.check(hub.now()) is Verdict.DEAD:
            log.info("dropping %s: quiet for dead_after", peer.origin.description)
            peer.hang_up()
        hub.flush()
