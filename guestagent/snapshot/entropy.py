"""The kernel's random numbers: a branch has its sibling's state until it is given something of its own.

Userspace generators in this process: trio's scheduler has its own `random.Random`, which decides nothing that matters; `secrets` and
`os.urandom` are the kernel's; `random` (trio-websocket takes ping ids from it) and OpenSSL keep state of their own and are reseeded
by :func:`reseed_process`.  The keeper uses none.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys

RNDADDENTROPY = 0x40085203  # _IOW('R', 0x03, int[2])
RNDRESEEDCRNG = 0x5207  # _IO('R', 0x07)
LEAST, MOST = 32, 512  # bytes of entropy: what seeds the kernel's generator, and more than it can use


def reseed_kernel(entropy: bytes) -> None:
    """Credit `entropy` and have it used from now on.  OSError (EPERM without CAP_SYS_ADMIN) if that is not certain."""
    fd = os.open("/dev/urandom", os.O_WRONLY | os.O_CLOEXEC)
    try:
        if entropy:
            fcntl.ioctl(fd, RNDADDENTROPY, struct.pack("ii", 8 * len(entropy), len(entropy)) + entropy)
        fcntl.ioctl(fd, RNDRESEEDCRNG)
    finally:
        os.close(fd)


def reseed_process() -> list[str]:
    """Reseed the generators of this process that keep state, from the kernel's; which ones."""
    done = []
    random, ssl = sys.modules.get("random"), sys.modules.get("ssl")
    if random is not None:
        random.seed(os.urandom(32))
        done.append("random")
    if ssl is not None:
        ssl.RAND_add(os.urandom(48), 48.0)  # reseeds the primary generator; those of the threads follow it
        done.append("ssl")
    return done
