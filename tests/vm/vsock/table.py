"""All streams, and what each packet does to them.  No I/O, no clock.

Packets for the guest wait in a queue for room in its ring; ``changed`` tells the host's side which streams to look at.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from tests.vm.vsock.connection import BUFFER, Connection, Key, State, Violation
from tests.vm.vsock.packet import HOST_CID, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, STREAM, Header, Op

log = logging.getLogger("vsock")

MAX_CONNECTIONS: Final = 1023  # as on Firecracker

# The host's ports as Firecracker gives them out: from here on, and from the beginning again after each restore.  A guest may
# still hold a pair of ports from before then.
FIRST_PORT: Final = 1 << 30
PORTS: Final = 1 << 30

# Packets without a stream (resets for what we do not know) are answers, one for each of the guest's.  While more than this wait,
# the guest's ring is not read.  The streams' own are at most five each.
MAX_QUEUED: Final = 1024


class Full(Exception):
    """No more connections."""


class Table:
    def __init__(self, cid: int, first_port: int = FIRST_PORT) -> None:
        self.cid = cid
        self.connections: dict[Key, Connection] = {}
        self.changed: set[Connection] = set()  # for the host's side, which empties it
        self.violations = 0
        self._queue: deque[tuple[Key, Op, int, Connection | None]] = deque()
        self._next_port = first_port

    # --- the host's side ------------------------------------------------------------------------
    def dial(self, guest_port: int) -> Connection:
        """A program of the host wants a connection."""
        if len(self.connections) >= MAX_CONNECTIONS:
            raise Full
        while (key := Key(self._next_port, guest_port)) in self.connections:
            self._advance()
        self._advance()
        connection = self._add(key, by_guest=False)
        self._tell(connection, Op.REQUEST)
        return connection

    def accept(self, connection: Connection) -> None:
        """A program of the host listens for what the guest dialled."""
        connection.state = State.OPEN
        self._tell(connection, Op.RESPONSE)

    def end(self, connection: Connection) -> None:
        """The host's program is done: as Firecracker does, which cannot tell a half-close from a close, for both directions."""
        if connection.host_sends:
            connection.host_sends = False
            self._tell(connection, Op.SHUTDOWN, SHUTDOWN_RECEIVE | SHUTDOWN_SEND)

    def taken(self, connection: Connection, count: int) -> None:
        """The host's socket took so many bytes."""
        connection.taken(count)
        if connection.owes_update:
            self._update(connection)

    def reset(self, connection: Connection) -> None:
        """Close it, and tell the guest."""
        if connection.state is not State.CLOSED:
            self.drop(connection)
            self._queue.append((connection.key, Op.RST, 0, None))

    def drop(self, connection: Connection) -> None:
        """Close it without a word to the guest."""
        connection.state = State.CLOSED
        self.connections.pop(connection.key, None)
        self.changed.add(connection)

    def drop_all(self) -> None:
        for connection in list(self.connections.values()):
            self.drop(connection)
        self._queue.clear()

    def reset_guest(self) -> None:
        """Reset every stream in the guest only.

        What a snapshot does on Firecracker to a source that goes on: the host's programs hear of it when they next send.  There it is
        an event that the guest does not answer; here, where that event is QEMU's to send, it is a packet for each stream, and
        what the guest answers until then is left unheard.
        """
        for connection in self.connections.values():
            connection.muted = True
            self._tell(connection, Op.RST)

    # --- the guest's side -----------------------------------------------------------------------
    @property
    def congested(self) -> bool:
        return len(self._queue) >= MAX_QUEUED

    def handle(self, header: Header, payload: bytes | memoryview) -> None:
        """A packet from the guest; `payload` has the length that the header says."""
        key = Key(header.target_port, header.source_port)
        connection = self.connections.get(key)
        if header.type != STREAM or header.target_cid != HOST_CID or header.source_cid != self.cid:
            if header.op != Op.RST:
                self._queue.append((key, Op.RST, 0, None))
            return
        if connection is None:
            if header.op == Op.REQUEST and len(self.connections) < MAX_CONNECTIONS:
                connection = self._add(key, by_guest=True)
                connection.note_credit(header)
            elif header.op != Op.RST:
                self._queue.append((key, Op.RST, 0, None))
            return
        if connection.muted:
            return
        connection.note_credit(header)
        self.changed.add(connection)
        try:
            self._act(connection, header, payload)
        except Violation as error:
            log.warning("%s: reset: %s", key, error)
            self.violations += 1
            self.reset(connection)

    def _act(self, connection: Connection, header: Header, payload: bytes | memoryview) -> None:
        match header.op:
            case Op.RESPONSE:
                if connection.state is not State.REQUESTED or connection.by_guest:
                    raise Violation("an answer to no question")
                connection.state = State.OPEN
            case Op.RW:
                connection.received(payload)
            case Op.SHUTDOWN:
                connection.shut_down(header.flags)
            case Op.RST:
                self.drop(connection)
            case Op.CREDIT_REQUEST:
                self._update(connection)
            case Op.CREDIT_UPDATE:
                pass  # every header is one
            case _:
                raise Violation(f"operation {header.op}")

    def queued(self) -> bool:
        return bool(self._queue)

    def pop(self) -> Header:
        """The next packet without a payload for the guest."""
        key, op, flags, connection = self._queue.popleft()
        if connection is not None and op is Op.CREDIT_UPDATE:
            connection.update_queued = False
        return self._header(key, op, flags, 0, connection)

    def data(self, connection: Connection, count: int) -> Header:
        """The header in front of `count` bytes for the guest, which has credit for them."""
        header = self._header(connection.key, Op.RW, 0, count, connection)
        connection.muted = False
        connection.sent(count)
        return header

    # --- both -----------------------------------------------------------------------------------
    def _add(self, key: Key, *, by_guest: bool) -> Connection:
        connection = self.connections[key] = Connection(key, by_guest=by_guest)
        self.changed.add(connection)
        return connection

    def _advance(self) -> None:
        self._next_port = FIRST_PORT + (self._next_port + 1 - FIRST_PORT) % PORTS

    def _tell(self, connection: Connection, op: Op, flags: int = 0) -> None:
        self._queue.append((connection.key, op, flags, connection))

    def _update(self, connection: Connection) -> None:
        if not connection.update_queued:
            connection.update_queued = True
            self._tell(connection, Op.CREDIT_UPDATE)

    def _header(self, key: Key, op: Op, flags: int, length: int, connection: Connection | None) -> Header:
        forwarded = 0
        if connection is not None:
            forwarded = connection.forwarded
            connection.told()
        return Header(
            HOST_CID,
            self.cid,
            key.host_port,
            key.guest_port,
            length,
            STREAM,
            op,
            flags,
            BUFFER if connection else 0,
            forwarded,
        )
