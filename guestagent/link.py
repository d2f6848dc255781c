"""The link between keeper and server: msgpack maps over one SOCK_SEQPACKET pair, file descriptors beside them.

One datagram is one message, a map whose ``op`` names it.  The keeper is almost never changed while the server is upgraded under
it, so both sides ignore what they do not know.

===========  =========  ==========================================================================================
op           from       fields
===========  =========  ==========================================================================================
hello        keeper     store (map of blobs), cgroups (path or nil), why, restarts, init (the keeper is process 1)
stored       keeper     key, value: a blob with a slash in its key, which may be large
remembered   keeper     entry (blob): an answer that an earlier server gave; all come before the first session
session      keeper     record (see below); fds: what :data:`FDS` says
adopted      keeper     nothing more to adopt
spawned      keeper     n, record; fds
failed       keeper     n, code, message
exited       keeper     id, status (as from wait), ended (unix time), oom (the kernel killed something in it for want of memory)
stopping     keeper     the agent is going down
lent         keeper     n; fds: the history of the session's terminal
spawn        server     n, id, argv, env, cwd, user, size, tty, memory (list of memfd sizes), meta (blob)
release      server     id, all: close the terminal's fds (or the one named `only`), or with `all` forget the session, and `kill` it
meta         server     id, meta (blob)
store        server     key, value (blob; nil removes it)
remember     server     entry (blob): an answer that must not be given twice
lend         server     n, id: the server maps histories and keeps no descriptor of them; answered with lent or failed
poweroff     server     end the machine; only for a keeper that is process 1
ready        server     listening; text for the service manager; paths: socket files to remove at the very end; spare: keep a
                        second server process ready
===========  =========  ==========================================================================================

A record is {id, pid, meta, tty, group, status, ended, oom, started, fds}: `fds` names the descriptors beside the message, in order.
"""

from __future__ import annotations

import array
import os
import socket
from typing import Any

import msgpack

MESSAGE_MAX = 200 * 1024  # argv and environment are at most 128 KiB; below the default socket buffer of 208 KiB
FDS_MAX = 8

FDS = ("terminal", "history", "stdin", "stdout", "stderr", "history2")  # names that occur in a record's `fds`


class LinkClosed(Exception):
    """The other side is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def encode(message: dict[str, Any]) -> bytes:
    """ValueError if it is too large: whoever makes a message bounds what is in it."""
    body: bytes = msgpack.packb(message)
    if len(body) > MESSAGE_MAX:
        raise ValueError(f"cannot send {message['op']}: {len(body)} bytes are too many")
    return body


def send(sock: socket.socket, body: bytes, fds: list[int] | None = None) -> None:
    """One encoded message.  BlockingIOError on a non-blocking socket that is full; LinkClosed if nobody listens."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([body], ancillary)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise LinkClosed from error


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """One message and its descriptors (close-on-exec).  BlockingIOError if there is none; LinkClosed at the end."""
    ancillary_size = socket.CMSG_SPACE(FDS_MAX * 4)
    try:
        body, ancillary, flags, _ = sock.recvmsg(MESSAGE_MAX, ancillary_size, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # The other side died with messages of ours unread.  The kernel says so once, and before it gives us what was sent
        # to us earlier: a request that was carried out and remembered just before the death must not get lost here.
        body, ancillary, flags, _ = sock.recvmsg(MESSAGE_MAX, ancillary_size, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if not body:
        raise LinkClosed
    if flags & socket.MSG_CTRUNC:
        # The kernel could not give us all descriptors: we are out of them.  What came is closed, the message is marked.
        for fd in fds:
            os.close(fd)
        fds = array.array("i")
        message: dict[str, Any] = msgpack.unpackb(body)
        return {**message, "truncated": True}, []
    return msgpack.unpackb(body), list(fds)
