"""Sockets as streams: trio's conformance checks, and the output path's non-blocking send."""

from __future__ import annotations

import mmap
import socket as stdlib_socket

import pytest
import trio
import trio.testing

from ptymux.streams.sockets import MAX_BUFFERS, SocketByteStream
from tests.ptymux.streams.tools import clog, receive_all, receive_exactly, socket_pair


async def tcp_pair(send_buffer: int | None = None) -> tuple[SocketByteStream, SocketByteStream]:
    with trio.socket.socket() as listening:
        await listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        left = trio.socket.socket()
        await left.connect(listening.getsockname())
        right, _ = await listening.accept()
        return SocketByteStream(left, send_buffer=send_buffer), SocketByteStream(right, send_buffer=send_buffer)


async def unix_pair() -> tuple[SocketByteStream, SocketByteStream]:
    return socket_pair()


async def test_unix_is_a_stream() -> None:
    async def clogged() -> tuple[SocketByteStream, SocketByteStream]:
        pair = await unix_pair()
        clog(pair[0])
        clog(pair[1])
        return pair

    await trio.testing.check_half_closeable_stream(unix_pair, clogged)


async def test_tcp_is_a_stream() -> None:
    # No clogged pair: TCP finds room again whenever a delayed ACK comes, without the peer reading.
    await trio.testing.check_half_closeable_stream(tcp_pair, None)


async def test_tcp_sends_at_once_and_little_ahead() -> None:
    left, right = await tcp_pair(send_buffer=32768)
    async with left, right:
        for stream in (left, right):
            assert stream.socket.getsockopt(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_NODELAY)
            assert stream.socket.getsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_SNDBUF) == 2 * 32768


async def test_try_send_takes_slices_of_a_ring_as_they_are() -> None:
    left, right = socket_pair()
    async with left, right:
        with mmap.mmap(-1, mmap.PAGESIZE) as ring:
            ring[:5] = b"ring!"
            with memoryview(ring) as view, view[:5] as piece:
                assert left.try_send([b"head", piece, b"", b"tail"]) == 13
        assert left.try_send([]) == 0
        assert await receive_exactly(right, 13) == b"headring!tail"


async def test_try_send_looks_at_a_bounded_number_of_buffers() -> None:
    left, right = socket_pair()
    async with left, right:
        buffers = [b"%04d" % number for number in range(MAX_BUFFERS + 100)]
        assert left.try_send(buffers) == 4 * MAX_BUFFERS
        assert left.try_send(buffers[MAX_BUFFERS:]) == 400
        assert await receive_exactly(right, 4 * len(buffers)) == b"".join(buffers)


async def test_try_send_says_how_much_and_wait_writable_when_more(nursery: trio.Nursery) -> None:
    left, right = socket_pair()
    data = bytes(range(256)) * 8192
    received: list[bytes] = []

    async def receive() -> None:
        received.append(await receive_all(right))

    async with left, right:
        first = left.try_send([data])
        assert 0 < first < len(data)
        assert left.try_send([data[first:]]) == 0
        nursery.start_soon(receive)
        sent, waits = first, 0
        while sent < len(data):
            await left.wait_writable()
            waits += 1
            sent += left.try_send([memoryview(data)[sent : sent + 50_000], memoryview(data)[sent + 50_000 :]])
        assert waits > 0
        await left.send_eof()
        await trio.testing.wait_all_tasks_blocked()
        assert received == [data]


async def test_try_send_on_a_stream_that_is_gone() -> None:
    left, right = socket_pair()
    await right.aclose()
    with pytest.raises(trio.BrokenResourceError, match="cannot send: Broken pipe"):
        left.try_send([b"x"])
    await left.aclose()
    with pytest.raises(trio.ClosedResourceError):
        left.try_send([b"x"])
    with pytest.raises(trio.ClosedResourceError):
        await left.wait_writable()


async def test_try_send_never_gets_into_a_send(nursery: trio.Nursery) -> None:
    left, right = socket_pair()
    async with left, right:
        size = clog(left)
        nursery.start_soon(left.send_all, b"y" * 10)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            left.try_send([b"z"])
        assert await receive_exactly(right, size + 10) == b"x" * size + b"y" * 10
        assert left.try_send([b"z"]) == 1


async def test_a_send_cancelled_midway_cuts_the_stream(nursery: trio.Nursery) -> None:
    left, right = socket_pair()
    ended = trio.Event()

    async def receive() -> None:
        with pytest.raises(trio.BrokenResourceError, match="cancelled midway"):
            await left.receive_some()
        ended.set()

    async with right:
        nursery.start_soon(receive)
        size = clog(left)
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel_when_blocked, scope)
            await left.send_all(b"y" * 2_000_000)
        assert scope.cancelled_caught
        await ended.wait()
        for use in (left.send_all(b"z"), left.wait_writable(), left.send_eof(), left.receive_some()):
            with pytest.raises(trio.BrokenResourceError, match="cancelled midway"):
                await use
        with pytest.raises(trio.BrokenResourceError, match="cancelled midway"):
            left.try_send([b"z"])
        # The peer gets what went out, then the end: never what would have followed.
        assert await receive_all(right) == b"x" * size
    await left.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await left.receive_some()


async def test_a_send_cancelled_before_it_began_does_no_harm() -> None:
    left, right = socket_pair()
    async with left, right:
        with trio.CancelScope() as scope:
            scope.cancel()
            await left.send_all(b"never")
        await left.send_all(b"later")
        assert await receive_exactly(right, 5) == b"later"


async def cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()
