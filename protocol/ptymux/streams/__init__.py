"""Byte streams to an agent: every transport behind one interface, :class:`trio.abc.Stream`.

``dial`` is the dialling side.  The listening side lives in the agent and shares `sockets.py` and `websocket.py` with it.

What holds for every stream here, beyond trio's own contract (trio's conformance checks run over all of them):

* The bytes are the same on every transport; message boundaries of WebSocket mean nothing.
* A ``send_all`` that is cancelled midway **cuts the stream**: half a frame is out, so nothing may follow it.  Later use raises
  :class:`trio.BrokenResourceError`.  To give up on a write is to give up the connection.
* ``aclose`` is bounded in time on every transport and drops what the peer does not take by then.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence

import trio

from ptymux.address import Address, FirecrackerAddress, TcpAddress, UnixAddress, VsockAddress
from ptymux.errors import DialError
from ptymux.streams.sockets import (
    SocketByteStream,
    cause_of,
    dial_firecracker,
    dial_tcp,
    dial_unix,
    dial_vsock,
)

__all__ = ["SocketByteStream", "cause_of", "dial"]

Headers = Sequence[tuple[bytes, bytes]]

# What dialling meets in the ordinary course: the operating system and TLS (OSError), a peer that hangs up midway (trio's two),
# and names or paths that cannot be one (ValueError, of which the IDNA codec's UnicodeError is a case).
_CAUSES = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, ValueError, OverflowError)


async def dial(
    nursery: trio.Nursery,
    address: Address,
    *,
    ssl_context: ssl.SSLContext | None = None,
    extra_headers: Headers = (),
) -> trio.abc.Stream:
    """A new stream to `address`; the caller closes it, and bounds the time that this may take.

    `nursery` runs the background task of a WebSocket, so it must outlive the stream; other transports do not use it.
    `ssl_context` (default: the system's authorities) and `extra_headers` are for WebSocket addresses only.

    Raises :class:`~ptymux.errors.DialError` and nothing else of its own.  Cancelling leaves nothing open.
    """
    try:
        match address:
            case UnixAddress(path):
                return await dial_unix(path)
            case VsockAddress(cid, port):
                return await dial_vsock(cid, port)
            case FirecrackerAddress(path, port):
                return await dial_firecracker(path, port)
            case TcpAddress(host, port):
                return await dial_tcp(host, port)
            case _:
                # Here, because it costs 32 ms and its memory, and most clients never need it.
                from ptymux.streams.websocket import dial_websocket

                return await dial_websocket(nursery, address, ssl_context=ssl_context, extra_headers=extra_headers)
    except _CAUSES as error:
        raise DialError(f"cannot dial {address}: {cause_of(error)}") from error
