"""The command ``python -m image``."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from image import agent, debian, ext4, kernel, start, target
from image.entries import Root
from image.errors import ImageError, run
from image.ext4 import Ext4Root
from image.folder import FolderRoot
from image.tarball import TarRoot

TAR = (".tar", ".tar.gz", ".tgz")


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    started = time.monotonic()
    try:
        print(options.run(options), f"({time.monotonic() - started:.1f} s)")
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m image", description="Bake the agent into a root file system.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=function)
        return sub

    def common(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--start",
            choices=start.STARTS,
            default="auto",
            help="what starts the agent; auto: systemd if the image has it, else init",
        )
        sub.add_argument("--config", type=Path, metavar="FILE", help="becomes /etc/guestagent/config.toml")
        sub.add_argument(
            "--pure", action="store_true", help="no compiled modules: for any Python from 3.11 on, any machine"
        )
        sub.add_argument(
            "--no-precompile", action="store_true", help="no .pyc files: smaller, and much slower to start"
        )

    sub = command("build", _build, "from nothing to a bootable root file system with the agent in it")
    sub.add_argument(
        "output", help="an ext4 image, or a .tar(.gz) file, or (ending in /) a folder that is not there yet"
    )
    sub.add_argument("--include", default="", metavar="PACKAGES", help="more Debian packages, separated by commas")
    sub.add_argument("--suite", default=debian.SUITE)
    sub.add_argument(
        "--mirror", metavar="URL", help="where Debian comes from, for example a snapshot.debian.org of one day"
    )
    sub.add_argument("--size", metavar="N[M|G]", help="of an ext4 image; the rest is sparse")
    common(sub)

    sub = command("add", _add, "put the agent into a root file system that is there, in place of an older one")
    sub.add_argument("rootfs", type=Path, help="a folder, a .tar(.gz) file or an ext4 image")
    common(sub)

    sub = command("agent", _agent, "only the folder /opt/guestagent, for COPY in a Dockerfile")
    sub.add_argument("output", type=Path, help="a folder that is not there yet")
    sub.add_argument("--python", default="3.11", metavar="X.Y", help="of the guest")
    sub.add_argument("--interpreter", metavar="PATH", help="the guest's Python; /usr/bin/pythonX.Y")
    sub.add_argument("--machine", choices=sorted(target.MACHINES.values()), default="x86_64")
    sub.add_argument("--libc", choices=("glibc", "musl"), default="glibc")
    common(sub)

    sub = command("kernel", _kernel, "vmlinuz, vmlinux and an initrd with virtio and vsock, of Debian's cloud kernel")
    sub.add_argument("output", type=Path, help="a folder")
    return parser


def _install(root: Root, options: argparse.Namespace) -> str:
    python = target.detect(root)
    entries = agent.build(python, pure=options.pure, precompile=not options.no_precompile)
    config = options.config.read_text() if options.config else None
    started = start.entries(root, options.start, config)
    root.install([*entries, *started], replace=[agent.BASE])
    size = sum(len(entry.data) for entry in entries)
    return f"guestagent for {python.interpreter}: {len(entries)} files, {size / 1e6:.1f} MB"


def _build(options: argparse.Namespace) -> str:
    packages = [name for name in options.include.split(",") if name]
    tar = debian.base(packages, suite=options.suite, mirror=options.mirror)
    output = Path(options.output)
    if output.name.endswith(TAR):
        shutil.copyfile(tar, output)
        return f"{output}: {_install(TarRoot(output), options)}"
    if options.output.endswith("/"):
        _new_folder(output)
        return f"{output}: {_unpack_and_install(tar, output, options)}"
    with tempfile.TemporaryDirectory(prefix="guestagent-image-") as scratch:
        folder = Path(scratch, "root")
        folder.mkdir()
        text = _unpack_and_install(tar, folder, options)
        ext4.make(folder, output, _size(options.size))
    return f"{output}: {text}"


def _unpack_and_install(tar: Path, folder: Path, options: argparse.Namespace) -> str:
    # As root, owners and device nodes are kept; nobody else can make a root file system of this.
    run(["tar", "-x", "--numeric-owner", "--xattrs", "-f", str(tar), "-C", str(folder)], "unpack the base system")
    return _install(FolderRoot(folder), options)


def _new_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise ImageError(f"cannot make {path}: {error.strerror}") from None


def _size(text: str | None) -> int | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)([MG]?)", text)
    if match is None:
        raise ImageError(f"cannot use the size {text!r}: a number of bytes, or with M or G behind it")
    return int(match[1]) << {"": 0, "M": 20, "G": 30}[match[2]]


def open_root(path: Path) -> Root:
    if path.is_dir():
        return FolderRoot(path)
    if path.name.endswith(TAR):
        return TarRoot(path)
    if path.exists():
        return Ext4Root(path)
    raise ImageError(f"cannot find {path}")


def _add(options: argparse.Namespace) -> str:
    return f"{options.rootfs}: {_install(open_root(options.rootfs), options)}"


def _agent(options: argparse.Namespace) -> str:
    major, minor = (int(part) for part in options.python.split("."))
    python = target.Target(
        options.interpreter or f"/usr/bin/python{options.python}", (major, minor), options.machine, options.libc
    )
    output: Path = options.output
    _new_folder(output)
    entries = agent.build(python, pure=options.pure, precompile=not options.no_precompile)
    with tempfile.TemporaryDirectory(dir=output) as scratch:
        FolderRoot(Path(scratch)).install(entries)
        for path in sorted(Path(scratch, agent.BASE.lstrip("/")).iterdir()):
            path.rename(output / path.name)
    return f"{output}: guestagent for {python.interpreter}, {len(entries)} files"


def _kernel(options: argparse.Namespace) -> str:
    made = kernel.build()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in ("vmlinuz", "initrd"):
        shutil.copyfile(made / name, options.output / name)
    (options.output / "vmlinux").write_bytes(kernel.unpack((made / "vmlinuz").read_bytes()))
    return f"{options.output}: vmlinuz, vmlinux, initrd"


if __name__ == "__main__":
    sys.exit(main())
