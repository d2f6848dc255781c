"""sd_notify: tell the service manager that we are ready or going down."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(text: str) -> None:
    """Send `text` to NOTIFY_SOCKET if there is one; a manager that is gone is not our trouble."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    if path.startswith("@"):
        path = "\0" + path[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto(text.encode(), path)
