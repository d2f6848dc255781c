"""User mode: the back end's side of vhost-user (QEMU's docs/interop/vhost-user), as far as `vhost-user-vsock-pci` uses it."""

from __future__ import annotations

import enum
import logging
import socket
import struct
from typing import Final

from tests.vm.vsock import channel
from tests.vm.vsock.channel import Gone, Message
from tests.vm.vsock.device import FEATURES, Device
from tests.vm.vsock.memory import Malformed, Memory, Region
from tests.vm.vsock.ring import Addresses

log = logging.getLogger("vsock")

HEAD: Final = struct.Struct("<III")  # request, flags, size of the body
VERSION: Final = 1
REPLY: Final = 1 << 2
NEED_REPLY: Final = 1 << 3


class Ask(enum.IntEnum):
    GET_FEATURES = 1
    SET_FEATURES = 2
    SET_MEM_TABLE = 5
    SET_VRING_NUM = 8
    SET_VRING_ADDR = 9
    SET_VRING_BASE = 10
    GET_VRING_BASE = 11
    SET_VRING_KICK = 12
    SET_VRING_CALL = 13
    GET_PROTOCOL_FEATURES = 15
    GET_QUEUE_NUM = 17
    SET_VRING_ENABLE = 18
    GET_CONFIG = 24


PROTOCOL_FEATURES: Final = 1 << 30  # a feature bit: the two that follow can be asked for
REPLY_ACK: Final = 1 << 3
CONFIG: Final = 1 << 9
NO_DESCRIPTOR: Final = 1 << 8  # in SET_VRING_KICK and its kin

PAIR: Final = struct.Struct("<II")
U64: Final = struct.Struct("<Q")
ADDRESSES: Final = struct.Struct("<IIQQQQ")
REGION: Final = struct.Struct("<QQQQ")
CONFIG_HEAD: Final = struct.Struct("<III")
MAX_CONFIG: Final = 256  # the protocol's own limit


class UserChannel:
    def __init__(self, device: Device, there: socket.socket) -> None:
        self._device = device
        self._socket = there

    def handle(self) -> None:
        """Take one message and answer it.  Raises Gone."""
        message = channel.receive(self._socket, HEAD.size)
        try:
            request, flags, size = HEAD.unpack(message.head)
            body = channel.exactly(self._socket, size)
            failed = 0
            answer: bytes | None = None
            try:
                answer = self._act(request, body, message)
            except struct.error as error:
                raise Gone(f"request {request} with {size} bytes: {error}") from None
            except Malformed as error:
                log.error("request %d: %s", request, error)
                failed = 1
            if answer is None and flags & NEED_REPLY:
                answer = U64.pack(failed)
            if answer is not None:
                channel.send(self._socket, HEAD.pack(request, VERSION | REPLY, len(answer)) + answer)
        finally:
            message.close()

    def _act(self, request: int, body: bytes, message: Message) -> bytes | None:
        device = self._device
        match request:
            case Ask.GET_FEATURES:
                return U64.pack(FEATURES | PROTOCOL_FEATURES)
            case Ask.GET_PROTOCOL_FEATURES:
                return U64.pack(REPLY_ACK | CONFIG)
            case Ask.GET_QUEUE_NUM:
                return U64.pack(len(device.rings))
            case Ask.GET_CONFIG:
                offset, size, _ = CONFIG_HEAD.unpack_from(body)
                if size > MAX_CONFIG:
                    raise Malformed(f"a configuration of {size} bytes")
                return body[: CONFIG_HEAD.size] + U64.pack(device.table.cid)[offset : offset + size].ljust(size, b"\0")
            case Ask.SET_FEATURES:
                (device.features,) = U64.unpack(body)
            case Ask.SET_MEM_TABLE:
                self._memory(body, message)
            case Ask.SET_VRING_NUM:
                index, ring_size = PAIR.unpack_from(body)
                device.ring(index).size = ring_size
            case Ask.SET_VRING_ADDR:
                index, _, descriptors, used, available, _ = ADDRESSES.unpack_from(body)
                device.ring(index).addresses = Addresses(descriptors, used, available)
            case Ask.SET_VRING_BASE:
                index, base = PAIR.unpack_from(body)
                device.ring(index).base = base
            case Ask.GET_VRING_BASE:
                index, _ = PAIR.unpack_from(body)
                return PAIR.pack(index, device.stop(index))
            case Ask.SET_VRING_KICK:
                (word,) = U64.unpack_from(body)
                device.ring(word & 0xFF)  # a descriptor has an owner only if there is one
                device.set_kick(word & 0xFF, -1 if word & NO_DESCRIPTOR else message.take())
                device.start(word & 0xFF)
            case Ask.SET_VRING_CALL:
                (word,) = U64.unpack_from(body)
                ring = device.ring(word & 0xFF)
                ring.set_call(-1 if word & NO_DESCRIPTOR else message.take())
            case Ask.SET_VRING_ENABLE:
                index, on = PAIR.unpack_from(body)
                device.ring(index).enabled = bool(on)
                device.pump()
            case _:  # ownership, error descriptors: nothing to do
                pass
        return None

    def _memory(self, body: bytes, message: Message) -> None:
        (count,) = struct.unpack_from("<I", body)
        if len(body) < 8 + count * REGION.size or count > len(message.descriptors):
            raise Malformed(f"{count} regions of memory in {len(body)} bytes")
        regions = []
        for index in range(count):
            guest, size, user, offset = REGION.unpack_from(body, 8 + index * REGION.size)
            regions.append(Region(guest, size, user, message.descriptors[index], offset))
        self._device.memory = Memory(regions)
