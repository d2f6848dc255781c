"""The renderer's process: asked by the server over descriptor 3, one question after the other.

Owns nothing that anybody else needs, and may be killed at any moment.  It is niced, gives itself up first when memory is short, and ends
when the server does.

===========  ========================================================================================================
op           fields, and the answer
===========  ========================================================================================================
ready        what it says first
open         id, columns, rows (at birth); fd: the history, read-only
close        id
follow       n, id -> offset up to which it has looked, unfinished (bytes of a sequence that lies across that)
picture      n, id, reset (a shell reads: what nobody at a prompt wants) -> offset, columns, rows, approximate; fd: the escape sequences
screen       n, id, reset, start, count (lines of scrollback) -> offset, approximate; fd: see state.screen_data
===========  ========================================================================================================

Each answer has `n`, `answers` ([offset, bytes] of terminal queries that were met) and `checkpoint` (for the history) or nil, or only `n`
and `error`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from guestagent import link
from guestagent.history_view import HistoryView
from guestagent.renderer.follower import Follower
from ptymux import limits

LINK_FD = 3
NICE = (
    5  # the pump and the programs come first; with less weight than this we would fall behind a flood that only scrolls
)
MEMORY_MAX = 512 * limits.MIB  # of our own, beside the mapped histories
FOLLOWERS_MAX = 64  # terminals that are kept drawn; the others' checkpoints say enough to draw them again
KEPT = 8 * limits.MIB  # of memory that is not given back to the kernel: copies of the ring would come as fresh pages each time
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


class Renderer:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._views: dict[str, tuple[HistoryView, int, int]] = {}
        self._followers: OrderedDict[str, Follower] = OrderedDict()

    def run(self) -> None:
        """Until the server closes the link."""
        with contextlib.suppress(link.LinkClosed):
            self._send({"op": "ready"})
            while True:
                self._carry_out(*link.receive(self._sock))

    def _carry_out(self, message: dict[str, Any], fds: list[int]) -> None:
        try:
            self._dispatch(message, fds)
        except link.LinkClosed:
            raise
        except Exception as error:  # noqa: BLE001 - one session's terminal must not take the others down
            self._forget(message["id"])
            if "n" in message:
                self._send({"n": message["n"], "error": f"{type(error).__name__}: {error}"[:500]})

    def _dispatch(self, message: dict[str, Any], fds: list[int]) -> None:
        op, name = message["op"], message["id"]
        if op == "open":
            self._close(name)
            self._views[name] = HistoryView(fds[0]), message["columns"], message["rows"]
            return
        if op == "close":
            self._close(name)
            return
        follower = self._follower(name)
        if op == "follow":
            seen = follower.follow()
        else:
            follower.draw()
            seen = follower.offset
        if message.get("reset"):
            follower.terminal.reset_pointer()
        answer: dict[str, Any] = {
            "n": message["n"],
            "offset": seen,
            "unfinished": follower.unfinished(seen),
            "columns": follower.terminal.columns,
            "rows": follower.terminal.lines,
            "approximate": follower.approximate,
            "answers": follower.take_answers(),
            "checkpoint": follower.checkpoint(),
        }
        if op == "picture":
            self._send(answer, follower.picture())
        elif op == "screen":
            self._send(answer, follower.screen(message["start"], message["count"]))
        else:
            self._send(answer)

    def _follower(self, name: str) -> Follower:
        follower = self._followers.get(name)
        if follower is None:
            while len(self._followers) >= FOLLOWERS_MAX:
                self._followers.popitem(last=False)
            follower = self._followers[name] = Follower(*self._views[name])
        self._followers.move_to_end(name)
        return follower

    def _forget(self, name: str) -> None:
        self._followers.pop(name, None)

    def _close(self, name: str) -> None:
        self._forget(name)
        view = self._views.pop(name, None)
        if view is not None:
            view[0].close()

    def _send(self, message: dict[str, Any], blob: bytes | None = None) -> None:
        fds: list[int] = []
        if blob is not None:
            fd = os.memfd_create("guestagent-screen", os.MFD_CLOEXEC)
            with open(fd, "wb", closefd=False) as file:
                file.write(blob)
            fds.append(fd)
        try:
            link.send(self._sock, link.encode(message), fds)
        finally:
            for fd in fds:
                os.close(fd)


def main(arguments: Sequence[str] = ()) -> int:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # whoever ends the server ends us
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NAME, b"guest-renderer", 0, 0, 0)
    for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
        libc.mallopt(option, KEPT)
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
    os.set_inheritable(LINK_FD, False)
    Renderer(socket.socket(fileno=LINK_FD)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
