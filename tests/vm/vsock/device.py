"""The device: a pump between the guest's rings and the table of streams.

Once a ring is malformed the device is broken for good: its connections are closed, its rings stopped, and what the guest does to
it has no effect.  The process goes on, and QEMU's messages are answered.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import Final

from tests.vm.vsock.connection import Connection
from tests.vm.vsock.host import HostSide
from tests.vm.vsock.loop import READ, Loop
from tests.vm.vsock.memory import Malformed, Memory
from tests.vm.vsock.packet import HEADER_SIZE, MAX_PAYLOAD, Header
from tests.vm.vsock.ring import Ring
from tests.vm.vsock.table import FIRST_PORT, Table

log = logging.getLogger("vsock")

RECEIVE: Final = 0  # the guest receives
TRANSMIT: Final = 1  # the guest transmits
EVENT: Final = 2  # vhost-user only; in ioctl mode QEMU keeps it for itself

VERSION_1: Final = 1 << 32
INDIRECT_DESC: Final = 1 << 28
EVENT_INDEX: Final = 1 << 29
FEATURES: Final = VERSION_1 | INDIRECT_DESC | EVENT_INDEX

# Packets of one ring or one socket before everybody else has a turn.
QUANTUM: Final = 64


class Device:
    def __init__(self, cid: int, path: str, loop: Loop, first_port: int = FIRST_PORT) -> None:
        self._loop = loop
        self.memory = Memory()
        self.features = 0  # what the guest took of ours
        self.rings = [Ring("receive"), Ring("transmit"), Ring("event")]
        self.table = Table(cid, first_port)
        self.host = HostSide(path, self.table, loop, pump=self.pump, readable=self._readable)
        self.broken: str | None = None

    # --- what QEMU says ---------------------------------------------------------------------------
    def ring(self, index: int) -> Ring:
        if not 0 <= index < len(self.rings):
            raise Malformed(f"there is no ring {index}")
        return self.rings[index]

    def set_kick(self, index: int, fd: int) -> None:
        """Takes over `fd`; -1 for none."""
        ring = self.ring(index)
        if ring.kick >= 0:
            self._loop.watch(ring.kick, 0, _ignore)
        ring.set_kick(fd)
        if fd >= 0:
            os.set_blocking(fd, False)

            def kicked(events: int) -> None:
                with suppress(BlockingIOError):
                    os.read(fd, 8)
                if index == RECEIVE:
                    self.host.refilled()
                self.pump()

            self._loop.watch(fd, READ, kicked)

    def start(self, index: int) -> None:
        """Malformed, and broken, if the ring is."""
        if self.broken is not None:
            raise Malformed(self.broken)
        try:
            self.ring(index).start(self.memory, event_index=bool(self.features & EVENT_INDEX))
        except Malformed as error:
            self._break(error)
            raise
        self.host.refilled()
        self.pump()

    def stop(self, index: int) -> int:
        """Where the ring is to go on.  The connections stay: a pause is no reset."""
        return self.ring(index).stop()

    def disconnected(self) -> None:
        """QEMU is gone, or has unplugged the device."""
        for index, ring in enumerate(self.rings):
            self.set_kick(index, -1)
            ring.close()
        self.memory = Memory()
        self.features = 0
        self.table.drop_all()
        self.host.settle()
        self.broken = None

    def close(self) -> None:
        self.disconnected()
        self.host.close()

    def _break(self, error: Malformed) -> None:
        log.error("the device is broken: %s", error)
        self.broken = str(error)
        for ring in self.rings:
            ring.stop()
        self.table.drop_all()
        self.host.settle()

    # --- the pump ---------------------------------------------------------------------------------
    def pump(self) -> None:
        """Move what can be moved."""
        try:
            more = self._from_guest()
            self.host.settle()
            self._to_guest()
        except Malformed as error:
            self._break(error)
            return
        for ring in self.rings:
            ring.signal()
        if more:
            self._loop.soon(self.pump)

    def _from_guest(self) -> bool:
        """Take packets; whether there may be more."""
        ring = self.rings[TRANSMIT]
        for _ in range(QUANTUM):
            if self.table.congested:
                return False  # the guest's next buffers bring us back here
            chain = ring.next()
            if chain is None:
                return False
            data = chain.read()
            ring.push(chain, 0)
            if len(data) < HEADER_SIZE:
                raise Malformed(f"a packet of {len(data)} bytes")
            header = Header.unpack(data)
            if header.length > min(MAX_PAYLOAD, len(data) - HEADER_SIZE):
                raise Malformed(f"a packet of {len(data)} bytes with a payload of {header.length}")
            self.table.handle(header, memoryview(data)[HEADER_SIZE : HEADER_SIZE + header.length])
        return True

    def _to_guest(self) -> None:
        """The packets without payload."""
        ring = self.rings[RECEIVE]
        while self.table.queued():
            congested = self.table.congested
            chain = ring.next()
            if chain is None:
                self.host.starved = True
                return
            if chain.room() < HEADER_SIZE:
                raise Malformed(f"a buffer of {chain.room()} bytes to receive in")
            chain.write(self.table.pop().pack())
            ring.push(chain, HEADER_SIZE)
            if congested and not self.table.congested:
                self._loop.soon(self.pump)

    def _readable(self, connection: Connection) -> None:
        try:
            self._to_guest()  # what comes before it
            self._carry(connection)
        except Malformed as error:
            self._break(error)

    def _carry(self, connection: Connection) -> None:
        """From the host's socket into the guest's buffers."""
        ring = self.rings[RECEIVE]
        for _ in range(QUANTUM):
            if not connection.readable or self.table.queued():
                return
            chain = ring.next()
            if chain is None:
                self.host.starved = True
                self.table.changed.update(self.table.connections.values())
                return
            room = chain.room() - HEADER_SIZE
            if room <= 0:
                raise Malformed(f"a buffer of {chain.room()} bytes to receive in")
            data = self.host.receive(connection, min(room, connection.credit, MAX_PAYLOAD))
            if not data:
                ring.put_back()
                if data is not None:
                    self.host.ended(connection)
                return
            chain.write(self.table.data(connection, len(data)).pack() + data)
            ring.push(chain, HEADER_SIZE + len(data))


def _ignore(events: int) -> None:
    pass
