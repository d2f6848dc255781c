"""First file systems for special guests: each is the one of image/ with something put behind it.

Of two archives in a row, the later one's files replace the earlier one's.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from image import cache, cpio
from image.entries import Entry

TINY: Final = Path(__file__).parent.parent / "guest" / "tiny.c"


def tiny(kernel: Path) -> Path:
    """An init in C that serves vsock and needs no disk.  `kernel`: the folder from image.kernel."""

    def make(file: Path) -> None:
        program = file.with_suffix(".program")
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-static", "-o", program, TINY], check=True)
        _append(kernel, file, [Entry.file("/init", program.read_bytes(), 0o755)])

    return cache.keep(f"tiny/{cache.key(kernel.name, TINY.read_bytes())}", make)


def with_modules(kernel: Path, *names: str) -> Path:
    """Loads further modules, which need nothing that is not loaded anyway."""

    def make(file: Path) -> None:
        order = [Path(path).name for path in (kernel / "modules").read_text().split()]
        with tempfile.TemporaryDirectory() as scratch:
            release = _release(kernel)
            tree = Path(scratch)
            tree.chmod(0o755)  # apt downloads as a user of its own
            subprocess.run(
                ["apt-get", "download", "-q", f"linux-image-{release}"], check=True, capture_output=True, cwd=tree
            )
            (package,) = tree.glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", package, tree / "tree"], check=True)
            entries = []
            for name in names:
                (module,) = (tree / "tree").rglob(f"{name}.ko")
                entries.append(Entry.file(f"/modules/{name}.ko", module.read_bytes()))
                order.append(module.name)
        entries.append(Entry.file("/modules/order", "".join(f"{name}\n" for name in order)))
        _append(kernel, file, entries)

    return cache.keep(f"initrd/{cache.key(kernel.name, names)}", make)


def _release(kernel: Path) -> str:
    """What `uname -r` says: a kernel's image has it in its header, at an offset that is there too."""
    image = (kernel / "vmlinuz").read_bytes()
    start = int.from_bytes(image[0x20E:0x210], "little") + 0x200
    found = re.match(rb"[\w.+-]+", image[start:])
    assert found is not None
    return found[0].decode()


def _append(kernel: Path, file: Path, entries: list[Entry]) -> None:
    file.write_bytes((kernel / "initrd").read_bytes() + cpio.pack(entries))
