"""Dialling: every scheme, every way in which it goes wrong, and nothing left open after a cancel."""

from __future__ import annotations

import socket as stdlib_socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ptymux.address import FirecrackerAddress, TcpAddress, UnixAddress, VsockAddress, parse
from ptymux.errors import ConnectionLost, DialError
from ptymux.streams import SocketByteStream, dial
from tests.ptymux.streams.tools import FakeVsockFamily, descriptors, receive_exactly, short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


async def echo(stream: trio.abc.Stream) -> None:
    async with stream:
        while data := await stream.receive_some():
            await stream.send_all(data)


async def listen_unix(
    nursery: trio.Nursery, path: Path, handler: Callable[[trio.SocketStream], Awaitable[None]]
) -> None:
    socket = trio.socket.socket(stdlib_socket.AF_UNIX)
    await socket.bind(str(path))
    socket.listen()
    await nursery.start(trio.serve_listeners, handler, [trio.SocketListener(socket)])


async def assert_echoes(stream: trio.abc.Stream) -> None:
    async with stream:
        await stream.send_all(b"hello")
        assert await receive_exactly(stream, 5) == b"hello"


async def refusal(nursery: trio.Nursery, address: Any, **arguments: Any) -> str:
    """The text of the DialError, which leaves nothing open."""
    await trio.testing.wait_all_tasks_blocked()
    before = descriptors()
    with pytest.raises(DialError) as caught:
        await dial(nursery, address, **arguments)
    assert descriptors() == before
    assert isinstance(caught.value, ConnectionLost)
    prefix = f"cannot dial {address}: "
    assert str(caught.value).startswith(prefix)
    return str(caught.value).removeprefix(prefix)


async def test_unix(nursery: trio.Nursery, folder: Path) -> None:
    await listen_unix(nursery, folder / "s", echo)
    stream = await dial(nursery, UnixAddress(str(folder / "s")))
    assert isinstance(stream, SocketByteStream)
    await assert_echoes(stream)
    nursery.cancel_scope.cancel()


async def test_unix_with_nobody_there(nursery: trio.Nursery, folder: Path) -> None:
    assert await refusal(nursery, UnixAddress(str(folder / "s"))) == "No such file or directory"
    with stdlib_socket.socket(stdlib_socket.AF_UNIX) as socket:
        socket.bind(str(folder / "s"))
    assert await refusal(nursery, UnixAddress(str(folder / "s"))) == "Connection refused"


async def test_unix_with_a_full_queue(nursery: trio.Nursery, folder: Path) -> None:
    # trio takes the EAGAIN of a full backlog for EINPROGRESS, and returns a socket that is not connected.
    path = str(folder / "s")
    with stdlib_socket.socket(stdlib_socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(0)
        with stdlib_socket.socket(stdlib_socket.AF_UNIX) as first:
            first.connect(path)
            assert await refusal(nursery, UnixAddress(path)) == "its queue of waiting connections is full"


async def test_tcp(nursery: trio.Nursery) -> None:
    listeners = await nursery.start(trio.serve_tcp, echo, 0)
    port = listeners[0].socket.getsockname()[1]
    stream = await dial(nursery, parse(f"tcp:127.0.0.1:{port}"))
    assert isinstance(stream, SocketByteStream)
    assert stream.socket.getsockopt(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_NODELAY)
    await assert_echoes(stream)
    nursery.cancel_scope.cancel()


def unused_port() -> int:
    with stdlib_socket.socket() as socket:
        socket.bind(("127.0.0.1", 0))
        port: int = socket.getsockname()[1]
        return port


class NoSuchHost(trio.abc.HostnameResolver):
    async def getaddrinfo(self, *arguments: Any) -> Any:
        raise stdlib_socket.gaierror(stdlib_socket.EAI_NONAME, "Name or service not known")

    async def getnameinfo(self, *arguments: Any) -> Any:
        raise NotImplementedError


async def test_tcp_with_nobody_there(nursery: trio.Nursery) -> None:
    assert await refusal(nursery, TcpAddress("127.0.0.1", unused_port())) == "Connection refused"
    trio.socket.set_custom_hostname_resolver(NoSuchHost())
    assert await refusal(nursery, TcpAddress("nowhere.example", 1)) == "Name or service not known"


async def test_tcp_with_a_name_that_cannot_be_one(nursery: trio.Nursery) -> None:
    assert "label" in await refusal(nursery, TcpAddress("a" * 70, 1))


async def test_vsock(nursery: trio.Nursery, folder: Path) -> None:
    family = FakeVsockFamily(folder)
    trio.socket.set_custom_socket_factory(family)
    listening = trio.socket.socket(stdlib_socket.AF_VSOCK)
    await listening.bind((0xFFFFFFFF, 5252))
    listening.listen()

    async def serve() -> None:
        socket, _ = await listening.accept()
        await echo(SocketByteStream(socket))

    nursery.start_soon(serve)
    try:
        await assert_echoes(await dial(nursery, VsockAddress(17, 5252)))
        assert family.dialled == [(17, 5252)]
        assert await refusal(nursery, VsockAddress(17, 1)) == "Connection reset by peer"
    finally:
        listening.close()


# --- firecracker ------------------------------------------------------------------------------------
class Monitor:
    """A VM monitor that takes one line and gives `answer`, in one piece or byte by byte."""

    def __init__(self, answer: bytes, *, hang_up: bool = False, bytewise: bool = False) -> None:
        self.answer = answer
        self.hang_up = hang_up
        self.bytewise = bytewise
        self.asked = b""
        self.left = trio.Event()

    async def __call__(self, stream: trio.SocketStream) -> None:
        async with stream:
            while not self.asked.endswith(b"\n"):
                self.asked += await stream.receive_some()
            for size in range(len(self.answer)) if self.bytewise else ():
                await stream.send_all(self.answer[size : size + 1])
                await trio.testing.wait_all_tasks_blocked()
            if not self.bytewise:
                await stream.send_all(self.answer)
            if not self.hang_up:
                while data := await stream.receive_some():
                    await stream.send_all(data)
        self.left.set()


async def firecracker(nursery: trio.Nursery, folder: Path, monitor: Monitor) -> FirecrackerAddress:
    await listen_unix(nursery, folder / "v", monitor)
    return FirecrackerAddress(str(folder / "v"), 5252)


@pytest.mark.parametrize("bytewise", [False, True])
async def test_firecracker(nursery: trio.Nursery, folder: Path, bytewise: bool) -> None:
    # The agent may speak at once: what follows the monitor's newline is the stream's, to the byte.
    monitor = Monitor(b"OK 1073741824\nOK 2\n", bytewise=bytewise)
    stream = await dial(nursery, await firecracker(nursery, folder, monitor))
    assert monitor.asked == b"CONNECT 5252\n"
    assert await receive_exactly(stream, 5) == b"OK 2\n"
    await assert_echoes(stream)
    nursery.cancel_scope.cancel()


HUNG_UP = "the VM monitor hung up; nothing listens on port 5252 in the guest"
ENDLESS = b"\xff" * 64


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"", HUNG_UP),
        (b"OK 12", HUNG_UP),
        (b"ERR no such port\n", r"the VM monitor answered b'ERR no such port\n' to CONNECT, not OK"),
        (b"OK\n", r"the VM monitor answered b'OK\n' to CONNECT, not OK"),
        (b"OK 1 \n", r"the VM monitor answered b'OK 1 \n' to CONNECT, not OK"),
        (b"HTTP/1.1 200 OK\r\n\r\n", r"the VM monitor answered b'HTTP/1.1 200 OK\r\n' to CONNECT, not OK"),
        (ENDLESS * 10, f"the VM monitor answered {ENDLESS!r} to CONNECT, without an end"),
    ],
)
async def test_firecracker_that_says_no(nursery: trio.Nursery, folder: Path, answer: bytes, cause: str) -> None:
    monitor = Monitor(answer, hang_up=True)
    address = await firecracker(nursery, folder, monitor)
    with pytest.raises(DialError) as caught:
        await dial(nursery, address)
    assert str(caught.value) == f"cannot dial {address}: {cause}"
    await monitor.left.wait()
    nursery.cancel_scope.cancel()


async def test_firecracker_without_a_monitor(nursery: trio.Nursery, folder: Path) -> None:
    assert await refusal(nursery, FirecrackerAddress(str(folder / "v"), 1)) == "No such file or directory"


async def test_firecracker_that_says_nothing_can_be_given_up(nursery: trio.Nursery, folder: Path) -> None:
    monitor = Monitor(b"OK 10737")
    address = await firecracker(nursery, folder, monitor)
    before = descriptors()
    with trio.CancelScope() as scope:
        nursery.start_soon(cancel_when_blocked, scope)
        await dial(nursery, address)
    assert scope.cancelled_caught
    await monitor.left.wait()  # the monitor saw the end
    assert descriptors() == before
    nursery.cancel_scope.cancel()


async def cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked(0.01)
    scope.cancel()


# --- import ---------------------------------------------------------------------------------------
def test_the_websocket_library_is_imported_only_where_one_is_dialled() -> None:
    script = "import sys, ptymux.streams; sys.exit('trio_websocket' in sys.modules or 'wsproto' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
