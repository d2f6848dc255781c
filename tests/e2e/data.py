"""What the programs under test write, and how what arrived is compared with it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

LINE = 16
NUMBERED_LINES = 6_250_000  # 100 MB

# Printable bytes, and a newline every 50 or so.
_TEXT = bytes(10 if value < 5 else 33 + value % 90 for value in range(256))


def random_bytes(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def random_text(size: int, seed: int) -> bytes:
    """Lines of printable characters."""
    return random_bytes(size, seed).translate(_TEXT)


def numbered(count: int) -> bytes:
    """Lines of LINE bytes, each its own number."""
    thousand = [b"", *(b"%03d\n" % number for number in range(1000))]
    return b"".join([(b"%012d" % number).join(thousand) for number in range(-(-count // 1000))])[: count * LINE]


def numbered_part(start: int, end: int) -> bytes:
    """The bytes [start, end) of the endless stream of numbered lines."""
    first = start // LINE
    text = b"".join([b"%015d\n" % number for number in range(first, (end + LINE - 1) // LINE)])
    return text[start - first * LINE : end - first * LINE]


def cooked(data: bytes) -> bytes:
    """As a terminal in its usual mode shows it."""
    return data.replace(b"\n", b"\r\n")


class Material:
    """A file that programs print, and the hashes of what must arrive."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path = path
        self.data = data

    @classmethod
    def write(cls, path: Path, data: bytes) -> Material:
        path.write_bytes(data)
        return cls(path, data)

    @cached_property
    def raw(self) -> str:
        return sha256(self.data)

    @cached_property
    def cooked(self) -> str:
        return sha256(cooked(self.data))

    def printing(self, mode: str, status: int = 0) -> list[str]:
        """A command that prints the file on a raw or a cooked terminal and ends with a status."""
        setting = "stty raw; " if mode == "raw" else ""
        return ["sh", "-c", f"{setting}cat {self.path}; exit {status}"]

    def hash(self, mode: str) -> str:
        return self.raw if mode == "raw" else self.cooked


def sha256(data: bytes | bytearray) -> str:
    return hashlib.sha256(data).hexdigest()


def check_equal(got: bytes | bytearray, wanted: bytes) -> None:
    """As ``assert got == wanted``, without printing megabytes."""
    if got != wanted:
        at = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
        raise AssertionError(
            f"{len(got)} bytes arrived, {len(wanted)} were written; they differ from {at} on: "
            f"{bytes(got[at : at + 40])!r}, wanted {wanted[at : at + 40]!r}"
        )


def missing_at(pieces: Iterable[bytes], written: bytes, most: int, *, whole: bool = True) -> list[int] | None:
    """How many bytes of `written` are missing between each piece and the next, or None if the pieces do not fit.

    They must be parts of `written`, in order, from its beginning on (to its end if `whole`), with at most `most` bytes left out at
    each seam.
    """
    # For every place where the pieces so far may end: what was left out.  A short piece may fit in several places.
    ends: dict[int, list[int]] = {0: []}
    for number, piece in enumerate(pieces):
        found: dict[int, list[int]] = {}
        for end, left_out in ends.items():
            stop = end + (most if number else 0) + len(piece)
            at = written.find(piece, end, stop)
            while at >= 0:
                found.setdefault(at + len(piece), [*left_out, *([at - end] if number else [])])
                at = written.find(piece, at + 1, stop) if len(piece) < 2 * LINE else -1
        ends = found
    return ends.get(len(written)) if whole else next(iter(ends.values()), None)
