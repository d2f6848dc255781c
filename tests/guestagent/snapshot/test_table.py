"""table.py: every state and event, and the diagram in SPEC.md."""

from __future__ import annotations

import itertools

import pytest

from guestagent.snapshot.table import TRANSITIONS, Event, IllegalEvent, State, after, diagram
from tests.ptymux.test_spec import section


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_pair(state: State, event: Event) -> None:
    """A pair leads where the table says, or is an error that names the state."""
    if (state, event) in TRANSITIONS:
        assert after(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalEvent, match=f"the agent is {state.value}") as caught:
            after(state, event)
        assert (caught.value.state, caught.value.event) == (state, event)


def test_every_state_is_left_and_reached() -> None:
    """From everywhere there is a way to `running`, without the host's help."""
    host = {Event.PREPARE, Event.RESUME, Event.ABORT, Event.RESTORE}
    assert {to for to in TRANSITIONS.values()} == set(State)
    for state in State:
        reached = {state}
        for _ in State:
            reached |= {to for (before, event), to in TRANSITIONS.items() if before in reached and event not in host}
        assert State.RUNNING in reached


def test_the_diagram() -> None:
    assert section("lifecycle") == diagram()
