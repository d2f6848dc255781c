"""A Debian root file system from nothing, by mmdebstrap."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from image import cache
from image.entries import epoch
from image.errors import run

SUITE = "bookworm"
# What the agent needs (python3), what process 1 makes use of (kmod), and what a person who looks in expects.
PACKAGES = ("python3", "procps", "kmod", "iproute2", "bash")
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/var/cache/apt/*")
# mmdebstrap gives the guest this machine's name and resolver.
FORGET = 'echo guest >"$1/etc/hostname"; rm -f "$1/etc/resolv.conf"'
RECIPE = 2  # to be raised when this file changes what comes out


def base(packages: Sequence[str] = (), *, suite: str = SUITE, mirror: str | None = None) -> Path:
    """A tar of the base system with PACKAGES and `packages`, from the cache if it was made before.

    `mirror` of a fixed day (https://snapshot.debian.org/archive/debian/DATE/) makes it the same for ever; the archive of
    today gives what is in it today.
    """
    included = sorted({*PACKAGES, *packages})
    name = f"base/{suite}-{cache.key(RECIPE, suite, mirror, included, epoch())}.tar"

    def make(path: Path) -> None:
        run(
            [
                *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(included)}"),
                # dpkg need not wait for the disk: half a system is no system anyway.
                *("--dpkgopt=force-unsafe-io", *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT)),
                f"--customize-hook={FORGET}",
                *('--aptopt=Acquire::Languages "none"', suite, str(path), *([mirror] if mirror else [])),
            ],
            "make a base system",
            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch())},
        )

    return cache.keep(name, make)
