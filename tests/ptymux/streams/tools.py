"""What the tests of the streams and of the listeners share."""

from __future__ import annotations

import os
import select
import socket as stdlib_socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from ptymux.streams.sockets import SocketByteStream
from ptymux.streams.websocket import WebSocketByteStream, client_handshake, server_handshake


@contextmanager
def short_folder() -> Iterator[Path]:
    """A temporary folder whose path leaves room in sun_path; pytest's own may not."""
    with tempfile.TemporaryDirectory(prefix="ptymux-", dir="/tmp") as folder:
        yield Path(folder)


def descriptors() -> set[str]:
    """What this process has open: "fd target"."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return found


async def both(first: Callable[[], Awaitable[Any]], second: Callable[[], Awaitable[Any]]) -> tuple[Any, Any]:
    """The results of two calls that wait for each other."""
    results: dict[int, Any] = {}

    async def run(number: int, call: Callable[[], Awaitable[Any]]) -> None:
        results[number] = await call()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, 0, first)
        nursery.start_soon(run, 1, second)
    return results[0], results[1]


async def websocket_pair(
    nursery: trio.Nursery, left: trio.abc.Stream, right: trio.abc.Stream
) -> tuple[WebSocketByteStream, WebSocketByteStream]:
    """(client, server) over a pair of streams."""
    return await both(
        lambda: client_handshake(nursery, left, host="agent"),
        lambda: server_handshake(nursery, right, refuse=lambda _: None),
    )


def socket_pair() -> tuple[SocketByteStream, SocketByteStream]:
    left, right = trio.socket.socketpair()
    return SocketByteStream(left), SocketByteStream(right)


def clog(stream: SocketByteStream) -> int:
    """Fill the way to a peer that does not read, until not one byte more fits.  The bytes that did."""
    poll = select.poll()
    poll.register(stream.socket.fileno(), select.POLLOUT)
    sent = 0
    while True:
        for size in (65536, 1):  # a unix socket may have no room for much, and still some for little
            while taken := stream.try_send([b"x" * size]):
                sent += taken
        if not poll.poll(0):
            return sent


async def receive_exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        assert piece, f"the stream ended after {len(data)} of {size} bytes"
        data += piece
    return bytes(data)


async def receive_all(stream: trio.abc.ReceiveStream) -> bytes:
    data = bytearray()
    while piece := await stream.receive_some():
        data += piece
    return bytes(data)


class FakeVsock(trio.socket.SocketType):
    """An AF_VSOCK socket that is a unix one inside.  The machine's own vsock is not ours to open."""

    def __init__(self, family: FakeVsockFamily, inner: trio.socket.SocketType | None = None) -> None:
        super().__init__()
        self._family = family
        self._inner = inner or trio.socket.from_stdlib_socket(
            stdlib_socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM)
        )

    async def bind(self, address: Any) -> None:
        cid, port = address
        self._family.bound.append((cid, port))
        await self._inner.bind(self._family.path("any", port))

    async def connect(self, address: Any) -> None:
        cid, port = address
        self._family.dialled.append((cid, port))
        self._family.next_port += 1
        await self._inner.bind(self._family.path(str(self._family.own_cid), self._family.next_port))
        try:
            await self._inner.connect(self._family.path("any", port))
        except FileNotFoundError:
            # What Linux gives where nobody listens.
            raise ConnectionResetError(104, "Connection reset by peer") from None

    async def accept(self) -> Any:
        if self._family.accept_errors:
            await trio.lowlevel.checkpoint()
            number = self._family.accept_errors.pop(0)
            raise OSError(number, os.strerror(number))
        inner, path = await self._inner.accept()
        cid, port = Path(str(path)).name.split(".")
        return FakeVsock(self._family, inner), (int(cid), int(port))

    @property
    def family(self) -> Any:
        return stdlib_socket.AF_VSOCK

    @property
    def type(self) -> Any:
        return stdlib_socket.SOCK_STREAM

    @property
    def did_shutdown_SHUT_WR(self) -> bool:
        return self._inner.did_shutdown_SHUT_WR

    def __repr__(self) -> str:
        return f"FakeVsock({self._inner!r})"

    # The rest is the inner socket's.  The base class defines all of it, to raise, so __getattr__ would not be asked.
    def fileno(self) -> int:
        return self._inner.fileno()

    def setsockopt(self, *args: Any) -> None:
        self._inner.setsockopt(*args)

    def getsockopt(self, *args: Any) -> Any:
        return self._inner.getsockopt(*args)

    def listen(self, backlog: int = 128) -> None:
        self._inner.listen(backlog)

    def shutdown(self, how: int) -> None:
        self._inner.shutdown(how)

    def close(self) -> None:
        self._inner.close()

    async def wait_writable(self) -> None:
        await self._inner.wait_writable()

    async def send(self, *args: Any) -> int:
        return await self._inner.send(*args)

    async def recv(self, *args: Any) -> bytes:
        return await self._inner.recv(*args)


class FakeVsockFamily(trio.abc.SocketFactory):
    """Makes AF_VSOCK sockets of `own_cid` that meet in a folder; every other family stays real.

    ``trio.socket.set_custom_socket_factory(FakeVsockFamily(folder))`` lasts for one run of trio, which is one test.
    """

    def __init__(self, folder: Path, own_cid: int = 2) -> None:
        self._folder = folder
        self.own_cid = own_cid
        self.next_port = 1023
        self.bound: list[tuple[int, int]] = []
        self.dialled: list[tuple[int, int]] = []
        self.accept_errors: list[int] = []  # errnos that the next accepts raise

    def path(self, cid: str, port: int) -> str:
        return str(self._folder / f"{cid}.{port}")

    def socket(
        self,
        family: Any = stdlib_socket.AF_INET,
        type: Any = stdlib_socket.SOCK_STREAM,
        proto: int = 0,
    ) -> trio.socket.SocketType:
        if family == stdlib_socket.AF_VSOCK:
            return FakeVsock(self)
        return trio.socket.from_stdlib_socket(stdlib_socket.socket(family, type, proto))
