"""The guest's side of the rings, in a memfd: a driver that does what a test wants, right or wrong."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from tests.vm.vsock.memory import Memory, Region
from tests.vm.vsock.packet import HEADER_SIZE, HOST_CID, STREAM, Header, Op
from tests.vm.vsock.ring import DESCRIPTOR, WRITE, Addresses, Ring

GUEST = 0x1000_0000  # guest addresses are offsets in memory, plus this
USER = 0x7000_0000_0000  # addresses in QEMU
SIZE = 1 << 20
CID = 3


class Descriptor(NamedTuple):
    address: int
    size: int
    flags: int = 0
    next: int = 0


class Driver:
    """One ring of `entries` descriptors at `base`, and buffers of 4 KiB behind it."""

    BUFFER = 4096

    def __init__(self, ring: Ring, memory: memoryview, base: int, entries: int = 8) -> None:
        self.ring = ring
        self.memory = memory
        self.entries = entries
        self.descriptors = base
        self.available = base + 0x1000
        self.used = base + 0x2000
        self.buffers = base + 0x3000
        self._seen = 0
        ring.size = entries
        ring.addresses = Addresses(USER + self.descriptors, USER + self.used, USER + self.available)

    def describe(self, index: int, descriptor: Descriptor, table: int | None = None) -> None:
        at = (self.descriptors if table is None else table) + DESCRIPTOR.size * index
        DESCRIPTOR.pack_into(self.memory, at, *descriptor)

    def offer(self, *heads: int) -> None:
        """Make chains available."""
        index = self.available_index()
        for head in heads:
            struct.pack_into("<H", self.memory, self.available + 4 + 2 * (index % self.entries), head)
            index = (index + 1) & 0xFFFF
        self.set_available_index(index)

    def available_index(self) -> int:
        return int(struct.unpack_from("<H", self.memory, self.available + 2)[0])

    def set_available_index(self, index: int) -> None:
        struct.pack_into("<H", self.memory, self.available + 2, index)

    def buffer(self, index: int) -> int:
        """The guest address of buffer `index`."""
        return GUEST + self.buffers + self.BUFFER * index

    def give(self, index: int, data: bytes) -> None:
        """A packet to transmit, in one buffer."""
        at = self.buffers + self.BUFFER * index
        self.memory[at : at + len(data)] = data
        self.describe(index, Descriptor(self.buffer(index), len(data)))
        self.offer(index)

    def want(self, *indexes: int) -> None:
        """Buffers to receive in."""
        for index in indexes:
            self.describe(index, Descriptor(self.buffer(index), self.BUFFER, WRITE))
        self.offer(*indexes)

    def taken(self) -> list[tuple[int, bytes]]:
        """What came back since the last time: heads, and what is in their first buffers."""
        found = []
        (index,) = struct.unpack_from("<H", self.memory, self.used + 2)
        while self._seen != index:
            head, written = struct.unpack_from("<II", self.memory, self.used + 4 + 8 * (self._seen % self.entries))
            address = DESCRIPTOR.unpack_from(self.memory, self.descriptors + DESCRIPTOR.size * head)[0] - GUEST
            found.append((head, bytes(self.memory[address : address + written])))
            self._seen = (self._seen + 1) & 0xFFFF
        return found


def guest_memory() -> tuple[Memory, memoryview]:
    """The same bytes as the device sees them, and as the guest does."""
    fd = os.memfd_create("guest")
    try:
        os.ftruncate(fd, SIZE)
        return Memory([Region(GUEST, SIZE, USER, fd, 0)]), Region(0, SIZE, 0, fd, 0).slice(0, SIZE)
    finally:
        os.close(fd)


def packet(
    op: int, data: bytes = b"", *, host_port: int = 7000, guest_port: int = 5000, flags: int = 0, **more: int
) -> bytes:
    """From the guest to the host."""
    values = {
        "source_cid": CID,
        "target_cid": HOST_CID,
        "source_port": guest_port,
        "target_port": host_port,
        "length": len(data),
        "type": STREAM,
        "op": op,
        "flags": flags,
        "buffer": 65536,
        "forwarded": 0,
        **more,
    }
    return Header(**values).pack() + data


def ops(packets: Sequence[bytes]) -> list[Op]:
    return [Op(Header.unpack(each).op) for each in packets]


def payload(data: bytes) -> bytes:
    return data[HEADER_SIZE:]
