"""What QEMU says, and what somebody who is not QEMU could say."""

from __future__ import annotations

import array
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vm.vsock.channel import MAX_BODY, Gone
from tests.vm.vsock.device import FEATURES, Device
from tests.vm.vsock.ioctl import IoctlChannel
from tests.vm.vsock.loop import Loop
from tests.vm.vsock.user import NEED_REPLY, PROTOCOL_FEATURES, Ask, UserChannel


class Front:
    """QEMU's end of a channel."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.loop = Loop()
        self.device = Device(3, str(folder / "v.sock"), self.loop)
        self.socket, there = socket.socketpair()
        self.socket.settimeout(5)
        self.channel = (UserChannel if mode == "user" else IoctlChannel)(self.device, there)
        self._there = there

    def close(self) -> None:
        self.socket.close()
        self._there.close()
        self.device.close()
        self.loop.close()

    def send(self, data: bytes, *fds: int) -> None:
        self.socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
        self.channel.handle()

    def ask(self, request: int, body: bytes = b"", *fds: int, flags: int = 1) -> None:
        self.send(struct.pack("<III", request, flags, len(body)) + body, *fds)

    def answer(self) -> bytes:
        _, _, size = struct.unpack("<III", self.socket.recv(12))
        return self.socket.recv(size)

    def ioctl(self, number: int, body: bytes, direction: int, *fds: int) -> tuple[int, bytes]:
        request = direction << 30 | len(body) << 16 | 0xAF00 | number
        self.send(struct.pack("<II", request & 0xFFFFFFFF, len(body)) + body, *fds)
        result, size = struct.unpack("<iI", self.socket.recv(8))
        return result, self.socket.recv(size) if size else b""


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Front]:
    front = Front(tmp_path, "user")
    yield front
    front.close()


@pytest.fixture
def ioctl(tmp_path: Path) -> Iterator[Front]:
    front = Front(tmp_path, "ioctl")
    yield front
    front.close()


def memory() -> int:
    fd = os.memfd_create("guest")
    os.ftruncate(fd, 1 << 20)
    return fd


def test_user_features_and_cid(user: Front) -> None:
    user.ask(Ask.GET_FEATURES)
    assert struct.unpack("<Q", user.answer()) == (FEATURES | PROTOCOL_FEATURES,)
    user.ask(Ask.GET_CONFIG, struct.pack("<III", 0, 8, 0) + bytes(8))
    assert struct.unpack_from("<Q", user.answer(), 12) == (3,)


def test_user_sets_a_ring_up(user: Front) -> None:
    fd, kick = memory(), os.eventfd(0)
    user.ask(Ask.SET_MEM_TABLE, struct.pack("<II", 1, 0) + struct.pack("<QQQQ", 0, 1 << 20, 0x7000, 0), fd)
    user.ask(Ask.SET_VRING_NUM, struct.pack("<II", 0, 8))
    user.ask(Ask.SET_VRING_ADDR, struct.pack("<IIQQQQ", 0, 0, 0x7000, 0x8000, 0x9000, 0))
    user.ask(Ask.SET_VRING_BASE, struct.pack("<II", 0, 0))
    user.ask(Ask.SET_VRING_KICK, struct.pack("<Q", 0), kick, flags=1 | NEED_REPLY)
    assert user.answer() == bytes(8)
    assert user.device.ring(0).running
    user.ask(Ask.GET_VRING_BASE, struct.pack("<II", 0, 0))
    assert struct.unpack("<II", user.answer()) == (0, 0)
    assert not user.device.ring(0).running
    os.close(fd)
    os.close(kick)


@pytest.mark.parametrize(
    ("request_", "body"),
    [
        (Ask.SET_VRING_NUM, struct.pack("<II", 7, 8)),
        (Ask.SET_VRING_KICK, struct.pack("<Q", 0)),  # started without addresses
        (Ask.SET_VRING_KICK, struct.pack("<Q", 200)),
        (Ask.SET_VRING_CALL, struct.pack("<Q", 3)),
        (Ask.SET_MEM_TABLE, struct.pack("<II", 0xFFFFFFFF, 0)),
        (Ask.SET_MEM_TABLE, struct.pack("<II", 1, 0) + bytes(32)),  # no descriptor
        (Ask.GET_CONFIG, struct.pack("<III", 0, 1 << 31, 0)),
    ],
)
def test_user_requests_that_fail(user: Front, request_: int, body: bytes) -> None:
    """They are answered, and no descriptor is left open."""
    kick = os.eventfd(0)
    before = len(os.listdir("/proc/self/fd"))
    user.ask(request_, body, kick, flags=1 | NEED_REPLY)
    assert struct.unpack("<Q", user.answer()) == (1,)
    user.device.disconnected()
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(kick)


def test_a_ring_that_cannot_start_breaks_the_device(user: Front) -> None:
    user.ask(Ask.SET_VRING_KICK, struct.pack("<Q", 0), flags=1 | NEED_REPLY)
    user.answer()
    assert user.device.broken is not None


@pytest.mark.parametrize("data", [struct.pack("<III", 5, 1, MAX_BODY + 1), struct.pack("<III", 8, 1, 2) + b"xx"])
def test_user_messages_that_are_none(user: Front, data: bytes) -> None:
    with pytest.raises(Gone):
        user.send(data)


def test_a_message_that_breaks_off(user: Front) -> None:
    user.socket.sendall(b"half")
    user.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(Gone):
        user.channel.handle()


def test_ioctl_features_and_cid(ioctl: Front) -> None:
    result, answer = ioctl.ioctl(0x00, bytes(8), 2)
    assert result == 0
    assert struct.unpack("<Q", answer)[0] & FEATURES == FEATURES
    assert ioctl.ioctl(0x60, struct.pack("<Q", 42), 1) == (0, b"")
    assert ioctl.device.table.cid == 42


@pytest.mark.parametrize(
    ("number", "body"),
    [
        (0x10, struct.pack("<II", 9, 8)),
        (0x61, struct.pack("<i", 1)),  # running, without rings
        (0x03, struct.pack("<II", 0xFFFFFFFF, 0)),
        (0x20, struct.pack("<Ii", 9, 5)),
        (0x77, b""),
    ],
)
def test_ioctls_that_fail(ioctl: Front, number: int, body: bytes) -> None:
    result, answer = ioctl.ioctl(number, body, 1)
    assert result < 0
    assert answer == b""


@settings(max_examples=100)
@given(st.integers(0, 255), st.binary(max_size=64), st.sampled_from(["user", "ioctl"]))
def test_garbage(tmp_path_factory: pytest.TempPathFactory, number: int, body: bytes, mode: str) -> None:
    """An answer, or Gone; nothing else is raised."""
    front = Front(tmp_path_factory.mktemp("g"), mode)
    try:
        if mode == "user":
            front.ask(number, body, flags=1 | NEED_REPLY)
        else:
            front.ioctl(number, body, 1)
    except Gone:
        pass
    finally:
        front.close()
