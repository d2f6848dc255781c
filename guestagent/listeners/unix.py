"""The unix listener: peers are known by their uid."""

from __future__ import annotations

import errno
import os
import socket as stdlib_socket
import stat
import struct
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, ClassVar, Final

import trio

from guestagent.listeners.base import Handler, Kind, Listener, ListenError, Peer, Refused
from ptymux.address import UnixAddress
from ptymux.streams import SocketByteStream

BACKLOG: Final = 128  # clients that dial in the same instant; the kernel's own limit is 4096

_UCRED: Final = struct.Struct("3i")  # pid, uid, gid


def peer_credentials(socket: trio.socket.SocketType) -> tuple[int, int]:
    """(uid, pid) of whoever connected, as the kernel recorded it then."""
    pid, uid, _ = _UCRED.unpack(socket.getsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_PEERCRED, _UCRED.size))
    return uid, pid


class UnixListener(Listener):
    """Lets in root, the agent's own uid, and the uids that are configured."""

    kind: ClassVar[Kind] = "unix"

    def __init__(
        self,
        address: UnixAddress,
        socket: trio.socket.SocketType,
        *,
        max_role: str,
        send_buffer: int | None,
        uids: Collection[int],
        credentials: Callable[[trio.socket.SocketType], tuple[int, int]],
    ) -> None:
        super().__init__(address, [socket], max_role=max_role, send_buffer=send_buffer)
        self._path = address.path
        self._file = _identity(address.path)
        self._uids = {0, os.geteuid(), *uids}
        self._credentials = credentials

    @classmethod
    def bind(
        cls,
        address: UnixAddress,
        *,
        max_role: str,
        send_buffer: int | None = None,
        mode: int = 0o600,
        uids: Collection[int] = (),
        credentials: Callable[[trio.socket.SocketType], tuple[int, int]] = peer_credentials,
    ) -> UnixListener:
        """`credentials` is a hook for tests; a test cannot connect as somebody else."""
        # Bound here and not by trio, which starts a thread for it.
        socket = stdlib_socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM)
        bound = False
        try:
            _remove_stale(address)
            socket.bind(address.path)
            bound = True
            os.chmod(address.path, mode)  # before listen: until then nobody can connect
            socket.listen(BACKLOG)
        except OSError as error:
            socket.close()
            if bound:
                os.unlink(address.path)
            raise error if isinstance(error, ListenError) else ListenError.of(address, error) from error
        return cls(
            address,
            trio.socket.from_stdlib_socket(socket),
            max_role=max_role,
            send_buffer=send_buffer,
            uids=uids,
            credentials=credentials,
        )

    def close(self) -> None:
        # By now the path may be another agent's, which replaced ours.  Before the socket is closed: as long as it is open, no
        # other file can have its inode number.
        if self._file is not None and _identity(self._path) == self._file:
            with suppress(OSError):
                os.unlink(self._path)
        self._file = None
        super().close()

    async def connected(
        self, nursery: trio.Nursery, stream: SocketByteStream, remote: Any, accepted: float, handler: Handler
    ) -> None:
        uid, pid = self._credentials(stream.socket)
        if uid not in self._uids:
            raise Refused(f"uid {uid} (pid {pid}) is not allowed", code="unauthorized")
        description = f"unix uid {uid} pid {pid}"
        await handler(
            stream,
            Peer(self.kind, description, self.max_role, trusted=True, uid=uid, pid=pid or None, accepted=accepted),
        )


def _remove_stale(address: UnixAddress) -> None:
    """Remove the socket file of an agent that is gone; ListenError if one is still there, or something else is."""
    try:
        mode = os.lstat(address.path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(address, "the path exists and is not a socket", errno.EADDRINUSE)
    with stdlib_socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full backlog would make it wait; it also means that somebody listens
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            os.unlink(address.path)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise
    raise ListenError(address, "another process listens there", errno.EADDRINUSE)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
