"""One stream between a program of the host and one of the guest: its state, and the credit of both directions.  No I/O."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from tests.vm.vsock.packet import SHUTDOWN_RECEIVE, SHUTDOWN_SEND, WRAP, Header

# What we take of one stream before the host's program has it: Firecracker's and Cloud Hypervisor's number, so that flow control is
# met as early in a test as there.
BUFFER: Final = 64 * 1024


class Key(NamedTuple):
    host_port: int
    guest_port: int


class State(enum.Enum):
    REQUESTED = "requested"  # one side asked for it, the other has not answered
    OPEN = "open"
    CLOSED = "closed"


class Violation(Exception):
    """The guest broke the rules of one stream, which is reset."""


class Connection:
    def __init__(self, key: Key, *, by_guest: bool) -> None:
        self.key = key
        self.by_guest = by_guest
        self.state = State.REQUESTED
        self.deadline: float | None = None  # by when it must get further, on the loop's clock
        self.muted = False  # see Table.reset_guest
        # From guest to host:
        self.to_host = bytearray()  # at most BUFFER bytes that the host's socket has not taken
        self.guest_sends = True
        self._forwarded = 0
        self._told = 0
        self.update_queued = False
        # From host to guest:
        self.host_sends = True
        self.guest_receives = True
        self._sent = 0
        self._peer_buffer = 0
        self._peer_forwarded = 0

    @property
    def credit(self) -> int:
        """How many bytes the guest has room for."""
        return self._peer_buffer - (self._sent - self._peer_forwarded) % WRAP

    @property
    def readable(self) -> bool:
        """May the host's socket be read?"""
        return self.state is State.OPEN and self.host_sends and self.guest_receives and self.credit > 0

    @property
    def finished(self) -> bool:
        """The guest is done with it, and the host has everything."""
        return not self.guest_sends and not self.guest_receives and not self.to_host

    @property
    def forwarded(self) -> int:
        """To be told in each header; the teller says so with :meth:`told`."""
        return self._forwarded

    def told(self) -> None:
        self._told = self._forwarded

    @property
    def owes_update(self) -> bool:
        """The guest may be waiting to hear that there is room again."""
        return (self._forwarded - self._told) % WRAP >= BUFFER // 2

    def note_credit(self, header: Header) -> None:
        self._peer_buffer, self._peer_forwarded = header.buffer, header.forwarded

    def sent(self, count: int) -> None:
        """So many bytes are on their way to the guest."""
        self._sent = (self._sent + count) % WRAP

    def received(self, data: bytes | memoryview) -> None:
        """The guest sent `data`."""
        if self.state is not State.OPEN:
            raise Violation(f"data in the state {self.state.value}")
        if not self.guest_sends:
            raise Violation("data after the end")
        if len(self.to_host) + len(data) > BUFFER:
            raise Violation(f"{len(self.to_host)} + {len(data)} bytes are more than the credit of {BUFFER}")
        self.to_host += data

    def taken(self, count: int) -> None:
        """The host's socket took the first `count` bytes of ``to_host``."""
        del self.to_host[:count]
        self._forwarded = (self._forwarded + count) % WRAP

    def shut_down(self, flags: int) -> None:
        """The guest's SHUTDOWN; its bits add up."""
        self.guest_receives = self.guest_receives and not flags & SHUTDOWN_RECEIVE
        self.guest_sends = self.guest_sends and not flags & SHUTDOWN_SEND
