"""Writes an archive that the kernel unpacks as its first root file system (format newc)."""

from __future__ import annotations

import stat
from collections.abc import Iterable

from image.entries import Entry, with_folders

TYPES = {"dir": stat.S_IFDIR, "file": stat.S_IFREG, "link": stat.S_IFLNK}


def pack(entries: Iterable[Entry], console: bool = True) -> bytes:
    """All of root, time stamp 0.  With `console`, /dev/console is there before anything is mounted."""
    found = with_folders([*entries, Entry("/dev", "dir")])
    out = bytearray()
    for number, entry in enumerate(found, 1):
        data = entry.target.encode() if entry.kind == "link" else entry.data
        _member(out, number, entry.path[1:], TYPES[entry.kind] | entry.mode, data)
    if console:
        _member(out, len(found) + 1, "dev/console", stat.S_IFCHR | 0o600, b"", device=(5, 1))
    _member(out, 0, "TRAILER!!!", 0, b"")
    return bytes(out)


def _member(out: bytearray, inode: int, name: str, mode: int, data: bytes, device: tuple[int, int] = (0, 0)) -> None:
    encoded = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(encoded), 0)
    out += b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
    out += bytes(-len(out) % 4)
    out += data
    out += bytes(-len(out) % 4)
