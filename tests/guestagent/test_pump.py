"""The pump alone: fairness, hot sessions first, and no spinning on what is paused or hung up."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from guestagent.pump import HOT_TICK, QUANTUM, SHARE, TICK, Pump
from ptymux import limits


class World:
    """A clock, a pump and a log of what it did, in order: reads by the stream's name, "settle", "flush"."""

    def __init__(self) -> None:
        self.time = 0.0
        self.log: list[str] = []
        self.pump = Pump(lambda: self.time, lambda: self.log.append("flush"))

    def served(self) -> list[str]:
        found, self.log[:] = [entry for entry in self.log if entry not in {"flush", "settle"}], []
        return found


class Stream:
    """A session and its stream in one, reading from a pipe; `endless` never finds it empty."""

    def __init__(self, world: World, name: str, *, endless: bool = True) -> None:
        self.world = world
        self.name = name
        self.endless = endless
        self.hot_until = 0.0
        self.fd: int | None
        self.fd, self.writer = os.pipe()
        os.write(self.writer, b"x")
        self.asked: list[int] = []
        world.pump.add(self.fd, self, self)

    def fds(self) -> list[int]:
        return [self.fd] if self.fd is not None else []

    def write_input(self) -> None:
        self.world.log.append(f"{self.name} writes")

    def take(self, most: int) -> int:
        self.world.log.append(self.name)
        self.asked.append(most)
        if not self.endless:
            assert self.fd is not None
            return len(os.read(self.fd, 1)) if select.select([self.fd], [], [], 0)[0] else 0
        return most

    def settle(self) -> None:
        self.world.log.append("settle")

    def fill(self, most: int) -> int:
        count = self.take(most)
        self.settle()
        return count

    def close(self) -> None:
        assert self.fd is not None
        self.world.pump.remove(self.fd)
        os.close(self.fd)
        if self.writer >= 0:
            os.close(self.writer)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.pump.close()


@pytest.fixture
def bulk(world: World) -> Iterator[list[Stream]]:
    streams = [Stream(world, f"bulk{number}") for number in range(10)]
    yield streams
    for stream in streams:
        stream.close()


def test_bulk_sessions_take_turns(world: World, bulk: list[Stream]) -> None:
    """A tick is bounded, and who had no turn in it is first in the next: nobody starves."""
    seen: list[str] = []
    for _ in range(10):
        world.pump.tick()
        served = world.served()
        assert len(served) == TICK // QUANTUM
        seen += served
    turns = [seen.count(stream.name) for stream in bulk]
    assert max(turns) - min(turns) <= 2  # the kernel's order of those that are ready decides on the rest


def test_one_read_of_each_in_turn(world: World, bulk: list[Stream]) -> None:
    """The kernel has to refill a terminal after each read; meanwhile the others are read."""
    world.pump.tick()
    served = world.served()
    first = served[: len(bulk)]
    assert sorted(first) == sorted(stream.name for stream in bulk)
    assert all(name == first[place % len(bulk)] for place, name in enumerate(served))


def test_what_was_taken_is_settled_before_it_is_sent(world: World, bulk: list[Stream]) -> None:
    world.pump.tick()
    assert world.log[-1] == "flush"
    flush = world.log.index("flush")
    assert world.log[flush - len(bulk) : flush] == ["settle"] * len(bulk), "each once, however often it was read"


def test_a_session_alone_sends_after_its_share(world: World) -> None:
    """Its client is to work while the next batch is read."""
    stream = Stream(world, "alone")
    world.pump.tick()
    assert world.log.index("settle") == -(-SHARE // QUANTUM)
    assert len(world.served()) == TICK // QUANTUM
    stream.close()


def test_a_descriptor_that_went_in_its_turn_is_left_alone(world: World, bulk: list[Stream]) -> None:
    """What a read leads to may pause or remove any other that is due."""
    gone, paused = Stream(world, "gone"), Stream(world, "paused")
    bulk.append(gone)
    bulk.append(paused)
    world.pump.tick()
    world.served()
    assert gone.fd is not None
    world.pump.remove(gone.fd)
    world.pump.pause(paused)
    world.pump.tick()
    assert not {"gone", "paused"} & set(world.served())
    world.pump.resume(paused)
    world.pump.tick()
    assert "paused" in world.served()


def test_hot_session_is_served_between_any_two_bulk_reads(world: World, bulk: list[Stream]) -> None:
    hot = Stream(world, "hot")
    world.pump.heat(hot)
    world.pump.tick()
    served = world.served()
    positions = [place for place, name in enumerate(served) if name.startswith("bulk")]
    assert 0 < len(positions) <= HOT_TICK // QUANTUM + 1, "bulk output goes on, in short ticks"
    assert all(served[place - 1] == "hot" and served[place + 1] == "hot" for place in positions)
    assert {most for stream in bulk for most in stream.asked} == {QUANTUM}
    hot.close()


def test_hot_output_is_flushed_before_bulk_is_read(world: World, bulk: list[Stream]) -> None:
    hot = Stream(world, "hot")
    world.pump.heat(hot)
    world.pump.tick()
    assert world.log[:3] == ["hot", "settle", "flush"]
    hot.close()


def test_a_session_cools_down(world: World, bulk: list[Stream]) -> None:
    world.pump.heat(bulk[0])
    world.time = limits.HOT_FOR + 0.1
    world.pump.tick()
    assert not world.pump.hot_sessions
    world.served()
    for _ in range(5):
        world.pump.tick()
    assert bulk[0].name in world.served(), "it takes its turns with the others again"


def test_paused_and_hung_up_descriptor_does_not_spin(world: World) -> None:
    """EPOLLHUP is reported even for an empty mask, so a paused descriptor must not be in the epoll at all."""
    stream = Stream(world, "gone", endless=False)
    world.pump.pause(stream)
    os.close(stream.writer)
    stream.writer = -1
    world.pump.tick()
    assert world.served() == []
    world.pump.resume(stream)
    world.pump.tick()
    assert world.served()
    stream.close()


def test_room_to_write_is_told_once_wanted(world: World) -> None:
    reader, writer = os.pipe()
    owner = Stream(world, "typist", endless=False)
    world.pump.add(writer, owner, None)
    world.pump.tick()
    assert "typist writes" not in world.served()
    world.pump.want_write(writer, True)
    world.pump.tick()
    assert "typist writes" in world.served()
    world.pump.want_write(writer, False)
    world.pump.tick()
    assert "typist writes" not in world.served()
    world.pump.remove(writer)
    os.close(reader)
    os.close(writer)
    owner.close()


def test_a_tick_ends_whatever_the_descriptors_do(world: World) -> None:
    """A descriptor that is always ready and never brings anything cannot hold the loop."""
    stream = Stream(world, "empty")
    stream.take = lambda most: 0  # type: ignore[method-assign]
    world.pump.tick()
    stream.close()
