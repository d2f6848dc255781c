"""A root file system in a folder."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from image.entries import Entry, Kind, Root, epoch


class FolderRoot(Root):
    """Run as root, what is written belongs to root; else to whoever runs this."""

    def __init__(self, path: Path) -> None:
        self._base = path

    def _at(self, path: str) -> Path:
        return self._base / path.lstrip("/")

    def kind(self, path: str) -> Kind | None:
        try:
            mode = self._at(path).lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        return "link" if stat.S_ISLNK(mode) else "dir" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else None

    def readlink(self, path: str) -> str:
        return os.readlink(self._at(path))

    def read(self, path: str, most: int | None = None) -> bytes:
        with self._at(path).open("rb") as file:
            return file.read(most)

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(self._at(path)))

    def write(self, remove: list[str], entries: list[Entry]) -> None:
        for path in remove:
            if self.kind(path) == "dir":
                shutil.rmtree(self._at(path))
            else:
                self._at(path).unlink()
        made: list[Path] = []
        for entry in entries:
            at = self._at(entry.path)
            there = self.kind(entry.path)
            if entry.kind == "dir" and there == "dir":
                continue
            if there is not None:
                at.unlink()
            if entry.kind == "dir":
                at.mkdir()
            elif entry.kind == "link":
                at.symlink_to(entry.target)
            else:
                at.write_bytes(entry.data)
            if entry.kind != "link":
                at.chmod(entry.mode)
            if os.geteuid() == 0:
                os.lchown(at, 0, 0)
            made.append(at)
        for at in reversed(made):  # what is in a folder changes its time stamp
            os.utime(at, (epoch(), epoch()), follow_symlinks=False)
