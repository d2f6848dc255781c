"""What a bare kernel lacks besides file systems: a console, an environment, the loopback interface, a name, modules.

Each function says what it could not do instead of raising: the machine should come up as far as it can.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import sys

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOSTNAME_MAX = 64  # the kernel's __NEW_UTS_LEN


def open_console() -> None:
    """Descriptors 0 to 2, which the kernel leaves closed if the image has no /dev/console."""
    try:
        os.fstat(2)
    except OSError:
        try:
            fd = os.open("/dev/console", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            fd = os.open("/dev/null", os.O_RDWR)
        for number in range(3):
            os.dup2(fd, number)
        if fd > 2:
            os.close(fd)
    if sys.stderr is None:
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - lives as long as we do


def say(text: str) -> None:
    """One line on the console.  A console that takes nothing must not stop the machine."""
    with contextlib.suppress(OSError):
        print(f"guestagent: {text}", file=sys.stderr, flush=True)


def set_environment() -> None:
    """The kernel gives us HOME, TERM and whatever it did not understand of its command line."""
    os.environ.setdefault("PATH", PATH)
    os.chdir("/")
    os.umask(0o022)


def loopback_up() -> list[str]:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            request = struct.pack("16sH22x", b"lo", 0)
            (flags,) = struct.unpack_from("H", fcntl.ioctl(sock, SIOCGIFFLAGS, request), 16)
            fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | IFF_UP))
    except OSError as error:
        return [f"cannot set the loopback interface up: {error.strerror}"]
    return []


def set_hostname(wanted: str | None, path: str = "/etc/hostname") -> list[str]:
    """`wanted`, else the first line of the file; if there is neither, the kernel's name stays."""
    name = wanted or _first_line(path)
    if not name:
        return []
    try:
        socket.sethostname(name[:HOSTNAME_MAX])
    except OSError as error:
        return [f"cannot set the host name {name}: {error.strerror}"]
    return []


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def load_vsock() -> None:
    """Where vsock is a module that nobody loaded.  The server says it if this did not help."""
    if os.path.exists("/dev/vsock"):
        return
    for modprobe in ("/sbin/modprobe", "/usr/sbin/modprobe", "/bin/modprobe"):
        if os.access(modprobe, os.X_OK):
            subprocess.run(
                [modprobe, "-q", "vmw_vsock_virtio_transport"], stdin=subprocess.DEVNULL, check=False, timeout=30
            )
            return


def guard_from_oom() -> None:
    """For our server: the kernel never picks process 1.  Sessions get 0 back (see keeper/spawn.py)."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("-900")
