"""handshake.py: what may come before a connection is up."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptymux.errors import ProtocolError
from ptymux.handshake import TRANSITIONS, State, choose_version, receive
from ptymux.messages import VERSIONS, UnknownFrame
from tests.ptymux.samples import PLAIN

EVERYTHING: dict[str, Any] = {**PLAIN, "UnknownFrame": UnknownFrame(0x77)}
CASES = list(itertools.product(State, EVERYTHING))

# Written out by hand: (state, frame) -> state; UP takes everything but greetings and stays UP.
EXPECTED = {
    (State.WAITING, "Hello"): State.UP,
    (State.GREETING, "Welcome"): State.UP,
    (State.GREETING, "Error"): State.REFUSED,
    **{(State.UP, name): State.UP for name in EVERYTHING if name not in ("Hello", "Welcome")},
}


@pytest.mark.parametrize(("state", "name"), CASES, ids=[f"{state.name}-{name}" for state, name in CASES])
def test_every_frame_in_every_state(state: State, name: str) -> None:
    """Each either leads where the table says or is a ProtocolError that names frame and state."""
    expected = EXPECTED.get((state, name))
    if expected is not None:
        assert receive(state, EVERYTHING[name]) is expected
    else:
        with pytest.raises(ProtocolError, match=rf"^unexpected {name}: the connection is {state.value}$"):
            receive(state, EVERYTHING[name])


def test_the_table_leads_only_from_states_before_up() -> None:
    """UP and REFUSED are final in the table."""
    assert {state for state, _ in TRANSITIONS} == {State.WAITING, State.GREETING}


@pytest.mark.parametrize(
    ("offered", "own", "chosen"),
    [
        ([1, 1], (1, 1), 1),
        ([1, 5], (1, 3), 3),
        ([2, 9], (1, 3), 3),
        ([3, 3], (1, 3), 3),
        ([0, 1], (1, 3), 1),
        ([4, 9], (1, 3), None),
        ([0, 0], (1, 3), None),
        ([3, 1], (1, 3), None),
        ([0, 2**32 - 1], (1, 1), 1),
    ],
)
def test_the_highest_common_version_is_chosen(offered: list[int], own: tuple[int, int], chosen: int | None) -> None:
    assert choose_version(offered, own) == chosen


@given(offered=st.lists(st.integers(0, 6), min_size=2, max_size=2), own=st.tuples(st.integers(0, 6), st.integers(0, 6)))
def test_a_version_is_chosen_exactly_when_there_is_a_common_one(offered: list[int], own: tuple[int, int]) -> None:
    common = set(range(offered[0], offered[1] + 1)) & set(range(own[0], own[1] + 1))
    assert choose_version(offered, own) == max(common, default=None)


def test_our_own_versions_are_a_range() -> None:
    assert choose_version(list(VERSIONS)) == VERSIONS[1]
