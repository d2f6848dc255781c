"""`python -m tests.terminal.fuzz --minutes N`: streams that nobody would write; nothing may raise, grow or hang.

One terminal lives through many streams, as that of a long session does, so that faults of one may show in the next.  A fault is
printed with the seed that repeats it: `--seed S --rounds 1`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from guestagent.renderer.cells import NUL
from guestagent.renderer.terminal import Terminal
from tests.terminal import corpus
from tests.terminal.mixes import mix, mutated
from tests.terminal.stream import Chunk, Size, Stream

STREAMS = 40  # that one terminal lives through: a round
PAGE = 4096
SLOWEST = 20.0  # microseconds a byte of CPU that a stream may take, beside SLACK
SLACK = 2.0  # seconds
# A terminal of the largest size with its scrollback, and what the allocator keeps of its predecessors.
GROWTH = 150_000_000


class Fault(Exception):
    """With the seed of the round."""


class Outcome(NamedTuple):
    rounds: int
    streams: int
    size: int  # bytes fed
    growth: int  # bytes of resident memory since the tenth round


def fuzz(seconds: float, seed: int, most_rounds: int = sys.maxsize) -> Outcome:
    recorded = corpus.load()
    deadline = time.monotonic() + seconds
    rounds = size = 0
    settled = resident()
    while rounds < most_rounds and time.monotonic() < deadline:
        size += one_round(seed + rounds, recorded)
        rounds += 1
        if rounds == 10:
            settled = resident()
        if resident() - settled > GROWTH:
            raise Fault(
                f"seed {seed + rounds - 1}: memory grew by {resident() - settled:,} bytes since the tenth round"
            )
    return Outcome(rounds, rounds * STREAMS, size, resident() - settled)


def one_round(seed: int, recorded: Sequence[Stream]) -> int:
    """Bytes fed."""
    chance = random.Random(f"fuzz {seed}")
    scrollback = chance.choice((0, 10, 1000))
    terminal = Terminal(*_size(chance), scrollback=scrollback)
    fed = 0
    for number in range(STREAMS):
        kind = chance.choice(KINDS)
        chunks = [*kind(chance, recorded), *([_size(chance)] if chance.random() < 0.1 else [])]
        started = time.process_time()
        size = sum(len(chunk) for chunk in chunks if isinstance(chunk, bytes))
        try:
            for chunk in chunks:
                if isinstance(chunk, bytes):
                    terminal.feed(chunk)
                else:
                    terminal.resize(*chunk)
            took = time.process_time() - started
            terminal.check()
            if number % 4 == 0:
                _replay(terminal, scrollback)
        except Exception as error:
            raise Fault(f"seed {seed}, stream {number} ({kind.__name__}): {type(error).__name__}: {error}") from error
        if took > SLACK + size * SLOWEST / 1e6:
            raise Fault(f"seed {seed}, stream {number} ({kind.__name__}): {size} bytes took {took:.1f} s")
        fed += size
    return fed


def _replay(terminal: Terminal, scrollback: int) -> None:
    """What is dumped can be read, and is the same again, but for a screen of one row: none wraps into another there."""
    state = terminal.state()
    again = Terminal(state["columns"], state["rows"], scrollback=scrollback)
    again.feed(terminal.dump())
    again.check()
    assert _same(again.key(), terminal.key()) or state["rows"] == 1, "replay(dump) differs"


def _same(one: object, other: object) -> bool:
    """Equal, but for whether a blank was printed.

    In insert mode no sequence can say that of the last column when a mark could still join the character at the cursor; one of
    70,000 streams ends so.
    """
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other or {one, other} == {" ", NUL}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def _size(chance: random.Random) -> Size:
    return chance.choice(
        # Never narrower than min_columns: the agent refuses that.
        ((80, 24), (2, 1), (2, 2), (3, 1), (2, 30), (20, 6), (200, 60), (chance.randint(2, 100), chance.randint(1, 40)))
    )


# Kinds of streams


def noise(chance: random.Random, recorded: Sequence[Stream]) -> Sequence[Chunk]:
    return [chance.randbytes(chance.randint(1, 2000))]


def sequences(chance: random.Random, recorded: Sequence[Stream]) -> Sequence[Chunk]:
    """Bytes that sequences are made of, in any order."""
    alphabet = b"\x1b\x1b\x1b[[[]P_^X;:?>=<!$ \"'()*#0123456789999ABCDHJKLMPSTXZ@`abcdfghlmnpqrstux\\\x07\x18\x1a\x9b\x9c\x90\x9d\r\n\b\t"
    return [bytes(chance.choices(alphabet, k=chance.randint(1, 1500)))]


def code_points(chance: random.Random, recorded: Sequence[Stream]) -> Sequence[Chunk]:
    tops = (0x80, 0x300, 0x3000, 0x11000, 0x20000, 0x110000)
    text = "".join(chr(chance.randrange(chance.choice(tops))) for _ in range(chance.randint(1, 800)))
    return [text.encode("utf-8", "surrogatepass")]


def mixed(chance: random.Random, recorded: Sequence[Stream]) -> Sequence[Chunk]:
    return mix(chance.randrange(1 << 40)).chunks


def mutant(chance: random.Random, recorded: Sequence[Stream]) -> Sequence[Chunk]:
    return mutated(mix(chance.randrange(1 << 40)).chunks, chance)


def absurd(chance: random.Random, recorded: Sequence[Stream]) -> Sequence[Chunk]:
    """Numbers that no loop should count to."""
    pieces = []
    for _ in range(chance.randint(1, 30)):
        number = chance.choice(("2147483647", "4294967296", "9" * chance.randint(5, 400)))
        pieces.append(f"x\x1b[{number}{chance.choice('@ABCDEFGHIJKLMPSTXZ`abdefgrstm')}".encode())
    return [b"".join(pieces)]


def piece(chance: random.Random, recorded: Sequence[Stream]) -> Sequence[Chunk]:
    """A part of a recording from anywhere on, broken."""
    data = b"".join(chunk for chunk in chance.choice(recorded).chunks if isinstance(chunk, bytes))
    start = chance.randrange(len(data))
    chunks: Sequence[Chunk] = [data[start : start + chance.randint(1, 4000)]]
    return mutated(chunks, chance) if chance.random() < 0.7 else chunks


def sizes(chance: random.Random, recorded: Sequence[Stream]) -> Sequence[Chunk]:
    chunks: list[Chunk] = []
    for _ in range(chance.randint(1, 20)):
        chunks += [_size(chance), b"word " * chance.randint(0, 50), "漢字\r\n".encode() * chance.randint(0, 20)]
    return chunks


KINDS: Sequence[Callable[[random.Random, Sequence[Stream]], Sequence[Chunk]]] = (
    noise,
    sequences,
    sequences,
    code_points,
    mixed,
    mutant,
    mutant,
    absurd,
    piece,
    piece,
    sizes,
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.terminal.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="at most")
    options = parser.parse_args()
    try:
        done = fuzz(60 * options.minutes, options.seed, options.rounds)
    except Fault as fault:
        print(fault)
        return 1
    print(f"{done.rounds} rounds, {done.streams:,} streams, {done.size:,} bytes; memory grew by {done.growth:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
