"""A root file system in an ext4 image, without mounting it: debugfs writes in place, and mke2fs makes one of a folder.

In place: what is in the image stays as it is, with owners, attributes, hard links and devices, and nobody needs to be root.
The image must have been unmounted cleanly (debugfs does not replay a journal) and grows if the agent does not fit.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from image.entries import Entry, Kind, Root, epoch, walk
from image.errors import ImageError, run

MIB = 1 << 20
SPARE = 16 * MIB  # what is left free, at least, in an image that we had to let grow
UUID = "67756573-7461-6765-6e74-726f6f746673"  # a constant, or no two images would have the same hash
KINDS: dict[int, Kind] = {0o04: "dir", 0o10: "file", 0o12: "link"}
SAFE = re.compile(r"[\w./@+=:,~%-]+")  # debugfs has quotes, but no way to write one


class Ext4Root(Root):
    def __init__(self, path: Path) -> None:
        self._image = path
        self._listings: dict[str, dict[str, Kind | None]] = {}
        header = self._ask("stats -h")
        features = re.search(r"^Filesystem features:\s*(.*)$", header, re.M)
        if features is None:
            raise ImageError(f"cannot use {path}: it is not an ext4 file system (a disk with partitions?)")
        if "needs_recovery" in features[1]:
            raise ImageError(f"cannot use {path}: it was not unmounted cleanly; e2fsck -f {path} first")

    def _ask(self, command: str) -> str:
        return run(["debugfs", "-R", command, str(self._image)], f"look into {self._image}", env=_environment())

    def _list(self, path: str) -> dict[str, Kind | None]:
        """Names in a folder; empty if it is none."""
        if path not in self._listings:
            found: dict[str, Kind | None] = {}
            # /inode/mode/uid/gid/name/size/
            for _, mode, name in re.findall(
                r"^/(\d+)/(\d+)/\d+/\d+/(.+)/\d*/$", self._ask(f"ls -p {_safe(path)}"), re.M
            ):
                if name not in (".", "..", ""):
                    found[name] = KINDS.get(int(mode, 8) >> 12)
            self._listings[path] = found
        return self._listings[path]

    def kind(self, path: str) -> Kind | None:
        if path in ("", "/"):
            return "dir"
        folder, _, name = path.rpartition("/")
        return self._list(folder or "/").get(name) if self.kind(folder) == "dir" else None

    def readlink(self, path: str) -> str:
        text = self._ask(f"stat {_safe(path)}")
        fast = re.search(r'^Fast link dest: "(.*)"$', text, re.M)
        return fast[1] if fast else self.read(path).decode()

    def read(self, path: str, most: int | None = None) -> bytes:
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch, "file")
            self._ask(f"dump {_safe(path)} {copy}")
            with copy.open("rb") as file:
                return file.read(most)

    def names(self, path: str) -> list[str]:
        return sorted(self._list(path))

    def write(self, remove: list[str], entries: list[Entry]) -> None:
        commands: list[str] = []
        gone: set[str] = set()
        for tree in remove:
            for path in walk(self, tree):
                commands.append(f"{'rmdir' if self.kind(path) == 'dir' else 'rm'} {_safe(path)}")
                gone.add(path)
        with tempfile.TemporaryDirectory() as scratch:
            needed = 0
            for number, entry in enumerate(entries):
                there = None if entry.path in gone else self.kind(entry.path)
                if entry.kind == "dir" and there == "dir":
                    continue
                if there is not None:
                    commands.append(f"rm {_safe(entry.path)}")
                source = Path(scratch, str(number))
                source.write_bytes(entry.data)
                commands += _commands(entry, source)
                needed += len(entry.data) + 4096
            self._make_room(needed)
            script = Path(scratch, "script")
            script.write_text("".join(f"{command}\n" for command in commands))
            output = run(
                ["debugfs", "-w", "-f", str(script), str(self._image)],
                f"write to {self._image}",
                env=_environment(),
            )
        self._listings.clear()
        _check_output(output, self._image)

    def _make_room(self, needed: int) -> None:
        header = self._ask("stats -h")
        size, blocks, free = (
            int(re.findall(rf"^{name}:\s*(\d+)$", header, re.M)[0])
            for name in ("Block size", "Block count", "Free blocks")
        )
        if free * size >= needed + SPARE // 4:
            return
        run(["e2fsck", "-fy", str(self._image)], "check the image before it grows", env=_environment())
        os.truncate(self._image, blocks * size + needed + SPARE)
        run(["resize2fs", str(self._image)], "let the image grow", env=_environment())


def _environment() -> dict[str, str]:
    """The tools' own time stamps are ours, and they are found where a user's PATH does not lead."""
    return {
        **os.environ,
        "E2FSPROGS_FAKE_TIME": str(epoch()),
        "LC_ALL": "C",
        "PATH": f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin",
    }


def _commands(entry: Entry, source: Path) -> list[str]:
    path = _safe(entry.path)
    if entry.kind == "dir":
        made, kind = f"mkdir {path}", 0o40000
    elif entry.kind == "link":
        made, kind = f"symlink {path} {_safe(entry.target)}", 0o120000
    else:
        made, kind = f"write {source} {path}", 0o100000
    values = {"mode": f"0{kind | entry.mode:o}", "uid": "0", "gid": "0"}
    times = {name: f"@{epoch()}" for name in ("atime", "ctime", "mtime", "crtime")}
    return [made, *(f"sif {path} {name} {value}" for name, value in {**values, **times}.items())]


def _safe(path: str) -> str:
    if not SAFE.fullmatch(path):
        raise ImageError(f"cannot handle the name {path!r} in an ext4 image")
    return path


def _check_output(output: str, image: Path) -> None:
    """debugfs ends with 0 whatever happens.  It echoes each command behind a prompt; complaints stand alone."""
    bad = [
        line
        for line in output.splitlines()
        if line and not line.startswith(("debugfs", "Allocated inode:", "Filesystem")) and "debugfs 1." not in line
    ]
    if bad:
        raise ImageError(f"cannot write to {image}: {' | '.join(bad[:4])}")


def make(folder: Path, image: Path, size: int | None = None) -> None:
    """An ext4 image of a folder, by default with room for half as much again."""
    if size is None:
        used = sum(entry.lstat().st_blocks * 512 for entry in folder.rglob("*"))
        size = (used * 3 // 2 + 96 * MIB) // MIB * MIB
    image.unlink(missing_ok=True)
    with image.open("wb") as file:
        file.truncate(size)
    run(
        [
            *("mke2fs", "-q", "-t", "ext4", "-d", str(folder), "-L", "guestagent", "-U", UUID, "-m", "0"),
            *("-E", f"hash_seed={UUID},lazy_itable_init=0,root_owner=0:0", str(image)),
        ],
        f"make {image}",
        env=_environment(),
    )
