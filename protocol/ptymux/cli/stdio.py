"""The local end of bytes: stdin and stdout of this process, from trio.

They may be terminals, pipes, files or sockets, and are shared with other processes, so they are never made non-blocking.
"""

from __future__ import annotations

import os
import stat

import trio

from ptymux import limits


async def read_some(fd: int) -> bytes:
    """The next bytes; empty at the end.  Cancelling takes nothing."""
    try:
        await trio.lowlevel.wait_readable(fd)
    except PermissionError:  # a file: epoll has nothing to wait for
        await trio.lowlevel.checkpoint()
    try:
        return os.read(fd, limits.MAX_INPUT_DATA)
    except OSError:  # EIO: our terminal was hung up
        return b""


class Writer:
    """Writes everything, in order, without stopping the loop.  BrokenPipeError when nobody reads."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._file = stat.S_ISREG(os.fstat(fd).st_mode)

    async def write(self, data: bytes) -> None:
        if self._file:
            _write_all(self._fd, data)
            await trio.lowlevel.checkpoint()
        else:
            # A slow reader blocks a thread, not the loop; abandoned when we are cancelled, since the process ends then.
            await trio.to_thread.run_sync(_write_all, self._fd, data, abandon_on_cancel=True)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
