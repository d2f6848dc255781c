"""What sessions print, and the hash that a client must therefore see.

A session runs ``sh SCRIPT INDEX``.  It prints one byte, waits at a FIFO that the client opens once all sessions are there
(spawning is not what is measured), and prints a stretch of a file that differs from session to session, so that bytes in
the wrong session show.  The expected hash is made from the file by the same C code that hashes what arrives, which
`check_hash` holds against published values.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.servers import BUILD

BLOCK = 64 << 10  # what `dd` reads and writes at a time, and the stretches' distance
PERIOD = 32 << 20  # random data repeats after so many bytes: making it is slow, and a loss shows anyway

# XXH64 with seed 0, from its specification and common test suites.
KNOWN_HASHES = {
    b"": "ef46db3751d8e999",
    b"abc": "44bc2cf5ad770999",
    b"Nobody inspects the spammish repetition": "fbcea83c8a378bf1",
}


@dataclass(frozen=True)
class Work:
    """One kind of load for a number of sessions."""

    name: str
    sessions: int
    script: Path
    gate: Path
    expected: tuple[str, ...]  # "HASH BYTES" by session

    @property
    def client_args(self) -> list[str]:
        return ["--create", str(self.sessions), "--gate", str(self.gate)]

    @property
    def command(self) -> list[str]:
        return ["sh", str(self.script)]


def hash_of(data: bytes) -> str:
    done = subprocess.run([BUILD / "client", "--hash"], input=data, capture_output=True, check=True)
    return done.stdout.decode().strip()


def check_hash() -> None:
    for data, value in KNOWN_HASHES.items():
        if hash_of(data) != f"{value} {len(data)}":
            raise RuntimeError(f"cannot trust the client's hash: wrong for {data!r}")


def raw(folder: Path, sessions: int, total: int) -> Work:
    """Random bytes through a terminal in raw mode."""
    blocks = total // sessions // BLOCK
    data = _file(folder, "raw", (blocks + sessions) * BLOCK, _random_bytes)
    return _stretches(folder, "raw", sessions, blocks, data, "stty raw -echo; ", cooked=False)


def log(folder: Path, sessions: int, total: int) -> Work:
    """Lines as builds print them, through a terminal in cooked mode."""
    blocks = max(1, total // sessions // BLOCK)
    data = _file(folder, "log", (blocks + sessions) * BLOCK, _log_lines)
    return _stretches(folder, "log", sessions, blocks, data, "", cooked=True)


def seq(folder: Path, sessions: int, total: int) -> Work:
    """`seq`: lines of seven digits, written by the program in its own way, in cooked mode."""
    first, step, lines = 1_000_001, 1000, total // sessions // 8
    start = f"$(({first} + $1 * {step}))"
    end = f"$(({first} + $1 * {step} + {lines - 1}))"
    expected = [
        hash_of(b"R" + "".join(f"{number}\r\n" for number in range(begin, begin + lines)).encode())
        for begin in range(first, first + sessions * step, step)
    ]
    return _work(folder, "seq", sessions, f"exec seq {start} {end}", "", expected)


def echo(folder: Path, floods: int) -> Work:
    """Session 0 echoes what is typed; the others never stop."""
    command = "[ $1 = 0 ] && exec cat; : < {gate}; exec yes"
    return _work(folder, "echo", floods + 1, command, "stty raw -echo; ", [], gated=False)


def _stretches(
    folder: Path, name: str, sessions: int, blocks: int, data: Path, prepare: str, *, cooked: bool
) -> Work:  # fmt: skip
    command = f"exec dd if={data} bs={BLOCK} skip=$1 count={blocks} status=none"
    expected: list[str] = []
    with data.open("rb") as file:
        for index in range(sessions):
            file.seek(index * BLOCK)
            content = file.read(blocks * BLOCK)
            expected.append(hash_of(b"R" + (content.replace(b"\n", b"\r\n") if cooked else content)))
    return _work(folder, name, sessions, command, prepare, expected)


def _work(
    folder: Path, name: str, sessions: int, command: str, prepare: str, expected: list[str], *, gated: bool = True
) -> Work:
    gate = folder / "gate"
    if not gate.exists():
        os.mkfifo(gate)
    script = folder / f"{name}-{sessions}.sh"
    wait = f": < {gate}; " if gated else ""
    script.write_text(f"{prepare}printf R; {wait}{command.replace('{gate}', str(gate))}\n")
    return Work(name, sessions, script, gate, tuple(expected))


def _file(folder: Path, name: str, size: int, content: Callable[[int], Iterator[bytes]]) -> Path:
    """A file of at least `size` bytes, made once."""
    path = folder / f"{name}.data"
    if not path.exists() or path.stat().st_size < size:
        with path.open("wb") as file:
            file.writelines(content(size))
    return path


def _random_bytes(size: int) -> Iterator[bytes]:
    block = random.Random(1).randbytes(min(size, PERIOD))
    while size > 0:
        yield block[:size]
        size -= len(block)


def _log_lines(size: int) -> Iterator[bytes]:
    """About 50 bytes a line, the most a few hundred."""
    source = random.Random(2)
    words = ["cc", "-O2", "-c", "warning:", "unused", "variable", "src/main.c", "linking", "ok", "test", "passed", "in"]
    while size > 0:
        text = "".join(
            f"[{source.randrange(10**6):6d}] {' '.join(source.choices(words, k=source.randrange(1, 13)))}\n"
            for _ in range(2000)
        ).encode()
        yield text[:size]
        size -= len(text)
