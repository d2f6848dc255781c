"""The vsock listener: peers are known by their CID, which the hypervisor vouches for."""

from __future__ import annotations

import socket as stdlib_socket
from collections.abc import Collection
from typing import Any, ClassVar, Final

import trio

from guestagent.listeners.base import Handler, Kind, Listener, ListenError, Peer, Refused
from guestagent.listeners.unix import BACKLOG
from ptymux.address import CIDS, VsockAddress
from ptymux.streams import SocketByteStream

HOST_CID: Final = CIDS["host"]


class VsockListener(Listener):
    """Lets in the CIDs that are configured: the host (2) alone by default.

    Not CID 1, by which processes in the guest reach each other: to them the guest's own rules apply, on the unix socket.
    """

    kind: ClassVar[Kind] = "vsock"

    def __init__(
        self,
        address: VsockAddress,
        socket: trio.socket.SocketType,
        *,
        max_role: str,
        send_buffer: int | None,
        cids: Collection[int],
    ) -> None:
        super().__init__(address, [socket], max_role=max_role, send_buffer=send_buffer)
        self._cids = frozenset(cids)

    @classmethod
    async def bind(
        cls,
        address: VsockAddress,
        *,
        max_role: str,
        send_buffer: int | None = None,
        cids: Collection[int] = (HOST_CID,),
    ) -> VsockListener:
        try:
            socket = trio.socket.socket(stdlib_socket.AF_VSOCK, stdlib_socket.SOCK_STREAM)
        except OSError as error:
            raise ListenError.of(address, error) from error
        try:
            await socket.bind((address.cid, address.port))
            socket.listen(BACKLOG)
        except BaseException as error:
            socket.close()
            if isinstance(error, OSError):
                raise ListenError.of(address, error) from error
            raise
        return cls(address, socket, max_role=max_role, send_buffer=send_buffer, cids=cids)

    async def connected(
        self, nursery: trio.Nursery, stream: SocketByteStream, remote: Any, accepted: float, handler: Handler
    ) -> None:
        cid, port = remote
        if cid not in self._cids:
            raise Refused(f"CID {cid} is not allowed", code="unauthorized")
        description = f"vsock CID {cid} port {port}"
        await handler(stream, Peer(self.kind, description, self.max_role, trusted=True, cid=cid, accepted=accepted))
