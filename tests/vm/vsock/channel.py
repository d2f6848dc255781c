"""Messages from QEMU with descriptors attached, on a unix socket, as both modes have them."""

from __future__ import annotations

import array
import os
import socket
from typing import Final

MAX_DESCRIPTORS: Final = 64
MAX_BODY: Final = 1 << 14  # the longest real one, a table of 64 regions of memory, has 2 KiB
PATIENCE: Final = 5.0  # seconds for the rest of a message that has begun


class Gone(Exception):
    """QEMU hung up, or what it says makes no sense any more."""


class Message:
    """What came, and the descriptors that nobody has taken yet."""

    def __init__(self, head: bytes, descriptors: list[int]) -> None:
        self.head = head
        self.descriptors = descriptors

    def take(self, index: int = 0) -> int:
        """Own a descriptor; -1 if there is none."""
        if index >= len(self.descriptors):
            return -1
        fd, self.descriptors[index] = self.descriptors[index], -1
        return fd

    def close(self) -> None:
        for fd in self.descriptors:
            if fd >= 0:
                os.close(fd)
        self.descriptors = []


def receive(there: socket.socket, size: int) -> Message:
    """The next `size` bytes, a message's head, and its descriptors.  Raises Gone."""
    there.settimeout(PATIENCE)
    try:
        head, ancillary, _, _ = there.recvmsg(size, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS))
    except OSError as error:
        raise Gone(str(error)) from None
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    message = Message(head, list(descriptors))
    try:
        if not head:
            raise Gone("it hung up")
        message.head += exactly(there, size - len(head))
    except Gone:
        message.close()
        raise
    return message


def exactly(there: socket.socket, size: int) -> bytes:
    """`size` bytes.  Raises Gone."""
    if size > MAX_BODY:
        raise Gone(f"a message of {size} bytes")
    data = bytearray()
    while len(data) < size:
        try:
            part = there.recv(size - len(data))
        except OSError as error:
            raise Gone(str(error)) from None
        if not part:
            raise Gone("it hung up in the middle of a message")
        data += part
    return bytes(data)


def send(there: socket.socket, data: bytes) -> None:
    """Raises Gone."""
    try:
        there.sendall(data)
    except OSError as error:
        raise Gone(str(error)) from None
