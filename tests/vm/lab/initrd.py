"""A kernel's first file system: the modules for virtio and vsock, and an init."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.vm.lab import cache
from tests.vm.lab.kernel import Kernel

HERE: Final = Path(__file__).parent
TINY: Final = HERE.parent / "guest" / "tiny.c"
SWITCH: Final = HERE.parent / "guest" / "switch.sh"
BUSYBOX: Final = Path("/bin/busybox")

VSOCK_MODULES: Final = ("virtio_pci", "vmw_vsock_virtio_transport")
DISK_MODULES: Final = (
    "virtio_pci",
    "virtio_blk",
    "crc32c_generic",
    "ext4",
    "vmw_vsock_virtio_transport",
    "virtio_console",
)


def tiny(kernel: Kernel) -> Path:
    """An initrd whose init is tiny.c, and that is all."""
    source = TINY.read_bytes()

    def make(folder: Path) -> None:
        program = folder / "init"
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-static", "-o", program, TINY], check=True)
        files = {"init": program.read_bytes(), **_modules(kernel, VSOCK_MODULES)}
        (folder / "initrd").write_bytes(cpio(files))

    return cache.kept("tiny", _key(kernel, source), make) / "initrd"


def disk(kernel: Kernel) -> Path:
    """An initrd that mounts /dev/vda and runs the init that is there, or `init=` of the kernel's command line."""
    busybox, script = BUSYBOX.read_bytes(), SWITCH.read_bytes()

    def make(folder: Path) -> None:
        files = {"init": script, "bin/busybox": busybox, **_modules(kernel, DISK_MODULES)}
        (folder / "initrd").write_bytes(cpio(files))

    return cache.kept("initrd", _key(kernel, busybox, script), make) / "initrd"


def _key(kernel: Kernel, *inputs: bytes) -> bytes:
    return b"\0".join([str(kernel.image.parent.parent.name).encode(), Path(__file__).read_bytes(), *inputs])


def _modules(kernel: Kernel, names: tuple[str, ...]) -> dict[str, bytes]:
    order = kernel.module_order(*names)
    listing = "".join(f"{path.name}\n" for path in order)
    return {"modules/order": listing.encode(), **{f"modules/{path.name}": path.read_bytes() for path in order}}


def cpio(files: dict[str, bytes]) -> bytes:
    """An archive that the kernel unpacks: all files executable, folders made for them, and some for an init to mount on."""
    folders = {str(parent) for name in files for parent in Path(name).parents if str(parent) != "."}
    folders |= {"dev", "proc", "sys", "new"}
    entries = [(name, 0o040755, b"") for name in sorted(folders)]
    entries += [(name, 0o100755, data) for name, data in files.items()]
    entries.append(("TRAILER!!!", 0, b""))
    out = bytearray()
    for number, (name, mode, data) in enumerate(entries, 1):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)
