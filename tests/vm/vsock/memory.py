"""The guest's memory: regions of files that QEMU shares with us, at addresses that the guest and QEMU's process use."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Final


class Malformed(Exception):
    """The guest, or QEMU on its behalf, gave us something that no correct driver would: the device stops."""


# A PC with less than 4 GiB has two or three; vhost-user's own limit for one message is 8, vhost's default 64.
MAX_REGIONS: Final = 64


class Region:
    """`size` bytes of the file `fd` from `offset` on, mapped.  Does not keep `fd`."""

    def __init__(self, guest: int, size: int, user: int, fd: int, offset: int) -> None:
        if size <= 0 or offset < 0 or guest + size > 1 << 64 or user + size > 1 << 64:
            raise Malformed(f"cannot map memory: {size} bytes at {guest:#x}")
        if os.fstat(fd).st_size < offset + size:
            raise Malformed(f"cannot map memory: the file is shorter than {offset} + {size}")  # a SIGBUS later on
        self.guest, self.size, self.user = guest, size, user
        padding = offset % mmap.PAGESIZE
        self._map = mmap.mmap(fd, size + padding, mmap.MAP_SHARED, offset=offset - padding)
        self._view = memoryview(self._map)[padding:]

    def slice(self, start: int, size: int) -> memoryview:
        return self._view[start : start + size]


class Memory:
    """All regions.  The views that it gives out are writable and keep their region mapped."""

    def __init__(self, regions: Sequence[Region] = ()) -> None:
        if len(regions) > MAX_REGIONS:
            raise Malformed(f"{len(regions)} regions of memory, at most {MAX_REGIONS} are taken")
        self._regions = tuple(regions)

    def at_guest(self, address: int, size: int) -> memoryview:
        """By the guest's physical address."""
        for region in self._regions:
            if region.guest <= address and address + size <= region.guest + region.size:
                return region.slice(address - region.guest, size)
        raise Malformed(f"{size} bytes at guest address {address:#x} are not in memory")

    def at_user(self, address: int, size: int) -> memoryview:
        """By the address in QEMU's process."""
        for region in self._regions:
            if region.user <= address and address + size <= region.user + region.size:
                return region.slice(address - region.user, size)
        raise Malformed(f"{size} bytes at QEMU's address {address:#x} are not in memory")
