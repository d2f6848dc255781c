"""Debian's kernel for clouds, unpacked from its package; nothing is installed on this machine."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.vm.lab import cache

META: Final = "linux-image-cloud-amd64"  # depends on the present version
MODINFO_DEPENDS: Final = re.compile(rb"\0depends=([^\0]*)\0")


@dataclass(frozen=True)
class Kernel:
    image: Path
    modules: Path  # the folder with `kernel` and `modules.builtin` in it

    def module_order(self, *names: str) -> list[Path]:
        """The files of these modules and of what they need, in the order of loading; what is built in is left out."""
        files = {path.stem.replace("-", "_"): path for path in self.modules.rglob("*.ko")}
        built_in = {
            Path(line).stem.replace("-", "_") for line in (self.modules / "modules.builtin").read_text().split()
        }
        order: list[Path] = []

        def add(name: str) -> None:
            name = name.replace("-", "_")
            if name in built_in or files[name] in order:
                return
            found = MODINFO_DEPENDS.search(files[name].read_bytes())
            for needed in found[1].decode().split(",") if found and found[1] else []:
                add(needed)
            order.append(files[name])

        for name in names:
            add(name)
        return order


def package() -> str:
    """The kernel's own package, with its version: name=version."""
    shown = subprocess.run(
        ["apt-cache", "show", "--no-all-versions", META], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"^Depends: (linux-image-[^ ]+-cloud-amd64) \(= ([^)]+)\)", shown, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"cannot find a kernel: apt knows no {META}; is `apt-get update` needed?")
    return f"{found[1]}={found[2]}"


def kernel() -> Kernel:
    """From the cache, or downloaded with apt."""
    wanted = package()

    def make(folder: Path) -> None:
        subprocess.run(
            ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", wanted],
            check=True,
            capture_output=True,
            cwd=folder,
        )
        (file,) = folder.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", file, folder], check=True)
        file.unlink()

    folder = cache.kept("kernel", wanted.encode(), make)
    (image,) = (folder / "boot").glob("vmlinuz-*")
    (modules,) = (folder / "lib/modules").iterdir()
    os.utime(folder)
    return Kernel(image, modules)
