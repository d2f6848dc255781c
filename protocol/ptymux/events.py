"""What an attached client sees of a stream, in order.

Every byte of a stream is in exactly one :class:`Output`, or in the range that a :class:`Gap`, :class:`Rewound` or :class:`Foreign`
names.  Offsets are absolute, in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that the program wrote.

    `replayed`: they were in the history before this attach.  `answer`: queries in them (DA, DSR, OSC 11 …) are for the caller's terminal
    to answer; if it is not set, they were answered, or somebody else's terminal or the agent does it, and the caller's must not.
    """

    offset: int  # of the first byte
    data: bytes
    replayed: bool = False
    answer: bool = False


@dataclass(frozen=True, slots=True)
class Marked:
    """An event of the session, between two bytes: `resize`, `command_start`, `title`, `restored` and so on."""

    offset: int
    number: int
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exit:
    """The program ended; every byte that it wrote came before this.

    Exactly one of `code` and `signal` is set.  `output_closed` False: a descendant still has the terminal open, and its output may
    follow.
    """

    offset: int
    code: int | None
    signal: int | None
    output_closed: bool
    data: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def status(self) -> int:
        """As a shell gives it: the code, or 128 + the signal."""
        return self.code if self.code is not None else 128 + (self.signal or 0)


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes are missing: those of [start, to), or, with `size` None, an unknown number of them at `start`."""

    start: int
    to: int
    size: int | None
    detail: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Rewound:
    """This VM is a branch: what was seen from `to` on (as far as `start`) never happened here.  The stream goes on at `to`."""

    start: int
    to: int


@dataclass(frozen=True, slots=True)
class Foreign:
    """The cursor belongs to another VM or branch: nothing seen so far is of this stream, which goes on at `to`."""

    to: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A picture of the terminal at `offset`: escape sequences that *replace* a terminal's state.  The stream goes on at `offset`.

    It comes after each discontinuity that leaves a terminal without a picture, and at the beginning of an attach that asks for
    it.  `approximate`: output that belongs to the picture was overwritten before anybody looked, so parts of it may be wrong.
    """

    offset: int
    data: bytes
    columns: int
    rows: int
    approximate: bool = False


@dataclass(frozen=True, slots=True)
class ReplayEnd:
    """From here on output is live."""

    offset: int


@dataclass(frozen=True, slots=True)
class InputDropped:
    """Typed bytes [start, to) of this client were given up and will not be executed; `reason` is stale or refused."""

    start: int
    to: int
    reason: str


@dataclass(frozen=True, slots=True)
class InputUncertain:
    """Typed bytes [start, to) of this client may or may not have been executed: the server was killed while it wrote them."""

    start: int
    to: int


Event = Output | Marked | Exit | Gap | Rewound | Foreign | Snapshot | ReplayEnd | InputDropped | InputUncertain
