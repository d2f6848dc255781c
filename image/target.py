"""Which Python a root file system has, as far as wheels, precompiled files and the launcher's first line depend on it."""

from __future__ import annotations

import platform
import re
import struct
import sys
from dataclasses import dataclass

from image.entries import Root
from image.errors import ImageError

OLDEST = (3, 11)
MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}  # e_machine of an ELF header
# Tried in this order; a distribution's own Python is the one that belongs to its packages.
PLACES = ("/usr/bin/python3", "/bin/python3", "/usr/local/bin/python3")
GLIBC_NEWEST = 28  # of the manylinux tags we take: 2.28 is 2018's, and every distribution with Python 3.11 is newer


@dataclass(frozen=True, slots=True)
class Target:
    interpreter: str = "/usr/bin/python3.11"
    python: tuple[int, int] = (3, 11)
    machine: str = "x86_64"
    libc: str = "glibc"  # or musl

    @property
    def tag(self) -> str:
        return f"cp{self.python[0]}{self.python[1]}"

    @property
    def platforms(self) -> list[str]:
        """Platform tags of wheels that run there, as pip wants them."""
        if self.libc == "musl":
            return [f"musllinux_1_{minor}_{self.machine}" for minor in (2, 1)]
        tags = [f"manylinux_2_{minor}_{self.machine}" for minor in range(GLIBC_NEWEST, 4, -1)]
        return [*tags, f"manylinux2014_{self.machine}"]

    @property
    def markers(self) -> dict[str, str]:
        """What the environment markers of a requirement mean there (PEP 508)."""
        version = f"{self.python[0]}.{self.python[1]}"
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{version}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{version}.0",
            "python_version": version,
            "sys_platform": "linux",
            "extra": "",
        }

    @property
    def is_like_ours(self) -> bool:
        """Can the Python that runs this compile for it?"""
        return sys.implementation.name == "cpython" and sys.version_info[:2] == self.python

    @property
    def runs_here(self) -> bool:
        return self.machine == platform.machine()


def detect(root: Root) -> Target:
    """The Python of `root`, from names and headers only: nothing of it is run."""
    for place in PLACES:
        path = root.resolve(place)
        match = re.search(r"/python(\d+)\.(\d+)$", path)
        if root.kind(path) == "file" and match:
            python = (int(match[1]), int(match[2]))
            if python < OLDEST:
                raise ImageError(f"cannot use {path}: Python 3.11 or newer is needed")
            musl = any(root.exists(f"/lib/ld-musl-{machine}.so.1") for machine in MACHINES.values())
            # The versioned name: whoever makes `python3` mean another one does not change what we run.
            return Target(path, python, _machine(root.read(path, 20), path), "musl" if musl else "glibc")
    raise ImageError(f"cannot find a Python in this root file system (looked for {', '.join(PLACES)})")


def _machine(header: bytes, path: str) -> str:
    if header[:4] != b"\x7fELF" or len(header) < 20:
        raise ImageError(f"cannot use {path}: it is not a program (ELF)")
    (number,) = struct.unpack_from("<H", header, 18)
    if number not in MACHINES:
        raise ImageError(f"cannot use {path}: machine {number} is not known")
    return MACHINES[number]
