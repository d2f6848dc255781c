"""A kernel and the initrd that finds the root file system: Debian's cloud kernel, whose drivers are modules.

Firecracker and Cloud Hypervisor want it unpacked (:func:`unpack`).  Their guests often have a kernel with everything built in,
and then need no initrd at all.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from pathlib import Path

from image import cache, cpio
from image.entries import Entry
from image.errors import ImageError, run, run_binary

PACKAGE = "linux-image-cloud-amd64"
# Loaded in this order, each after what it depends on.
MODULES = (
    *("virtio_pci", "virtio_mmio", "virtio_blk", "ext4", "virtio_console", "virtio_rng", "virtio_net"),
    "vmw_vsock_virtio_transport",
)
RECIPE = 1

# What the compressed part of a bzImage begins with, and what unpacks it (a size of four bytes follows that is not of it).
PACKED = {
    b"\x02\x21\x4c\x18": ("lz4", "-dc"),  # the legacy format; Debian's cloud kernel
    b"\xfd7zXZ\0": ("xz", "-dc", "--single-stream"),
    b"\x28\xb5\x2f\xfd": ("zstd", "-dc"),
}

INIT = """\
#!/bin/busybox sh
# Loads the drivers, mounts the root file system and hands over.  root=, rootflags=, ro and init= as everywhere.
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs devtmpfs /dev
while read -r module; do /bin/busybox insmod /modules/$module || echo "initrd: cannot load $module"; done </modules/order
root=/dev/vda mode=rw flags= init=/sbin/init
for word in $(/bin/busybox cat /proc/cmdline); do
    case $word in
        --) break ;;
        root=*) root=${word#root=} ;;
        rootflags=*) flags=${word#rootflags=} ;;
        init=*) init=${word#init=} ;;
        ro|rw) mode=$word ;;
    esac
done
tries=0
while ! [ -b $root ] && [ $tries -lt 100 ]; do tries=$((tries + 1)); /bin/busybox usleep 50000; done
/bin/busybox mount -o $mode${flags:+,$flags} $root /root || {
    echo "initrd: cannot mount $root as the root file system; here is a shell"
    exec /bin/busybox sh
}
/bin/busybox umount /proc
/bin/busybox mount -o move /dev /root/dev || /bin/busybox umount /dev
exec /bin/busybox switch_root /root $init
"""


def build() -> Path:
    """A folder with `vmlinuz` and `initrd`, from the cache if this version was made before."""
    version = _candidate(PACKAGE)
    return cache.keep(f"kernel/{version.replace(':', '_')}-{cache.key(RECIPE, MODULES, INIT)}", _make)


def _candidate(package: str) -> str:
    for line in run(["apt-cache", "policy", package], f"find {package}").splitlines():
        if line.strip().startswith("Candidate:"):
            return line.split()[1]
    raise ImageError(f"cannot find the package {package}: apt-get update first")


def _make(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        image = _depends(PACKAGE)
        scratch.chmod(0o755)  # apt downloads as a user of its own
        run(["apt-get", "download", "-q", image, "busybox-static"], "fetch a kernel", cwd=scratch)
        tree = scratch / "tree"
        for package in scratch.glob("*.deb"):
            run(["dpkg-deb", "-x", str(package), str(tree)], f"unpack {package.name}")
        (modules,) = (tree / "lib/modules").iterdir()
        run(["depmod", "-b", str(tree), modules.name], "read the modules' dependencies")
        order = _in_order((modules / "modules.dep").read_text())
        entries = [
            Entry.file("/init", INIT, 0o755),
            Entry.file("/bin/busybox", next(tree.glob("**/bin/busybox")).read_bytes(), 0o755),
            *(Entry.file(f"/modules/{Path(path).name}", (modules / path).read_bytes()) for path in order),
            Entry.file("/modules/order", "".join(f"{Path(path).name}\n" for path in order)),
            *(Entry(path, "dir") for path in ("/proc", "/root")),
        ]
        folder.mkdir()
        (folder / "initrd").write_bytes(cpio.pack(entries))
        (folder / "modules").write_text("".join(f"{path}\n" for path in order))
        shutil.copyfile(next((tree / "boot").glob("vmlinuz-*")), folder / "vmlinuz")


def unpack(image: bytes) -> bytes:
    """The program (ELF) in a bzImage; see the kernel's Documentation/arch/x86/boot.rst for the offsets."""
    if len(image) < 0x250 or image[0x202:0x206] != b"HdrS":
        raise ImageError("cannot unpack the kernel: it is no bzImage")
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = ((image[0x1F1] or 4) + 1) * 512 + offset
    for magic, command in PACKED.items():
        if image.startswith(magic, start):
            with tempfile.TemporaryFile() as file:
                file.write(image[start : start + length - 4])
                file.seek(0)
                return run_binary(command, "unpack the kernel", file)
    raise ImageError("cannot unpack the kernel: its compression is not known")


def _depends(package: str) -> str:
    for line in run(["apt-cache", "depends", package], f"find the kernel of {package}").splitlines():
        if line.strip().startswith("Depends: linux-image-"):
            return line.split()[1]
    raise ImageError(f"cannot find the kernel of {package}")


def _in_order(dependencies: str) -> list[str]:
    """Files of MODULES and of what they need, each after what it needs.  What the kernel has built in is not in the list."""
    needs: dict[str, list[str]] = {}
    for line in dependencies.splitlines():
        path, _, others = line.partition(":")
        needs[path] = others.split()
    by_name = {Path(path).name.split(".")[0].replace("-", "_"): path for path in needs}
    # crc32c: ext4 asks for it by name at the mount, and not as a dependency.
    order: list[str] = []

    def add(path: str) -> None:
        if path not in order:
            for other in reversed(needs[path]):
                add(other)
            order.append(path)

    for module in ("crc32c_generic", *MODULES):
        if module in by_name:
            add(by_name[module])
    return order
