"""Streams that are sockets: unix, TCP, AF_VSOCK, and Firecracker's way of reaching a guest's vsock port.

The dialers raise what they meet (OSError, trio.BrokenResourceError); ``streams.dial`` turns it into one error.
"""

from __future__ import annotations

import os
import re
import socket as stdlib_socket
import ssl
from collections.abc import Sequence
from typing import Final, cast

import trio

# Linux takes 1024 (UIO_MAXIOV) in one call; the batch of 256 KiB is spent long before, and half keeps the kernel's copy of
# the list within two pages.
MAX_BUFFERS: Final = 512

# "OK " and a 32-bit port number are 14 bytes; a monitor that says more is not one.
MAX_ANSWER: Final = 64


class SocketByteStream(trio.abc.HalfCloseableStream):
    """A connected stream socket.  It owns the socket.

    Beyond trio's interface it has :meth:`try_send`, for the agent's output path: what is sent there lies in the ring of a
    session's history, and must not change between choosing the slices and handing them to the kernel.

    TCP gets TCP_NODELAY, and TCP_NOTSENT_LOWAT of 16 KiB, so that "writable" means that little is queued: bytes in a socket
    cannot be overtaken.  `send_buffer` sets SO_SNDBUF to the same end (the kernel doubles it for its own bookkeeping).
    """

    def __init__(self, socket: trio.socket.SocketType, *, send_buffer: int | None = None) -> None:
        self._stream = trio.SocketStream(socket)  # sets both TCP options
        self._sending = False
        self._cut = False
        if send_buffer is not None:
            socket.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_SNDBUF, send_buffer)

    @property
    def socket(self) -> trio.socket.SocketType:
        return self._stream.socket

    def try_send(self, buffers: Sequence[bytes | memoryview]) -> int:
        """Hand over what the socket takes of `buffers` right now, without copying it here.

        Returns the number of bytes taken, 0 if it would block.  At most the first :data:`MAX_BUFFERS` buffers are looked at.
        Raises BrokenResourceError if the connection is gone, ClosedResourceError if this stream is, and BusyResourceError
        while a ``send_all`` is under way, whose bytes these would be mixed with.
        """
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._check()
        descriptor = self._stream.socket.fileno()
        if descriptor < 0:
            raise trio.ClosedResourceError("this stream is closed")
        try:
            # The same system call path as sendmsg without flags; trio shows no synchronous sendmsg, but shows the fd.
            return os.writev(descriptor, buffers[:MAX_BUFFERS])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(f"cannot send: {cause_of(error)}") from error

    async def wait_writable(self) -> None:
        """Until ``try_send`` may take something, or would raise."""
        self._check()
        await self._stream.wait_send_all_might_not_block()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._check()
        await trio.lowlevel.checkpoint_if_cancelled()  # nothing is out yet: this one does no harm
        self._sending = True
        try:
            await self._stream.send_all(data)
        except trio.Cancelled:
            # How much went out is unknown; after half a frame nothing that follows would make sense.
            self._cut = True
            self._stream.socket.close()
            raise
        finally:
            self._sending = False

    async def wait_send_all_might_not_block(self) -> None:
        await self.wait_writable()

    async def send_eof(self) -> None:
        self._check()
        await self._stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        self._check()
        try:
            return bytes(await self._stream.receive_some(max_bytes))  # bytes of bytes: no copy
        except trio.ClosedResourceError:
            self._check()
            raise

    async def aclose(self) -> None:
        self._cut = False  # from here on it is the caller who closed it
        await self._stream.aclose()

    def _check(self) -> None:
        if self._cut:
            raise trio.BrokenResourceError("cannot go on: an earlier send was cancelled midway")


async def dial_unix(path: str) -> SocketByteStream:
    socket = trio.socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM)
    try:
        await socket.connect(path)
        # With a full backlog a non-blocking connect gives EAGAIN, which trio waits out as it would EINPROGRESS, and then
        # takes the still unconnected socket for a connected one.
        try:
            socket.getpeername()
        except OSError:
            raise ConnectionRefusedError("its queue of waiting connections is full") from None
        return SocketByteStream(socket)
    except BaseException:
        socket.close()
        raise


async def dial_tcp(host: str, port: int) -> SocketByteStream:
    stream = await trio.open_tcp_stream(host, port)
    return SocketByteStream(stream.socket)


async def dial_vsock(cid: int, port: int) -> SocketByteStream:
    socket = trio.socket.socket(stdlib_socket.AF_VSOCK, stdlib_socket.SOCK_STREAM)
    try:
        await socket.connect((cid, port))
        return SocketByteStream(socket)
    except BaseException:
        socket.close()
        raise


async def dial_firecracker(path: str, port: int) -> SocketByteStream:
    """Through the unix socket of a VM monitor (Firecracker, Cloud Hypervisor) to a vsock port of its guest."""
    stream = await dial_unix(path)
    try:
        await stream.send_all(b"CONNECT %d\n" % port)
        answer = await _read_line(stream.socket, port)
        if not re.fullmatch(rb"OK [0-9]+\n", answer):
            raise ConnectionError(f"the VM monitor answered {answer!r} to CONNECT, not OK")
        return stream
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


async def _read_line(socket: trio.socket.SocketType, port: int) -> bytes:
    """One line, newline included, and not a byte more: what follows it is the agent's."""
    line = bytearray()
    while len(line) < MAX_ANSWER:
        byte = await socket.recv(1)
        if not byte:
            # How the monitors say no: the guest is not up, or its kernel reset the connection.
            raise ConnectionRefusedError(f"the VM monitor hung up; nothing listens on port {port} in the guest")
        line += byte
        if byte == b"\n":
            return bytes(line)
    raise ConnectionError(f"the VM monitor answered {bytes(line)!r} to CONNECT, without an end")


def cause_of(error: BaseException) -> str:
    """The part after "cannot X: " - what went wrong at the root, without trio's wrapping and errno numbers."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return "; ".join(dict.fromkeys(cause_of(each) for each in group.exceptions))  # IPv4 and IPv6 fail alike
    wrapping = isinstance(error, trio.BrokenResourceError) or (isinstance(error, OSError) and error.errno is None)
    cause = error.__cause__
    if wrapping and isinstance(cause, (OSError, BaseExceptionGroup)):
        return cause_of(cast(BaseException, cause))
    if isinstance(error, OSError) and error.errno is not None:
        if isinstance(error, (stdlib_socket.gaierror, ssl.SSLError)):
            return error.strerror or str(error)  # numbers of their own
        return os.strerror(error.errno)  # trio's texts name the address once more
    return str(error) or type(error).__name__
