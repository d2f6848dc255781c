"""cursor.py: where a stream goes on for a client that was at a cursor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptymux.cursor import Ancestor, Cursor, Discontinuity, Position, Start, overwritten, resolve, restart
from ptymux.errors import ProtocolError
from tests.ptymux.ring import Ring, World

G = [bytes([n]) * 16 for n in range(8)]
ID = "session"
TOP64 = (1 << 64) - 1


def start(world: World, cursor: Cursor | None, repair: str = "bytes") -> Start:
    return resolve(cursor, world.ring, stream=ID, generation=world.generation, lineage=world.lineage, repair=repair)


def new_world(size: int = 100, most_marks: int = 100) -> World:
    return World(Ring(size, most_marks), G[0])


# --- the cursor itself ----------------------------------------------------------------------------
@given(
    generation=st.binary(min_size=16, max_size=16),
    offset=st.integers(0, TOP64),
    mark=st.none() | st.integers(0, TOP64),
)
def test_a_cursor_survives_the_wire(generation: bytes, offset: int, mark: int | None) -> None:
    cursor = Cursor(generation, offset, mark)
    assert Cursor.from_wire(cursor.to_wire()) == cursor


def test_no_cursor_is_nil() -> None:
    assert Cursor.from_wire(None) is None


@pytest.mark.parametrize(
    "value",
    [
        1, "x", b"x" * 16, {}, [], [G[0]], [G[0], 1], [G[0], 1, 2, 3], [G[0][:15], 1, 2], [G[0] + b"x", 1, 2],
        ["x" * 16, 1, 2], [None, 1, 2], [G[0], -1, 2], [G[0], TOP64 + 1, 2], [G[0], None, 2], [G[0], 1.0, 2],
        [G[0], True, 2], [G[0], 1, -1], [G[0], 1, TOP64 + 1], [G[0], 1, "2"], [G[0], 1, False], (G[0], 1, 2),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_cursor_is_a_protocol_error(value: Any) -> None:
    with pytest.raises(ProtocolError, match=r"^malformed cursor: "):
        Cursor.from_wire(value)


def test_a_cursor_as_text() -> None:
    assert str(Cursor(G[1], 10, 2)) == "01" * 16 + ":10+2"
    assert str(Cursor(G[1], 10)) == "01" * 16 + ":10"


# --- the same generation --------------------------------------------------------------------------
def test_nothing_seen_begins_at_zero_and_is_a_replay() -> None:
    world = new_world()
    world.write(b"hello")
    assert start(world, None) == Start(Position(0, 0), (), 5)


@pytest.mark.parametrize("repair", ["bytes", "snapshot"])
def test_resume_repaints_nothing(repair: str) -> None:
    """Case C19: every cursor in the history goes on exactly where it is, and nothing is a replay."""
    world = new_world()
    for _ in range(5):
        world.write(b"line\n")
        world.mark("resize")
    for offset in range(world.ring.head + 1):
        mark = sum(1 for known in world.marks if known.offset < offset)
        assert start(world, Cursor(G[0], offset, mark), repair) == Start(Position(offset, mark), (), offset)


def test_an_offset_alone_means_the_first_mark_from_there() -> None:
    world = new_world()
    world.write(b"ab")
    world.mark("resize")
    world.write(b"c")
    assert [start(world, Cursor(G[0], offset)).position.mark for offset in range(4)] == [0, 0, 0, 1]


def test_a_position_that_was_never_reached_is_foreign_and_not_clamped() -> None:
    """A cursor beyond the head, in bytes or in marks, is of a history that this agent does not know."""
    world = new_world()
    world.write(b"line\nmore")
    world.mark("resize")
    for cursor in (Cursor(G[0], 10, 1), Cursor(G[0], 9, 2), Cursor(G[0], TOP64, TOP64), Cursor(G[0], 10)):
        answer = start(world, cursor)
        assert answer.discontinuities == (Discontinuity("foreign", None, Position(0, 0), {}),)
        assert answer.position == (0, 0)
        assert answer.replay_to == 9


def test_overwritten_bytes_are_a_gap_with_its_exact_ends() -> None:
    world = new_world(size=10)
    world.mark("a")
    world.write(b"0123\n56789abcd\nf")
    world.mark("b")
    assert world.ring.oldest == 6
    answer = start(world, Cursor(G[0], 2, 1), "bytes")
    assert answer.discontinuities == (
        Discontinuity("gap", 2, Position(6, 1), {"marks": [1, 1], "reason": "overwritten"}),
    )
    assert (answer.position, answer.replay_to) == ((6, 1), 16)
    answer = start(world, Cursor(G[0], 2, 1), "snapshot")
    assert answer.discontinuities[0].to == (15, 1)  # behind the newline
    assert answer.position == (15, 1)


def test_overwritten_marks_alone_lose_no_bytes() -> None:
    world = new_world(most_marks=2)
    for kind in "abcd":
        world.write(b"x")
        world.mark(kind)
    for repair in ("bytes", "snapshot"):
        answer = start(world, Cursor(G[0], 1, 1), repair)
        assert answer.discontinuities == (
            Discontinuity("gap", 1, Position(1, 2), {"marks": [1, 2], "reason": "overwritten"}),
        )


@pytest.mark.parametrize("repair", ["bytes", "snapshot"])
def test_where_a_stream_goes_on_is_always_in_the_history(repair: str) -> None:
    for size, most_marks, lines in itertools.product((1, 3, 10), (1, 3), range(8)):
        world = new_world(size, most_marks)
        for _ in range(lines):
            world.write(b"ab\n")
            world.mark("resize")
        position = restart(world.ring, repair)
        assert world.ring.oldest <= position.offset <= world.ring.head
        assert world.ring.oldest_mark <= position.mark <= world.ring.next_mark
        assert overwritten(world.ring, position, repair) is None


# --- branches -------------------------------------------------------------------------------------
def test_an_ancestors_cursor_before_the_fork_resumes_without_loss() -> None:
    """Case C35: the generation decides, not a reset: source and branch share what came before the fork."""
    source = new_world()
    source.write(b"common")
    branch = source.restored(G[1], ID)
    branch.write(b"-branch")
    for offset in range(7):
        assert start(branch, Cursor(G[0], offset, 0)) == Start(Position(offset, 0), (), offset)


def test_beyond_the_fork_is_rewound_to_it() -> None:
    source = new_world()
    source.write(b"common")
    branch = source.restored(G[1], ID)
    source.write(b"source only")
    source.mark("resize")
    branch.write(b"branch")
    answer = start(branch, Cursor(G[0], 10, 0))
    assert answer == Start(Position(6, 0), (Discontinuity("rewound", 10, Position(6, 0), {}),), 12)
    # At the fork to the byte, but with a mark that only the source has.
    assert start(branch, Cursor(G[0], 6, 1)).discontinuities == (Discontinuity("rewound", 6, Position(6, 0), {}),)


def test_rewound_to_a_fork_that_was_overwritten_is_told_twice() -> None:
    """First where both branches agree, then what is missing from there on."""
    source = new_world(size=4)
    source.write(b"common")
    branch = source.restored(G[1], ID)
    source.write(b"xxx")
    branch.write(b"yyyyyyyy")
    answer = start(branch, Cursor(G[0], 9, 0))
    assert [(d.kind, d.start, d.to) for d in answer.discontinuities] == [("rewound", 9, (6, 0)), ("gap", 6, (10, 1))]
    assert answer.position == (10, 1)


def test_an_ancestors_offset_alone_resumes_although_marks_were_overwritten() -> None:
    """Regression: the first mark still known lay behind the fork, and the answer was `rewound` *forward* to the fork, which
    left out the bytes between.
    """
    source = new_world(most_marks=2)
    source.write(b"common")
    source.mark("a")
    branch = source.restored(G[1], ID)
    for _ in range(5):
        branch.mark("title")
    answer = start(branch, Cursor(G[0], 2))
    assert answer.position.offset == 2
    assert [d.kind for d in answer.discontinuities] == ["gap"]
    assert answer.discontinuities[0].start == answer.discontinuities[0].to.offset == 2


def test_a_rewind_never_goes_forward() -> None:
    """Regression: the source's marks were overwritten under a reader before the fork, which therefore knows marks behind it but
    not all bytes before it.  It is not taken past bytes that are there.
    """
    source = new_world(most_marks=2)
    source.write(b"common")
    branch = source.restored(G[1], ID)
    for _ in range(9):
        source.mark("title")
    at = start(source, Cursor(G[0], 2, 0)).position
    assert at == (2, 7)
    answer = start(branch, Cursor(G[0], *at))
    assert answer.position == (2, 0)
    assert answer.discontinuities == (Discontinuity("rewound", 2, Position(2, 0), {}),)


def test_a_stream_that_is_younger_than_the_fork_is_foreign() -> None:
    """The session was created in both branches after the fork; its ancestor's cursor is another program's."""
    world = World(Ring(100, 100), G[1], (Ancestor(G[0], {"another": Position(3, 0)}),))
    world.write(b"hello")
    answer = start(world, Cursor(G[0], 2, 0))
    assert [d.kind for d in answer.discontinuities] == ["foreign"]
    assert answer.position == (0, 0)


def test_a_restore_without_prepare_makes_every_earlier_cursor_foreign() -> None:
    source = new_world()
    source.write(b"common")
    branch = source.restored(G[1], ID, prepared=False)
    for offset in range(7):
        assert [d.kind for d in start(branch, Cursor(G[0], offset, 0)).discontinuities] == ["foreign"]


# --- every small tree -----------------------------------------------------------------------------
# Three levels: a root, two children forked from it at different times, and a grandchild of each.  Each life writes its own letter,
# so a byte says which life wrote it.
LIFE = "abcdefgh"


def write_life(world: World, count: int, marks: bool) -> None:
    letter = LIFE[G.index(world.generation)].encode()
    for _ in range(count):
        world.write(letter)
        if marks:
            world.mark("m", {"by": world.generation})


def trees(size: int, most_marks: int) -> Iterator[list[World]]:
    """Every tree with 0 or 1 bytes (and perhaps a mark each) between forks, as the list of its lives."""
    for first, second, child, third, marks in itertools.product((0, 1), (0, 2), (0, 1), (0, 2), (False, True)):
        root = World(Ring(size, most_marks), G[0])
        write_life(root, first, marks)
        one = root.restored(G[1], ID)  # the first child
        write_life(root, second, marks)
        two = root.restored(G[2], ID)  # its sibling, forked later
        write_life(root, third, marks)
        write_life(one, child, marks)
        three = one.restored(G[3], ID)  # a grandchild
        write_life(one, third, marks)
        write_life(two, second, marks)
        four = two.restored(G[4], ID)  # its cousin
        five = two.restored(G[5], ID)  # and a twin of that: the same snapshot restored twice
        write_life(three, third, marks)
        write_life(four, child + 1, marks)
        write_life(five, second, marks)
        yield [root, one, two, three, four, five]


def cursors(world: World) -> Iterator[Cursor]:
    """Every place at which a client of this life can be: with k bytes, all marks before and any number of those at k."""
    for offset in range(len(world.written) + 1):
        low = sum(1 for mark in world.marks if mark.offset < offset)
        high = sum(1 for mark in world.marks if mark.offset <= offset)
        for mark in range(low, high + 1):
            yield Cursor(world.generation, offset, mark)
        yield Cursor(world.generation, offset)


def common_prefix(a: World, b: World) -> int:
    """How many bytes two lives share, by what they wrote (each its own letter)."""
    return next(
        (i for i, (x, y) in enumerate(zip(a.written, b.written, strict=False)) if x != y),
        min(len(a.written), len(b.written)),
    )


@pytest.mark.parametrize("repair", ["bytes", "snapshot"])
@pytest.mark.parametrize(("size", "most_marks"), [(100, 100), (3, 100), (100, 2), (2, 1)])
def test_in_every_small_tree_no_bytes_of_two_branches_are_mixed(size: int, most_marks: int, repair: str) -> None:
    """A client of any life at any place, resolved in any life: what it keeps and what it will get are one life's output, and
    every byte and mark that it will not get is told.
    """
    count = 0
    for worlds in trees(size, most_marks):
        for seen_in, now_in in itertools.product(worlds, worlds):
            for cursor in cursors(seen_in):
                check_resolved(seen_in, now_in, cursor, repair)
                count += 1
    assert count > 5000


def check_resolved(seen_in: World, now_in: World, cursor: Cursor, repair: str) -> None:
    answer = start(now_in, cursor, repair)
    ring = now_in.ring
    known = {ancestor.generation for ancestor in now_in.lineage} | {now_in.generation}
    bytes_seen = bytes(seen_in.written[: cursor.offset])
    at = cursor.offset  # how much of what it has the client keeps
    marks_at = cursor.mark
    for told in answer.discontinuities:
        if told.kind == "foreign":
            assert told.start is None
            assert cursor.generation not in known
            bytes_seen, at, marks_at = b"", told.to.offset, told.to.mark
        elif told.kind == "rewound":
            assert told.start == at == cursor.offset
            assert told.to.offset <= at
            at = told.to.offset
            bytes_seen = bytes_seen[:at]
            assert marks_at is None or told.to.mark <= marks_at
            marks_at = told.to.mark
        else:
            assert told.kind == "gap"
            assert told.start == at
            assert told.to.offset >= at
            # No byte is given up that is there, but for the line's beginning that a screen cannot start with.
            if told.to.offset > at:
                assert at < ring.oldest
                assert told.to.offset == (ring.oldest if repair == "bytes" else ring.safe_boundary())
            if marks_at is not None:
                assert told.detail["marks"] == [marks_at, told.to.mark]
                assert told.to.mark >= marks_at
            at, marks_at = told.to.offset, told.to.mark
    # The stream goes on where the telling ended, and all from there on is there.
    assert answer.position.offset == at
    assert marks_at is None or answer.position.mark == marks_at
    assert ring.oldest <= answer.position.offset <= ring.head
    assert ring.oldest_mark <= answer.position.mark <= ring.next_mark
    # Never mixed: what is kept is this life's own beginning.
    assert now_in.written[: len(bytes_seen)] == bytes_seen
    assert all(mark.offset >= at for mark in now_in.marks[answer.position.mark :])
    if answer.discontinuities:
        assert answer.replay_to == ring.head
    else:
        assert cursor.offset <= common_prefix(seen_in, now_in)
        assert answer.replay_to == cursor.offset
    # And nothing is given up without need: a cursor in the common history of a descendant resumes.
    if cursor.generation == now_in.generation:
        assert not {told.kind for told in answer.discontinuities} & {"rewound", "foreign"}


def test_siblings_and_twins_are_foreign_to_each_other_even_before_the_fork() -> None:
    """Their lives are not in each other's lineage: nobody can say where they forked, so nothing is assumed."""
    root, one, two, three, four, five = next(trees(100, 100))
    for seen_in, now_in in [(one, two), (two, one), (four, five), (three, four), (one, root), (five, two)]:
        for cursor in cursors(seen_in):
            assert [told.kind for told in start(now_in, cursor).discontinuities] == ["foreign"]
