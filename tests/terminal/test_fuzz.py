"""Random and mutated streams, and streams meant to fill the memory: nothing raises, grows or hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from guestagent.renderer.terminal import Terminal
from tests.terminal import fuzz

pytestmark = pytest.mark.slow

SECONDS = 60.0
SEED = 0  # the same streams for everybody; `make fuzz` looks for new ones

ATTACK = 1_000_000  # bytes; kept in any way they would be more than GROWTH
LONG_ATTACK = 8_000_000  # of what is only swallowed
GROWTH = (
    5_000_000  # bytes that an attack may leave behind: a full screen rich in attributes, caches, the allocator's slack
)


def test_a_minute_of_anything() -> None:
    done = fuzz.fuzz(SECONDS, SEED)
    assert done.rounds > 1
    print(done)


def _counted(template: str) -> Callable[[], Iterator[bytes]]:
    """The template with numbers that go up, ATTACK bytes of it."""

    def pieces() -> Iterator[bytes]:
        number = sent = 0
        while sent < ATTACK:
            data = "".join(template.format(number + index) for index in range(1000)).encode()
            number += 1000
            sent += len(data)
            yield data

    return pieces


def _after(first: bytes, rest: bytes, size: int = ATTACK) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        yield first
        for _ in range(size // 64_000):
            yield rest * (64_000 // len(rest))

    return pieces


ATTACKS = {
    "an OSC without an end": _after(b"\x1b]2;", b"x", LONG_ATTACK),
    "a DCS without an end": _after(b"\x1bPq", b"~", LONG_ATTACK),
    "an APC without an end": _after(b"\x1b_G", b"A", LONG_ATTACK),
    "parameters without an end": _after(b"\x1b[", b"1;"),
    "digits without an end": _after(b"\x1b[", b"9"),
    "intermediates without an end": _after(b"\x1b[", b" "),
    "marks on one cell": _after(b"e", "\u0301".encode()),
    "joiners on one cell": _after("👩".encode(), "\u200d".encode()),
    "pushed titles": _counted("\x1b]2;title {}\x07\x1b[22;0t"),
    "pushed keyboard modes": _counted("\x1b[>{}u"),
    "hyperlinks": _counted("\x1b]8;id={0};https://example.org/{0}\x07x\x1b]8;;\x07"),
    "colours": _counted("\x1b[38;2;{0};1;1m\x1b[48:5:{0}mx"),
    "palette": _counted("\x1b]4;{0};rgb:1/2/3\x07"),
    "private modes": _counted("\x1b[?{0}h"),
    "saved modes": _counted("\x1b[?{0}s"),
    "queries that nobody reads the answers of": _after(b"", b"\x1b[6n\x1b[c\x1b[5n"),
    "different characters": _after(b"", "".join(map(chr, range(0x1000, 0x5000))).encode()),
    "tab stops": _after(b"", b"\x1bH\x1b[2C"),
    "alternate screens": _after(b"", b"\x1b[?1049hx\x1b7\x1b[?1049l"),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_memory_is_bounded(attack: Callable[[], Iterator[bytes]]) -> None:
    terminal = Terminal(80, 24, scrollback=10)
    pieces = attack()
    terminal.feed(next(pieces))
    before = fuzz.resident()
    for data in pieces:
        terminal.feed(data)
    terminal.check()
    assert fuzz.resident() - before < GROWTH
    assert len(terminal.dump()) < ATTACK // 2  # it has what the parser keeps of an unfinished sequence


@pytest.mark.parametrize("final", "@ABCDEFGHIJKLMPSTXZ`abdefrm")
def test_no_loop_counts_to_an_absurd_number(final: str) -> None:
    terminal = Terminal(80, 24, scrollback=1000)
    started = time.process_time()
    terminal.feed(f"some text\x1b[999999999999{final}\x1b[2147483647;2147483647{final}".encode())
    terminal.check()
    assert time.process_time() - started < fuzz.SLACK
