"""follower.py against a terminal that is fed everything: any output, looked at whenever, by renderers that die at any moment.

The server's side is the real one: a stream reads from a pipe into its history, vouches for what is plain, and keeps checkpoints.
"""

from __future__ import annotations

import os
import random
from types import SimpleNamespace
from typing import Any

import pytest

from guestagent.following import Following
from guestagent.history import History, memory_size
from guestagent.history_view import HistoryView
from guestagent.renderer import follower as follower_module
from guestagent.renderer.follower import Follower
from guestagent.renderer.terminal import Terminal
from guestagent.stream import SessionStream
from ptymux import limits
from tests.guestagent.renderer.test_properties import difference

BIRTH = (80, 24)
SIZES = ((80, 24), (20, 5), (132, 50), (2, 1))
QUERIES = (
    b"\x1b[6n", b"\x1b[c", b"\x1b[>c", b"\x1b[?2026$p", b"\x1b]11;?\x07", b"\x1b[>q", b"\x1b[?u", b"\x1bP$qm\x1b\\", b"\x1b]4;1;?;2;?\x1b\\",
)  # fmt: skip


class World:
    """A stream of a session that has a terminal, its renderer, and the terminal that missed nothing."""

    def __init__(self, seed: int, size: int) -> None:
        self.chance = random.Random(seed)
        self.fd = os.memfd_create("test-history", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, memory_size(size))
        self.history = History(os.dup(self.fd))
        self.source, self.sink = os.pipe2(os.O_NONBLOCK)
        self.asked = False  # the server wants the stream to be followed
        hub: Any = SimpleNamespace(screens=SimpleNamespace(follow=self._follow))
        session: Any = SimpleNamespace(id="s", tty=True, answerer=None, hub=hub, status=None)
        self.stream = SessionStream(session, "stdout", self.history, self.source)
        self.stream.following.owner_changed()
        self.reference = Terminal(*BIRTH, limits.SNAPSHOT_SCROLLBACK)
        self.expected: list[tuple[int, bytes]] = []
        self.answers: dict[int, bytes] = {}
        self.alive: Follower | None = None
        self.exact = self.looks = 0

    def close(self) -> None:
        self.die()
        self.history.close()
        for fd in (self.fd, self.source, self.sink):
            os.close(fd)

    def _follow(self, stream: Following) -> None:
        self.asked = True

    # --- the program ------------------------------------------------------------------------------
    def write(self, data: bytes) -> None:
        """In reads of all sizes."""
        at = 0
        while at < len(data):
            size = self.chance.choice((1, 7, 500, 4000, 4000, 4000, 30_000))
            part = data[at : at + size]
            os.write(self.sink, part)
            assert self.stream.fill(limits.MAX_OUTPUT_DATA) == len(part)
            at += len(part)
            if self.asked and self.chance.random() < 0.5:
                self.follow()
        self.reference.feed(data)
        for offset, answer in self.reference.answers:
            if self.expected and self.expected[-1][0] == offset:  # one question, several answers
                answer = self.expected.pop()[1] + answer
            self.expected.append((offset, answer))
        self.reference.answers.clear()

    def resize(self) -> None:
        columns, rows = self.chance.choice(SIZES)
        self.history.add_mark("resize", {"columns": columns, "rows": rows})
        self.reference.resize(columns, rows)

    # --- the renderer -----------------------------------------------------------------------------
    def renderer(self) -> Follower:
        if self.alive is None:
            self.alive = Follower(HistoryView(os.dup(self.fd)), *BIRTH)
        return self.alive

    def die(self) -> None:
        if self.alive is not None:
            self.alive.view.close()
            self.alive = None

    def follow(self) -> None:
        self.asked = False
        follower = self.renderer()
        seen = follower.follow()
        self._take(follower)
        self.stream.following.followed(seen, unfinished=follower.unfinished(seen))

    def look(self) -> None:
        follower = self.renderer()
        follower.draw()
        self._take(follower)
        self.looks += 1
        assert follower.offset == self.history.head
        if not follower.approximate:
            self.exact += 1
            assert difference(follower.terminal.key(), self.reference.key()) == ""
        follower.terminal.check()

    def _take(self, follower: Follower) -> None:
        """As Screens does: a checkpoint is kept, and answers are told by where their questions end."""
        checkpoint = follower.checkpoint()
        if checkpoint is not None:
            self.history.save_checkpoint(checkpoint)
        for offset, answer in follower.take_answers():
            assert follower.approximate or self.answers.get(offset, answer) == answer
            self.answers.setdefault(offset, answer)


def log_lines(chance: random.Random) -> bytes:
    words = (
        "cc",
        "-O2",
        "warning:",
        "unused",
        "src/main.c",
        "ok",
        "漢字",
        "naïve",
        "\x1b[1mbold\x1b[0m",
        "\x1b[32mgreen\x1b[m",
        "\t|",
        "😀",
    )
    ends = ("\r\n", "\r\n", "\r\n", "\x1b[K\r\n", "\x1b[0m\r\n", "\r", "\n")
    count = chance.choice((1, 3, 30, 300, 900))
    return "".join(
        f"\x1b[3{chance.randrange(8)}m[{line:5}]\x1b[0m {' '.join(chance.choices(words, k=chance.randrange(12)))}{chance.choice(ends)}"
        for line in range(count)
    ).encode()


def moves(chance: random.Random) -> bytes:
    places = (
        f"\x1b[{chance.randrange(30)};{chance.randrange(90)}H{chance.choice('ab│世')}"
        for _ in range(chance.randrange(40))
    )
    margins = f"\x1b[{chance.randrange(1, 5)};{chance.randrange(6, 24)}r" if chance.random() < 0.3 else ""
    return (margins + "".join(places) + ("\x1b[r" if chance.random() < 0.8 else "")).encode()


def question(chance: random.Random) -> bytes:
    return b"".join(chance.choices(QUERIES, k=chance.randrange(1, 4)))


def modes(chance: random.Random) -> bytes:
    number = chance.choice((1, 6, 7, 25, 1000, 1002, 1004, 1006, 1047, 1049, 1049, 1049, 2004))
    return b"\x1b[?%d%c" % (number, chance.choice(b"hl"))


def other(chance: random.Random) -> bytes:
    return chance.choice(
        (
            b"\x1b]0;title\x07", b"\x1b]2;other\x1b\\", b"\x1b]8;;http://x/\x1b\\link\x1b]8;;\x1b\\", b"\x1b7", b"\x1b8", b"\x1b(0", b"\x1b(B", b"\x0e", b"\x0f",
            b"\x1b[H\x1b[2J", b"\x1b[2J", b"\x1b[?1049h\x1b[H\x1b[2J", b"\x1bM", b"\x1b[5L", b"\x1b[3M", b"\x1b[4h", b"\x1b[4l", b"\x1bH", b"\x1b[>1u",
            b"\x1b[<u", b"\x1b[!p", b"\x1bc", b"\x1b[2;", b"\x1b]2;cut", b"\xe6\xbc", b"\x1b", b"\x1b[38;2;1;2;3m", b"\x1b[4 q", b"\x1b[20h", b"\x1b[20l",
        )
    )  # fmt: skip


def noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice((1, 5, 100)))


PIECES = (log_lines, log_lines, log_lines, moves, question, modes, other, noise)


@pytest.mark.parametrize("seed", range(24))
def test_a_follower_is_the_terminal_that_missed_nothing(seed: int) -> None:
    world = World(seed, 1024 * limits.KIB if seed % 3 else limits.MIN_HISTORY * 2)
    chance = world.chance
    # Half of the programs draw no rubbish: then hardly anything can get lost.
    pieces = PIECES if seed % 2 else PIECES[:-2]
    sizes = seed % 4 == 3
    dead = False
    try:
        for _ in range(chance.randrange(20, 60)):
            world.write(chance.choice(pieces)(chance))
            if sizes and chance.random() < 0.1:
                world.resize()
            roll = chance.random()
            if world.asked and roll < 0.8:
                world.follow()
            if roll < 0.1:
                world.die()
                dead = True
            elif roll < 0.35:
                world.look()
        world.look()
        if not world.renderer().approximate:
            assert sorted(world.answers.items()) == world.expected
        assert world.exact or seed % 3 == 0 or dead
    finally:
        world.close()


def test_a_question_in_pieces_is_looked_for() -> None:
    """Each read brings a part of it; the last has no ESC in it."""
    world = World(0, limits.MIB)
    try:
        for part in (b"\x1b", b"[", b"6", b"n", b"\x1b]1", b"1;?", b"\x07"):
            os.write(world.sink, part)
            world.stream.fill(100)
            if world.asked:
                world.follow()
        assert list(world.answers) == [4, 11]
        world.follow()
        os.write(world.sink, b"plain")
        world.stream.fill(100)
        assert not world.asked, "nobody needs to look at text"
    finally:
        world.close()


def test_a_log_far_longer_than_the_ring_is_exact() -> None:
    """The renderer looks once, at the end."""
    world = World(1, 256 * limits.KIB)
    try:
        world.write(b"\x1b[?2004h\x1b[1;35mbefore\r\n")
        world.follow()
        for _ in range(40):
            world.asked = False
            data = b"".join(b"\x1b[3%dm%06d\x1b[0m some words of a log\r\n" % (n % 8, n) for n in range(2000))
            world.reference.feed(data)
            for at in range(0, len(data), 4000):
                os.write(world.sink, data[at : at + 4000])
                world.stream.fill(limits.MAX_OUTPUT_DATA)
        world.look()
        assert world.exact == 1
    finally:
        world.close()


@pytest.mark.parametrize("looked", [1, 2, 4, 9])
def test_what_was_looked_at_may_end_inside_a_sequence(looked: int) -> None:
    """The renderer looks there, and then not before the ring has gone round."""
    world = World(2, 256 * limits.KIB)
    line = b"\x1b[1;32m%06d\x1b[0m some words of a log \xe6\xbc\xa2\r\n"
    try:
        for drawn in (False, True):
            world.write(line * 10 % (*range(10),) + (b"\x1b[1;32m" + "漢".encode())[:looked])
            if drawn:
                world.look()
            else:
                world.follow()
            rest = (b"\x1b[1;32m" + "漢".encode())[looked:] + b"".join(line % n for n in range(40_000))
            world.reference.feed(rest)
            for at in range(0, len(rest), 4000):
                os.write(world.sink, rest[at : at + 4000])
                world.stream.fill(limits.MAX_OUTPUT_DATA)
            world.look()
        assert world.exact == 3
    finally:
        world.close()


def test_what_is_left_is_drawn_where_the_pen_is_not_known() -> None:
    """No reset for longer than the ring is: the screen is approximate, and of the latest lines nevertheless."""
    world = World(3, 256 * limits.KIB)
    try:
        world.write(b"\x1b[4m")
        world.follow()
        rest = b"".join(b"%d\r\n" % n for n in range(100_000)) + b"\x1b[0mdone\r\n"
        for at in range(0, len(rest), 4000):
            os.write(world.sink, rest[at : at + 4000])
            world.stream.fill(limits.MAX_OUTPUT_DATA)
        follower = world.renderer()
        follower.follow()
        follower.draw()
        assert follower.terminal.screen_data()["text"][-3:] == ["99999", "done", ""]
    finally:
        world.close()


def test_a_copy_that_ends_inside_a_sequence_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes the ring in parts; only at the end of the last one may something be left to complete."""
    monkeypatch.setattr(follower_module, "GULP", 20_001)
    world = World(3, limits.MIB)
    try:
        data = b"".join(b"\x1b[3%dm%06d\x1b[0m \xe6\xbc\xa2 words\r\n" % (n % 8, n) for n in range(20_000))
        for at in range(0, len(data), 4000):
            os.write(world.sink, data[at : at + 4000])
            world.stream.fill(limits.MAX_OUTPUT_DATA)
        world.reference.feed(data)
        follower = world.renderer()
        assert follower.follow() == len(data) == follower.offset
        assert follower.unfinished(len(data)) == 0
        world.look()
        assert world.exact == 1
    finally:
        world.close()
