"""What else makes a machine itself: host name, machine id, boot id, the seed that the next boot will start from."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import tempfile

MACHINE_ID_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
BOOT_ID = "/proc/sys/kernel/random/boot_id"
BOOT_ID_FOLDER = "/run/guestagent"
RANDOM_SEED_FILES = ("/var/lib/systemd/random-seed", "/var/lib/random-seed", "/var/lib/urandom/random-seed")
MS_BIND = 4096
MNT_DETACH = 2


def replace_file(path: str, data: bytes, mode: int | None = None) -> None:
    """Write a file anew: whoever reads it sees the old or the new content.  Keeps mode and owner of the old one."""
    path = os.path.realpath(path)
    try:
        before = os.stat(path)
    except FileNotFoundError:
        before = None
    fd, name = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".guestagent-")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if before is not None:
                os.fchown(fd, before.st_uid, before.st_gid)
            os.fchmod(
                fd, mode if before is None and mode is not None else (before.st_mode & 0o7777 if before else 0o644)
            )
            file.flush()
            os.fsync(fd)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def set_hostname(name: str) -> None:
    """Now, and in /etc/hostname for the next boot."""
    socket.sethostname(name)
    replace_file("/etc/hostname", name.encode() + b"\n")


def set_machine_id(value: str) -> list[str]:
    """In every file that has one; which ones."""
    done = []
    for path in MACHINE_ID_FILES:
        if os.path.exists(path) and os.path.realpath(path) not in done:
            replace_file(path, value.encode() + b"\n")
            done.append(os.path.realpath(path))
    return done


def set_boot_id(value: str) -> None:
    """Cover the kernel's boot id, which cannot be set, with a file of ours."""
    os.makedirs(BOOT_ID_FOLDER, exist_ok=True)
    path = f"{BOOT_ID_FOLDER}/boot_id"
    replace_file(path, value.encode() + b"\n", 0o444)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.umount2(BOOT_ID.encode(), MNT_DETACH)  # an earlier restore's
    if libc.mount(path.encode(), BOOT_ID.encode(), None, MS_BIND, None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def renew_random_seed() -> list[str]:
    """The file from which the next boot seeds its generator; which ones."""
    done = []
    for path in RANDOM_SEED_FILES:
        if os.path.exists(path):
            replace_file(path, os.urandom(512))
            done.append(path)
    return done
