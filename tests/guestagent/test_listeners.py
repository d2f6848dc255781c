"""Listeners: who may come in, what goes wrong at start and at accept, and what a connection's end does to the others."""

from __future__ import annotations

import errno
import logging
import os
import socket as stdlib_socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import trustme

from guestagent.listeners import (
    Handler,
    Listener,
    ListenError,
    Options,
    Peer,
    UnixListener,
    VsockListener,
    bind,
)
from guestagent.listeners import base as listeners_base
from guestagent.listeners.base import LINGER_TIME
from ptymux import limits, messages
from ptymux.address import (
    FirecrackerAddress,
    TcpAddress,
    UnixAddress,
    VsockAddress,
    WebSocketAddress,
)
from ptymux.errors import DialError
from ptymux.streams import SocketByteStream, dial
from ptymux.streams.websocket import WebSocketByteStream
from tests.ptymux.streams.tools import (
    FakeVsockFamily,
    descriptors,
    receive_all,
    receive_exactly,
    short_folder,
)

ME = os.geteuid()
VIEWER = Options(max_role="viewer")


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture(autouse=True)
def _nothing_left_open(folder: Path) -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() == before


class Echo:
    """A handler that remembers its peers."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.streams: list[trio.abc.Stream] = []

    async def __call__(self, stream: trio.abc.Stream, peer: Peer) -> None:
        self.peers.append(peer)
        self.streams.append(stream)
        while data := await stream.receive_some():
            await stream.send_all(data)


async def serve(nursery: trio.Nursery, listener: Listener, handler: Handler) -> None:
    await nursery.start(listener.serve, handler)


async def assert_echoes(stream: trio.abc.Stream) -> None:
    async with stream:
        await stream.send_all(b"hello")
        assert await receive_exactly(stream, 5) == b"hello"


async def assert_unauthorized(stream: trio.abc.Stream) -> None:
    """Told so in one frame, and nothing else."""
    data = await receive_all(stream)
    await stream.aclose()
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    message = messages.decode(memoryview(data)[4:], messages.AGENT)
    assert message == messages.Error("unauthorized", "this peer is not allowed here", True)


# --- unix -----------------------------------------------------------------------------------------
async def test_unix(nursery: trio.Nursery, folder: Path) -> None:
    address = UnixAddress(str(folder / "s"))
    echo = Echo()
    listener = await bind(address, Options(max_role="controller", send_buffer=16384))
    assert listener.address == address
    assert stat.S_IMODE(os.stat(address.path).st_mode) == 0o600
    await serve(nursery, listener, echo)
    await assert_echoes(await dial(nursery, address))
    (peer,) = echo.peers
    assert peer == Peer(
        "unix",
        f"unix uid {ME} pid {os.getpid()}",
        "controller",
        trusted=True,
        uid=ME,
        pid=os.getpid(),
        accepted=peer.accepted,
    )
    assert peer.accepted is not None
    assert abs(trio.current_time() - peer.accepted) < 60
    (stream,) = echo.streams
    assert isinstance(stream, SocketByteStream)
    nursery.cancel_scope.cancel()


async def test_unix_send_buffer(nursery: trio.Nursery, folder: Path) -> None:
    address = UnixAddress(str(folder / "s"))
    sizes: list[int] = []

    async def handler(stream: trio.abc.Stream, peer: Peer) -> None:
        assert isinstance(stream, SocketByteStream)
        sizes.append(stream.socket.getsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_SNDBUF))

    await serve(nursery, await bind(address, Options(max_role="viewer", send_buffer=16384)), handler)
    async with await dial(nursery, address) as stream:
        assert await receive_all(stream) == b""
    assert sizes == [2 * 16384]
    nursery.cancel_scope.cancel()


async def test_unix_mode_and_the_end_of_its_file(nursery: trio.Nursery, folder: Path) -> None:
    path = folder / "s"
    listener = await bind(UnixAddress(str(path)), Options(max_role="viewer", mode=0o660))
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    async with trio.open_nursery() as inner:
        await inner.start(listener.serve, Echo())
        inner.cancel_scope.cancel()
    assert not path.exists()


async def test_unix_leaves_the_file_of_its_successor_alone(folder: Path) -> None:
    path = folder / "s"
    first = await bind(UnixAddress(str(path)), VIEWER)
    path.unlink()
    second = await bind(UnixAddress(str(path)), VIEWER)
    first.close()
    assert path.exists()
    second.close()
    assert not path.exists()
    second.close()


@pytest.mark.parametrize(
    ("uid", "allowed", "comes_in"),
    [(ME, (), True), (0, (), True), (4711, (4711, 4712), True), (4711, (), False), (4711, (4712,), False)],
)
async def test_unix_lets_in_by_uid(
    nursery: trio.Nursery, folder: Path, caplog: pytest.LogCaptureFixture, uid: int, allowed: Any, comes_in: bool
) -> None:
    address = UnixAddress(str(folder / "s"))
    echo = Echo()
    listener = UnixListener.bind(address, max_role="admin", uids=allowed, credentials=lambda _: (uid, 17))
    await serve(nursery, listener, echo)
    stream = await dial(nursery, address)
    if comes_in:
        await assert_echoes(stream)
        assert (echo.peers[0].uid, echo.peers[0].pid, echo.peers[0].trusted) == (uid, 17, True)
    else:
        await stream.send_all(b"a hello that nobody reads")  # must not cost it the answer
        await assert_unauthorized(stream)
        assert not echo.peers
        assert f"refused a connection on {address}: uid {uid} (pid 17) is not allowed" in caplog.text
    nursery.cancel_scope.cancel()


async def test_unix_replaces_a_socket_that_nobody_listens_on(nursery: trio.Nursery, folder: Path) -> None:
    path = folder / "s"
    address = UnixAddress(str(path))
    with stdlib_socket.socket(stdlib_socket.AF_UNIX) as socket:
        socket.bind(address.path)
        socket.listen()
    assert path.exists()  # as a killed agent leaves it
    await serve(nursery, await bind(address, VIEWER), Echo())
    await assert_echoes(await dial(nursery, address))
    nursery.cancel_scope.cancel()


async def refusal(address: Any, options: Options = VIEWER) -> ListenError:
    with pytest.raises(ListenError) as caught:
        await bind(address, options)
    assert isinstance(caught.value, OSError)
    assert str(caught.value).startswith(f"cannot listen on {address}: ")
    return caught.value


async def test_unix_replaces_nothing_else(nursery: trio.Nursery, folder: Path) -> None:
    path = folder / "s"
    address = UnixAddress(str(path))
    with stdlib_socket.socket(stdlib_socket.AF_UNIX) as socket:
        socket.bind(address.path)
        socket.listen(0)
        error = await refusal(address)
        assert error.errno == errno.EADDRINUSE
        assert str(error) == f"cannot listen on {address}: another process listens there"
        # The first look was a connection that now fills the queue.  Busy is not stale.
        assert (await refusal(address)).errno == errno.EADDRINUSE
    path.unlink()
    path.write_text("precious")
    error = await refusal(address)
    assert error.errno == errno.EADDRINUSE
    assert str(error) == f"cannot listen on {address}: the path exists and is not a socket"
    assert path.read_text() == "precious"
    error = await refusal(UnixAddress(str(folder / "no" / "s")))
    assert error.errno == errno.ENOENT
    assert str(error).endswith(": No such file or directory")


# --- vsock, a fake one ----------------------------------------------------------------------------
@pytest.fixture
def vsock(folder: Path) -> FakeVsockFamily:
    return FakeVsockFamily(folder)


async def test_vsock_lets_in_the_host(nursery: trio.Nursery, vsock: FakeVsockFamily) -> None:
    trio.socket.set_custom_socket_factory(vsock)
    echo = Echo()
    address = VsockAddress(0xFFFFFFFF, 5252)
    await serve(nursery, await bind(address, Options(max_role="admin")), echo)
    assert vsock.bound == [(0xFFFFFFFF, 5252)]
    await assert_echoes(await dial(nursery, VsockAddress(17, 5252)))
    (peer,) = echo.peers
    assert peer == Peer("vsock", "vsock CID 2 port 1024", "admin", trusted=True, cid=2, accepted=peer.accepted)
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("cid", [1, 3])
async def test_vsock_refuses_everybody_else(
    nursery: trio.Nursery, vsock: FakeVsockFamily, caplog: pytest.LogCaptureFixture, cid: int
) -> None:
    trio.socket.set_custom_socket_factory(vsock)
    vsock.own_cid = cid
    echo = Echo()
    await serve(nursery, await bind(VsockAddress(0xFFFFFFFF, 5252), VIEWER), echo)
    await assert_unauthorized(await dial(nursery, VsockAddress(17, 5252)))
    assert not echo.peers
    assert f"CID {cid} is not allowed" in caplog.text
    nursery.cancel_scope.cancel()


async def test_vsock_lets_in_who_is_configured(nursery: trio.Nursery, vsock: FakeVsockFamily) -> None:
    trio.socket.set_custom_socket_factory(vsock)
    echo = Echo()
    await serve(nursery, await bind(VsockAddress(0xFFFFFFFF, 5252), Options(max_role="viewer", cids=(1, 3))), echo)
    vsock.own_cid = 3
    await assert_echoes(await dial(nursery, VsockAddress(17, 5252)))
    vsock.own_cid = 2
    await assert_unauthorized(await dial(nursery, VsockAddress(17, 5252)))
    assert [peer.cid for peer in echo.peers] == [3]
    nursery.cancel_scope.cancel()


class NoVsock(trio.abc.SocketFactory):
    def socket(self, *arguments: Any) -> Any:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))


async def test_vsock_that_the_kernel_does_not_have() -> None:
    trio.socket.set_custom_socket_factory(NoVsock())
    error = await refusal(VsockAddress(0xFFFFFFFF, 5252))
    assert str(error).endswith("Address family not supported by protocol")


async def test_vsock_port_that_is_taken(vsock: FakeVsockFamily) -> None:
    trio.socket.set_custom_socket_factory(vsock)
    address = VsockAddress(0xFFFFFFFF, 5252)
    listener = await VsockListener.bind(address, max_role="admin")
    assert (await refusal(address)).errno == errno.EADDRINUSE
    listener.close()


# --- tcp ------------------------------------------------------------------------------------------
async def test_tcp(nursery: trio.Nursery) -> None:
    echo = Echo()
    listener = await bind(TcpAddress("127.0.0.1", 0), Options(max_role="controller"))
    assert isinstance(listener.address, TcpAddress)
    assert listener.address.port != 0
    await serve(nursery, listener, echo)
    stream = await dial(nursery, listener.address)
    assert isinstance(stream, SocketByteStream)
    port = stream.socket.getsockname()[1]
    await assert_echoes(stream)
    (peer,) = echo.peers
    assert peer == Peer("tcp", f"tcp 127.0.0.1:{port}", "controller", trusted=False, accepted=peer.accepted)
    nursery.cancel_scope.cancel()


async def test_tcp_port_that_is_taken() -> None:
    listener = await bind(TcpAddress("127.0.0.1", 0), VIEWER)
    assert isinstance(listener.address, TcpAddress)
    error = await refusal(listener.address)
    assert error.errno == errno.EADDRINUSE
    assert str(error).endswith(": Address already in use")
    listener.close()
    assert "label" in str(await refusal(TcpAddress("a" * 70, 0)))


async def test_there_is_no_firecracker_in_a_guest() -> None:
    assert "listen on vsock:any:PORT" in str(await refusal(FirecrackerAddress("/v.sock", 1)))


# --- websocket ------------------------------------------------------------------------------------
async def websocket(nursery: trio.Nursery, handler: Handler, **options: Any) -> WebSocketAddress:
    tls = options.get("ssl_context") is not None
    listener = await bind(WebSocketAddress("127.0.0.1", 0, tls=tls), Options(max_role="controller", **options))
    await serve(nursery, listener, handler)
    assert isinstance(listener.address, WebSocketAddress)
    return listener.address


async def test_websocket(nursery: trio.Nursery) -> None:
    echo = Echo()
    address = await websocket(nursery, echo)
    stream = await dial(nursery, address)
    await assert_echoes(stream)
    (peer,) = echo.peers
    assert (peer.kind, peer.max_role, peer.trusted) == ("websocket", "controller", False)
    assert peer.description.startswith("websocket 127.0.0.1:")
    assert isinstance(echo.streams[0], WebSocketByteStream)
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("origins", "origin", "comes_in"),
    [
        ((), None, True),  # no browser
        ((), "https://evil.example", False),
        (("https://good.example",), "https://good.example", True),
        (("https://Good.example/",), "https://good.example", True),
        (("https://good.example",), "https://good.example:8443", False),
        (("https://good.example",), "http://good.example", False),
        (("https://good.example",), "https://good.example.evil.example", False),
        (("https://good.example",), "null", False),
        (("https://good.example",), "", False),
        (("null",), "null", True),
        (("*",), "https://evil.example", True),
    ],
)
async def test_websocket_lets_in_by_origin(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture, origins: Any, origin: str | None, comes_in: bool
) -> None:
    echo = Echo()
    address = await websocket(nursery, echo, origins=origins)
    connect = partial(dial, nursery, address, extra_headers=[] if origin is None else [(b"Origin", origin.encode())])
    if comes_in:
        await assert_echoes(await connect())
        assert len(echo.peers) == 1
    else:
        with pytest.raises(DialError, match=rf"cannot dial {address}: the server answered 403: origin .* not allowed"):
            await connect()
        assert not echo.peers
        await trio.testing.wait_all_tasks_blocked()
        assert f"origin {origin} is not allowed" in caplog.text
    nursery.cancel_scope.cancel()


async def test_websocket_with_two_origins_needs_both(nursery: trio.Nursery) -> None:
    address = await websocket(nursery, Echo(), origins=["https://good.example"])
    with pytest.raises(DialError, match="403"):
        await dial(
            nursery,
            address,
            extra_headers=[(b"Origin", b"https://good.example"), (b"Origin", b"https://evil.example")],
        )
    nursery.cancel_scope.cancel()


async def test_websocket_over_tls(nursery: trio.Nursery, caplog: pytest.LogCaptureFixture) -> None:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    echo = Echo()
    address = await websocket(nursery, echo, ssl_context=server)
    assert str(address).startswith("wss://")
    await assert_echoes(await dial(nursery, address, ssl_context=client))
    with pytest.raises(DialError, match="certificate verify failed"):
        await dial(nursery, address)
    with pytest.raises(DialError):
        await dial(nursery, WebSocketAddress(address.host, address.port))
    await trio.testing.wait_all_tasks_blocked()
    assert len(echo.peers) == 1
    assert "refused a connection on wss://" in caplog.text
    nursery.cancel_scope.cancel()


async def test_websocket_over_tls_needs_a_certificate() -> None:
    error = await refusal(WebSocketAddress("127.0.0.1", 0, tls=True))
    assert str(error).endswith("TLS needs a certificate and its key")


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:"])
async def test_a_slow_handshake_is_dropped(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
    tls: bool,
    sent: bytes,
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    echo = Echo()
    address = await websocket(nursery, echo, ssl_context=context if tls else None)
    if tls and sent:
        sent = b"\x16\x03\x01\x02\x00\x01"  # the beginning of a ClientHello
    stream = await dial(nursery, TcpAddress(address.host, address.port))
    start = trio.current_time()
    await stream.send_all(sent)
    assert await receive_all(stream) == b""
    assert trio.current_time() - start == pytest.approx(limits.GREETING_TIME, abs=0.1)
    await stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert "no handshake within 5.0 s" in caplog.text
    assert not echo.peers
    nursery.cancel_scope.cancel()


async def test_garbage_for_a_handshake_is_one_line(nursery: trio.Nursery, caplog: pytest.LogCaptureFixture) -> None:
    address = await websocket(nursery, Echo())
    stream = await dial(nursery, TcpAddress(address.host, address.port))
    await stream.send_all(b"\x00\x00\x00\x05hello\r\n\r\n")
    answer = await receive_all(stream)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    await stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert [record.levelname for record in caplog.records if record.name == "guestagent.listeners"] == ["WARNING"]
    await assert_echoes(await dial(nursery, address))
    nursery.cancel_scope.cancel()


# --- accept, and the end of connections -------------------------------------------------------------
async def test_accept_survives_a_lack_of_descriptors(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    vsock: FakeVsockFamily,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trio.socket.set_custom_socket_factory(vsock)
    capacity = [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EMFILE]
    vsock.accept_errors = [errno.ECONNABORTED, *capacity, errno.EPROTO]
    await serve(nursery, await bind(VsockAddress(0xFFFFFFFF, 5252), VIEWER), Echo())
    start = trio.current_time()
    await assert_echoes(await dial(nursery, VsockAddress(17, 5252)))
    # Five pauses, no more and no less: neither a busy loop nor a dead listener.
    assert trio.current_time() - start == pytest.approx(len(capacity) * 0.1)
    lines = [record.getMessage() for record in caplog.records if record.name == "guestagent.listeners"]
    assert lines == [
        "cannot accept on vsock:4294967295:5252: Too many open files; trying again every 0.1 s",
        "accepting on vsock:4294967295:5252 again",
    ]
    nursery.cancel_scope.cancel()


async def test_an_exception_ends_its_connection_only(
    nursery: trio.Nursery, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = UnixAddress(str(folder / "s"))
    served = 0

    async def handler(stream: trio.abc.Stream, peer: Peer) -> None:
        nonlocal served
        served += 1
        if served == 1:
            raise RuntimeError("a bug")
        if served == 2:
            raise ExceptionGroup("two", [RuntimeError("another"), ValueError("bug")])
        if served == 3:
            await stream.aclose()
            await stream.receive_some()  # a closed stream is no bug
        await Echo()(stream, peer)

    await serve(nursery, await bind(address, VIEWER), handler)
    for _ in range(3):
        async with await dial(nursery, address) as stream:
            assert await receive_all(stream) == b""
    await assert_echoes(await dial(nursery, address))
    assert caplog.text.count("Traceback") == 2
    assert "a bug" in caplog.text
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["unix", "tcp", "websocket"])
async def test_the_stream_is_closed_when_the_handler_returns(nursery: trio.Nursery, folder: Path, kind: str) -> None:
    streams: list[trio.abc.Stream] = []

    async def handler(stream: trio.abc.Stream, peer: Peer) -> None:
        streams.append(stream)
        await stream.send_all(b"bye")

    address: Any = {
        "unix": UnixAddress(str(folder / "s")),
        "tcp": TcpAddress("127.0.0.1", 0),
        "websocket": WebSocketAddress("127.0.0.1", 0),
    }[kind]
    listener = await bind(address, VIEWER)
    await serve(nursery, listener, handler)
    async with await dial(nursery, listener.address) as stream:
        assert await receive_all(stream) == b"bye"
    await trio.testing.wait_all_tasks_blocked()
    for closed in streams:
        with pytest.raises(trio.ClosedResourceError):
            await closed.send_all(b"x")
    nursery.cancel_scope.cancel()


async def test_last_words_arrive_although_the_peer_was_still_talking(nursery: trio.Nursery) -> None:
    # A close with unread bytes in the socket is a reset, and a reset may overtake what was sent before.
    async def handler(stream: trio.abc.Stream, peer: Peer) -> None:
        await stream.receive_some(1)
        await stream.send_all(b"last words")

    listener = await bind(TcpAddress("127.0.0.1", 0), VIEWER)
    await serve(nursery, listener, handler)
    async with await dial(nursery, listener.address) as stream:
        await stream.send_all(b"x" * 100_000)
        await trio.testing.wait_all_tasks_blocked()
        assert await receive_all(stream) == b"last words"
    nursery.cancel_scope.cancel()


async def test_a_peer_that_does_not_hang_up_is_not_waited_for(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, folder: Path
) -> None:
    async def handler(stream: trio.abc.Stream, peer: Peer) -> None:
        pass

    address = UnixAddress(str(folder / "s"))
    await serve(nursery, await bind(address, VIEWER), handler)
    async with await dial(nursery, address) as stream:
        assert await receive_all(stream) == b""
        await stream.send_all(b"x")
        await trio.sleep(LINGER_TIME + 0.1)
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"x")
    nursery.cancel_scope.cancel()


async def test_close_ends_the_listening_and_not_the_connections(nursery: trio.Nursery, folder: Path) -> None:
    address = UnixAddress(str(folder / "s"))
    listener = await bind(address, VIEWER)
    done = trio.Event()

    async def run() -> None:
        await listener.serve(Echo())
        done.set()

    nursery.start_soon(run)
    stream = await dial(nursery, address)
    await stream.send_all(b"1")
    assert await receive_exactly(stream, 1) == b"1"
    listener.close()
    with pytest.raises(DialError):
        await dial(nursery, address)
    await assert_echoes(stream)
    await done.wait()


async def test_cancelling_closes_the_connections(folder: Path) -> None:
    address = UnixAddress(str(folder / "s"))
    listener = await bind(address, VIEWER)
    async with trio.open_nursery() as nursery:
        await serve(nursery, listener, Echo())
        stream = await dial(nursery, address)
        await stream.send_all(b"1")
        assert await receive_exactly(stream, 1) == b"1"
        nursery.cancel_scope.cancel()
    assert await receive_all(stream) == b""
    await stream.aclose()


async def test_the_number_of_open_connections_is_bounded(
    nursery: trio.Nursery, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners_base, "MAX_OPEN", 3)
    address = UnixAddress(str(folder / "s"))
    await serve(nursery, await bind(address, VIEWER), Echo())
    streams = [await dial(nursery, address) for _ in range(3)]
    await trio.testing.wait_all_tasks_blocked()
    async with await dial(nursery, address) as stream:
        assert await receive_all(stream) == b""
    assert f"refused a connection on {address}: 3 connections are open" in caplog.text
    await streams.pop().aclose()
    await trio.testing.wait_all_tasks_blocked()
    await assert_echoes(await dial(nursery, address))
    for stream in streams:
        await stream.aclose()
    nursery.cancel_scope.cancel()


async def test_a_flood_of_refusals_is_not_a_flood_of_lines(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = UnixAddress(str(folder / "s"))
    listener = UnixListener.bind(address, max_role="admin", credentials=lambda _: (4711, 17))
    await serve(nursery, listener, Echo())
    for _ in range(5):
        await assert_unauthorized(await dial(nursery, address))
    await trio.sleep(2)
    await assert_unauthorized(await dial(nursery, address))
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines == [
        f"refused a connection on {address}: uid 4711 (pid 17) is not allowed",
        f"refused a connection on {address}: uid 4711 (pid 17) is not allowed (and 4 more)",
    ]
    nursery.cancel_scope.cancel()


def test_the_websocket_library_is_imported_only_where_one_is_bound() -> None:
    script = "import sys, guestagent.listeners; sys.exit('trio_websocket' in sys.modules or 'wsproto' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
