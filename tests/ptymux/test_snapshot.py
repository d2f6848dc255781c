"""Snapshots: how an attach begins with a picture, and how one repairs a gap.  Both ends of it, cut anywhere."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ptymux import events, limits
from ptymux import messages as m
from ptymux.cursor import Cursor, Position, resolve
from ptymux.errors import ProtocolError
from ptymux.machine import Attachment
from ptymux.output import Group, OutputReceiver, OutputSender, Picture
from tests.ptymux.ring import Ring, World
from tests.ptymux.test_output import frames_of

G0, G1 = b"\x00" * 16, b"\x01" * 16
ME = "ab" * 16


class Link:
    """One client's attach over all its connections, against one world."""

    def __init__(
        self, world: World, cursor: Cursor | None = None, *, begin: str = "snapshot", window: int = 200
    ) -> None:
        self.world = world
        self.begin = begin
        self.attachment = Attachment("session", {}, cursor, window)
        self.attachment.client = ME
        self.owner: str | None = None
        self.attach()

    @property
    def receiver(self) -> OutputReceiver:
        return self.attachment.receiver

    def attach(self) -> None:
        world, receiver = self.world, self.receiver
        start = resolve(
            receiver.cursor,
            world.ring,
            stream="session",
            generation=world.generation,
            lineage=world.lineage,
            repair="snapshot",
            pictures=True,
            begin=self.begin,
        )
        backlog = receiver.backlog
        self.sender = OutputSender(
            3, world.ring, start, repair="snapshot", window=receiver.window, backlog=backlog, pictures=True,
            owner=lambda mark: self.owner,
        )  # fmt: skip
        answer = {"generation": world.generation, "offset": start.position.offset, "mark": start.position.mark}
        self.attachment.attached({**answer, "replay_to": start.replay_to, "owner": None}, backlog)
        self.give_credit()

    def picture(self, size: int = 10, *, approximate: bool = False) -> Picture:
        ring = self.world.ring
        data = (b"picture at %d;" % ring.head).ljust(size, b".")
        return Picture(Position(ring.head, ring.first_mark_from(ring.head)), data, 80, 24, approximate)

    def send(self, most: int = 1 << 20) -> list[Any]:
        """One group from end to end."""
        group = self.sender.next_group(most)
        if group is None:
            return []
        self.sender.commit(group)
        return self.take(group)

    def take(self, group: Group) -> list[Any]:
        found = frames_of(group)
        for frame in found:
            handlers: dict[type[Any], Any] = {
                m.Output: self.attachment.on_output,
                m.Mark: self.attachment.on_mark,
                m.Gap: self.attachment.on_gap,
                m.Snapshot: self.attachment.on_snapshot,
            }
            handlers[type(frame)](frame)
        return found

    def read(self) -> list[Any]:
        """Everything that came, as the caller gets it."""
        found = list(self.attachment.events)
        self.attachment.events.clear()
        self.receiver.consume(self.receiver.backlog)
        self.give_credit()
        return found

    def give_credit(self) -> None:
        credit = self.receiver.credit_due()
        if credit is not None:
            self.sender.on_credit(credit)


def world_with(data: bytes, size: int = 100) -> World:
    world = World(Ring(size, 100), G0)
    world.write(data)
    return world


def test_a_fresh_attach_begins_with_the_picture_and_no_gap() -> None:
    link = Link(world_with(b"x" * 1000))
    assert link.sender.next_group(100) is None, "nothing is sent before the picture"
    link.sender.show(link.picture())
    link.world.write(b"more")
    link.send()
    link.send()
    assert link.read() == [events.Snapshot(1000, b"picture at 1000;", 80, 24), events.Output(1000, b"more")]
    assert link.receiver.cursor == Cursor(G0, 1004, 0)


def test_history_from_the_beginning_needs_no_picture() -> None:
    link = Link(world_with(b"abc"), begin="history")
    link.send()
    assert link.read() == [events.Output(0, b"abc", replayed=True), events.ReplayEnd(3)]


def test_a_cursor_that_resumes_repaints_nothing() -> None:
    """case C19"""
    link = Link(world_with(b"abc"), Cursor(G0, 1, 0))
    link.send()
    assert link.read() == [events.Output(1, b"bc")]


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        (Cursor(G0, 5, 0), events.Gap(5, 1000, 995, {"marks": [0, 0], "reason": "overwritten", "snapshot": True})),
        (Cursor(G1, 5, 0), events.Foreign(1000)),
    ],
)
def test_a_discontinuity_is_told_with_its_picture(cursor: Cursor, expected: events.Event) -> None:
    link = Link(world_with(b"x" * 1000), cursor)
    link.sender.show(link.picture(approximate=True))
    link.send()
    assert link.read() == [expected, events.Snapshot(1000, b"picture at 1000;", 80, 24, approximate=True)]


def test_a_branch_is_rewound_to_the_fork_and_shown() -> None:
    parent = world_with(b"x" * 50)
    child = parent.restored(G1, "session")
    child.write(b"y" * 7)
    link = Link(child, Cursor(G0, 60, 0))
    link.sender.show(link.picture())
    link.send()
    assert link.read()[:2] == [events.Rewound(60, 50), events.Snapshot(57, b"picture at 57;", 80, 24)]


def test_a_slow_reader_gets_a_picture_instead_of_what_was_overwritten() -> None:
    link = Link(world_with(b""), begin="history", window=20)
    link.world.write(b"a" * 20)
    link.send()
    link.world.write(b"b" * 500)
    assert link.send() == []
    assert not link.sender.awaiting, "as long as it takes nothing there is no use in a picture"
    link.read()
    link.send()
    assert link.sender.awaiting
    link.world.write(b"c" * 5)
    link.sender.show(link.picture())
    link.world.write(b"d" * 5)
    link.send()
    link.send()
    gap, picture, output = link.read()
    assert (gap.start, gap.to, picture.offset) == (20, 525, 525)
    assert output == events.Output(525, b"d" * 5)


def test_without_a_renderer_the_history_is_shown_and_it_is_said() -> None:
    link = Link(world_with(b"x" * 90 + b"\n" + b"y" * 50, size=100))
    link.sender.show(None)
    while link.send():
        pass
    gap, *rest = link.read()
    assert (gap.start, gap.to, gap.detail) == (0, 91, {"reason": "no_screen"})
    assert b"".join(event.data for event in rest if isinstance(event, events.Output)) == b"y" * 50


def test_a_picture_comes_in_parts_and_other_attaches_have_their_turns() -> None:
    link = Link(world_with(b""))
    link.sender.show(link.picture(size=200_000))
    sizes = []
    while frames := link.send(limits.MAX_OUTPUT_DATA):
        sizes.append([len(frame.data) for frame in frames])
    assert sizes == [[65536], [65536], [65536], [3392]]
    (picture,) = link.read()
    assert len(picture.data) == 200_000


def test_cut_off_in_a_picture_all_of_it_is_told_again() -> None:
    link = Link(world_with(b"x" * 1000), Cursor(G0, 5, 0))
    link.sender.show(link.picture(size=200_000))
    link.send(limits.MAX_OUTPUT_DATA)
    link.send(limits.MAX_OUTPUT_DATA)
    assert link.receiver.cursor == Cursor(G0, 5, 0), "the cursor waits for the picture"
    assert link.read() == []
    link.attach()
    link.sender.show(link.picture())
    link.send()
    gap, picture = link.read()
    assert (gap.start, gap.to, picture.data) == (5, 1000, b"picture at 1000;")


def test_a_picture_needs_no_credit_and_opens_none() -> None:
    link = Link(world_with(b""), window=100)
    link.world.write(b"x" * 5000)
    link.sender.show(link.picture(size=5000))
    link.send()
    link.world.write(b"y" * 100)
    link.send()
    link.world.write(b"z")
    assert link.send() == [], "the window is full"
    assert link.sender.lag == 101
    link.read()
    link.send()
    assert link.read()[-1] == events.Output(5100, b"z")


def test_a_picture_beyond_its_limit_is_the_agents_error() -> None:
    attachment = Attachment("session", {}, None, 100)
    part = m.Snapshot(0, 0, 0, False, b"x" * limits.MAX_OUTPUT_DATA)
    with pytest.raises(ProtocolError, match="max_snapshot"):
        for _ in range(limits.MAX_SNAPSHOT // limits.MAX_OUTPUT_DATA + 1):
            attachment.on_snapshot(part)


def test_output_in_the_middle_of_a_picture_is_the_agents_error() -> None:
    attachment = Attachment("session", {}, None, 100)
    attachment.on_snapshot(m.Snapshot(0, 0, 0, False, b"x"))
    with pytest.raises(ProtocolError, match="in the middle of a snapshot"):
        attachment.on_output(m.Output(0, 0, b"x"))


def test_a_picture_without_a_size_is_the_agents_error() -> None:
    with pytest.raises(ProtocolError, match="without a size"):
        Attachment("session", {}, None, 100).on_snapshot(m.Snapshot(0, 0, 0, True, b"x"))


def test_who_answers_queries_is_part_of_the_stream() -> None:
    """cases C12, C13: exactly one is told to answer, and never in what was shown before."""
    world = world_with(b"old")
    link = Link(world, begin="history")
    world.mark("size_owner", {"client": ME})
    world.write(b"mine")
    world.mark("size_owner", {"client": "cd" * 16})
    world.write(b"hers")
    while link.send():
        pass
    told = [(event.data, event.replayed, event.answer) for event in link.read() if isinstance(event, events.Output)]
    assert told == [(b"old", True, False), (b"mine", False, True), (b"hers", False, False)]


def test_a_picture_says_who_owns_what_follows() -> None:
    link = Link(world_with(b"x"))
    link.owner = ME
    link.sender.show(link.picture())
    link.world.write(b"?")
    link.send()
    link.send()
    assert link.read()[-1] == events.Output(1, b"?", answer=True)


@pytest.mark.parametrize("seed", range(300))
def test_whatever_is_cut_every_byte_is_shown_or_in_a_picture(seed: int) -> None:
    """What the client has = its last picture + every byte from there on; no jump without an event that names it."""
    chance = random.Random(seed)
    world = World(Ring(chance.choice([30, 100, 1000]), 20), G0)
    link = Link(world, begin=chance.choice(["snapshot", "history"]), window=chance.choice([10, 64, 500]))
    at: int | None = 0 if link.begin == "history" else None
    for _ in range(200):
        match chance.randrange(8):
            case 0 | 1:
                world.write(bytes(chance.randrange(256) for _ in range(chance.randrange(60))))
            case 2:
                world.mark("resize", {"columns": 80, "rows": 24})
            case 3 | 4:
                link.send(chance.choice([1, 10, 1000]))
            case 5 if chance.random() < 0.3:
                link.attach()  # the connection was cut: what was on its way is gone
            case 6 if link.sender.awaiting:
                link.sender.show(link.picture(chance.choice([10, 70_000, 150_000])) if chance.random() < 0.9 else None)
            case _:
                at = follow(world, link.read(), at)
    while link.send() or link.attachment.events or link.sender.awaiting:
        if link.sender.awaiting:
            link.sender.show(link.picture())
        at = follow(world, link.read(), at)
    assert at == world.ring.head


def follow(world: World, told: list[Any], at: int | None) -> int | None:
    for event in told:
        match event:
            case events.Output(offset, data):
                assert offset == (at or 0)  # nothing yet, no renderer, and nothing overwritten: from the beginning
                at = offset + len(data)
                assert data == world.written[offset:at]
            case events.Snapshot(offset, data):
                assert data.startswith(b"picture at %d;" % offset)
                at = offset
            case events.Gap(start, to, _, detail):
                assert at in (start, None) or detail["reason"] == "no_screen"
                at = to
            case _:
                pass
    return at
