"""When the renderer is asked to look at a stream, and what the server vouches for when it is late."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from guestagent.following import Following
from guestagent.history import History, memory_size
from guestagent.history_view import HistoryView
from guestagent.prompts import shell_reads
from ptymux import limits

SIZE = limits.MIN_HISTORY


class World:
    """A stream whose looks are counted and ended by the test."""

    def __init__(self, answerer: bytes | None) -> None:
        fd = os.memfd_create("test-history", os.MFD_CLOEXEC)
        os.ftruncate(fd, memory_size(SIZE))
        self.history = History(os.dup(fd))
        self.view = HistoryView(fd)
        self.looks = 0
        hub: Any = SimpleNamespace(screens=SimpleNamespace(follow=self.follow))
        session: Any = SimpleNamespace(
            id="s", pid=0, tty=True, status=None, answerer=answerer, hub=hub, meta={"size": [20, 4]}
        )
        stream: Any = SimpleNamespace(key="s", history=self.history, fd=None, gone=False)
        self.following = Following(session, stream)
        self.following.owner_changed()

    def follow(self, following: Following) -> None:
        assert following is self.following
        self.looks += 1

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), SIZE // 8):
            before = self.history.head
            self.history.append(data[start : start + SIZE // 8])
            self.following.grown(before)


@pytest.fixture(params=[None, b"client"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param)
    yield made
    made.view.close()
    made.history.close()


def test_a_look_for_each_quarter_of_the_ring_and_one_at_a_time(world: World) -> None:
    world.write(b"x" * (SIZE // 4 - 1))
    assert world.looks == 0
    world.write(b"x")
    assert world.looks == 1
    world.write(b"x" * SIZE)
    assert world.looks == 1, "one is under way"
    world.following.followed(SIZE // 4)
    assert world.looks == 2, "for what came meanwhile"
    world.following.followed(world.history.head)
    world.write(b"x")
    assert world.looks == 2


def test_what_may_be_a_query_is_looked_at_at_once_if_it_is_ours_to_answer(world: World) -> None:
    ours = world.following._session.answerer is None
    world.write(b"\x1b[")
    assert world.looks == ours
    if ours:
        world.following.followed(2, unfinished=2)
        world.write(b"6n")
        assert world.looks == 2, "it has no ESC of its own"
        world.following.followed(4)
        world.write(b"plain")
        assert world.looks == 2


def test_a_look_that_failed_is_made_up_for(world: World) -> None:
    world.write(b"x" * (SIZE // 4))
    world.following.followed(None)
    assert world.looks == 1
    world.write(b"x")
    assert world.looks == 2


def test_what_only_scrolls_is_vouched_for_while_the_renderer_is_late(world: World) -> None:
    world.write(b"\x1b[32mgreen\x1b[m line\r\n" * (SIZE // 4))
    start, end = world.view.plain
    assert start == 0
    assert end > world.history.oldest, "what was overwritten was looked at"
    world.write(b"\x1b[5;5H")
    world.write(b"x" * 2 * SIZE)
    assert world.view.plain[1] <= world.history.oldest, "a movement does not only scroll"
    world.following.followed(world.history.head)
    at = world.history.head
    world.write(b"x" * 2 * SIZE)
    assert world.view.plain[0] == at
    assert world.view.plain[1] > world.history.oldest, "from there on we know again"


def test_what_was_cut_must_be_known_from_its_beginning(world: World) -> None:
    world.write(b"x" * 10 + b"\x1b[3")
    world.following.followed(13, unfinished=3)
    world.write(b"2mgreen\r\n" + b"x" * SIZE)
    assert world.view.plain[0] == 10
    world.following.followed(world.history.head, unfinished=SIZE)  # a title without an end: its beginning is gone
    world.write(b"x" * 2 * SIZE)
    assert world.view.plain[1] <= world.history.oldest


@pytest.mark.parametrize(
    ("command", "reads"),
    [(["sh"], True), (["sh", "-i"], True), (["sh", "-c", "read x; :"], False), (["cat"], False)],
)
def test_a_shell_that_reads(command: list[str], reads: bool) -> None:
    master, slave = os.openpty()
    with subprocess.Popen(["setsid", "-c", *command], stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        try:
            wait_until(lambda: os.tcgetpgrp(master) == process.pid and name_of(process.pid) != "setsid")
            assert shell_reads(process.pid, master) is reads
            assert not shell_reads(os.getpid(), master)
        finally:
            process.kill()
            os.close(master)


def name_of(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)
