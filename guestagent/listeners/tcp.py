"""The TCP listener: nobody is known, so a token is always needed."""

from __future__ import annotations

from typing import Any, ClassVar

import trio

from guestagent.listeners.base import Handler, Kind, Listener, ListenError, Peer
from ptymux.address import TcpAddress, WebSocketAddress, bracketed
from ptymux.streams import SocketByteStream


class TcpListener(Listener):
    kind: ClassVar[Kind] = "tcp"

    @classmethod
    async def bind(cls, address: TcpAddress, *, max_role: str, send_buffer: int | None = None) -> TcpListener:
        sockets, port = await open_sockets(address)
        return cls(TcpAddress(address.host, port), sockets, max_role=max_role, send_buffer=send_buffer)

    async def connected(
        self, nursery: trio.Nursery, stream: SocketByteStream, remote: Any, accepted: float, handler: Handler
    ) -> None:
        description = f"tcp {endpoint(remote)}"
        await handler(stream, Peer(self.kind, description, self.max_role, trusted=False, accepted=accepted))


async def open_sockets(address: TcpAddress | WebSocketAddress) -> tuple[list[trio.socket.SocketType], int]:
    """Listening sockets on all addresses of the host, and their port.

    With port 0 only on the first one: the kernel would choose another port for each.
    """
    try:
        listeners = await trio.open_tcp_listeners(address.port, host=address.host)
    except (OSError, ValueError) as error:  # ValueError: a host that no name can be
        os_error = error if isinstance(error, OSError) else OSError(str(error))
        raise ListenError.of(address, os_error) from error
    sockets = [listener.socket for listener in listeners]
    if address.port == 0:
        for socket in sockets[1:]:
            socket.close()
        del sockets[1:]
    return sockets, sockets[0].getsockname()[1]


def endpoint(remote: Any) -> str:
    host, port = remote[:2]  # IPv6 adds flow and scope
    return f"{bracketed(host)}:{port}"
