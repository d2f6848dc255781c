"""A restore, from the dropped connections to the thaw; a failed attempt leads back, and can be made again.

`restoration` is what is done to the VM; here is its place in the lifecycle: what is stored when, and who hears of it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from guestagent.snapshot import restoration
from guestagent.snapshot.quiescing import urgently
from guestagent.snapshot.restoration import Forks, Restoration, Wishes
from guestagent.snapshot.steps import StepFailed
from guestagent.snapshot.table import Event
from ptymux.cursor import Position
from ptymux.errors import RequestFailed

if TYPE_CHECKING:
    from guestagent.peer import Peer
    from guestagent.snapshot.record import Record

log = logging.getLogger("guestagent.snapshot")

GOODBYE = "the VM was restored: this connection belongs to the time before"


class Branching:
    def __init__(self, record: Record) -> None:
        self.record = record
        self.restoring = False  # between a restore's first step and its generation: nothing is answered
        self._attempt: Restoration | None = None

    async def restore(self, wishes: Wishes, late: Forks | None, driver: Peer | None) -> dict[str, Any]:
        """All of it; the answer.  `late`: where the streams forked, if the watchdog was faster than the host.

        RequestFailed (`not_restored`), with the state that was before, if a step before the new generation fails.
        """
        record, hub = self.record, self.record.hub
        prepared = bool(record.begun)
        attempt = self._attempt_at(prepared)
        self.restoring = True
        hub.drop_connections("restored", GOODBYE, but=driver)
        try:
            await attempt.prepare(wishes)
        except StepFailed as error:
            self.failed(prepared)
            details = {
                "ticket": record.ticket or None,
                "state": record.state.value,
                "steps": attempt.steps,
                **attempt.facts,
            }
            log.error("cannot restore: %s", error)
            raise RequestFailed("not_restored", f"{error}; the agent is {record.state.value}", details) from None
        if prepared:
            attempt.forks = self._forks_of_the_snapshot()
        elif late is not None:
            attempt.forks = late
        if driver is not None:
            driver.leave_streams()
        attempt.commit()
        record.committed = {**attempt.answer(), "hooks": []}
        record.save()
        self.restoring = False
        await hub.keeper.settled()
        attempt.mark()
        hub.flush()
        await attempt.hooks()
        began = time.monotonic()
        with urgently(hub):
            trouble = await record.quiesce.undo(record.begun, "restored")
            attempt.steps.append({"step": "thaw", "seconds": round(time.monotonic() - began, 6)})
        answer = {**attempt.answer(), "prepared": prepared, "undo_errors": trouble}
        record.detected = []
        record.ended("restored", answer)
        self._attempt = None
        log.warning("restored as generation %s, the clock jumped %+.3f s", attempt.generation.hex(), attempt.jump)
        if driver is not None:
            # It was greeted before the restore, and its streams are of that time.  The answer is queued by then.
            hub.after(0, lambda: driver.drop("restored", GOODBYE))
        return answer

    def _attempt_at(self, prepared: bool) -> Restoration:
        """The restoration, which knows what earlier attempts at it have done."""
        record = self.record
        attempt = self._attempt
        if attempt is None or attempt.quiesce is not record.quiesce or not prepared:
            if not prepared:
                record.renew_quiesce()
            attempt = Restoration(record.hub, record.system, record.quiesce)
        self._attempt = attempt
        attempt.steps = []
        return attempt

    def _forks_of_the_snapshot(self) -> Forks:
        """Still quiesced: what the terminals held was in the snapshot, whoever read it when.  Marks that came meanwhile were not."""
        then = self.record.forks(self.record.ticket) or {}
        return {
            stream: Position(place.offset, min(place.mark, then[stream].mark if stream in then else place.mark))
            for stream, place in restoration.forks_now(self.record.hub).items()
        }

    def failed(self, prepared: bool) -> None:
        """Back to where the restore began."""
        self.restoring = False
        if prepared:
            self.record.wait_for_host()  # it is there
        self.record.enter(Event.REFUSED if prepared else Event.FORGONE)

    def complete(self) -> dict[str, Any]:
        """A killed server was past the point of no return, and perhaps had not told the streams; its answer."""
        record = self.record
        assert record.committed is not None
        again = Restoration(record.hub, record.system, record.quiesce)
        again.generation, again.jump = record.hub.generation, record.committed["clock_jump"]
        again.mark()
        return {**record.committed, "server_was_killed": True}
