"""The file systems that every program expects, mounted where they are not yet (an initrd may have done some)."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from typing import NamedTuple

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32

_libc = ctypes.CDLL(None, use_errno=True)


class Mount(NamedTuple):
    source: str
    target: str
    kind: str
    flags: int
    data: str
    needed: bool  # a terminal cannot be had without


MOUNTS = (
    Mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "", True),
    Mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "", False),
    Mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=0755", True),
    Mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666", True),
    Mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777", False),
    Mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755", False),
    # nsdelegate: a container in the guest cannot move processes out of what it was given.
    Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, "nsdelegate", False),
)
TMP = Mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777", False)

# devtmpfs has no such links, and a shell's <(...) needs the first.
LINKS = (
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
)


def mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    """mount(2); OSError."""
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def mount_all() -> list[str]:
    """Mount what is missing; what could not be, as "cannot X: cause" (for something needed, in capitals)."""
    problems = list(_mount_missing(MOUNTS))
    # On a disk that can be written, /tmp stays there: a build in /tmp must not be bounded by the guest's memory.
    if not os.access("/tmp", os.W_OK):
        problems += _mount_missing((TMP,))
    for target, link in LINKS:
        with contextlib.suppress(OSError):
            os.symlink(target, link)
    return problems


def _mount_missing(wanted: tuple[Mount, ...]) -> Iterator[str]:
    for item in wanted:
        try:
            if not os.path.isdir(item.target):
                os.makedirs(item.target)
            if not os.path.ismount(item.target):
                mount(item.source, item.target, item.kind, item.flags, item.data)
        except OSError as error:
            yield f"{'CANNOT' if item.needed else 'cannot'} mount {item.target}: {error.strerror}"


def remount_read_only(target: str) -> None:
    """The file system itself, not only this mount of it."""
    mount("none", target, "", MS_REMOUNT | MS_RDONLY, "")
