"""The lifecycle's states, and every way from one to another.

All state logic is in this table; whoever acts on it only asks :func:`after`.  A request that the table does not list for a state is
an error that names the state.

QUIESCING and THAWING are short and belong to one task.  QUIESCED lasts until the host says what became of the snapshot, or until
the watchdog's time is over.  A restore that fails before its point of no return (the new generation) leads back to where it began:
it was reported, and can be tried again.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    RUNNING = "running"
    QUIESCING = "quiescing"
    QUIESCED = "quiesced"
    THAWING = "thawing"


class Event(Enum):
    PREPARE = "prepare"
    FROZEN = "all steps done"
    FAILED = "a step failed, budget over, abort, or the server was killed"
    RESUME = "resume"
    ABORT = "abort"
    RESTORE = "restore"
    OVERDUE = "thaw_after is over"
    REFUSED = "restore failed, quiesced before"
    FORGONE = "restore failed, running before"
    THAWED = "everything undone"


S, E = State, Event

TRANSITIONS: dict[tuple[State, Event], State] = {
    (S.RUNNING, E.PREPARE): S.QUIESCING,
    (S.QUIESCING, E.FROZEN): S.QUIESCED,
    (S.QUIESCING, E.FAILED): S.THAWING,
    (S.QUIESCED, E.RESUME): S.THAWING,
    (S.QUIESCED, E.ABORT): S.THAWING,
    (S.QUIESCED, E.RESTORE): S.THAWING,
    (S.QUIESCED, E.OVERDUE): S.THAWING,
    (S.RUNNING, E.RESTORE): S.THAWING,  # of a VM that was not quiesced, or whose watchdog was faster than its host
    (S.THAWING, E.REFUSED): S.QUIESCED,
    (S.THAWING, E.FORGONE): S.RUNNING,
    (S.THAWING, E.THAWED): S.RUNNING,
}


class IllegalEvent(Exception):
    """Not possible in this state, which the text names."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"the agent is {state.value}")
        self.state = state
        self.event = event


def after(state: State, event: Event) -> State:
    """The state that `event` leads to; IllegalEvent if it may not happen now."""
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise IllegalEvent(state, event)
    return found


def diagram() -> str:
    """The table as a diagram, for SPEC.md."""
    lines = [f"    {before.name} --> {to.name}: {event.value}" for (before, event), to in TRANSITIONS.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> RUNNING", *lines, "```", ""])
