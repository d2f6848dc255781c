"""A first file system for a guest that has nothing but vsock: the modules of the image's initrd, and an init in C."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from image import cache, cpio
from image.entries import Entry

TINY: Final = Path(__file__).parent.parent / "guest" / "tiny.c"


def tiny(kernel: Path) -> Path:
    """`kernel`: the folder from image.kernel."""

    def make(file: Path) -> None:
        program = file.with_suffix(".program")
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-static", "-o", program, TINY], check=True)
        # Of two archives in a row, the later one's files replace the earlier one's.
        file.write_bytes(
            (kernel / "initrd").read_bytes() + cpio.pack([Entry.file("/init", program.read_bytes(), 0o755)])
        )

    return cache.keep(f"tiny/{cache.key(kernel.name, TINY.read_bytes())}", make)
