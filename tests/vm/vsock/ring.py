"""One split virtqueue (virtio 1.2, section 2.7).

QEMU gives the guest the event index whether we offer it or not, so it is understood here: the guest notifies us of what it adds only
when we have said that we saw everything before.  We interrupt it once a batch, whatever it asked for: spurious interrupts are allowed.
"""

from __future__ import annotations

import os
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tests.vm.vsock.memory import Malformed, Memory

NEXT: Final = 1
WRITE: Final = 2
INDIRECT: Final = 4

DESCRIPTOR: Final = struct.Struct("<QIHH")
MAX_SIZE: Final = 1024  # descriptors; QEMU gives this device 128, virtio allows 32768
# Of one chain.  Linux sends at most 64 KiB and a header, and receives into 4 KiB; a whole table of big buffers is an attack.
MAX_CHAIN_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the three parts are, in QEMU's process."""

    descriptors: int
    used: int
    available: int


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of buffers that the guest made available."""

    head: int
    readable: list[memoryview]
    writable: list[memoryview]

    def read(self) -> bytes:
        return b"".join(self.readable)

    def room(self) -> int:
        return sum(map(len, self.writable))

    def write(self, data: bytes) -> None:
        """Scatter `data`, at most ``room()`` bytes."""
        start = 0
        for view in self.writable:
            part = data[start : start + len(view)]
            view[: len(part)] = part
            start += len(part)
            if start == len(data):
                return
        raise Malformed(f"{len(data)} bytes do not fit into {start}")


class Ring:
    """A virtqueue; it owns the two event descriptors.

    ``size``, ``base`` and ``addresses`` are told while it is stopped.  ``start``, ``next`` and ``push`` raise Malformed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self.base = 0  # where the next start goes on
        self.addresses: Addresses | None = None
        self.enabled = True
        self.running = False
        self.kick = -1  # the guest notifies us
        self.call = -1  # we interrupt the guest
        self._dirty = False
        self._next = 0
        self._memory = Memory()
        self._descriptors = memoryview(b"")
        self._available = memoryview(b"")  # of 16-bit numbers: flags, index, heads
        self._used_index = memoryview(b"")
        self._used = memoryview(b"")  # of 32-bit numbers: pairs of head, length
        self._event: memoryview | None = None  # the index from which on the guest is to notify us
        self._fence = threading.Lock()

    @property
    def ready(self) -> bool:
        return self.running and self.enabled

    def start(self, memory: Memory, *, event_index: bool) -> None:
        if self.addresses is None or not 0 < self.size <= MAX_SIZE or self.size & (self.size - 1):
            raise Malformed(f"the {self.name} ring is started with {self.size} descriptors at {self.addresses}")
        where = self.addresses
        self._memory = memory
        self._descriptors = memory.at_user(where.descriptors, DESCRIPTOR.size * self.size)
        # Through casts, every access is one load or store of the machine: the guest never sees half a number.
        self._available = memory.at_user(where.available, 4 + 2 * self.size).cast("H")
        self._used_index = memory.at_user(where.used, 4).cast("H")
        self._used = memory.at_user(where.used + 4, 8 * self.size).cast("I")
        self._event = memory.at_user(where.used + 4 + 8 * self.size, 2).cast("H") if event_index else None
        self._used_index[0] = 0  # QEMU, which had the ring before, may have asked for silence
        self._next = self.base & 0xFFFF
        self._dirty = False
        self.running = True

    def stop(self) -> int:
        """Forget the guest's memory; where to go on."""
        if self.running:
            self.base = self._next
        self.running = False
        self._memory = Memory()
        self._descriptors = self._available = self._used_index = self._used = memoryview(b"")
        self._event = None
        return self.base

    def close(self) -> None:
        """Stop, and close the event descriptors."""
        self.stop()
        self.set_kick(-1)
        self.set_call(-1)

    def set_kick(self, fd: int) -> None:
        self.kick = _replace(self.kick, fd)

    def set_call(self, fd: int) -> None:
        self.call = _replace(self.call, fd)

    def next(self) -> Chain | None:
        """The next available chain."""
        if not self.ready:
            return None
        waiting = (self._available[1] - self._next) & 0xFFFF
        if not waiting and self._event is not None:
            self._event[0] = self._next
            with self._fence:  # its atomic instruction: what is stored before it is seen before what is loaded after it
                pass
            waiting = (self._available[1] - self._next) & 0xFFFF
        if not waiting:
            return None
        if waiting > self.size:
            raise Malformed(f"the {self.name} ring has {waiting} chains, and {self.size} descriptors")
        chain = self._walk(self._available[2 + self._next % self.size])
        self._next = (self._next + 1) & 0xFFFF
        return chain

    def put_back(self) -> None:
        """The chain that ``next`` gave last is not used after all."""
        self._next = (self._next - 1) & 0xFFFF

    def push(self, chain: Chain, written: int) -> None:
        """Give a chain back to the guest, with so many bytes written to it."""
        index = self._used_index[1]
        slot = 2 * (index % self.size)
        self._used[slot], self._used[slot + 1] = chain.head, written
        self._used_index[1] = (index + 1) & 0xFFFF
        self._dirty = True

    def signal(self) -> None:
        """Interrupt the guest if anything was given back since the last time."""
        if self._dirty and self.call >= 0:
            with suppress(BlockingIOError):  # its counter is full: the interrupt is pending already
                os.write(self.call, struct.pack("=Q", 1))
        self._dirty = False

    def _walk(self, head: int) -> Chain:
        chain = Chain(head, [], [])
        table, count, index = self._descriptors, self.size, head
        indirect = False
        total = 0
        steps = 0
        while True:
            steps += 1
            if steps > count:
                raise Malformed(f"a chain of the {self.name} ring goes round in a circle")
            if index >= count:
                raise Malformed(f"a chain of the {self.name} ring names descriptor {index} of {count}")
            address, size, flags, following = DESCRIPTOR.unpack_from(table, DESCRIPTOR.size * index)
            if flags & INDIRECT:
                if indirect or flags & NEXT:
                    raise Malformed(f"an indirect table of the {self.name} ring is not the end of its chain")
                if not size or size % DESCRIPTOR.size or size // DESCRIPTOR.size > MAX_SIZE:
                    raise Malformed(f"an indirect table of the {self.name} ring has {size} bytes")
                table = self._memory.at_guest(address, size)
                count, index, indirect, steps = size // DESCRIPTOR.size, 0, True, 0
                continue
            total += size
            if total > MAX_CHAIN_BYTES:
                raise Malformed(f"a chain of the {self.name} ring has more than {MAX_CHAIN_BYTES} bytes")
            view = self._memory.at_guest(address, size)
            if flags & WRITE:
                chain.writable.append(view)
            elif chain.writable:
                raise Malformed(f"a chain of the {self.name} ring has a readable buffer after a writable one")
            else:
                chain.readable.append(view)
            if not flags & NEXT:
                return chain
            index = following


def _replace(old: int, new: int) -> int:
    if old >= 0:
        os.close(old)
    return new
