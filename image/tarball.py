"""A root file system in a tar file, plain or compressed: as `docker export` and mmdebstrap write it."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from image.entries import Entry, Kind, Root, epoch
from image.errors import ImageError


class TarRoot(Root):
    """Rewritten as a whole when something is put in; members keep their order, owners and attributes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with tarfile.open(path) as archive:
                self._members = {_absolute(member.name): member for member in archive}
        except (tarfile.TarError, OSError) as error:
            raise ImageError(f"cannot read {path}: {error}") from None
        self._folders: dict[str, set[str]] = {}
        for name in self._members:
            self._folders.setdefault(os.path.dirname(name), set()).add(os.path.basename(name))

    def kind(self, path: str) -> Kind | None:
        member = self._members.get(path)
        if member is None:
            return "dir" if path in ("/", "") or path in self._folders else None
        if member.islnk():
            return self.kind(_absolute(member.linkname))
        return "dir" if member.isdir() else "link" if member.issym() else "file" if member.isreg() else None

    def readlink(self, path: str) -> str:
        return self._members[path].linkname

    def read(self, path: str, most: int | None = None) -> bytes:
        with tarfile.open(self._path) as archive:
            file = archive.extractfile(self._members[path])
            if file is None:
                raise ImageError(f"cannot read {path} in {self._path}: it is not a file")
            return file.read() if most is None else file.read(most)

    def names(self, path: str) -> list[str]:
        return sorted(self._folders.get(path, ()))

    def write(self, remove: list[str], entries: list[Entry]) -> None:
        written = {entry.path for entry in entries if entry.kind != "dir"}
        put = [
            entry
            for entry in entries
            if entry.kind != "dir" or self.kind(entry.path) != "dir" or _below(entry.path, remove)
        ]
        whole = self._path.with_name(f".{self._path.name}.new")
        try:
            with tarfile.open(self._path) as old, _writing(whole, self._path) as new:
                for member in old:
                    path = _absolute(member.name)
                    if path in written or _below(path, remove):
                        continue
                    new.addfile(member, old.extractfile(member) if member.isreg() else None)
                for entry in put:
                    new.addfile(*member_of(entry))
            whole.replace(self._path)
        finally:
            whole.unlink(missing_ok=True)
        self.__init__(self._path)  # type: ignore[misc]


def _absolute(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return "/" + "/".join(parts)


def _below(path: str, trees: list[str]) -> bool:
    return any(path == tree or path.startswith(f"{tree}/") for tree in trees)


def member_of(entry: Entry) -> tuple[tarfile.TarInfo, IO[bytes] | None]:
    info = tarfile.TarInfo(f".{entry.path}")
    info.mode, info.mtime = entry.mode, epoch()
    info.uname = info.gname = "root"
    if entry.kind == "dir":
        info.type = tarfile.DIRTYPE
    elif entry.kind == "link":
        info.type, info.linkname = tarfile.SYMTYPE, entry.target
    else:
        info.size = len(entry.data)
        return info, io.BytesIO(entry.data)
    return info, None


@contextlib.contextmanager
def _writing(path: Path, named: Path) -> Iterator[tarfile.TarFile]:
    """A tar to write, compressed as its name says; gzip without the time of day in it."""
    with contextlib.ExitStack() as stack:
        raw: Any = stack.enter_context(path.open("wb"))
        if named.name.endswith((".gz", ".tgz")):
            raw = stack.enter_context(gzip.GzipFile("", "wb", 6, fileobj=raw, mtime=epoch()))
        elif named.name.endswith((".xz", ".bz2")):
            raise ImageError(f"cannot write {named}: only plain and gzip-compressed tar files")
        yield stack.enter_context(tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT))
