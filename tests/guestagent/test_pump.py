"""The pump alone: fairness, hot sessions first, and no spinning on what is paused or hung up."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from guestagent.pump import HOT_TICK, QUANTUM, TICK, Pump
from ptymux import limits


class World:
    """A clock, a pump and a log of what it did, in order."""

    def __init__(self) -> None:
        self.time = 0.0
        self.log: list[str] = []
        self.pump = Pump(lambda: self.time, lambda: self.log.append("flush"))

    def served(self) -> list[str]:
        found, self.log[:] = [entry for entry in self.log if entry != "flush"], []
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

    def fill(self, most: int) -> int:
        self.world.log.append(self.name)
        self.asked.append(most)
        if not self.endless:
            assert self.fd is not None
            os.read(self.fd, 1)
            return 1
        return most

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
    assert world.log[:2] == ["hot", "flush"]
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
    stream.fill = lambda most: 0  # type: ignore[method-assign]
    world.pump.tick()
    stream.close()
