"""The disk: what the sessions wrote is on it (`syncfs`), and where the site wants it, nothing is half written (`FIFREEZE`).

Whoever writes to a frozen filesystem sleeps in the kernel and cannot even be killed.  So while one is frozen, this server keeps its
log in memory, and its keeper says nothing and starts servers that write no bytecode (the key QUIET of its store).

Calls that may take for ever run in threads; a freeze that succeeds after everybody has given up on it undoes itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable, Collection
from typing import NamedTuple

import trio

FIFREEZE = 0xC0045877  # _IOWR('X', 119, int)
FITHAW = 0xC0045878  # _IOWR('X', 120, int)
LOG_KEPT = 1000  # records of the log that wait in memory while it may not be written

# Nothing of these is on a disk, or a sync of them could wait for a process that is frozen (FUSE).
_WITHOUT_DISK = re.compile(
    r"proc|sysfs|tmpfs|ramfs|rootfs|devtmpfs|devpts|mqueue|cgroup2?|pstore|bpf|tracefs|debugfs|securityfs|configfs|hugetlbfs|"
    r"autofs|binfmt_misc|efivarfs|nsfs|fusectl|rpc_pipefs|selinuxfs|nfsd|squashfs|iso9660|erofs|fuse.*"
)


class Mount(NamedTuple):
    device: str  # major:minor
    path: str  # as this process reaches it
    kind: str


def mounts(pids: Collection[int]) -> list[Mount]:
    """The filesystems with a disk behind them that these processes see, one mount of each."""
    found: dict[str, Mount] = {}
    spaces: set[str] = set()
    for pid in ("self", *pids):
        with contextlib.suppress(OSError):
            space = os.readlink(f"/proc/{pid}/ns/mnt")
            if space in spaces:
                continue
            spaces.add(space)
            root = "" if pid == "self" else f"/proc/{pid}/root"
            with open(f"/proc/{pid}/mountinfo", errors="surrogateescape") as lines:
                for mount in map(_parse, lines):
                    if mount.device not in found and not _WITHOUT_DISK.fullmatch(mount.kind):
                        found[mount.device] = mount._replace(path=root + mount.path)
    return list(found.values())


def _parse(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    fields = before.split()
    path = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
    return Mount(fields[2], path, after.split()[0])


def sync(path: str) -> None:
    """Write the filesystem of `path` out, and wait for it.  OSError (EIO, ENOSPC) if something could not be written."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if libc.syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(fd)


def freeze(path: str) -> None:
    """Let nothing be written there until :func:`thaw`.  OSError: EBUSY if it is frozen, EOPNOTSUPP for what cannot be."""
    _control(path, FIFREEZE)


def thaw(path: str) -> None:
    """OSError EINVAL if it is not frozen."""
    _control(path, FITHAW)


def _control(path: str, request: int) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.ioctl(fd, request, 0)
    finally:
        os.close(fd)


async def in_thread(function: Callable[[], None], late: Callable[[], None] | None = None) -> None:
    """Run a blocking call.  Cancelling gives up on it; should it succeed later all the same, `late` undoes it."""
    lock = threading.Lock()
    given_up = False

    def run() -> None:
        function()
        with lock:
            if given_up and late is not None:
                late()

    try:
        await trio.to_thread.run_sync(run, abandon_on_cancel=True)
    except trio.Cancelled:
        with lock:
            given_up = True
        raise


class _Kept(logging.Handler):
    """Keeps records in memory; the oldest make room."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        del self.records[:-LOG_KEPT]


class QuietLog:
    """The root logger's handlers, silenced while a filesystem is frozen: the log may be on it."""

    def __init__(self) -> None:
        self._kept: _Kept | None = None
        self._handlers: list[logging.Handler] = []

    def hush(self) -> None:
        root = logging.getLogger()
        if self._kept is None:
            self._kept = _Kept()
            self._handlers, root.handlers = root.handlers, [self._kept]

    def speak(self) -> None:
        """Write what was kept, and go on as before."""
        kept, self._kept = self._kept, None
        if kept is not None:
            root = logging.getLogger()
            root.handlers = self._handlers
            for record in kept.records:
                root.handle(record)
