"""Ioctl mode: QEMU believes that it has /dev/vhost-vsock open, and shim.c forwards what it asks of that.

The ioctls are those of linux/vhost.h.  They have no descriptors for memory, only addresses in QEMU's process; since its RAM is a
memfd, the descriptor is found among QEMU's own.
"""

from __future__ import annotations

import enum
import errno
import logging
import os
import socket
import struct
from contextlib import suppress
from typing import Final

from tests.vm.vsock import channel
from tests.vm.vsock.channel import Gone, Message
from tests.vm.vsock.device import FEATURES, RECEIVE, TRANSMIT, Device
from tests.vm.vsock.memory import Malformed, Memory, Region
from tests.vm.vsock.ring import Addresses

log = logging.getLogger("vsock")

HEAD: Final = struct.Struct("<II")  # the ioctl's number, size of its argument
ANSWER: Final = struct.Struct("<iI")  # result or -errno, size of what comes back

LOG_ALL: Final = (
    1 << 26
)  # QEMU turns it on while it saves; we write to no page that it has not to save anyway, being stopped
NOTIFY_ON_EMPTY: Final = 1 << 24
ANY_LAYOUT: Final = 1 << 27

PAIR: Final = struct.Struct("<II")
FILE: Final = struct.Struct("<Ii")
U64: Final = struct.Struct("<Q")
ADDRESSES: Final = struct.Struct("<IIQQQQ")
REGION: Final = struct.Struct("<QQQQ")
WRITES: Final = 1  # of the direction bits: the caller gives ...
READS: Final = 2  # ... and gets


class Ask(enum.IntEnum):
    """The last byte of the ioctl's number."""

    FEATURES = 0x00
    SET_OWNER = 0x01
    RESET_OWNER = 0x02
    SET_MEM_TABLE = 0x03
    SET_LOG_BASE = 0x04
    SET_LOG_FD = 0x07
    SET_VRING_NUM = 0x10
    SET_VRING_ADDR = 0x11
    VRING_BASE = 0x12
    SET_VRING_KICK = 0x20
    SET_VRING_CALL = 0x21
    SET_VRING_ERR = 0x22
    SET_VRING_BUSYLOOP_TIMEOUT = 0x23
    SET_BACKEND_FEATURES = 0x25
    GET_BACKEND_FEATURES = 0x26
    VSOCK_SET_GUEST_CID = 0x60
    VSOCK_SET_RUNNING = 0x61


_KNOWN: Final = frozenset(Ask)


class IoctlChannel:
    def __init__(self, device: Device, there: socket.socket) -> None:
        self._device = device
        self._socket = there
        self._pid = struct.unpack("iII", there.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

    def handle(self) -> None:
        """Take one call and answer it.  Raises Gone."""
        message = channel.receive(self._socket, HEAD.size)
        try:
            request, size = HEAD.unpack(message.head)
            body = channel.exactly(self._socket, size)
            result, answer = 0, b""
            try:
                answer = self._act(request & 0xFF, request >> 30, body, message)
            except struct.error as error:
                raise Gone(f"ioctl {request:#x} with {size} bytes: {error}") from None
            except NotImplementedError:
                result = -errno.ENOTTY
            except Malformed as error:
                log.error("ioctl %#x: %s", request, error)
                result = -errno.EFAULT
            channel.send(self._socket, ANSWER.pack(result, len(answer)) + answer)
        finally:
            message.close()

    def _act(self, number: int, direction: int, body: bytes, message: Message) -> bytes:
        device = self._device
        match number:
            case Ask.FEATURES if direction == READS:
                return U64.pack(FEATURES | LOG_ALL | NOTIFY_ON_EMPTY | ANY_LAYOUT)
            case Ask.FEATURES:
                (device.features,) = U64.unpack(body)
            case Ask.GET_BACKEND_FEATURES:
                return U64.pack(0)
            case Ask.SET_MEM_TABLE:
                self._memory(body)
            case Ask.SET_VRING_NUM:
                index, ring_size = PAIR.unpack(body)
                device.ring(index).size = ring_size
            case Ask.SET_VRING_ADDR:
                index, _, descriptors, used, available, _ = ADDRESSES.unpack(body)
                device.ring(index).addresses = Addresses(descriptors, used, available)
            case Ask.VRING_BASE if direction == READS | WRITES:
                index, _ = PAIR.unpack(body)
                return PAIR.pack(index, device.stop(index))
            case Ask.VRING_BASE:
                index, base = PAIR.unpack(body)
                device.ring(index).base = base
            case Ask.SET_VRING_KICK:
                index, _ = FILE.unpack(body)
                device.ring(index)  # a descriptor has an owner only if there is one
                device.set_kick(index, message.take())
            case Ask.SET_VRING_CALL:
                index, _ = FILE.unpack(body)
                ring = device.ring(index)
                ring.set_call(message.take())
            case Ask.VSOCK_SET_GUEST_CID:
                (device.table.cid,) = U64.unpack(body)
            case Ask.VSOCK_SET_RUNNING:
                for index in (RECEIVE, TRANSMIT):
                    if struct.unpack("<i", body)[0]:
                        device.start(index)
                    else:
                        device.stop(index)
            case _ if number in _KNOWN:
                pass  # ownership, the log of dirty pages, error descriptors, busy loops: nothing to do
            case _:
                raise NotImplementedError
        return b""

    def _memory(self, body: bytes) -> None:
        (count,) = struct.unpack_from("<I", body)
        if len(body) != 8 + count * REGION.size:
            raise Malformed(f"{count} regions of memory in {len(body)} bytes")
        regions = []
        for index in range(count):
            guest, size, user, _ = REGION.unpack_from(body, 8 + index * REGION.size)
            try:
                fd, offset = _backing(self._pid, user)
            except LookupError as error:
                log.info("region %#x left out: %s", guest, error)  # firmware, which is private memory; no ring is there
                continue
            try:
                regions.append(Region(guest, size, user, fd, offset))
            finally:
                os.close(fd)
        self._device.memory = Memory(regions)


def _backing(pid: int, address: int) -> tuple[int, int]:
    """A descriptor of the file that a process has mapped there, and the offset.  LookupError if that is none it has open."""
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            extent, _, offset, device, inode = line.split()[:5]
            low, high = (int(each, 16) for each in extent.split("-"))
            if low <= address < high:
                break
        else:
            raise LookupError(f"nothing is mapped at {address:#x}")
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        with suppress(OSError):
            found = os.stat(path)
            where = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
            if (found.st_ino, where) == (int(inode), device):
                return os.open(path, os.O_RDWR), int(offset, 16) + address - low
    raise LookupError(f"the memory at {address:#x} is no file that is open: {line.strip()}")
