"""What the hardware says of a restore, where it says anything.

The word of the host (`snapshot_restore`) is what counts.  Where there is VMGenID and the kernel has its driver (uevents from Linux 6.10
on), a restored VM also learns from its hypervisor that it is not the one it was, even if the host never calls.  The driver
reseeds the kernel by itself and sends a uevent.  A resumed source gets none.  (vmclock's disruption marker moves at a live
migration too, which is no restore, so it is not used.)

Never a sign of a restore: a connection that died.  The resumed source sees the same reset as its clones.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

import trio

NETLINK_KOBJECT_UEVENT = 15
KERNEL_GROUP = 1
UEVENT_MAX = 8192


class Detector(Protocol):
    async def watch(self, restored: Callable[[str], None]) -> None:
        """Call `restored(what told it)` each time that the VM turns out to be a restored one.  Until cancelled."""
        ...


class KernelDetector:
    """VMGenID, by the kernel's uevents."""

    async def watch(self, restored: Callable[[str], None]) -> None:
        with socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT
        ) as sock:
            sock.bind((0, KERNEL_GROUP))
            while True:
                await trio.lowlevel.wait_readable(sock)
                try:
                    data, (sender, _) = sock.recvfrom(UEVENT_MAX)
                except OSError:  # more events than it holds: none of those matters
                    continue
                if sender == 0 and is_new_generation(data):  # 0 is the kernel
                    restored("vmgenid")


def is_new_generation(uevent: bytes) -> bool:
    """``change@/devices/...`` and then NAME=value, each ended by a NUL."""
    return uevent.startswith(b"change@") and b"NEW_VMGENID=1" in uevent.split(b"\0")[1:]
