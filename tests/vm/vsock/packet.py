"""The header in front of every packet (virtio 1.2, section 5.10.6), little-endian."""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

HOST_CID: Final = 2
STREAM: Final = 1  # the only type of socket that this device offers
MAX_PAYLOAD: Final = 64 * 1024  # as Linux: VIRTIO_VSOCK_MAX_PKT_BUF_SIZE
WRAP: Final = 1 << 32  # credit counters are 32 bits wide and wrap

SHUTDOWN_RECEIVE: Final = 1  # flags of SHUTDOWN: its sender will receive no more ...
SHUTDOWN_SEND: Final = 2  # ... or send no more

_LAYOUT: Final = struct.Struct("<QQIIIHHIII")
HEADER_SIZE: Final = _LAYOUT.size


class Op(enum.IntEnum):
    REQUEST = 1
    RESPONSE = 2
    RST = 3
    SHUTDOWN = 4
    RW = 5
    CREDIT_UPDATE = 6
    CREDIT_REQUEST = 7


class Header(NamedTuple):
    source_cid: int
    target_cid: int
    source_port: int
    target_port: int
    length: int  # of the payload
    type: int
    op: int  # an Op, or whatever the guest wrote
    flags: int
    buffer: int  # the sender's room for one stream, in bytes ...
    forwarded: int  # ... and how much of it its program has taken so far

    def pack(self) -> bytes:
        return _LAYOUT.pack(*self)

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Header:
        """From the first HEADER_SIZE bytes of `data`, of which there must be so many."""
        return cls(*_LAYOUT.unpack_from(data))
