"""Where clients come in: one module per transport, all of one shape.

``bind(address, ...)`` binds, so that what is wrong with an address shows at start, as one :class:`ListenError`; then
``await listener.serve(handler)`` runs ``handler(stream, peer)`` in a task for each connection that may come in.  Who may, is
decided here as far as the transport knows it (uid, CID, Origin) and told to the handler in :class:`Peer`; tokens are the
handler's business.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection
from dataclasses import dataclass

from guestagent.listeners.base import Handler, Listener, ListenError, Peer
from guestagent.listeners.tcp import TcpListener
from guestagent.listeners.unix import UnixListener
from guestagent.listeners.vsock import HOST_CID, VsockListener
from ptymux import limits
from ptymux.address import Address, TcpAddress, UnixAddress, VsockAddress, WebSocketAddress

__all__ = [
    "Handler",
    "ListenError",
    "Listener",
    "Options",
    "Peer",
    "TcpListener",
    "UnixListener",
    "VsockListener",
    "bind",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a configuration says about one listener; each transport looks at its own part."""

    max_role: str  # the greatest role that a connection from here can have
    send_buffer: int | None = None  # SO_SNDBUF of the connections: bytes in a socket cannot be overtaken
    mode: int = 0o600  # unix: of the socket's file
    uids: Collection[int] = ()  # unix: allowed besides root and the agent's own
    cids: Collection[int] = (HOST_CID,)  # vsock: allowed
    origins: Collection[str] = ()  # WebSocket: pages allowed to connect; "*" is all
    ssl_context: ssl.SSLContext | None = None  # WebSocket: TLS; needed for wss://
    handshake_time: float = limits.GREETING_TIME  # WebSocket: for TLS and the upgrade


async def bind(address: Address, options: Options) -> Listener:
    """A bound listener on `address`; its own `address` has the port that the kernel chose for 0.  Raises ListenError."""
    match address:
        case UnixAddress():
            return UnixListener.bind(
                address,
                max_role=options.max_role,
                send_buffer=options.send_buffer,
                mode=options.mode,
                uids=options.uids,
            )
        case VsockAddress():
            return await VsockListener.bind(
                address, max_role=options.max_role, send_buffer=options.send_buffer, cids=options.cids
            )
        case TcpAddress():
            return await TcpListener.bind(address, max_role=options.max_role, send_buffer=options.send_buffer)
        case WebSocketAddress():
            # Here, because it costs 32 ms and its memory, and a guest that is reached by vsock never needs it.
            from guestagent.listeners.websocket import WebSocketListener

            return await WebSocketListener.bind(
                address,
                max_role=options.max_role,
                send_buffer=options.send_buffer,
                origins=options.origins,
                ssl_context=options.ssl_context,
                handshake_time=options.handshake_time,
            )
        case _:
            raise ListenError(
                address, "a VM monitor listens there, on the host; in the guest, listen on vsock:any:PORT"
            )
