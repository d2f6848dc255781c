"""WebSocket as a stream: trio's conformance checks, and everything that trio-websocket leaves to its users."""

from __future__ import annotations

import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
import trio
import trio.testing
import trio_websocket
import trustme

from ptymux import limits
from ptymux.address import WebSocketAddress
from ptymux.errors import DialError
from ptymux.streams import dial
from ptymux.streams.websocket import (
    CLOSE_TIME,
    MAX_RECEIVED_MESSAGE,
    MAX_SENT_MESSAGE,
    STRANGER_BYTES,
    WebSocketByteStream,
    client_handshake,
    server_handshake,
)
from tests.ptymux.streams.tools import (
    both,
    clog,
    descriptors,
    receive_all,
    receive_exactly,
    socket_pair,
    websocket_pair,
)

Pair = tuple[WebSocketByteStream, WebSocketByteStream]


# --- conformance ----------------------------------------------------------------------------------
async def test_it_is_a_stream(nursery: trio.Nursery) -> None:
    async def pair() -> Pair:
        return await websocket_pair(nursery, *socket_pair())

    await trio.testing.check_two_way_stream(pair, None)


async def test_it_is_a_stream_that_clogs(nursery: trio.Nursery) -> None:
    # A lockstep transport holds nothing itself, so the clog is exactly what trio-websocket holds: one message in its queue,
    # one in the hands of its reader.
    async def pair() -> Pair:
        return await websocket_pair(nursery, *trio.testing.lockstep_stream_pair())

    async def clogged() -> Pair:
        streams = await pair()
        for stream in streams:
            await stream.send_all(b"x")
            await stream.send_all(b"x")
        return streams

    await trio.testing.check_two_way_stream(pair, clogged)


async def test_it_is_a_stream_over_tls(nursery: trio.Nursery) -> None:
    authority = trustme.CA()
    server, client = contexts(authority)

    async def pair() -> Pair:
        left, right = socket_pair()
        return await websocket_pair(
            nursery,
            trio.SSLStream(left, client, server_hostname="agent.test", https_compatible=True),
            trio.SSLStream(right, server, server_side=True, https_compatible=True),
        )

    await trio.testing.check_two_way_stream(pair, None)


def contexts(authority: trustme.CA) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(server, client)"""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("agent.test", "127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


# --- messages -------------------------------------------------------------------------------------
@asynccontextmanager
async def plain_client(**options: Any) -> AsyncIterator[tuple[trio_websocket.WebSocketConnection, WebSocketByteStream]]:
    """trio-websocket's own client, and our server: what is in the messages can be seen and chosen."""
    async with trio.open_nursery() as nursery:
        left, right = socket_pair()
        connection, stream = await both(
            lambda: trio_websocket.wrap_client_stream(nursery, left, "agent", "/", **options),  # type: ignore[arg-type]
            lambda: server_handshake(nursery, right, refuse=lambda _: None),
        )
        yield connection, stream
        await trio.aclose_forcefully(stream)
        await trio.aclose_forcefully(left)
        nursery.cancel_scope.cancel()


async def test_a_send_is_one_binary_message() -> None:
    async with plain_client() as (client, stream):
        for data in (b"a", bytearray(b"bc"), memoryview(b"def")):
            await stream.send_all(data)
            assert await client.get_message() == bytes(data)


async def test_a_large_send_is_several_messages_that_every_peer_takes() -> None:
    data = bytes(range(256)) * (4 * limits.MIB // 256) + b"end"
    async with plain_client() as (client, stream):
        messages: list[Any] = []

        async def receive() -> None:
            while sum(map(len, messages)) < len(data):
                messages.append(await client.get_message())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await stream.send_all(data)
        assert b"".join(messages) == data
        assert [len(message) for message in messages[:-1]] == [MAX_SENT_MESSAGE] * 4
        assert MAX_SENT_MESSAGE < trio_websocket._impl.MAX_MESSAGE_SIZE  # its default limit is what peers will have


async def test_message_boundaries_mean_nothing() -> None:
    async with plain_client() as (client, stream):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_message, b"hello")
            assert await stream.receive_some(2) == b"he"
            assert await stream.receive_some(2) == b"ll"
            assert await stream.receive_some() == b"o"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_message, b"")  # no end of the stream
            nursery.start_soon(client.send_message, b"x")
            assert await stream.receive_some() == b"x"


async def test_the_largest_frame_fits_in_one_message() -> None:
    async with plain_client() as (client, stream):
        await stream.send_all(b"welcome")
        data = b"x" * (limits.MAX_FRAME + 4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_message, data)
            assert await receive_exactly(stream, len(data)) == data


async def test_a_message_that_is_too_large_ends_the_connection() -> None:
    async with plain_client() as (client, stream):
        await stream.send_all(b"welcome")
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                with suppress(trio_websocket.ConnectionClosed):  # as soon as it is noticed
                    await client.send_message(b"x" * (MAX_RECEIVED_MESSAGE + 1))

            nursery.start_soon(send)
            with pytest.raises(trio.BrokenResourceError, match=r"1009 Exceeded maximum message size"):
                await receive_all(stream)


async def test_a_text_message_ends_the_connection() -> None:
    async with plain_client() as (client, stream):
        async with trio.open_nursery() as nursery:

            async def receive() -> None:
                with pytest.raises(trio_websocket.ConnectionClosed) as caught:
                    await client.get_message()
                assert caught.value.reason is not None
                assert (caught.value.reason.code, caught.value.reason.reason) == (1003, "binary messages only")

            nursery.start_soon(receive)
            await client.send_message("text")
            with pytest.raises(trio.BrokenResourceError, match="text message"):
                await stream.receive_some()
        for use in (stream.receive_some(), stream.send_all(b"x")):
            with pytest.raises(trio.BrokenResourceError, match="text message"):
                await use
        await stream.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()


# --- the end --------------------------------------------------------------------------------------
@pytest.mark.parametrize("code", [1000, 1001])
async def test_a_normal_close_is_the_end_of_the_stream(code: int) -> None:
    async with plain_client() as (client, stream), trio.open_nursery() as nursery:
        await client.send_message(b"last words")
        nursery.start_soon(client.aclose, code)
        assert await receive_all(stream) == b"last words"
        assert await stream.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError, match=f"cannot send: .*{code}"):
            await stream.send_all(b"x")


async def test_the_close_of_a_page_is_the_end_of_the_stream(nursery: trio.Nursery) -> None:
    # `socket.close()` in a browser sends a close frame without a code.
    browser, stream = await raw_client(nursery)
    await browser.send_all(masked(0x8, b""))
    assert await receive_all(stream) == b""
    await browser.aclose()


@pytest.mark.parametrize("code", [1002, 1011, 4000])
async def test_another_close_is_an_error_with_its_reason(code: int) -> None:
    async with plain_client() as (client, stream), trio.open_nursery() as nursery:
        nursery.start_soon(client.aclose, code, "because")
        with pytest.raises(trio.BrokenResourceError, match=rf"cannot receive: .*\({code} because\)"):
            await stream.receive_some()


async def test_a_cut_is_an_error(nursery: trio.Nursery) -> None:
    browser, stream = await raw_client(nursery)
    await browser.send_all(masked(0x2, b"whole") + masked(0x2, b"half a message")[:9])
    await browser.aclose()
    assert await stream.receive_some() == b"whole"
    with pytest.raises(trio.BrokenResourceError, match="1006"):
        await stream.receive_some()


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 100, b"\x82\x05hello", b"\x88\x82\0\0\0\0\x00\x05", b"\x89\xfe\x01\x00"],
    ids=["noise", "unmasked", "close code 5", "long ping"],
)
async def test_garbage_ends_this_connection_and_nothing_else(nursery: trio.Nursery, garbage: bytes) -> None:
    # trio-websocket raises some of it into the nursery of its reader; the test's own nursery must not see it.
    browser, stream = await raw_client(nursery)
    await browser.send_all(garbage)
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"x")
    await trio.testing.wait_all_tasks_blocked()
    assert not nursery.child_tasks
    await browser.aclose()


async def test_when_the_peer_closes_nothing_stays_open(nursery: trio.Nursery) -> None:
    # trio-websocket's client leaves its socket to the garbage collector.
    before = descriptors()
    client, server = await websocket_pair(nursery, *socket_pair())
    await server.aclose()
    assert await client.receive_some() == b""
    await trio.testing.wait_all_tasks_blocked()
    assert descriptors() == before
    assert not nursery.child_tasks
    await client.aclose()


async def test_a_close_does_not_wait_for_an_absent_peer(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    _, stream = await raw_client(nursery)
    start = trio.current_time()
    await stream.aclose()
    assert trio.current_time() - start == pytest.approx(CLOSE_TIME)
    await trio.testing.wait_all_tasks_blocked()
    assert not nursery.child_tasks
    await _.aclose()


async def test_a_forced_close_frees_a_reader_that_waits_for_its_message_to_be_taken(nursery: trio.Nursery) -> None:
    client, server = await websocket_pair(nursery, *socket_pair())
    for _ in range(3):  # the queue holds one, the reader one
        await client.send_all(b"x")
    await trio.testing.wait_all_tasks_blocked()
    await trio.aclose_forcefully(server)
    await trio.aclose_forcefully(client)
    await trio.testing.wait_all_tasks_blocked()
    assert not nursery.child_tasks


async def test_when_the_nursery_ends_so_does_the_stream() -> None:
    before = descriptors()
    async with trio.open_nursery() as nursery:
        client, server = await websocket_pair(nursery, *socket_pair())
        nursery.cancel_scope.cancel()
    assert descriptors() == before
    for stream in (client, server):
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        await stream.aclose()


# --- cancelling -----------------------------------------------------------------------------------
async def test_a_send_cancelled_midway_cuts_the_stream(nursery: trio.Nursery) -> None:
    client, server = await websocket_pair(nursery, *socket_pair())
    await server.send_all(b"welcome")
    assert await client.receive_some() == b"welcome"
    sent = 0
    with trio.CancelScope() as scope:
        nursery.start_soon(cancel_when_blocked, scope)
        while True:
            await client.send_all(b"x" * 100_000)
            sent += 1
    assert scope.cancelled_caught
    for use in (client.send_all(b"y"), client.receive_some(), client.wait_send_all_might_not_block()):
        with pytest.raises(trio.BrokenResourceError, match="cancelled midway"):
            await use
    # The peer gets whole messages, and then an error: not an end that looks like one.
    assert await receive_exactly(server, 100_000 * sent) == b"x" * 100_000 * sent
    with pytest.raises(trio.BrokenResourceError):
        await server.receive_some()
    await client.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await client.send_all(b"y")


async def test_a_send_cancelled_before_it_began_does_no_harm(nursery: trio.Nursery) -> None:
    client, server = await websocket_pair(nursery, *socket_pair())
    with trio.CancelScope() as scope:
        scope.cancel()
        await client.send_all(b"never")
    await client.send_all(b"later")
    assert await server.receive_some() == b"later"
    await both(client.aclose, server.aclose)


async def test_a_receive_that_is_cancelled_does_no_harm(nursery: trio.Nursery) -> None:
    client, server = await websocket_pair(nursery, *socket_pair())
    with trio.CancelScope() as scope:
        nursery.start_soon(cancel_when_blocked, scope)
        await server.receive_some()
    await client.send_all(b"later")
    assert await server.receive_some() == b"later"
    await both(client.aclose, server.aclose)


async def cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked(0.01)
    scope.cancel()


# --- pings and strangers --------------------------------------------------------------------------
async def test_pings_are_answered_while_a_sender_waits_for_room(nursery: trio.Nursery) -> None:
    # Two tasks of ours meet on one transport: the pong must wait its turn, not be a conflict.
    browser, stream = await raw_client(nursery)
    nursery.start_soon(stream.send_all, b"x" * 1_000_000)
    await trio.testing.wait_all_tasks_blocked()
    await browser.send_all(masked(0x9, b"ping"))
    await trio.testing.wait_all_tasks_blocked()
    header = await receive_exactly(browser, 10)
    assert header == b"\x82\x7f" + struct.pack("!Q", 1_000_000)
    assert await receive_exactly(browser, 1_000_000) == b"x" * 1_000_000
    assert await receive_exactly(browser, 6) == b"\x8a\x04ping"
    await trio.aclose_forcefully(stream)
    await browser.aclose()


async def test_pings_are_answered_while_the_writer_waits_for_room(nursery: trio.Nursery) -> None:
    left, right = socket_pair()
    browser, stream = await raw_client(nursery, left, right)
    size = clog(right)
    nursery.start_soon(stream.wait_send_all_might_not_block)
    await trio.testing.wait_all_tasks_blocked()
    await browser.send_all(masked(0x9, b"ping") + masked(0x2, b"more"))
    await trio.testing.wait_all_tasks_blocked()
    await receive_exactly(browser, size)
    assert await receive_exactly(browser, 6) == b"\x8a\x04ping"
    assert await stream.receive_some() == b"more"
    await trio.aclose_forcefully(stream)
    await browser.aclose()


class Counting(trio.abc.Stream):
    """Counts what is read through it."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.count = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        self.count += len(data)
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_a_stranger_cannot_make_us_buffer_a_megabyte(nursery: trio.Nursery) -> None:
    left, right = socket_pair()
    counting = Counting(right)
    browser, stream = await raw_client(nursery, left, counting)
    data = b"x" * 1_000_000
    nursery.start_soon(browser.send_all, masked(0x2, data))
    received: list[bytes] = []

    async def receive() -> None:
        received.append(await stream.receive_some())

    nursery.start_soon(receive)
    await trio.testing.wait_all_tasks_blocked()
    assert counting.count == STRANGER_BYTES
    await stream.send_all(b"welcome")  # no stranger any more
    await trio.testing.wait_all_tasks_blocked()
    assert received == [data]
    await trio.aclose_forcefully(stream)
    await browser.aclose()


# --- handshakes -----------------------------------------------------------------------------------
REQUEST = (
    b"GET / HTTP/1.1\r\nHost: agent\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def masked(opcode: int, payload: bytes) -> bytes:
    """A final frame of a client, with a mask of zeroes."""
    if len(payload) < 126:
        length = bytes([0x80 | len(payload)])
    else:
        length = b"\xff" + struct.pack("!Q", len(payload))
    return bytes([0x80 | opcode]) + length + b"\0\0\0\0" + payload


async def raw_client(
    nursery: trio.Nursery, left: trio.abc.Stream | None = None, right: trio.abc.Stream | None = None
) -> tuple[trio.abc.Stream, WebSocketByteStream]:
    """The bytes of a client that shook hands, and our server."""
    if left is None or right is None:
        left, right = socket_pair()

    async def shake() -> None:
        await left.send_all(REQUEST)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += await receive_exactly(left, 1)
        assert answer.startswith(b"HTTP/1.1 101 ")

    _, stream = await both(shake, lambda: server_handshake(nursery, right, refuse=lambda _: None))
    return left, stream


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        REQUEST[:50],
        b"GET / HTTP/1.1\r\nHost: agent\r\n\r\n",
        b"\x00\x00\x00\x10\x96\x01\xc4",
        b"POST / HTTP/1.1\r\n\r\n",
    ],
)
async def test_a_server_gives_up_on_what_is_no_request(nursery: trio.Nursery, request_: bytes) -> None:
    before = descriptors()
    left, right = socket_pair()
    await left.send_all(request_)
    await left.send_eof()
    with pytest.raises(ConnectionError, match="hung up during the handshake, or does not speak WebSocket"):
        await server_handshake(nursery, right, refuse=lambda _: None)
    await left.aclose()
    assert descriptors() == before
    assert not nursery.child_tasks


async def test_a_server_that_refuses_says_403(nursery: trio.Nursery) -> None:
    left, right = socket_pair()
    seen: dict[bytes, bytes] = {}

    def refuse(headers: Any) -> str:
        seen.update(headers)
        return "not today"

    async def serve() -> None:
        with pytest.raises(ConnectionRefusedError, match="not today"):
            await server_handshake(nursery, right, refuse=refuse)

    async def connect() -> None:
        with pytest.raises(ConnectionRefusedError, match="the server answered 403: not today"):
            await client_handshake(nursery, left, host="agent", extra_headers=[(b"Origin", b"https://page")])

    await both(serve, connect)
    assert seen[b"origin"] == b"https://page"
    assert not nursery.child_tasks


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"", "hung up during the handshake"),
        (b"HTTP/1.1 101 Switching", "hung up during the handshake"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "hung up during the handshake"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "the server answered 404"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad", "the server answered 502: bad"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            "the WebSocket handshake failed",
        ),
    ],
)
async def test_a_client_gives_up_on_what_is_no_answer(nursery: trio.Nursery, answer: bytes, cause: str) -> None:
    # trio-websocket's own client waits for ever in most of these.
    before = descriptors()
    left, right = socket_pair()

    async def serve() -> None:
        await right.receive_some()
        await right.send_all(answer)
        await right.aclose()

    async def connect() -> None:
        with pytest.raises(ConnectionError, match=cause):
            await client_handshake(nursery, left, host="agent")

    await both(serve, connect)
    assert descriptors() == before
    assert not nursery.child_tasks


@pytest.mark.parametrize("header", [(b"a b", b"c"), (b"a", b"b\r\nc: d")])
async def test_headers_that_cannot_be_are_refused(nursery: trio.Nursery, header: tuple[bytes, bytes]) -> None:
    left, right = socket_pair()
    with pytest.raises(ConnectionError, match="the WebSocket handshake failed"):
        await client_handshake(nursery, left, host="agent", extra_headers=[header])
    assert await right.receive_some() == b""
    await right.aclose()


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("client", [False, True])
async def test_a_handshake_can_be_given_up(nursery: trio.Nursery, client: bool, at_once: bool) -> None:
    before = descriptors()
    left, right = socket_pair()
    with trio.CancelScope() as scope:
        if at_once:
            scope.cancel()
        else:
            nursery.start_soon(cancel_when_blocked, scope)
        if client:
            await client_handshake(nursery, left, host="agent")
        else:
            await server_handshake(nursery, left, refuse=lambda _: None)
    assert scope.cancelled_caught
    await right.aclose()
    assert descriptors() == before
    await trio.testing.wait_all_tasks_blocked()
    assert not nursery.child_tasks


# --- dialling -------------------------------------------------------------------------------------
async def serve_echo(nursery: trio.Nursery, context: ssl.SSLContext | None = None) -> int:
    """An echo server's port."""

    async def handle(stream: trio.abc.Stream) -> None:
        try:
            websocket = await server_handshake(nursery, stream, refuse=lambda _: None)
        except (ConnectionError, trio.BrokenResourceError):
            return
        async with websocket:
            while data := await websocket.receive_some():
                await websocket.send_all(data)

    if context is None:
        listeners: list[Any] = await nursery.start(trio.serve_tcp, handle, 0)
        socket = listeners[0].socket
    else:
        listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1", https_compatible=True)
        await nursery.start(trio.serve_listeners, handle, listeners)
        socket = cast(trio.SocketListener, listeners[0].transport_listener).socket
    port: int = socket.getsockname()[1]
    return port


async def assert_echoes(stream: trio.abc.Stream) -> None:
    async with stream:
        await stream.send_all(b"hello")
        assert await receive_exactly(stream, 5) == b"hello"


async def test_dial(nursery: trio.Nursery) -> None:
    port = await serve_echo(nursery)
    stream = await dial(nursery, WebSocketAddress("127.0.0.1", port))
    assert isinstance(stream, WebSocketByteStream)
    await assert_echoes(stream)
    nursery.cancel_scope.cancel()


async def test_the_request_names_the_host_as_it_was_dialled(nursery: trio.Nursery) -> None:
    requests: list[bytes] = []

    async def handle(stream: trio.SocketStream) -> None:
        requests.append(bytes(await stream.receive_some()))

    listeners = await nursery.start(trio.serve_tcp, handle, 0)
    port = listeners[0].socket.getsockname()[1]
    with pytest.raises(DialError):
        await dial(nursery, WebSocketAddress("127.0.0.1", port, "/a?b=c"), extra_headers=[(b"X-Here", b"yes")])
    lines = requests[0].split(b"\r\n")
    assert lines[0] == b"GET /a?b=c HTTP/1.1"
    assert b"Host: 127.0.0.1:%d" % port in lines
    assert b"X-Here: yes" in lines
    nursery.cancel_scope.cancel()


async def test_dial_tls(nursery: trio.Nursery) -> None:
    server, client = contexts(trustme.CA())
    port = await serve_echo(nursery, server)
    await assert_echoes(await dial(nursery, WebSocketAddress("127.0.0.1", port, tls=True), ssl_context=client))
    nursery.cancel_scope.cancel()


async def test_dial_tls_checks_the_certificate(nursery: trio.Nursery) -> None:
    server, client = contexts(trustme.CA())
    port = await serve_echo(nursery, server)
    unknown = WebSocketAddress("127.0.0.1", port, tls=True)
    with pytest.raises(DialError, match=rf"cannot dial wss://127.0.0.1:{port}/: .*certificate verify failed"):
        await dial(nursery, unknown)  # the system's authorities do not know ours
    with pytest.raises(DialError, match="certificate is not valid for 'localhost'"):
        await dial(nursery, WebSocketAddress("localhost", port, tls=True), ssl_context=client)
    plain = await serve_echo(nursery)
    with pytest.raises(DialError, match="cannot dial wss://"):
        await dial(nursery, WebSocketAddress("127.0.0.1", plain, tls=True), ssl_context=client)
    nursery.cancel_scope.cancel()


async def test_dial_with_nobody_there(nursery: trio.Nursery) -> None:
    with trio.socket.socket() as socket:
        await socket.bind(("127.0.0.1", 0))
        port = socket.getsockname()[1]
        with pytest.raises(DialError) as caught:
            await dial(nursery, WebSocketAddress("127.0.0.1", port))
    assert str(caught.value) == f"cannot dial ws://127.0.0.1:{port}/: Connection refused"


@pytest.mark.parametrize("tls", [False, True])
async def test_a_dial_that_is_given_up_leaves_nothing_open(nursery: trio.Nursery, tls: bool) -> None:
    async def silent(stream: trio.SocketStream) -> None:
        while await stream.receive_some():
            pass

    listeners = await nursery.start(trio.serve_tcp, silent, 0)
    port = listeners[0].socket.getsockname()[1]
    before = descriptors()
    with trio.CancelScope() as scope:
        nursery.start_soon(cancel_when_blocked, scope)
        await dial(nursery, WebSocketAddress("127.0.0.1", port, tls=tls))
    assert scope.cancelled_caught
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert descriptors() == before
    nursery.cancel_scope.cancel()
