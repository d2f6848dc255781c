"""Where the lifecycle is, and what a later server must know of it.

Every change of the state goes through :meth:`Record.enter`, which asks the table and tells the keeper's store before anything is done:
the server can be killed at any instant, and its successor knows what was begun.

Every deadline here is CLOCK_MONOTONIC: it is the guest's own, the same in every server process, and a restore does not move it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgpack

from guestagent.snapshot import filesystems, lineage, restoration
from guestagent.snapshot.restoration import Forks
from guestagent.snapshot.steps import Quiesce
from guestagent.snapshot.system import RealSystem, System, load
from guestagent.snapshot.table import Event, IllegalEvent, State, after
from guestagent.snapshot.tickets import TICKETS, Tickets, short
from ptymux.errors import RequestFailed

if TYPE_CHECKING:
    from guestagent.hub import Hub

STATE = "snapshot/state"  # store: what a later server must know
FORKS = "snapshot/forks"  # store: where the streams were when everything was frozen


class Record:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.system: System = RealSystem()
        self.state = State.RUNNING
        self.ticket = ""
        self.begun: list[str] = []  # steps of the quiesce, done or not
        self.since = 0.0  # when the state was entered
        self.quiesced_at = 0.0
        self.deadline = 0.0  # of the watchdog
        self.ending = ""  # how the thaw that is under way will end
        self.is_restoring = False  # it is a restore's
        self.committed: dict[str, Any] | None = None  # the answer of a restore that is past its point of no return
        self.last: dict[str, Any] | None = None  # how the last quiesce or restore ended
        self.detected: list[str] = []  # what the hardware says
        self.report: dict[str, Any] = {}  # of the quiesce that lasts
        self.tickets = Tickets()
        self.quiet = filesystems.QuietLog()
        self.quiesce = Quiesce(hub, self.system, "", self.quiet)
        self._forks: tuple[str, Forks] | None = None

    # --- changes ------------------------------------------------------------------------------------
    def enter(self, event: Event, *, ticket: str | None = None, ending: str = "", restoring: bool = False) -> None:
        """Change the state, and store it.  RequestFailed if it may not be."""
        try:
            state = after(self.state, event)
        except IllegalEvent as error:
            details = {"state": self.state.value, "ticket": self.ticket or None}
            raise RequestFailed("state", str(error), details) from None
        self.state = state
        if ticket is not None:
            self.ticket = ticket
        if state is State.RUNNING:
            self.ticket, self.begun = "", []
        self.ending, self.is_restoring = ending, restoring
        self.since = time.monotonic()
        self.save()

    def ended(self, outcome: str, answer: dict[str, Any]) -> None:
        """Running again."""
        if self.ticket:
            self.tickets.end(self.ticket, outcome, answer)
            self.hub.store(TICKETS, self.tickets.packed())
        self.last = short({**answer, "outcome": outcome, "at": self.hub.wall()})
        self.committed = None
        self.enter(Event.THAWED)

    def renew_quiesce(self) -> Quiesce:
        """The steps of a new quiesce, or of a restore without one."""
        self.quiesce = Quiesce(self.hub, self.system, self.ticket, self.quiet)
        return self.quiesce

    def wait_for_host(self) -> None:
        """The watchdog begins to count."""
        self.deadline = time.monotonic() + self.hub.config.snapshot.thaw_after

    # --- where the streams were when everything was frozen --------------------------------------------
    def keep_forks(self) -> None:
        forks = restoration.forks_now(self.hub)
        self._forks = self.ticket, forks
        self.hub.store(FORKS, msgpack.packb([self.ticket, lineage.pack(forks)]))

    def forks(self, ticket: str | None) -> Forks | None:
        """None: not known, or forgotten."""
        return self._forks[1] if self._forks is not None and self._forks[0] == ticket else None

    # --- the store --------------------------------------------------------------------------------------
    def save(self) -> None:
        record = {
            "state": self.state.value,
            "ticket": self.ticket,
            "begun": self.begun,
            "since": self.since,
            "deadline": self.deadline,
            "quiesced_at": self.quiesced_at,
            "ending": self.ending,
            "restoring": self.is_restoring,
            "committed": self.committed,
            "steps": self.quiesce.report.steps,
            "detected": self.detected,
            "last": self.last,
        }
        self.hub.store(STATE, msgpack.packb(record))

    def load(self, store: Mapping[str, bytes]) -> None:
        """What an earlier server stored."""
        self.system = load(self.hub.config.snapshot.system)
        self.tickets.load(store)
        record = msgpack.unpackb(store[STATE]) if STATE in store else {}
        self.state = State(record.get("state", "running"))
        self.ticket = record.get("ticket", "")
        self.begun = record.get("begun", [])
        self.since, self.deadline = record.get("since", 0.0), record.get("deadline", 0.0)
        self.quiesced_at = record.get("quiesced_at", 0.0)
        self.ending, self.is_restoring = record.get("ending", ""), record.get("restoring", False)
        self.committed = record.get("committed")
        self.last, self.detected = record.get("last"), record.get("detected", [])
        if FORKS in store:
            ticket, forks = msgpack.unpackb(store[FORKS])
            self._forks = ticket, lineage.unpack(forks)
        self.renew_quiesce()
        self.quiesce.recovered(dict(store))
        self.quiesce.report.steps = record.get("steps", [])
