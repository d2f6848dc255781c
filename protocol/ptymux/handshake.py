"""Hello and welcome: one transition table for both ends.

::

    client   START --(connected: send Hello)--> GREETING --(Welcome)--> UP
                                                         --(Error)----> REFUSED
    agent    START --(connected)-------------> WAITING --(good Hello)--> UP
                                                         --(bad Hello)-> REFUSED

UP and REFUSED are final here; every frame that the table does not list for a state is a ProtocolError.
"""

from __future__ import annotations

from enum import Enum

from ptymux.errors import ProtocolError
from ptymux.messages import VERSIONS, Error, Hello, Message, Welcome


class State(Enum):
    WAITING = "waiting for hello"
    GREETING = "waiting for welcome"
    UP = "up"
    REFUSED = "refused"


# What may arrive before the connection is up, and where it leads.  (The agent decides itself whether a hello is good.)
TRANSITIONS: dict[tuple[State, type[Message]], State] = {
    (State.WAITING, Hello): State.UP,
    (State.GREETING, Welcome): State.UP,
    (State.GREETING, Error): State.REFUSED,
}


def receive(state: State, message: object) -> State:
    """The state after `message`; ProtocolError if it may not come now."""
    if state is State.UP and not isinstance(message, Hello | Welcome):
        return state
    for (before, cls), after in TRANSITIONS.items():
        if before is state and isinstance(message, cls):
            return after
    raise ProtocolError(f"unexpected {type(message).__name__}: the connection is {state.value}")


def choose_version(offered: list[int], own: tuple[int, int] = VERSIONS) -> int | None:
    """The highest version that both sides speak; None if there is none."""
    low, high = max(offered[0], own[0]), min(offered[1], own[1])
    return high if low <= high else None
