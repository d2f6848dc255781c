"""What all listeners share: who a peer is, the accept loop, and how a connection ends."""

from __future__ import annotations

import errno
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import trio

from ptymux import limits
from ptymux.address import Address
from ptymux.messages import Error, encode
from ptymux.streams import SocketByteStream, cause_of

log = logging.getLogger("guestagent.listeners")

Kind = Literal["unix", "vsock", "tcp", "websocket"]

# Out of descriptors or memory: the connection stays in the kernel's queue, so accept would fail again at once.
_CAPACITY: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# The listening socket itself is gone, or listens no more: no use in trying again.
_GONE: Final = {errno.EBADF, errno.ENOTSOCK, errno.EINVAL}
# The connection was gone before it was accepted, or came with an error of its network (accept(2)); the next one may be fine.
_PASSING: Final = {
    errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.ENONET,
    errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH, errno.ETIMEDOUT,
}  # fmt: skip

ACCEPT_PAUSE: Final = 0.1  # after a failed accept: what trio waits, too
LINGER_TIME: Final = 1.0  # for the peer to take our last words and hang up
LINGER_READS: Final = 64  # and how much of what it still sends is read meanwhile, in pieces of 64 KiB at most
# The server refuses connections above max_connections in words; this is for those that never get so far, such as
# handshakes that somebody opens by the thousand.
MAX_OPEN: Final = 2 * limits.MAX_CONNECTIONS
REFUSAL_INTERVAL: Final = 1.0  # between two lines about refused connections: a flood must not fill the disk


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection, as far as the transport can tell."""

    kind: Kind
    description: str  # for logs: "unix uid 0 pid 17", "vsock CID 2 port 1024", "websocket 127.0.0.1:40112"
    max_role: str  # the greatest role that the listener grants
    trusted: bool  # the transport vouches for it: no token needed, unless tokens are configured
    uid: int | None = None  # unix
    pid: int | None = None  # unix; None also where the peer's process is in another pid namespace
    cid: int | None = None  # vsock
    accepted: float | None = None  # trio's clock when it came in: greeting_time counts from here, handshakes included


Handler = Callable[[trio.abc.Stream, Peer], Awaitable[object]]


class ListenError(OSError):
    """ "cannot listen on ADDRESS: cause", with the errno where there is one."""

    def __init__(self, address: Address, cause: str, number: int | None = None) -> None:
        self.text = f"cannot listen on {address}: {cause}"
        super().__init__(number, self.text)

    def __str__(self) -> str:
        return self.text

    @classmethod
    def of(cls, address: Address, error: OSError) -> ListenError:
        return cls(address, cause_of(error), error.errno)


class Refused(Exception):
    """A connection that may not come in; one line in the log.  With a `code`, the peer is told in an ERROR frame."""

    def __init__(self, text: str, *, code: str | None = None) -> None:
        super().__init__(text)
        self.code = code


class Listener(ABC):
    """A bound address.  It owns its sockets: ``serve`` closes them at its end, ``close`` at any time."""

    kind: ClassVar[Kind]

    def __init__(
        self,
        address: Address,
        sockets: Sequence[trio.socket.SocketType],
        *,
        max_role: str,
        send_buffer: int | None = None,
    ) -> None:
        self.address = address
        self.max_role = max_role
        self._sockets = sockets
        self._send_buffer = send_buffer
        self._closed = False
        self._open = 0
        self._refusals = _Refusals(address)

    @abstractmethod
    async def connected(
        self, nursery: trio.Nursery, stream: SocketByteStream, remote: Any, accepted: float, handler: Handler
    ) -> None:
        """Check who it is (raise :class:`Refused`), call `handler`, return when it did.  The caller closes `stream`.

        `nursery` is for background tasks that end with the stream, `remote` the address that accept gave.
        """

    async def serve(self, handler: Handler, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run `handler(stream, peer)` for each connection, in a task of its own, until cancelled.

        The stream is closed when the handler is done.  What a handler raises is logged and ends its connection only.
        After :meth:`close`, the open connections are served to their end.
        """
        try:
            async with trio.open_nursery() as nursery:
                for socket in self._sockets:
                    nursery.start_soon(self._accept_all, socket, nursery, handler)
                task_status.started()
        finally:
            self.close()

    def close(self) -> None:
        """Listen no more.  Idempotent."""
        self._closed = True
        for socket in self._sockets:
            socket.close()

    async def _accept_all(self, listening: trio.socket.SocketType, nursery: trio.Nursery, handler: Handler) -> None:
        failing = False  # one line for each time that it begins to fail
        while True:
            try:
                socket, remote = await listening.accept()
            except trio.ClosedResourceError:
                return
            except OSError as error:
                if error.errno in _GONE:
                    if not self._closed:
                        log.error("cannot accept on %s any more: %s", self.address, error)
                    return
                if error.errno in _PASSING:
                    continue
                if not failing:
                    what = os.strerror(error.errno) if error.errno in _CAPACITY else repr(error)
                    log.error("cannot accept on %s: %s; trying again every %s s", self.address, what, ACCEPT_PAUSE)
                failing = True
                await trio.sleep(ACCEPT_PAUSE)
                continue
            if failing:
                log.warning("accepting on %s again", self.address)
            failing = False
            nursery.start_soon(self._connection, nursery, socket, remote, handler)

    async def _connection(
        self, nursery: trio.Nursery, socket: trio.socket.SocketType, remote: Any, handler: Handler
    ) -> None:
        self._open += 1
        try:
            if self._open > MAX_OPEN:
                raise Refused(f"{MAX_OPEN} connections are open")
            stream = SocketByteStream(socket, send_buffer=self._send_buffer)
            try:
                await self.connected(nursery, stream, remote, trio.current_time(), handler)
            except Refused as error:
                self._refusals.log(str(error))
                if error.code is not None:
                    stream.try_send([encode(Error(error.code, "this peer is not allowed here", True))])
            await _linger(stream)
        except Refused as error:
            self._refusals.log(str(error))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            log.debug("a connection on %s broke: %s", self.address, error)
        except Exception:
            log.exception("a connection on %s failed", self.address)
        finally:
            socket.close()
            self._open -= 1


async def _linger(stream: SocketByteStream) -> None:
    """Let the peer read what we sent last.

    To close a socket with unread bytes in it is to reset the connection, and a reset can overtake an ERROR frame.
    """
    with trio.move_on_after(LINGER_TIME), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.send_eof()
        for _ in range(LINGER_READS):
            if not await stream.receive_some():
                break


class _Refusals:
    """One line for each refused connection, but not for each of a flood."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._next = float("-inf")
        self._unsaid = 0

    def log(self, text: str) -> None:
        now = trio.current_time()
        if now < self._next:
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} more)" if self._unsaid else ""
        log.warning("refused a connection on %s: %s%s", self._address, text, more)
        self._next, self._unsaid = now + REFUSAL_INTERVAL, 0
