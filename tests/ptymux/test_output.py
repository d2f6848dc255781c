"""output.py: one attach, its two ends one step at a time.  The promise as a whole is in test_output_properties.py."""

from __future__ import annotations

from typing import Any

import pytest

from ptymux import limits
from ptymux import messages as m
from ptymux.cursor import Cursor, Position, resolve
from ptymux.errors import ProtocolError
from ptymux.frames import Decoder
from ptymux.output import Group, OutputReceiver, OutputSender
from tests.ptymux.ring import Ring, World

G0, G1 = b"\x00" * 16, b"\x01" * 16
ID = "session"


def new_world(size: int = 1000, most_marks: int = 100) -> World:
    return World(Ring(size, most_marks), G0)


def attach(
    world: World, cursor: Cursor | None = None, *, window: int = 100, repair: str = "bytes"
) -> tuple[OutputSender, OutputReceiver]:
    """Both ends after the attach was answered."""
    start = resolve(cursor, world.ring, stream=ID, generation=world.generation, lineage=world.lineage, repair=repair)
    receiver = OutputReceiver(cursor, window)
    receiver.attached(world.generation, start.position, start.replay_to)
    return OutputSender(3, world.ring, start, repair=repair, window=window), receiver


def frames_of(group: Group | None) -> list[Any]:
    """The group as the other side will read it; it must be whole frames."""
    if group is None:
        return []
    data = b"".join(group.buffers)
    assert len(data) == group.size
    decoder = Decoder(m.AGENT)
    decoder.greeted()
    got = list(decoder.feed(data))
    assert not decoder._buffer
    return got


def send(sender: OutputSender, receiver: OutputReceiver, most: int = 1 << 20) -> list[Any]:
    """One group from end to end."""
    group = sender.next_group(most)
    got = frames_of(group)
    if group is not None:
        sender.commit(group)
    for frame in got:
        take(receiver, frame)
    return got


def take(receiver: OutputReceiver, frame: Any) -> None:
    handler = {m.Output: receiver.on_output, m.Mark: receiver.on_mark, m.Gap: receiver.on_gap}[type(frame)]
    handler(frame)


# --- sender ---------------------------------------------------------------------------------------
def test_output_and_marks_come_in_order() -> None:
    world = new_world()
    world.mark("resize", {"columns": 80})
    world.write(b"ab")
    world.mark("title")
    world.mark("bell")
    world.write(b"cd")
    world.mark("exit", {"code": 0})
    sender, receiver = attach(world)
    assert send(sender, receiver) == [
        m.Mark(3, 0, 0, "resize", {"columns": 80}),
        m.Output(3, 0, b"ab"),
        m.Mark(3, 2, 1, "title", {}),
        m.Mark(3, 2, 2, "bell", {}),
        m.Output(3, 2, b"cd"),
        m.Mark(3, 4, 3, "exit", {"code": 0}),
    ]
    assert receiver.cursor == Cursor(G0, 4, 4)
    assert sender.next_group(100) is None


def test_looking_does_not_move() -> None:
    """A group that was not sent is simply made again, with whatever has come meanwhile."""
    world = new_world()
    world.write(b"ab")
    sender, receiver = attach(world)
    assert frames_of(sender.next_group(100)) == [m.Output(3, 0, b"ab")]
    world.write(b"cd")
    assert frames_of(sender.next_group(100)) == [m.Output(3, 0, b"abcd")]
    assert sender.position == (0, 0)
    assert send(sender, receiver) == [m.Output(3, 0, b"abcd")]
    assert sender.position == (4, 0)


def test_a_wrapped_ring_is_sent_without_copying() -> None:
    world = new_world(size=8)
    world.write(b"012345")
    sender, receiver = attach(world)
    send(sender, receiver)
    world.write(b"6789")
    group = sender.next_group(100)
    assert group is not None
    assert [type(buffer) for buffer in group.buffers] == [bytes, memoryview, memoryview]
    assert frames_of(group) == [m.Output(3, 6, b"6789")]


@pytest.mark.parametrize("most", [1, 2, 3, 10])
def test_a_quantum_bounds_the_bytes_of_output(most: int) -> None:
    """And something always moves, however small the quantum."""
    world = new_world()
    world.write(b"x" * 10)
    world.mark("title")
    sender, receiver = attach(world)
    rounds = 0
    while (group := sender.next_group(most)) is not None:
        frames = frames_of(group)
        assert sum(len(frame.data) for frame in frames if type(frame) is m.Output) <= most
        sender.commit(group)
        for frame in frames:
            take(receiver, frame)
        rounds += 1
    assert receiver.cursor == Cursor(G0, 10, 1)
    assert rounds <= 11


def test_a_frame_has_at_most_max_output_data() -> None:
    world = new_world(size=1 << 20)
    world.write(b"x" * 200_000)
    sender, receiver = attach(world, window=1 << 20)
    sizes = [len(frame.data) for frame in send(sender, receiver)]
    assert sizes == [65536, 65536, 65536, 200_000 - 3 * 65536]


def test_nothing_is_sent_beyond_the_credit() -> None:
    world = new_world()
    world.write(b"x" * 250)
    sender, receiver = attach(world, window=100)
    assert sender.credit == 100
    send(sender, receiver)
    assert (sender.position.offset, sender.lag) == (100, 250)
    assert sender.next_group(100) is None
    assert sender.on_credit(130)
    assert (sender.acked, sender.lag) == (30, 220)
    send(sender, receiver_with_credit(receiver, 30))
    assert sender.position.offset == 130


def receiver_with_credit(receiver: OutputReceiver, consumed: int) -> OutputReceiver:
    receiver.consume(consumed)
    assert receiver.credit_due() == consumed + receiver.window
    return receiver


def test_marks_cost_no_credit() -> None:
    """A resize or the exit reaches a client whose window is used up."""
    world = new_world()
    world.write(b"x" * 100)
    sender, receiver = attach(world, window=100)
    send(sender, receiver)
    world.mark("resize")
    assert send(sender, receiver) == [m.Mark(3, 100, 0, "resize", {})]
    world.write(b"y")
    world.mark("exit")
    assert sender.next_group(100) is None  # but never before the bytes that it follows


def test_late_credit_changes_nothing() -> None:
    world = new_world()
    world.write(b"x" * 50)
    sender, receiver = attach(world, window=100)
    send(sender, receiver)
    assert sender.on_credit(140)
    assert not sender.on_credit(140)
    assert not sender.on_credit(0)
    assert (sender.credit, sender.acked) == (140, 40)


@pytest.mark.parametrize("offset", [151, 1000, (1 << 64) - 1])
def test_credit_for_what_was_not_sent_is_malformed(offset: int) -> None:
    """Case C33: credit is the acknowledgement, and nobody can have what was not sent."""
    world = new_world()
    world.write(b"x" * 50)
    sender, receiver = attach(world, window=100)
    send(sender, receiver)
    with pytest.raises(ProtocolError, match=r"^malformed Credit: "):
        sender.on_credit(offset)
    assert sender.on_credit(150)


def test_what_is_overwritten_while_reading_is_a_gap() -> None:
    """A slow client is only a cursor that lags: the ring goes on, and the client is told exactly what it missed."""
    world = new_world(size=10)
    world.write(b"0123456789")
    sender, receiver = attach(world)
    assert send(sender, receiver, 4) == [m.Output(3, 0, b"0123")]
    world.write(b"abcdefgh")
    got = send(sender, receiver)
    assert got == [
        m.Gap(3, "gap", 4, 8, 0, 18, {"marks": [0, 0], "reason": "overwritten"}),
        m.Output(3, 8, b"89abcdefgh"),
    ]
    assert receiver.cursor == Cursor(G0, 18, 0)
    assert sender.gaps == 1


def test_what_is_overwritten_between_looking_and_sending_is_a_gap_in_the_next_look() -> None:
    """Two looks, one gap: a gap that was not sent was not told."""
    world = new_world(size=10)
    world.write(b"0123456789")
    sender, receiver = attach(world)
    assert frames_of(sender.next_group(4)) == [m.Output(3, 0, b"0123")]
    world.write(b"a")
    assert frames_of(sender.next_group(4))[0] == m.Gap(
        3, "gap", 0, 1, 0, 11, {"marks": [0, 0], "reason": "overwritten"}
    )
    world.write(b"b")
    assert send(sender, receiver, 4)[0] == m.Gap(3, "gap", 0, 2, 0, 12, {"marks": [0, 0], "reason": "overwritten"})
    assert sender.gaps == 1


def test_overwritten_marks_are_a_gap_without_bytes() -> None:
    world = new_world(most_marks=2)
    sender, receiver = attach(world)
    for kind in "abcd":
        world.mark(kind)
    assert send(sender, receiver) == [
        m.Gap(3, "gap", 0, 0, 2, 0, {"marks": [0, 2], "reason": "overwritten"}),
        m.Mark(3, 0, 2, "c", {}),
        m.Mark(3, 0, 3, "d", {}),
    ]


def test_a_gap_opens_the_window_anew_on_both_sides() -> None:
    world = new_world(size=100)
    world.write(b"x" * 40)
    sender, receiver = attach(world, window=50)
    send(sender, receiver)
    world.write(b"y" * 220)
    got = send(sender, receiver)
    assert [type(frame) for frame in got] == [m.Gap, m.Output]
    assert got[1].offset == 160
    assert len(got[1].data) == 50
    assert sender.credit == 210
    assert not sender.on_credit(90)  # granted before the gap was seen


@pytest.mark.parametrize("lost", ["bytes", "marks"])
def test_a_client_that_takes_nothing_is_not_told_of_gaps_for_ever(lost: str) -> None:
    """Case C20: or it would get another window's worth each time that the ring goes round.  It is told, once, when it takes more."""
    world = new_world(size=100, most_marks=2)
    world.write(b"x" * 60)
    sender, receiver = attach(world, window=50)
    send(sender, receiver)
    for _ in range(10):
        if lost == "bytes":
            world.write(b"y" * 200)
        else:
            for kind in "abc":
                world.mark(kind)
        assert sender.next_group(1000) is None
    receiver.consume(20)
    credit = receiver.credit_due()
    assert credit == 70
    assert sender.on_credit(credit)
    got = send(sender, receiver)
    assert [type(frame) for frame in got].count(m.Gap) == 1
    assert (got[0].start, got[0].to, got[0].mark) == ((50, 1960, 0) if lost == "bytes" else (50, 50, 28))


def test_what_the_attach_found_is_told_first_and_once() -> None:
    world = new_world(size=10)
    world.write(b"common")
    branch = world.restored(G1, ID)
    branch.write(b"y" * 20)
    sender, receiver = attach(branch, Cursor(G0, 9, 0))
    got = send(sender, receiver)
    assert [(frame.kind, frame.start, frame.to) for frame in got[:2]] == [("rewound", 9, 6), ("gap", 6, 16)]
    assert got[2:] == [m.Output(3, 16, b"y" * 10)]
    assert sender.gaps == 2
    branch.write(b"z")
    assert send(sender, receiver) == [m.Output(3, 26, b"z")]


def test_what_the_attach_found_stays_untold_until_it_is_sent() -> None:
    world = new_world(size=10)
    world.write(b"x" * 20)
    sender, _ = attach(world, Cursor(G0, 3, 0))
    first = frames_of(sender.next_group(100))
    assert frames_of(sender.next_group(100)) == first
    assert type(first[0]) is m.Gap


# --- receiver -------------------------------------------------------------------------------------
def test_a_hole_is_refused() -> None:
    """Case C24: frame N+1 lost and N+2 there is an error, never a jump."""
    receiver = OutputReceiver(None, 100)
    receiver.attached(G0, Position(0, 0), 0)
    receiver.on_output(m.Output(3, 0, b"abc"))
    for frame in (m.Output(3, 4, b"x"), m.Output(3, 2, b"x"), m.Output(3, 0, b"abc"), m.Output(3, 1 << 63, b"x")):
        with pytest.raises(ProtocolError, match=rf"^malformed Output: offset {frame.offset} where 3 follows$"):
            receiver.on_output(frame)
    assert receiver.cursor == Cursor(G0, 3, 0)


def test_a_mark_out_of_order_is_refused() -> None:
    """Case C24, for marks: neither a hole, nor one twice, nor one before its bytes."""
    receiver = OutputReceiver(None, 100)
    receiver.attached(G0, Position(0, 0), 0)
    receiver.on_mark(m.Mark(3, 0, 0, "a", {}))
    for number in (0, 2, 1 << 63):
        with pytest.raises(ProtocolError, match=rf"^malformed Mark: number {number} where 1 follows$"):
            receiver.on_mark(m.Mark(3, 0, number, "a", {}))
    with pytest.raises(ProtocolError, match=r"^malformed Mark: offset 1 is ahead of the output$"):
        receiver.on_mark(m.Mark(3, 1, 1, "b", {}))
    assert receiver.cursor == Cursor(G0, 0, 1)


def test_more_than_the_credit_is_refused() -> None:
    receiver = OutputReceiver(None, 10)
    receiver.attached(G0, Position(5, 0), 5)
    receiver.on_output(m.Output(3, 5, b"x" * 10))
    with pytest.raises(ProtocolError, match=r"^malformed Output: exceeds the credit of 15$"):
        receiver.on_output(m.Output(3, 15, b"x"))


def test_the_cursor_does_not_move_before_a_frame_comes() -> None:
    """Case C18.  Regression: it moved with the answer to the attach, so that a connection cut between that answer and the Gap
    frame went on behind the gap at the next attach, and nobody was ever told.
    """
    world = new_world(size=10)
    world.write(b"x" * 30)
    for cursor in (None, Cursor(G0, 3, 0)):
        sender, receiver = attach(world, cursor)
        assert receiver.cursor == cursor
        # ... cut here; the next attach finds the same gap.
        sender, receiver = attach(world, receiver.cursor)
        got = send(sender, receiver)
        assert (got[0].kind, got[0].start, got[0].to) == ("gap", 0 if cursor is None else 3, 20)
        assert receiver.cursor == Cursor(G0, 30, 0)


def test_the_cursor_does_not_change_its_branch_before_the_rewind_comes() -> None:
    """The same for generations: (new generation, old offset) would mix two branches."""
    world = new_world()
    world.write(b"common")
    branch = world.restored(G1, ID)
    branch.write(b"branch and more")
    sender, receiver = attach(branch, Cursor(G0, 9, 0))
    assert receiver.cursor == Cursor(G0, 9, 0)
    rewound, *rest = frames_of(sender.next_group(100))
    receiver.on_gap(rewound)
    assert receiver.cursor == Cursor(G1, 6, 0)
    for frame in rest:
        take(receiver, frame)
    assert receiver.cursor == Cursor(G1, 21, 1)


def test_a_cut_in_the_middle_of_a_replay_does_not_make_the_rest_news() -> None:
    """Case C12.  Regression: the second attach resumed at its cursor, said that nothing is a replay, and the terminal answered
    the queries in the rest of the old output.
    """
    world = new_world()
    world.write(b"old output with a \x1b[6n query")
    sender, receiver = attach(world)
    assert receiver.replay_to == world.ring.head
    send(sender, receiver, 5)
    start = resolve(receiver.cursor, world.ring, stream=ID, generation=G0, lineage=(), repair="bytes")
    assert start.replay_to == 5
    receiver.attached(G0, start.position, start.replay_to)
    assert receiver.replay_to == world.ring.head


def test_a_gap_says_itself_what_is_a_replay() -> None:
    receiver = OutputReceiver(None, 100)
    receiver.attached(G0, Position(0, 0), 1000)
    receiver.on_gap(m.Gap(3, "rewound", 900, 10, 0, 40, {}))
    assert receiver.replay_to == 40


# --- credit ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("window", "step"), [(1, 1), (3, 1), (4, 1), (100, 25), (limits.DEFAULT_WINDOW, 65536), (limits.MAX_WINDOW, 65536)]
)
def test_credit_comes_in_steps_worth_a_frame(window: int, step: int) -> None:
    """A quarter of the window, at most one frame of output; and it is granted once."""
    receiver = OutputReceiver(None, window)
    receiver.attached(G0, Position(1000, 0), 0)
    sent = 0
    while sent < step:
        assert receiver.credit_due() is None
        count = min(step - sent, limits.MAX_OUTPUT_DATA)
        receiver.on_output(m.Output(3, 1000 + sent, b"x" * count))
        sent += count
        assert receiver.credit_due() is None  # received is not consumed
        if sent < step:
            receiver.consume(1000 + sent)
    receiver.consume(1000 + step - 1)
    assert receiver.credit_due() is None
    receiver.consume(1000 + step)
    assert receiver.credit_due() == 1000 + step + window
    assert receiver.credit_due() is None


def test_nobody_consumes_more_than_was_received() -> None:
    receiver = OutputReceiver(None, 4)
    receiver.attached(G0, Position(0, 0), 0)
    receiver.on_output(m.Output(3, 0, b"ab"))
    receiver.consume(1 << 60)
    assert receiver.credit_due() == 6
    receiver.consume(0)
    assert receiver.credit_due() is None


@pytest.mark.parametrize(("kind", "to"), [("gap", 50), ("rewound", 4), ("foreign", 50), ("foreign", 0)])
def test_after_a_discontinuity_credit_is_counted_from_there(kind: str, to: int) -> None:
    """Forward or back: what was consumed before says nothing about the offsets behind it."""
    receiver = OutputReceiver(None, 12)
    receiver.attached(G0, Position(0, 0), 0)
    receiver.on_output(m.Output(3, 0, b"x" * 12))
    receiver.consume(12)
    receiver.on_gap(m.Gap(3, kind, None if kind == "foreign" else 12, to, 0, 0, {}))
    assert receiver.credit_due() is None
    receiver.on_output(m.Output(3, to, b"x" * 12))
    with pytest.raises(ProtocolError, match=rf"exceeds the credit of {to + 12}$"):
        receiver.on_output(m.Output(3, to + 12, b"x"))
    receiver.consume(to + 3)
    assert receiver.credit_due() == to + 15


def test_bytes_are_the_only_unit() -> None:
    """Case C25: CJK and emoji, cut in the middle of characters, charged and acknowledged in bytes."""
    text = ("\N{CJK UNIFIED IDEOGRAPH-6F22}\N{FAMILY}e\N{COMBINING ACUTE ACCENT}" * 400).encode()
    world = new_world(size=1 << 16)
    world.write(text)
    sender, receiver = attach(world, window=64)
    got = bytearray()
    while receiver.offset < len(text):
        for frame in send(sender, receiver, 7):
            got += frame.data
        receiver.consume(receiver.offset)
        credit = receiver.credit_due()
        if credit is not None:
            assert sender.on_credit(credit)
    assert got == text
    assert sender.position.offset == sender.source.head == len(text)
