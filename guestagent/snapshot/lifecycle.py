"""Drives the lifecycle: who asks for what, whether it may be now, and the host that does not come back.

One operation at a time, in a task of its own that no connection can cancel.  A retry with the same ticket joins the operation that is
under way, or gets the answer of the one that ended.  What the operations do is in `quiescing` and `branching`; where the lifecycle is, in
`record`.  A later server goes on with a quiesce that was complete, and undoes one that was not.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgpack
import trio

from guestagent import access
from guestagent.snapshot import quiescing, restoration
from guestagent.snapshot import steps as parts
from guestagent.snapshot.branching import Branching
from guestagent.snapshot.operation import Operation
from guestagent.snapshot.record import Record
from guestagent.snapshot.restoration import Forks, Wishes
from guestagent.snapshot.table import Event, State
from guestagent.snapshot.tickets import Ended
from ptymux.errors import RequestFailed

if TYPE_CHECKING:
    from guestagent.hub import Hub
    from guestagent.peer import Peer

log = logging.getLogger("guestagent.snapshot")

GATED = frozenset({"create", "label", "signal", "kill", "remove", "upgrade"})  # not while anything but running


class Lifecycle:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._record = Record(hub)
        self._branching = Branching(self._record)
        self._operation: Operation | None = None

    # --- what the rest of the server asks -----------------------------------------------------------
    @property
    def restoring(self) -> bool:
        """Between a restore's first step and its generation: nobody is greeted."""
        return self._branching.restoring

    def refuses(self, method: str) -> str | None:
        """Why this method is not carried out now, or None."""
        if self.restoring and not method.startswith("snapshot_"):
            return "the VM is being restored"
        if self._record.state is not State.RUNNING and method in GATED:
            return f"the agent is {self._record.state.value}"
        return None

    def status(self) -> dict[str, Any]:
        record = self._record
        quiesced = record.state is State.QUIESCED
        return {
            "state": record.state.value,
            "ticket": record.ticket or None,
            "generation": self.hub.generation.hex(),
            "lineage": [ancestor.generation.hex() for ancestor in self.hub.lineage],
            "for_seconds": round(time.monotonic() - record.since, 3) if record.since else None,
            "thaws_in": round(max(0.0, record.deadline - time.monotonic()), 3) if quiesced else None,
            "method": "cgroups" if self.hub.cgroups is not None else "signals",
            "frozen_filesystems": list(record.quiesce.frozen),
            "detected": list(record.detected),
            "last": record.last,
        }

    # --- a new server process -----------------------------------------------------------------------
    def take_stored(self, key: str, value: bytes) -> None:
        """The keeper hands a blob over that an earlier server stored.  Before any session, and before anything is logged."""
        if key == parts.FROZEN and msgpack.unpackb(value):
            self._record.quiet.hush()

    def recover(self, store: dict[str, bytes]) -> None:
        """Go on where the last server ended.  After the sessions were adopted, before anything listens."""
        record = self._record
        if restoration.TOKENS in store:
            self.hub.tokens = access.Tokens(store[restoration.TOKENS].decode())
        if restoration.ENVIRONMENT in store:
            self.hub.environment = msgpack.unpackb(store[restoration.ENVIRONMENT])
        record.load(store)
        if self.hub.config.snapshot.detect:
            self.hub.start(self._watch_hardware)
        if record.state is not State.RUNNING:
            self._take_over()

    def _take_over(self) -> None:
        record = self._record
        self.hub.held = "input" in record.begun
        log.warning("taking over from a server that was %s", record.state.value)
        if record.state is State.THAWING and record.is_restoring and record.committed is None:
            self._branching.failed(bool(record.begun))
        if record.state is State.QUIESCED:
            record.report = quiescing.report(record)
            self._watch()
        elif record.state in (State.QUIESCING, State.THAWING):
            self.hub.start(self._finish)

    async def _finish(self) -> None:
        """Undo what a killed server left half done, or complete its restore."""
        record = self._record
        operation = self._operation = Operation("recover", record.ticket)
        if record.state is State.QUIESCING:
            record.enter(Event.FAILED)
        outcome = record.ending or "failed"
        answer: dict[str, Any] = {"outcome": outcome, "ticket": record.ticket or None, "server_was_killed": True}
        if record.committed is not None:
            outcome = "restored"
            answer = self._branching.complete()
        elif outcome in ("failed", "aborted"):
            answer["cause"] = "the server was killed in the middle of it"
        trouble = await record.quiesce.undo(record.begun, outcome)
        record.ended(outcome, {**answer, "undo_errors": trouble})
        operation.done.set()

    def emergency_thaw(self) -> None:
        """The keeper is gone, and so are we in a moment: leave nothing frozen."""
        record = self._record
        if record.state is not State.RUNNING:
            for path in reversed(record.quiesce.frozen):
                with contextlib.suppress(OSError):
                    record.system.thaw(path)
            record.quiesce.thaw()

    # --- requests -----------------------------------------------------------------------------------
    async def _settled(self) -> None:
        """Until what a killed server left half done is undone."""
        operation = self._operation
        if operation is not None and operation.kind == "recover":
            await operation.done.wait()

    async def prepare(self, ticket: str | None, budget: float) -> dict[str, Any]:
        """Quiesce; the report."""
        await self._settled()
        record = self._record
        if ticket is not None:
            ended = record.tickets.get(ticket)
            if ended is not None and ended.outcome in ("failed", "aborted") and "cause" in ended.answer:
                raise RequestFailed("not_quiesced", f"{ended.answer['cause']}; everything was undone", ended.answer)
            if ended is not None:
                raise self._used(ended)
            if ticket == record.ticket and record.state is State.QUIESCED:
                return record.report
            if (operation := self._joinable("prepare", ticket)) is not None:
                return await operation.outcome()
        record.enter(Event.PREPARE, ticket=ticket or os.urandom(16).hex())
        return await self._run("prepare", lambda operation: self._quiesce(operation, budget))

    async def _quiesce(self, operation: Operation, budget: float) -> dict[str, Any]:
        report = await quiescing.quiesce(self._record, operation.scope, budget)
        self._watch()
        return report

    async def resume(self, ticket: str) -> dict[str, Any]:
        """The same VM goes on."""
        return await self._leave("resume", ticket, Event.RESUME, "resumed")

    async def abort(self, ticket: str | None) -> dict[str, Any]:
        """There will be no snapshot; also while the quiesce is still under way."""
        await self._settled()
        record = self._record
        ticket = ticket or record.ticket
        operation = self._joinable("prepare", ticket)
        if operation is not None:
            operation.scope.cancel()
            await operation.done.wait()
            ended = record.tickets.get(ticket)
            if ended is not None:
                return ended.answer  # (else it was faster than we)
        return await self._leave("abort", ticket, Event.ABORT, "aborted")

    async def restore(
        self, ticket: str | None, generation: bytes | None, ask: Callable[[], Wishes], driver: Peer | None
    ) -> dict[str, Any]:
        """This is a restored VM, or a branch.  `ask` checks what is wished; a retry is answered without.

        Without a ticket it is the new generation by which a retry is known.
        """
        await self._settled()
        record = self._record
        name = ticket or (generation.hex() if generation is not None else "")
        ended = record.tickets.get(name)
        if ended is not None and ended.outcome == "restored":
            return ended.answer
        if ended is not None and ended.outcome != "thawed":
            raise self._used(ended)
        if name and (operation := self._joinable("restore", name)) is not None:
            return await operation.outcome()
        wishes = ask()
        if wishes.generation in (self.hub.generation, *(one.generation for one in self.hub.lineage)):
            raise RequestFailed("bad_params", "generation must be a new one")
        if record.state is State.QUIESCED:
            self._check_ticket(ticket)
        elif ended is None:
            self._check_known(ticket)
        # The watchdog was faster than the host.  What ran since is this branch's own, and where it began is known.
        late = record.forks(ticket) if ended is not None else None
        record.enter(Event.RESTORE, ticket=name, restoring=True)
        return await self._run("restore", lambda _: self._restore(wishes, late, driver))

    async def _restore(self, wishes: Wishes, late: Forks | None, driver: Peer | None) -> dict[str, Any]:
        try:
            return await self._branching.restore(wishes, late, driver)
        except RequestFailed:
            self._watch()
            raise

    async def _leave(self, kind: str, ticket: str, event: Event, outcome: str) -> dict[str, Any]:
        await self._settled()
        record = self._record
        ended = record.tickets.get(ticket)
        if ended is not None:
            if ended.outcome == outcome or (kind == "abort" and ended.outcome == "failed"):
                return ended.answer
            raise self._used(ended)
        if (operation := self._joinable(kind, ticket)) is not None:
            return await operation.outcome()
        if record.state is State.QUIESCED:
            self._check_ticket(ticket)
        else:
            self._check_known(ticket)
        record.enter(event, ending=outcome)
        return await self._run(kind, lambda _: quiescing.thaw(record, outcome))

    def _check_ticket(self, ticket: str | None) -> None:
        """Is it the one of the present quiesce?"""
        if not ticket:
            raise self._refusal("the agent is quiesced, and only its ticket leads out of that")
        if ticket != self._record.ticket:
            raise self._refusal("the agent is quiesced for another ticket")

    def _check_known(self, ticket: str | None) -> None:
        if ticket and ticket != self._record.ticket:
            raise self._refusal(f"the ticket is not known, and the agent is {self._record.state.value}")

    def _used(self, ended: Ended) -> RequestFailed:
        """For whoever wants something else of a ticket."""
        why = " (the host did not come back in time)" if ended.outcome == "thawed" else ""
        return self._refusal(f"the ticket was used: {ended.outcome}{why}", outcome=ended.outcome)

    def _refusal(self, text: str, **more: str) -> RequestFailed:
        record = self._record
        return RequestFailed("state", text, {"state": record.state.value, "ticket": record.ticket or None, **more})

    def _joinable(self, kind: str, ticket: str) -> Operation | None:
        operation = self._operation
        if operation is not None and operation.kind == kind and operation.ticket == ticket:
            return operation
        return None

    async def _run(self, kind: str, do: Callable[[Operation], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        operation = self._operation = Operation(kind, self._record.ticket)
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
        record = self._record
        if self.restoring:
            self._branching.failed(bool(record.begun))
            self._watch()
            return
        if record.state is State.QUIESCING:
            record.enter(Event.FAILED)
        if record.state is State.THAWING:
            record.quiesce.thaw()
            self.hub.held = False
            for session in self.hub.sessions.values():
                session.release(record.committed is None)
            outcome = record.ending or "failed"
            record.ended(outcome, {"outcome": outcome, "cause": "a bug in the agent"})

    # --- nobody asks --------------------------------------------------------------------------------
    def _watch(self) -> None:
        """Have the watchdog look after the present quiesce, if there is one."""
        if self._record.state is State.QUIESCED:
            self.hub.start(self._watchdog, self._record.ticket)

    async def _watchdog(self, ticket: str) -> None:
        """Thaw if the host does not come back."""
        record = self._record
        while (left := record.deadline - time.monotonic()) > 0:
            await trio.sleep(left)
            if record.state is not State.QUIESCED or record.ticket != ticket:
                return
        if record.state is not State.QUIESCED or record.ticket != ticket:
            return
        log.error("the host did not come back within %g s", self.hub.config.snapshot.thaw_after)
        if record.detected:
            # The hardware says that this is a restored VM.  Under its old generation it would pass for its source.
            await self._restore_self()
        else:
            record.enter(Event.OVERDUE, ending="thawed")
            await self._run("watchdog", lambda _: quiescing.thaw(record, "thawed"))

    async def _restore_self(self) -> None:
        """Nobody calls, but the hardware says that this VM was restored."""
        self._record.enter(Event.RESTORE, restoring=True)
        try:
            await self._run("restore", lambda _: self._restore(Wishes(), None, None))
        except RequestFailed as error:
            log.error("%s", error)

    async def _watch_hardware(self) -> None:
        try:
            await self._record.system.detector().watch(self._hardware_says)
        except OSError as error:
            log.error("cannot watch for VMGenID: %s", error.strerror)

    def _hardware_says(self, what: str) -> None:
        record = self._record
        log.warning("%s says that this VM was restored", what)
        record.detected = [*record.detected, what][-8:]
        if record.state is State.RUNNING:
            self.hub.start(self._restore_self)
        elif record.state is State.QUIESCED:
            record.save()  # the host will call; if not, the watchdog knows
