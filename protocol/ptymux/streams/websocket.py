"""Streams that are WebSocket connections, on trio-websocket.

The bytes travel in binary messages whose boundaries mean nothing.  trio-websocket reads in a task of its own, which is why both
sides need a nursery.  **That task stands still while a received message waits to be taken** (its queue holds one), and then it
neither answers pings nor sees the peer close: whoever holds a :class:`WebSocketByteStream` must always be receiving.

trio-websocket leaves some things to its users, and this module is where they are done:

* Its handshakes wait for ever when the peer hangs up in the middle: here the reader's end ends them.
* Its reader task raises what it meets (a rejection, a protocol error, even in its last breath) into the nursery that it was
  given, which would take the client or the agent down with it: here nothing leaves the task.
* A connection that the peer closed keeps its socket: here the socket is closed when the reader ends.
* It waits for the peer's half of the closing handshake without a limit: :data:`CLOSE_TIME`.
* It lets a stranger fill a message of a megabyte: :data:`STRANGER_BYTES`.
"""

from __future__ import annotations

import operator
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NoReturn, cast

import trio
import trio_websocket
from trio_websocket import WebSocketConnection
from wsproto.utilities import ProtocolError as WebSocketProtocolError

from ptymux import limits
from ptymux.address import WebSocketAddress, bracketed
from ptymux.streams.sockets import cause_of, dial_tcp

Headers = Sequence[tuple[bytes, bytes]]

# Most peers (trio-websocket among them) take messages of 1 MiB and not a byte more; a kilobyte of room costs nothing.
MAX_SENT_MESSAGE: Final = limits.MAX_FRAME - limits.KIB
# A peer may put the largest frame, with its length prefix and the end of the frame before, into one message.
MAX_RECEIVED_MESSAGE: Final = limits.MAX_FRAME + 64 * limits.KIB
# 4 KiB reads cost a third of the throughput, 256 KiB nearly nothing.
RECEIVE_BUFFER: Final = 256 * limits.KIB
# What is read from a peer to whom we have not sent anything: the handshake and a hello (4 KiB) with plenty of room.
STRANGER_BYTES: Final = 64 * limits.KIB
# How long a close waits for the peer's close frame.  A present peer answers within a round trip, an absent one never.
CLOSE_TIME: Final = 2.0

# Normal, going away (a page that is left), and a close frame without a code, which is what a browser's `close()` sends.
_NORMAL: Final = (1000, 1001, 1005)
_UNSUPPORTED: Final = 1003
_NO_HANDSHAKE: Final = "the peer hung up during the handshake, or does not speak WebSocket"

# What trio-websocket raises when a connection ends, or wsproto when it had ended unnoticed.
_ENDED: Final = (
    trio_websocket.ConnectionClosed,
    WebSocketProtocolError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
)


async def dial_websocket(
    nursery: trio.Nursery,
    address: WebSocketAddress,
    *,
    ssl_context: ssl.SSLContext | None = None,
    extra_headers: Headers = (),
) -> WebSocketByteStream:
    """Dial `address`; raises what it meets (OSError, trio.BrokenResourceError).  `streams.dial` says the rest."""
    tcp = await dial_tcp(address.host, address.port)
    transport: trio.abc.Stream = tcp
    try:
        if address.tls:
            transport = tls = trio.SSLStream(
                tcp, ssl_context or ssl.create_default_context(), server_hostname=address.host, https_compatible=True
            )
            await tls.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(tcp)
        raise
    host = bracketed(address.host)
    if address.port != (443 if address.tls else 80):
        host += f":{address.port}"
    return await client_handshake(nursery, transport, host=host, resource=address.resource, extra_headers=extra_headers)


async def client_handshake(
    nursery: trio.Nursery, transport: trio.abc.Stream, *, host: str, resource: str = "/", extra_headers: Headers = ()
) -> WebSocketByteStream:
    """Become the client of a WebSocket on `transport`, which is owned from here on and closed on failure.

    Raises ConnectionError if the server does not agree.
    """

    async def shake(reader: trio.Nursery, link: _Link) -> WebSocketConnection:
        return await trio_websocket.wrap_client_stream(
            reader,
            cast(trio.SocketStream, link),  # it says socket, but uses the Stream interface only
            host,
            resource,
            extra_headers=list(extra_headers),
            max_message_size=MAX_RECEIVED_MESSAGE,
            receive_buffer_size=RECEIVE_BUFFER,
        )

    return await _start(nursery, transport, shake)


async def server_handshake(
    nursery: trio.Nursery, transport: trio.abc.Stream, *, refuse: Callable[[Headers], str | None]
) -> WebSocketByteStream:
    """Become the server of a WebSocket on `transport`, which is owned from here on and closed on failure.

    `refuse` looks at the request's headers (names in lower case) and returns None, or the reason for a 403.
    Raises ConnectionError if it did, or if what came was no WebSocket request.  The caller bounds the time.
    """

    async def shake(reader: trio.Nursery, link: _Link) -> WebSocketConnection:
        request = await trio_websocket.wrap_server_stream(
            reader, link, max_message_size=MAX_RECEIVED_MESSAGE, receive_buffer_size=RECEIVE_BUFFER
        )
        reason = refuse(request.headers)
        if reason is not None:
            await request.reject(403, body=reason.encode())
            raise ConnectionRefusedError(reason)
        return await request.accept()

    return await _start(nursery, transport, shake)


class WebSocketByteStream(trio.abc.Stream):
    """An open WebSocket as a stream of bytes; made by the two handshakes above.

    Each ``send_all`` is one binary message (more, above :data:`MAX_SENT_MESSAGE`), so send in batches.  Receiving gives the
    bytes as they come; a normal close by the peer is the end of the stream, any other end, and a text message, is a
    BrokenResourceError.  Always be receiving: see the head of this module.
    """

    def __init__(self, connection: WebSocketConnection, link: _Link, tasks: trio.CancelScope) -> None:
        self._connection = connection
        self._link = link
        self._tasks = tasks  # the reader's; when it ends, the transport is closed
        self._send = _OneAtATime("another task is sending on this stream")
        self._receive = _OneAtATime("another task is receiving on this stream")
        self._message = b""
        self._taken = 0  # of self._message
        self._closed = False
        self._broken: str | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self._send:
            self._check()
            await trio.lowlevel.checkpoint_if_cancelled()  # nothing is out yet: this one does no harm
            self._link.trust()
            try:
                if not data:
                    await trio.lowlevel.checkpoint()
                elif isinstance(data, bytes) and len(data) <= MAX_SENT_MESSAGE:
                    await self._connection.send_message(data)
                else:
                    view = memoryview(data)
                    for start in range(0, len(view), MAX_SENT_MESSAGE):
                        await self._connection.send_message(bytes(view[start : start + MAX_SENT_MESSAGE]))
            except _ENDED as error:
                self._ended("send", error)
            except trio.Cancelled:
                # How much went out is unknown: half a WebSocket frame, or half a frame of ours.
                self._broken = "cannot go on: an earlier send was cancelled midway"
                self._tasks.cancel()
                raise

    async def wait_send_all_might_not_block(self) -> None:
        with self._send:
            self._check()
            try:
                await self._link.wait_send_all_might_not_block()
            except _ENDED as error:
                self._ended("send", error)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if max_bytes is not None and operator.index(max_bytes) < 1:
            raise ValueError("max_bytes must be at least 1")
        with self._receive:
            self._check()
            if self._taken < len(self._message):
                await trio.lowlevel.checkpoint()
                self._check()
            else:
                self._message, self._taken = b"", 0
                while not self._message:  # an empty message is legal, and not the end
                    message = await self._next_message()
                    if message is None:
                        await trio.lowlevel.checkpoint()  # the end of a memory channel is no schedule point
                        return b""
                    self._message = message
            left = len(self._message) - self._taken
            if self._taken == 0 and (max_bytes is None or max_bytes >= left):
                whole, self._message = self._message, b""
                return whole
            start = self._taken
            self._taken += left if max_bytes is None else min(max_bytes, left)
            return self._message[start : self._taken]

    async def aclose(self) -> None:
        ended, self._closed = self._closed or self._broken is not None, True
        await self._hang_up(None if ended else 1000)

    async def _next_message(self) -> bytes | None:
        try:
            message = await self._connection.get_message()
        except trio_websocket.ConnectionClosed as error:
            if not self._closed and error.reason is not None and error.reason.code in _NORMAL:
                return None
            self._ended("receive", error)
        if isinstance(message, str):
            self._broken = "cannot receive: the peer sent a text message"
            await self._hang_up(_UNSUPPORTED, "binary messages only")
            self._check()
        return cast(bytes, message)

    async def _hang_up(self, code: int | None, reason: str | None = None) -> None:
        """Close with a handshake, or without one if `code` is None.  Nothing is open afterwards, even if cancelled."""
        try:
            if code is not None:
                with trio.move_on_after(CLOSE_TIME):
                    await self._connection.aclose(code, reason)
        except _ENDED:
            pass  # which is what was wanted
        finally:
            self._tasks.cancel()
            await trio.aclose_forcefully(self._link)

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream is closed")
        if self._broken is not None:
            raise trio.BrokenResourceError(self._broken)

    def _ended(self, doing: str, error: Exception) -> NoReturn:
        """The connection turned out to be over, while or before we were `doing` something."""
        if not self._closed and self._broken is None:
            reason = self._connection.closed
            text = f"{reason.code} {reason.reason or reason.name}" if reason is not None else cause_of(error)
            self._broken = f"cannot {doing}: the WebSocket is closed ({text})"
        self._check()
        raise AssertionError("unreachable")


class _OneAtATime:
    """Two tasks in one method at once are a bug of the caller; trio's own detector is not public."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._busy = False

    def __enter__(self) -> None:
        if self._busy:
            raise trio.BusyResourceError(self._text)
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False


class _Link(trio.abc.Stream):
    """The transport, as trio-websocket may use it.

    Its reader sends pongs while our writer sends messages or waits for room: both must take turns, or the transport
    would call it a conflict.  And a peer that we have not sent anything may send only so much.
    """

    def __init__(self, transport: trio.abc.Stream) -> None:
        self._transport = transport
        self._turn = trio.Lock()
        self._trusted = trio.Event()
        self._left = STRANGER_BYTES

    def trust(self) -> None:
        self._trusted.set()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        async with self._turn:
            await self._transport.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        async with self._turn:
            await self._transport.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if not self._trusted.is_set():
            if self._left > 0:
                max_bytes = self._left if max_bytes is None else min(self._left, max_bytes)
            else:
                await self._trusted.wait()
        data = await self._transport.receive_some(max_bytes)
        self._left -= len(data)
        return data

    async def aclose(self) -> None:
        await self._transport.aclose()


# --- the task behind a stream -----------------------------------------------------------------------
_Shake = Callable[[trio.Nursery, _Link], Awaitable[WebSocketConnection]]


async def _start(nursery: trio.Nursery, transport: trio.abc.Stream, shake: _Shake) -> WebSocketByteStream:
    try:
        return cast(WebSocketByteStream, await nursery.start(_run, transport, shake))
    except BaseException:
        await trio.aclose_forcefully(transport)
        raise


async def _run(
    transport: trio.abc.Stream,
    shake: _Shake,
    *,
    task_status: trio.TaskStatus[WebSocketByteStream] = trio.TASK_STATUS_IGNORED,
) -> None:
    """The life of one connection: shake hands, then read until it ends, then close the transport.

    Only a failed handshake is raised, and only to whoever waits for the start.
    """
    link = _Link(transport)
    connection: WebSocketConnection | None = None
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as tasks:
            reader = _ReaderNursery(tasks)
            try:
                with reader.handshake:
                    connection = await shake(cast(trio.Nursery, reader), link)
                if connection is None:  # the reader ended first
                    failure = reader.failure or ConnectionAbortedError(_NO_HANDSHAKE)
                else:
                    task_status.started(WebSocketByteStream(connection, link, tasks.cancel_scope))
            except Exception as error:  # noqa: BLE001 - wsproto and h11 raise types of their own for bad headers
                failure = error
            if failure is not None:
                tasks.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(link)
    if isinstance(failure, ConnectionError):
        raise failure
    if failure is not None:
        raise _refusal(failure) from failure


class _ReaderNursery:
    """The nursery that trio-websocket is told to start its reader in: one whose tasks cannot raise into ours.

    When the reader ends, the handshake that may be waiting for it ends too.
    """

    def __init__(self, tasks: trio.Nursery) -> None:
        self._tasks = tasks
        self.handshake = trio.CancelScope()
        self.failure: Exception | None = None

    def start_soon(self, reader: Callable[[], Awaitable[object]]) -> None:
        self._tasks.start_soon(self._run, reader)

    async def _run(self, reader: Callable[[], Awaitable[object]]) -> None:
        try:
            await reader()
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this connection only
            self.failure = error
        finally:
            self.handshake.cancel()


def _refusal(error: Exception) -> ConnectionError:
    if isinstance(error, trio_websocket.ConnectionRejected):
        body = (error.body or b"").decode(errors="replace").strip()[:200]
        return ConnectionRefusedError(f"the server answered {error.status_code}" + (f": {body}" if body else ""))
    if isinstance(error, trio_websocket.ConnectionClosed):
        return ConnectionAbortedError(_NO_HANDSHAKE)
    return ConnectionError(f"the WebSocket handshake failed: {cause_of(error)}")
