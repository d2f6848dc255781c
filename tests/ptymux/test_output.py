"""output.py: one attach, its two ends one step at a time.  The promise as a whole is in test_output_properties.py."""

from __future__ import annotations

from typing import Any

import pytest

from ptymux import limits
from ptymux import messages as m
from ptymux.cursor import Cursor, Position, resolve
from ptymux.errors import LocalProtocolError, ProtocolError
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
    receiver = OutputReceiver(cursor, window)
    return reattach(world, receiver, repair=repair), receiver


def reattach(
    world: World, receiver: OutputReceiver, *, repair: str = "bytes", taken_before_the_answer: int = 0
) -> OutputSender:
    """The agent's end of the next connection, once the attach was answered on it."""
    backlog = receiver.backlog
    start = resolve(
        receiver.cursor, world.ring, stream=ID, generation=world.generation, lineage=world.lineage, repair=repair
    )
    sender = OutputSender(3, world.ring, start, repair=repair, window=receiver.window, backlog=backlog)
    receiver.consume(taken_before_the_answer)
    receiver.attached(world.generation, start.position, start.replay_to, backlog)
    return sender


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


def size_of(frames: list[Any]) -> int:
    """Bytes of output in them."""
    return sum(len(frame.data) for frame in frames if type(frame) is m.Output)


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
        assert size_of(frames) <= most
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
    assert (sender.credit, sender.acked) == (100, 0)
    assert sender.on_credit(150)


@pytest.mark.parametrize("backlog", [0, 1, 30, 100])
def test_credit_for_what_was_not_sent_is_malformed_whatever_the_backlog(backlog: int) -> None:
    """Case C33.  A backlog narrows the window at first; who has taken everything may open it whole, and no further."""
    world = new_world()
    world.write(b"x" * 500)
    start = resolve(Cursor(G0, 200, 0), world.ring, stream=ID, generation=G0, lineage=(), repair="bytes")
    sender = OutputSender(3, world.ring, start, repair="bytes", window=100, backlog=backlog)
    assert (sender.acked, sender.credit, sender.lag) == (200 - backlog, 300 - backlog, 300 + backlog)
    with pytest.raises(ProtocolError, match=r"^malformed Credit: "):
        sender.on_credit(301)
    assert (sender.acked, sender.credit) == (200 - backlog, 300 - backlog)
    assert sender.on_credit(300) == (backlog > 0)
    assert (sender.acked, sender.credit) == (200, 300)


def test_credit_for_what_was_not_sent_is_malformed_behind_a_gap() -> None:
    """Case C33.  What a gap jumped over counts as sent; what the gap frame was only looked at for does not."""
    world = new_world(size=100)
    sender, receiver = attach(world, window=50)
    world.write(b"x" * 300)
    assert frames_of(sender.next_group(10))[0].to == 200
    with pytest.raises(ProtocolError, match=r"^malformed Credit: "):
        sender.on_credit(51)
    send(sender, receiver, 10)
    assert (sender.position.offset, sender.credit) == (210, 250)
    with pytest.raises(ProtocolError, match=r"^malformed Credit: "):
        sender.on_credit(261)
    assert sender.on_credit(260)


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


def test_a_gap_moves_the_window_along_and_opens_nothing() -> None:
    """What was overwritten needs no acknowledgement; what the client has and has not taken does, wherever it came from."""
    world = new_world(size=100)
    world.write(b"x" * 40)
    sender, receiver = attach(world, window=50)
    send(sender, receiver)
    assert sender.credit - sender.position.offset == 10
    world.write(b"y" * 220)
    got = send(sender, receiver)
    assert [type(frame) for frame in got] == [m.Gap, m.Output]
    assert (got[1].offset, len(got[1].data)) == (160, 10)
    assert (sender.acked, sender.credit, sender.lag) == (120, 170, 140)
    assert receiver.backlog == 50
    with pytest.raises(ProtocolError, match=r"exceeds the credit of 170$"):
        receiver.on_output(m.Output(3, 170, b"y"))
    assert sender.next_group(1000) is None
    receiver.consume(40)  # all of it from before the gap
    credit = receiver.credit_due()
    assert credit == 210
    assert sender.on_credit(credit)
    assert size_of(send(sender, receiver)) == 40
    assert receiver.backlog == 50


@pytest.mark.parametrize("distance", [1, 9, 39, 40, 41, 1000])
def test_credit_from_before_a_gap_opens_no_more_than_was_taken(distance: int) -> None:
    """It counts in offsets of before the jump, so it is worth less behind it, and what it lacks is given at the next step."""
    world = new_world(size=50)
    world.write(b"x" * 40)
    sender, receiver = attach(world, window=50)
    send(sender, receiver)
    receiver.consume(40)
    late = receiver.credit_due()
    assert late == 90
    world.write(b"y" * (50 + distance))
    group = sender.next_group(1)
    assert group is not None
    sender.commit(group)  # the gap and one byte are under way when the credit comes
    assert sender.position.offset == 40 + distance + 1
    assert sender.on_credit(late) == (distance < 40)
    assert sender.credit == max(90, 50 + distance)
    assert sender.credit - sender.position.offset + 1 <= 50
    for frame in frames_of(group):
        take(receiver, frame)
    assert receiver.backlog == 1
    receiver.consume(1)
    credit = receiver.credit_due()
    assert credit == 40 + distance + 1 + 50
    assert sender.on_credit(credit)
    assert size_of(send(sender, receiver)) == 49
    assert receiver.offset == world.ring.head


@pytest.mark.parametrize("lost", ["bytes", "marks"])
def test_a_client_that_takes_nothing_is_not_told_of_gaps_for_ever(lost: str) -> None:
    """Case C20: or its memory would fill with gaps, one each time that the ring goes round.  It is told, once, when it takes more."""
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
    assert size_of(got) == (20 if lost == "bytes" else 10)  # what it took, and what there is


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
    for turn in range(3):
        assert receiver.credit_due() is None
        receiver.on_output(m.Output(3, 1000 + turn * step, b"x" * step))
        assert receiver.credit_due() is None  # received is not consumed
        receiver.consume(step - 1)
        assert receiver.credit_due() is None
        receiver.consume(1)
        assert receiver.backlog == 0
        assert receiver.credit_due() == 1000 + (turn + 1) * step + window
        assert receiver.credit_due() is None


def test_nobody_consumes_more_than_was_received() -> None:
    receiver = OutputReceiver(None, 4)
    receiver.attached(G0, Position(7, 0), 0)
    assert receiver.backlog == 0
    receiver.on_output(m.Output(3, 7, b"ab"))
    for count in (3, 9, 1 << 60, -1):
        with pytest.raises(LocalProtocolError, match=rf"^cannot consume {count} bytes: 2 are there$"):
            receiver.consume(count)
    assert receiver.backlog == 2
    receiver.consume(2)
    assert receiver.credit_due() == 13
    receiver.consume(0)
    assert receiver.credit_due() is None
    with pytest.raises(LocalProtocolError, match=r"^cannot consume 1 bytes: 0 are there$"):
        receiver.consume(1)


@pytest.mark.parametrize("backlog", [0, 5, 12])
@pytest.mark.parametrize(("kind", "to"), [("gap", 50), ("rewound", 4), ("foreign", 50), ("foreign", 0)])
def test_after_a_discontinuity_the_window_goes_on_from_there(kind: str, to: int, backlog: int) -> None:
    """Forward or back: where it was consumed says nothing about the offsets behind it, how much of it is left does."""
    receiver = OutputReceiver(None, 12)
    receiver.attached(G0, Position(0, 0), 0)
    receiver.on_output(m.Output(3, 0, b"x" * 12))
    receiver.consume(12 - backlog)
    receiver.on_gap(m.Gap(3, kind, None if kind == "foreign" else 12, to, 0, 0, {}))
    room = 12 - backlog
    assert receiver.credit_due() == (to + room if room else None)  # the agent may know less of what was taken
    assert receiver.credit_due() is None
    if room:
        receiver.on_output(m.Output(3, to, b"x" * room))
    assert receiver.backlog == 12
    with pytest.raises(ProtocolError, match=rf"exceeds the credit of {to + room}$"):
        receiver.on_output(m.Output(3, to + room, b"x"))
    receiver.consume(2)
    assert receiver.credit_due() is None
    receiver.consume(1)
    assert receiver.credit_due() == to + room + 3


# --- memory: one window, whatever happens ---------------------------------------------------------
@pytest.mark.parametrize("most", [1, 3, 1000])
@pytest.mark.parametrize(
    "trouble", ["reconnect", "answer lost", "gap", "marks lost", "gap at the attach", "rewound", "foreign"]
)
def test_who_takes_nothing_gets_one_window_in_all(trouble: str, most: int) -> None:
    """Regression: each gap and each connection opened the window anew, so the client's memory grew with their number."""
    world = new_world(size=200, most_marks=2)
    world.write(b"x" * 200)
    sender, receiver = attach(world, window=100)
    if most == 1000:
        send(sender, receiver)
    for turn in range(50):
        generation = bytes([turn + 2]) * 16
        if trouble == "rewound":
            branch = world.restored(generation, ID)
            world.write(b"only here" * 10)
            send(sender, receiver, most)
            world = branch
        elif trouble == "foreign":
            world = world.restored(generation, ID, prepared=False)
        elif trouble == "marks lost":
            for kind in "abc":
                world.mark(kind)
        elif trouble != "reconnect":
            world.write(b"y" * 300)
        if trouble == "answer lost":
            reattach(world, receiver)
        if trouble not in ("gap", "marks lost"):
            sender = reattach(world, receiver)
        assert sender.credit - sender.position.offset == 100 - receiver.backlog
        send(sender, receiver, most)
        assert receiver.backlog <= 100
        assert sender.acked == receiver.offset - receiver.backlog
    while size_of(send(sender, receiver)):
        pass
    assert receiver.backlog == 100
    # Nor is anything lost of it: who takes everything gets the rest.
    got = 0
    receiver.consume(100)
    while (credit := receiver.credit_due()) is not None:
        assert sender.on_credit(credit)
        got += size_of(send(sender, receiver))
        receiver.consume(receiver.backlog)
    assert got <= 200
    assert receiver.offset == world.ring.head


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("taken", [100, 99, 25, 24, 1])
def test_a_full_backlog_at_the_attach_is_no_deadlock(taken: int, gone: bool) -> None:
    """The agent may send nothing; what was taken before it answered is told when it has, if it is worth a frame."""
    world = new_world(size=200)
    world.write(b"x" * 150)
    sender, receiver = attach(world, window=100)
    send(sender, receiver)
    sender = reattach(world, receiver, taken_before_the_answer=taken)
    assert (sender.position.offset, sender.acked, sender.credit) == (100, 0, 100)
    if gone:
        world.write(b"y" * 200)
    assert sender.next_group(1000) is None
    if taken < 25:
        assert receiver.credit_due() is None
        receiver.consume(25 - taken)
    credit = receiver.credit_due()
    assert credit == 100 + max(taken, 25)
    assert sender.on_credit(credit)
    got = send(sender, receiver)
    assert [type(frame) for frame in got] == ([m.Gap, m.Output] if gone else [m.Output])
    assert size_of(got) == min(max(taken, 25), world.ring.head - got[-1].offset)


def test_what_was_taken_before_the_answer_may_already_come() -> None:
    """The agent counts with the backlog of the question, the client with that of the answer: never the stricter of the two."""
    world = new_world()
    world.write(b"x" * 400)
    sender, receiver = attach(world, window=100)
    send(sender, receiver)
    receiver.consume(10)
    sender = reattach(world, receiver, taken_before_the_answer=20)
    assert sender.credit == 110
    assert receiver.credit_due() is None  # 20 more are not worth a frame
    assert size_of(send(sender, receiver)) == 10
    receiver.consume(4)
    assert receiver.credit_due() is None
    receiver.consume(1)
    assert receiver.credit_due() == 135
    with pytest.raises(ProtocolError, match=r"exceeds the credit of 135$"):
        receiver.on_output(m.Output(3, 110, b"x" * 26))
    assert sender.on_credit(135)
    assert size_of(send(sender, receiver)) == 25
    assert receiver.backlog == 100


def test_what_the_attach_found_does_not_move_the_window() -> None:
    """A rewind and a gap that the answer already counted in: the agent's credit is that of the answer."""
    world = new_world(size=10)
    world.write(b"common")
    branch = world.restored(G1, ID)
    branch.write(b"y" * 20)
    world.write(b"abc")
    sender, receiver = attach(world, window=12)
    assert size_of(send(sender, receiver)) == 9
    sender = reattach(branch, receiver)
    assert (sender.position.offset, sender.acked, sender.credit) == (16, 7, 19)
    got = send(sender, receiver)
    assert [(frame.kind, frame.start, frame.to) for frame in got[:2]] == [("rewound", 9, 6), ("gap", 6, 16)]
    assert got[2:] == [m.Output(3, 16, b"yyy")]
    assert (sender.acked, sender.credit, receiver.backlog) == (7, 19, 12)


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
        receiver.consume(receiver.backlog)
        credit = receiver.credit_due()
        if credit is not None:
            assert sender.on_credit(credit)
    assert got == text
    assert sender.position.offset == sender.source.head == len(text)
