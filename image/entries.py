"""Files to put into a root file system, and the one interface of the places they can go to."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from image.errors import ImageError

Kind = Literal["dir", "file", "link"]

DEFAULT_EPOCH = 315532800  # 1980-01-01, the oldest date that every archive format can hold
LINKS_MAX = 40  # as the kernel's MAXSYMLINKS


def epoch() -> int:
    """The time stamp of everything that is written: SOURCE_DATE_EPOCH, or a constant."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", DEFAULT_EPOCH))


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, folder or symbolic link; owner root, time stamp :func:`epoch`."""

    path: str  # absolute, in the guest
    kind: Kind
    mode: int = 0o755
    data: bytes = b""
    target: str = ""  # of a link

    @classmethod
    def file(cls, path: str, data: bytes | str, mode: int = 0o644) -> Entry:
        return cls(path, "file", mode, data.encode() if isinstance(data, str) else data)

    @classmethod
    def link(cls, path: str, target: str) -> Entry:
        return cls(path, "link", 0o777, b"", target)


def with_folders(entries: Iterable[Entry]) -> list[Entry]:
    """The entries in the order of their paths, with every folder above them, each path once (the last entry of it)."""
    found: dict[str, Entry] = {}
    for entry in entries:
        above = os.path.dirname(entry.path)
        while above != "/" and above not in found:
            found[above] = Entry(above, "dir")
            above = os.path.dirname(above)
        found[entry.path] = entry
    return [found[path] for path in sorted(found)]


class Root(abc.ABC):
    """A root file system that can be looked into and written to.  Paths are absolute as the guest sees them."""

    @abc.abstractmethod
    def kind(self, path: str) -> Kind | None:
        """What is at exactly this path (no link in it is followed); None if nothing, or a device."""

    @abc.abstractmethod
    def readlink(self, path: str) -> str: ...

    @abc.abstractmethod
    def read(self, path: str, most: int | None = None) -> bytes:
        """The (first bytes of the) file at exactly this path."""

    @abc.abstractmethod
    def names(self, path: str) -> list[str]:
        """What is in the folder at exactly this path, sorted."""

    @abc.abstractmethod
    def write(self, remove: list[str], entries: list[Entry]) -> None:
        """Remove these trees, then put these entries (parents first) there; a folder that exists is left as it is."""

    def resolve(self, path: str) -> str:
        """`path` with the links in it followed, as the guest would; what does not exist is taken as it is."""
        done, left, links = "", [part for part in path.split("/") if part], 0
        while left:
            part = left.pop(0)
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            here = f"{done}/{part}"
            if self.kind(here) == "link":
                links += 1
                if links > LINKS_MAX:
                    raise ImageError(f"cannot use {path}: too many symbolic links")
                target = self.readlink(here)
                if target.startswith("/"):
                    done = ""
                left = [piece for piece in target.split("/") if piece not in ("", ".")] + left
            else:
                done = here
        return done or "/"

    def exists(self, path: str) -> bool:
        return self.kind(self.resolve(path)) is not None

    def install(self, entries: Iterable[Entry], replace: Iterable[str] = ()) -> None:
        """Put entries there, in place of the trees in `replace`; folders that are links in this root (/sbin) are followed."""
        placed = [
            Entry(
                f"{self.resolve(os.path.dirname(entry.path)).rstrip('/')}/{os.path.basename(entry.path)}",
                entry.kind,
                entry.mode,
                entry.data,
                entry.target,
            )
            for entry in entries
        ]
        remove = [path for path in map(self.resolve, replace) if self.kind(path) is not None]
        self.write(remove, with_folders(placed))


def walk(root: Root, path: str) -> Iterator[str]:
    """The path and everything below it, what is below first."""
    if root.kind(path) == "dir":
        for name in root.names(path):
            yield from walk(root, f"{path}/{name}")
    yield path
