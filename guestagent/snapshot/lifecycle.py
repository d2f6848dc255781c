"""Drives the lifecycle: quiesce, wait for the host's word, thaw.

One operation at a time, in a task of its own that no connection can cancel.  A retry with the same ticket joins the operation that is
under way, or gets the answer of the one that ended.  The state is in the keeper's store before anything is done, so that the server
can be killed at any instant: its successor goes on with a quiesce that was complete, and undoes one that was not.

Every deadline here is CLOCK_MONOTONIC: it is the guest's own, the same in every server process, and a restore does not move it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import trio

from guestagent import access
from guestagent.snapshot import filesystems, lineage, restoration
from guestagent.snapshot import steps as parts
from guestagent.snapshot.hooks import HookFailed
from guestagent.snapshot.restoration import Forks, Restoration, Wishes
from guestagent.snapshot.steps import Quiesce, StepFailed
from guestagent.snapshot.system import RealSystem, System, load
from guestagent.snapshot.table import Event, IllegalEvent, State, after
from guestagent.snapshot.urgency import urgent
from ptymux.cursor import Position
from ptymux.errors import RequestFailed

if TYPE_CHECKING:
    from guestagent.hub import Hub
    from guestagent.peer import Peer

log = logging.getLogger("guestagent.snapshot")

STATE = "snapshot/state"  # store: what a later server must know
FORKS = "snapshot/forks"  # store: where the streams were when everything was frozen
TICKETS = "snapshot/tickets"  # store: how the last tickets ended

TICKETS_KEPT = 32  # with short answers, so that they fit one message to the next server
ANSWERED = 0.001  # seconds after which an answer is out
GATED = frozenset({"create", "label", "signal", "kill", "remove", "upgrade"})  # not while anything but running
GOODBYE = "the VM was restored: this connection belongs to the time before"


class Ended(NamedTuple):
    """How a ticket ended."""

    outcome: str  # resumed, aborted, failed, thawed (by the watchdog), restored
    answer: dict[str, Any]


class Operation:
    """What is under way, for those who ask for the same."""

    def __init__(self, kind: str, ticket: str) -> None:
        self.kind = kind
        self.ticket = ticket
        self.done = trio.Event()
        self.scope = trio.CancelScope()
        self.result: dict[str, Any] | None = None
        self.failure: RequestFailed | None = None

    async def outcome(self) -> dict[str, Any]:
        await self.done.wait()
        if self.failure is not None:
            raise self.failure
        assert self.result is not None
        return self.result


class Lifecycle:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.system: System = RealSystem()
        self.state = State.RUNNING
        self.ticket = ""
        self.restoring = False  # between a restore's first step and its generation: nothing is answered
        self._quiet = filesystems.QuietLog()
        self._quiesce = Quiesce(hub, self.system, "", self._quiet)
        self._begun: list[str] = []
        self._since = 0.0
        self._quiesced_at = 0.0
        self._deadline = 0.0  # of the watchdog
        self._report: dict[str, Any] = {}
        self._operation: Operation | None = None
        self._restoration: Restoration | None = None
        self._tickets: OrderedDict[str, Ended] = OrderedDict()
        self._last: dict[str, Any] | None = None
        self._detected: list[str] = []
        self._committed: dict[str, Any] | None = None  # the answer of a restore that is past its point of no return
        self._forks: tuple[str, Forks] | None = (
            None  # a ticket, and where the streams were when everything was frozen for it
        )
        self._ending = ""  # how the thaw that is under way will end
        self._is_restoring = False  # it is a restore's

    # --- what the rest of the server asks -----------------------------------------------------------
    def refuses(self, method: str) -> str | None:
        """Why this method is not carried out now, or None."""
        if self.restoring and not method.startswith("snapshot_"):
            return "the VM is being restored"
        if self.state is not State.RUNNING and method in GATED:
            return f"the agent is {self.state.value}"
        return None

    def status(self) -> dict[str, Any]:
        quiesced = self.state is State.QUIESCED
        return {
            "state": self.state.value,
            "ticket": self.ticket or None,
            "generation": self.hub.generation.hex(),
            "lineage": [ancestor.generation.hex() for ancestor in self.hub.lineage],
            "for_seconds": round(time.monotonic() - self._since, 3) if self._since else None,
            "thaws_in": round(max(0.0, self._deadline - time.monotonic()), 3) if quiesced else None,
            "method": "cgroups" if self.hub.cgroups is not None else "signals",
            "frozen_filesystems": list(self._quiesce.frozen),
            "detected": list(self._detected),
            "last": self._last,
        }

    # --- a new server process -----------------------------------------------------------------------
    def take_stored(self, key: str, value: bytes) -> None:
        """The keeper hands a blob over that an earlier server stored.  Before any session, and before anything is logged."""
        if key == parts.FROZEN and msgpack.unpackb(value):
            self._quiet.hush()

    def recover(self, store: dict[str, bytes]) -> None:
        """Go on where the last server ended.  After the sessions were adopted, before anything listens."""
        self.system = load(self.hub.config.snapshot.system)
        for ticket, outcome, answer in msgpack.unpackb(store[TICKETS]) if TICKETS in store else ():
            self._tickets[ticket] = Ended(outcome, answer)
        if restoration.TOKENS in store:
            self.hub.tokens = access.Tokens(store[restoration.TOKENS].decode())
        if restoration.ENVIRONMENT in store:
            self.hub.environment = msgpack.unpackb(store[restoration.ENVIRONMENT])
        record = msgpack.unpackb(store[STATE]) if STATE in store else {}
        self.state = State(record.get("state", "running"))
        self.ticket = record.get("ticket", "")
        self._begun = record.get("begun", [])
        self._since, self._deadline = record.get("since", 0.0), record.get("deadline", 0.0)
        self._quiesced_at = record.get("quiesced_at", 0.0)
        self._last, self._detected = record.get("last"), record.get("detected", [])
        self._committed, self._ending = record.get("committed"), record.get("ending", "")
        if FORKS in store:
            ticket, forks = msgpack.unpackb(store[FORKS])
            self._forks = ticket, lineage.unpack(forks)
        self._quiesce = Quiesce(self.hub, self.system, self.ticket, self._quiet)
        self._quiesce.recovered(store)
        self._quiesce.report.steps = record.get("steps", [])
        if self.hub.config.snapshot.detect:
            self.hub.start(self._watch_hardware)
        if self.state is State.RUNNING:
            return
        self._take_over(record)

    def _take_over(self, record: dict[str, Any]) -> None:
        self.hub.held = "input" in self._begun
        log.warning("taking over from a server that was %s", self.state.value)
        if self.state is State.THAWING and record.get("restoring") and self._committed is None:
            self._restore_failed(bool(self._begun))
        if self.state is State.QUIESCED:
            self._report = self._full_report()
            self.hub.start(self._watch, self.ticket)
        elif self.state in (State.QUIESCING, State.THAWING):
            self.hub.start(self._finish)

    async def _finish(self) -> None:
        """Undo what a killed server left half done, or complete its restore."""
        committed = self._committed
        operation = self._operation = Operation("recover", self.ticket)
        if self.state is State.QUIESCING:
            self._enter(Event.FAILED)
        outcome = self._ending or "failed"
        answer: dict[str, Any] = {"outcome": outcome, "ticket": self.ticket or None, "server_was_killed": True}
        if committed is not None:
            outcome = "restored"
            answer = {**committed, "server_was_killed": True}
            again = Restoration(self.hub, self.system, self._quiesce)
            again.generation, again.jump = self.hub.generation, committed["clock_jump"]
            again.mark()
        elif outcome in ("failed", "aborted"):
            answer["cause"] = "the server was killed in the middle of it"
        trouble = await self._quiesce.undo(self._begun, outcome)
        self._ended(outcome, {**answer, "undo_errors": trouble})
        operation.done.set()

    def emergency_thaw(self) -> None:
        """The keeper is gone, and so are we in a moment: leave nothing frozen."""
        if self.state is not State.RUNNING:
            for path in reversed(self._quiesce.frozen):
                with contextlib.suppress(OSError):
                    self.system.thaw(path)
            self._quiesce.thaw()

    # --- requests -----------------------------------------------------------------------------------
    async def _settled(self) -> None:
        """Until what a killed server left half done is undone."""
        operation = self._operation
        if operation is not None and operation.kind == "recover":
            await operation.done.wait()

    async def prepare(self, ticket: str | None, budget: float) -> dict[str, Any]:
        """Quiesce; the report."""
        await self._settled()
        if ticket is not None:
            ended = self._tickets.get(ticket)
            if ended is not None and ended.outcome in ("failed", "aborted") and "cause" in ended.answer:
                raise RequestFailed("not_quiesced", f"{ended.answer['cause']}; everything was undone", ended.answer)
            if ended is not None:
                raise RequestFailed("state", f"the ticket was used: {ended.outcome}", {"outcome": ended.outcome})
            if ticket == self.ticket and self.state is State.QUIESCED:
                return self._report
            if (operation := self._joinable("prepare", ticket)) is not None:
                return await operation.outcome()
        self._enter(Event.PREPARE, ticket=ticket or os.urandom(16).hex())
        return await self._run("prepare", lambda operation: self._prepare(operation, budget))

    async def resume(self, ticket: str) -> dict[str, Any]:
        """The same VM goes on."""
        return await self._leave("resume", ticket, Event.RESUME, "resumed")

    async def abort(self, ticket: str | None) -> dict[str, Any]:
        """There will be no snapshot; also while the quiesce is still under way."""
        await self._settled()
        ticket = ticket or self.ticket
        operation = self._joinable("prepare", ticket)
        if operation is not None:
            operation.scope.cancel()
            await operation.done.wait()
            ended = self._tickets.get(ticket)
            if ended is not None:
                return ended.answer  # (else it was faster than we)
        return await self._leave("abort", ticket, Event.ABORT, "aborted")

    async def restore(self, ticket: str | None, ask: Callable[[], Wishes], driver: Peer | None) -> dict[str, Any]:
        """This is a restored VM, or a branch.  `ask` checks what is wished; a retry is answered without."""
        await self._settled()
        ended = self._tickets.get(ticket or "")
        if ended is not None and ended.outcome == "restored":
            return ended.answer
        if ended is not None and ended.outcome != "thawed":
            raise RequestFailed("state", f"the ticket was used: {ended.outcome}", {"outcome": ended.outcome})
        if ticket is not None and (operation := self._joinable("restore", ticket)) is not None:
            return await operation.outcome()
        wishes = ask()
        if wishes.generation in (self.hub.generation, *(one.generation for one in self.hub.lineage)):
            raise RequestFailed("bad_params", "generation must be a new one")
        if self.state is State.QUIESCED:
            self._check_ticket(ticket)
        elif ticket is not None and ended is None:
            raise RequestFailed("state", f"the ticket is not known, and the agent is {self.state.value}")
        # The watchdog was faster than the host.  What ran since is this branch's own, and where it began is known.
        late = self._forks[1] if ended is not None and self._forks is not None and self._forks[0] == ticket else None
        self._enter(Event.RESTORE, ticket=ticket or "", restoring=True)
        return await self._run("restore", lambda _: self._restore(wishes, late, driver))

    def _joinable(self, kind: str, ticket: str) -> Operation | None:
        operation = self._operation
        if operation is not None and operation.kind == kind and operation.ticket == ticket:
            return operation
        return None

    def _check_ticket(self, ticket: str | None) -> None:
        if ticket != self.ticket:
            raise RequestFailed("state", f"the agent is {self.state.value} for another ticket")

    async def _leave(self, kind: str, ticket: str, event: Event, outcome: str) -> dict[str, Any]:
        await self._settled()
        ended = self._tickets.get(ticket)
        if ended is not None:
            if ended.outcome == outcome or (kind == "abort" and ended.outcome == "failed"):
                return ended.answer
            raise RequestFailed("state", f"the ticket was used: {ended.outcome}", {"outcome": ended.outcome})
        if (operation := self._joinable(kind, ticket)) is not None:
            return await operation.outcome()
        if self.state is State.QUIESCED:
            self._check_ticket(ticket)
        self._enter(event, ending=outcome)
        return await self._run(kind, lambda _: self._thaw(outcome))

    async def _run(self, kind: str, do: Callable[[Operation], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        operation = self._operation = Operation(kind, self.ticket)
        try:
            operation.result = await do(operation)
        except RequestFailed as error:
            operation.failure = error
        except Exception:
            log.exception("%s failed", kind)
            self._give_way()
            operation.failure = RequestFailed("internal", "a bug in the agent; its log has more")
        finally:
            if self._operation is operation:
                self._operation = None
            operation.done.set()
        return await operation.outcome()

    def _give_way(self) -> None:
        """A bug of ours must not leave the guest in between: back to quiesced if a restore had not begun to count, else run."""
        if self.restoring:
            self.restoring = False
            if self._restore_failed(bool(self._begun)):
                self.hub.start(self._watch, self.ticket)
            return
        if self.state is State.QUIESCING:
            self._enter(Event.FAILED)
        if self.state is State.THAWING:
            self._quiesce.thaw()
            self.hub.held = False
            for session in self.hub.sessions.values():
                session.release(self._committed is None)
            self._ended(self._ending or "failed", {"outcome": self._ending or "failed", "cause": "a bug in the agent"})

    # --- quiesce ------------------------------------------------------------------------------------
    async def _prepare(self, operation: Operation, budget: float) -> dict[str, Any]:
        quiesce = self._quiesce = Quiesce(self.hub, self.system, self.ticket, self._quiet)
        began = time.monotonic()
        quiesce.deadline = began + budget
        self._begun = []
        failure: StepFailed | HookFailed | None = None
        with contextlib.ExitStack() as urgency, operation.scope, trio.move_on_after(budget) as most:
            try:
                for step in quiesce.steps:
                    if step.name == "input":  # the hooks were long enough to be like everybody else
                        urgency.enter_context(self._urgent())
                    self._begun.append(step.name)
                    self._save()
                    start = time.monotonic()
                    try:
                        await step.do()
                    finally:
                        quiesce.report.steps.append({"step": step.name, "seconds": round(time.monotonic() - start, 6)})
                    if time.monotonic() > quiesce.deadline:
                        most.cancel()
                await trio.lowlevel.checkpoint()  # (not between steps: a flood of output is served at each)
            except (StepFailed, HookFailed) as error:
                failure = error
        text = ""
        details: dict[str, Any] = {}
        if operation.scope.cancelled_caught:
            text = "aborted"
        elif failure is not None:
            text, details = str(failure), getattr(failure, "details", {})
        elif most.cancelled_caught:
            text = f"over the budget of {budget:g} s in {quiesce.report.steps[-1]['step']}"
        if text:
            return await self._give_up(text, details)
        self._quiesced_at = time.monotonic()
        self._deadline = self._quiesced_at + self.hub.config.snapshot.thaw_after
        self._forks = self.ticket, restoration.forks_now(self.hub)
        self.hub.store(FORKS, msgpack.packb([self.ticket, lineage.pack(self._forks[1])]))
        self._report = {**self._full_report(), "seconds": round(time.monotonic() - began, 6)}
        self._enter(Event.FROZEN)
        await self.hub.keeper.settled()
        log.info("quiesced in %.3f s", time.monotonic() - began)
        self.hub.start(self._watch, self.ticket)
        return self._report

    async def _give_up(self, text: str, details: dict[str, Any]) -> dict[str, Any]:
        """Undo everything, and say so."""
        outcome = "aborted" if text == "aborted" else "failed"
        self._enter(Event.FAILED, ending=outcome)
        with trio.CancelScope(shield=True):
            trouble = await self._quiesce.undo(self._begun, outcome)
        report = {"ticket": self.ticket, **self._quiesce.report.to_wire(), **details, "undo_errors": trouble}
        self._ended(outcome, {"outcome": outcome, "cause": text, **report})
        log.warning("cannot quiesce: %s", text)
        raise RequestFailed("not_quiesced", f"{text}; everything was undone", report)

    def _full_report(self) -> dict[str, Any]:
        counts = parts.members(self.hub)
        return {
            "ticket": self.ticket,
            "state": "quiesced",
            "generation": self.hub.generation.hex(),
            **self._quiesce.report.to_wire(),
            "stragglers": [],  # with one, it would not be quiesced
            "processes": sum(counts.values()),
            "sessions": [
                {
                    "id": session.id,
                    "name": session.name,
                    "state": "exited" if session.exited else "running",
                    "processes": counts[session.id],
                    "streams": {
                        name: {
                            "offset": stream.history.head,
                            "mark": stream.history.next_mark,
                            "drained": not stream.paused,
                        }
                        for name, stream in session.streams.items()
                    },
                }
                for session in self.hub.sessions.values()
            ],
            "thaw_after": self.hub.config.snapshot.thaw_after,
        }

    # --- thaw ---------------------------------------------------------------------------------------
    async def _thaw(self, outcome: str) -> dict[str, Any]:
        began = time.monotonic()
        with self._urgent():
            trouble = await self._quiesce.undo(self._begun, outcome, keep=("hooks",))
            seconds = time.monotonic() - began
        if "hooks" in self._begun:
            trouble += await self._quiesce.undo(["hooks"], outcome)
        done = [result for result in self._quiesce.report.hooks if result["hook"].startswith("post-")]
        answer = {
            "outcome": outcome,
            "ticket": self.ticket,
            "generation": self.hub.generation.hex(),
            "seconds": round(seconds, 6),
            "quiesced_for": round(began - self._quiesced_at, 6),
            "hooks": done,
            "undo_errors": trouble,
        }
        self._ended(outcome, answer)
        log.info("thawed in %.3f s: %s", seconds, outcome)
        return answer

    @contextlib.contextmanager
    def _urgent(self) -> Iterator[None]:
        """Before everybody else until the answer is out, which would otherwise wait behind all that runs again."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(urgent())
            yield
            self.hub.after(ANSWERED, stack.pop_all().close)

    async def _watch(self, ticket: str) -> None:
        """The watchdog: thaw if the host does not come back."""
        while (left := self._deadline - time.monotonic()) > 0:
            await trio.sleep(left)
            if self.state is not State.QUIESCED or self.ticket != ticket:
                return
        if self.state is not State.QUIESCED or self.ticket != ticket:
            return
        log.error("the host did not come back within %g s", self.hub.config.snapshot.thaw_after)
        if self._detected:
            # The hardware says that this is a restored VM.  Under its old generation it would pass for its source.
            await self._restore_self()
        else:
            self._enter(Event.OVERDUE, ending="thawed")
            await self._run("watchdog", lambda _: self._thaw("thawed"))

    # --- restore ------------------------------------------------------------------------------------
    async def _restore(self, wishes: Wishes, late: Forks | None, driver: Peer | None) -> dict[str, Any]:
        prepared = bool(self._begun)
        attempt = self._restoration
        if attempt is None or attempt.quiesce is not self._quiesce or not prepared:
            if not prepared:
                self._quiesce = Quiesce(self.hub, self.system, self.ticket, self._quiet)
            attempt = Restoration(self.hub, self.system, self._quiesce)
        self._restoration = attempt
        attempt.steps = []
        self.restoring = True
        self.hub.drop_connections("restored", GOODBYE, but=driver)
        try:
            await attempt.prepare(wishes)
        except StepFailed as error:
            self.restoring = False
            if self._restore_failed(prepared):
                self.hub.start(self._watch, self.ticket)
            details = {
                "ticket": self.ticket or None,
                "state": self.state.value,
                "steps": attempt.steps,
                **attempt.facts,
            }
            log.error("cannot restore: %s", error)
            raise RequestFailed("not_restored", f"{error}; the agent is {self.state.value}", details) from None
        if prepared:
            attempt.forks = self._forks_of_the_snapshot()
        elif late is not None:
            attempt.forks = late
        if driver is not None:
            driver.leave_streams()
        attempt.commit()
        self._committed = {**attempt.answer(), "hooks": []}
        self._save()
        self.restoring = False
        await self.hub.keeper.settled()
        attempt.mark()
        self.hub.flush()
        await attempt.hooks()
        began = time.monotonic()
        with self._urgent():
            trouble = await self._quiesce.undo(self._begun, "restored")
            attempt.steps.append({"step": "thaw", "seconds": round(time.monotonic() - began, 6)})
        answer = {**attempt.answer(), "prepared": prepared, "undo_errors": trouble}
        self._detected = []
        self._ended("restored", answer)
        log.warning("restored as generation %s, the clock jumped %+.3f s", attempt.generation.hex(), attempt.jump)
        if driver is not None:
            # It was greeted before the restore, and its streams are of that time.  The answer is queued by then.
            self.hub.after(0, lambda: driver.drop("restored", GOODBYE))
        return answer

    def _forks_of_the_snapshot(self) -> Forks:
        """Still quiesced: what the terminals held was in the snapshot, whoever read it when.  Marks that came meanwhile were not."""
        then = self._forks[1] if self._forks is not None and self._forks[0] == self.ticket else {}
        return {
            stream: Position(place.offset, min(place.mark, then[stream].mark if stream in then else place.mark))
            for stream, place in restoration.forks_now(self.hub).items()
        }

    def _restore_failed(self, prepared: bool) -> bool:
        """Back to where the restore began; True if that is quiesced."""
        if prepared:
            self._deadline = time.monotonic() + self.hub.config.snapshot.thaw_after  # the host is there
        self._enter(Event.REFUSED if prepared else Event.FORGONE)
        return prepared

    async def _restore_self(self) -> None:
        """Nobody calls, but the hardware says that this VM was restored."""
        self._enter(Event.RESTORE, restoring=True)
        try:
            await self._run("restore", lambda _: self._restore(Wishes(), None, None))
        except RequestFailed as error:
            log.error("%s", error)

    async def _watch_hardware(self) -> None:
        try:
            await self.system.detector().watch(self._hardware_says)
        except OSError as error:
            log.error("cannot watch for VMGenID: %s", error.strerror)

    def _hardware_says(self, what: str) -> None:
        log.warning("%s says that this VM was restored", what)
        self._detected = [*self._detected, what][-8:]
        if self.state is State.RUNNING:
            self.hub.start(self._restore_self)
        elif self.state is State.QUIESCED:
            self._save()  # the host will call; if not, the watchdog knows

    # --- state --------------------------------------------------------------------------------------
    def _enter(self, event: Event, *, ticket: str | None = None, ending: str = "", restoring: bool = False) -> None:
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
            self.ticket, self._begun = "", []
        self._ending, self._is_restoring = ending, restoring
        self._since = time.monotonic()
        self._save()

    def _save(self) -> None:
        record = {
            "state": self.state.value,
            "ticket": self.ticket,
            "begun": self._begun,
            "since": self._since,
            "deadline": self._deadline,
            "quiesced_at": self._quiesced_at,
            "ending": self._ending,
            "restoring": self._is_restoring,
            "committed": self._committed,
            "steps": self._quiesce.report.steps,
            "detected": self._detected,
            "last": self._last,
        }
        self.hub.store(STATE, msgpack.packb(record))

    def _ended(self, outcome: str, answer: dict[str, Any]) -> None:
        """Running again."""
        if self.ticket:
            self._tickets[self.ticket] = Ended(outcome, answer)
            while len(self._tickets) > TICKETS_KEPT:
                self._tickets.popitem(last=False)
            kept = [[ticket, one.outcome, _short(one.answer)] for ticket, one in self._tickets.items()]
            self.hub.store(TICKETS, msgpack.packb(kept))
        self._last = _short({**answer, "outcome": outcome, "at": self.hub.wall()})
        self._committed = None
        self._restoration = None
        self._enter(Event.THAWED)


def _short(answer: dict[str, Any]) -> dict[str, Any]:
    """What is worth keeping of an answer for a retry: it must fit a message to the next server."""
    short = {key: value for key, value in answer.items() if key not in ("steps", "lineage", "stragglers")}
    for key, value in short.items():
        if isinstance(value, list):
            short[key] = [_result(item) if isinstance(item, dict) else str(item)[:100] for item in value[:4]]
        elif isinstance(value, str):
            short[key] = value[:200]
    return short


def _result(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "output"}
