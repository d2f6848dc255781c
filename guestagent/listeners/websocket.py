"""The WebSocket listener, with or without TLS: browsers and clients behind proxies; a token is always needed.

Imports trio-websocket; import it only where there is such a listener.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection
from dataclasses import replace
from typing import Any, ClassVar

import trio

from guestagent.listeners.base import Handler, Kind, Listener, ListenError, Peer, Refused
from guestagent.listeners.tcp import endpoint, open_sockets
from ptymux import limits
from ptymux.address import WebSocketAddress
from ptymux.streams import SocketByteStream, cause_of
from ptymux.streams.websocket import Headers, WebSocketByteStream, server_handshake


class WebSocketListener(Listener):
    """Pages may connect if their origin is listed.

    A browser sends the page's Origin and the page cannot forge it, so the list keeps a page that the user merely happens to
    have open away from an agent on localhost.  Whoever sends no Origin is not a browser, and gains nothing by that.
    """

    kind: ClassVar[Kind] = "websocket"

    def __init__(
        self,
        address: WebSocketAddress,
        sockets: list[trio.socket.SocketType],
        *,
        max_role: str,
        send_buffer: int | None,
        origins: Collection[str],
        ssl_context: ssl.SSLContext | None,
        handshake_time: float,
    ) -> None:
        super().__init__(address, sockets, max_role=max_role, send_buffer=send_buffer)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._ssl_context = ssl_context
        self._handshake_time = handshake_time

    @classmethod
    async def bind(
        cls,
        address: WebSocketAddress,
        *,
        max_role: str,
        send_buffer: int | None = None,
        origins: Collection[str] = (),
        ssl_context: ssl.SSLContext | None = None,
        handshake_time: float = limits.GREETING_TIME,
    ) -> WebSocketListener:
        """`handshake_time` is for TLS and the upgrade together, counted from accept."""
        if address.tls and ssl_context is None:
            raise ListenError(address, "TLS needs a certificate and its key")
        sockets, port = await open_sockets(address)
        return cls(
            replace(address, port=port, tls=ssl_context is not None),
            sockets,
            max_role=max_role,
            send_buffer=send_buffer,
            origins=origins,
            ssl_context=ssl_context,
            handshake_time=handshake_time,
        )

    async def connected(
        self, nursery: trio.Nursery, stream: SocketByteStream, remote: Any, accepted: float, handler: Handler
    ) -> None:
        description = f"websocket {endpoint(remote)}"
        websocket: WebSocketByteStream | None = None
        try:
            with trio.move_on_after(self._handshake_time):
                websocket = await self._shake(nursery, stream)
        except (OSError, trio.BrokenResourceError) as error:
            raise Refused(f"{description}: {cause_of(error)}") from error
        if websocket is None:
            raise Refused(f"{description}: no handshake within {self._handshake_time} s")
        try:
            await handler(websocket, Peer(self.kind, description, self.max_role, trusted=False, accepted=accepted))
        finally:
            await websocket.aclose()

    async def _shake(self, nursery: trio.Nursery, stream: SocketByteStream) -> WebSocketByteStream:
        transport: trio.abc.Stream = stream
        if self._ssl_context is not None:
            transport = tls = trio.SSLStream(stream, self._ssl_context, server_side=True, https_compatible=True)
            await tls.do_handshake()
        return await server_handshake(nursery, transport, refuse=self._refuse)

    def _refuse(self, headers: Headers) -> str | None:
        if "*" in self._origins:
            return None
        for name, value in headers:
            if name == b"origin":
                origin = value.decode("ascii", "backslashreplace").lower()
                if origin not in self._origins:
                    return f"origin {origin} is not allowed"
        return None
