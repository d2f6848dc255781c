"""Into the quiesce and out of it again: all steps within a budget, or none; and the way back.

Whoever calls has entered the state that this is about; what is entered here is what comes of it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import trio

from guestagent.snapshot import steps as parts
from guestagent.snapshot.hooks import HookFailed
from guestagent.snapshot.steps import StepFailed
from guestagent.snapshot.table import Event
from guestagent.snapshot.urgency import urgent
from ptymux.errors import RequestFailed

if TYPE_CHECKING:
    from guestagent.hub import Hub
    from guestagent.snapshot.record import Record

log = logging.getLogger("guestagent.snapshot")

ANSWERED = 0.001  # seconds after which an answer is out


async def quiesce(record: Record, abort: trio.CancelScope, budget: float) -> dict[str, Any]:
    """Do all steps; the report.  RequestFailed, with everything undone, if `abort` is cancelled or something goes wrong."""
    steps = record.renew_quiesce()
    began = time.monotonic()
    steps.deadline = began + budget
    record.begun = []
    failure: StepFailed | HookFailed | None = None
    with contextlib.ExitStack() as urgency, abort, trio.move_on_after(budget) as most:
        try:
            for step in steps.steps:
                if step.name == "input":  # the hooks were long enough to be like everybody else
                    urgency.enter_context(urgently(record.hub))
                record.begun.append(step.name)
                record.save()
                start = time.monotonic()
                try:
                    await step.do()
                finally:
                    steps.report.steps.append({"step": step.name, "seconds": round(time.monotonic() - start, 6)})
                if time.monotonic() > steps.deadline:
                    most.cancel()
            await trio.lowlevel.checkpoint()  # (not between steps: a flood of output is served at each)
        except (StepFailed, HookFailed) as error:
            failure = error
    text = ""
    details: dict[str, Any] = {}
    if abort.cancelled_caught:
        text = "aborted"
    elif failure is not None:
        text, details = str(failure), getattr(failure, "details", {})
    elif most.cancelled_caught:
        text = f"over the budget of {budget:g} s in {steps.report.steps[-1]['step']}"
    if text:
        return await _give_up(record, text, details)
    record.quiesced_at = time.monotonic()
    record.wait_for_host()
    record.keep_forks()
    record.report = {**report(record), "seconds": round(time.monotonic() - began, 6)}
    record.enter(Event.FROZEN)
    await record.hub.keeper.settled()
    log.info("quiesced in %.3f s", time.monotonic() - began)
    return record.report


async def _give_up(record: Record, text: str, details: dict[str, Any]) -> dict[str, Any]:
    """Undo everything, and say so."""
    outcome = "aborted" if text == "aborted" else "failed"
    record.enter(Event.FAILED, ending=outcome)
    with trio.CancelScope(shield=True):
        trouble = await record.quiesce.undo(record.begun, outcome)
    told = {"ticket": record.ticket, **record.quiesce.report.to_wire(), **details, "undo_errors": trouble}
    record.ended(outcome, {"outcome": outcome, "cause": text, **told})
    log.warning("cannot quiesce: %s", text)
    raise RequestFailed("not_quiesced", f"{text}; everything was undone", told)


def report(record: Record) -> dict[str, Any]:
    """Of a quiesce that is complete."""
    hub = record.hub
    counts = parts.members(hub)
    return {
        "ticket": record.ticket,
        "state": "quiesced",
        "generation": hub.generation.hex(),
        **record.quiesce.report.to_wire(),
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
            for session in hub.sessions.values()
        ],
        "thaw_after": hub.config.snapshot.thaw_after,
    }


async def thaw(record: Record, outcome: str) -> dict[str, Any]:
    """The same VM goes on; the answer."""
    quiesce = record.quiesce
    began = time.monotonic()
    with urgently(record.hub):
        trouble = await quiesce.undo(record.begun, outcome, keep=("hooks",))
        seconds = time.monotonic() - began
    if "hooks" in record.begun:
        trouble += await quiesce.undo(["hooks"], outcome)
    done = [result for result in quiesce.report.hooks if result["hook"].startswith("post-")]
    answer = {
        "outcome": outcome,
        "ticket": record.ticket,
        "generation": record.hub.generation.hex(),
        "seconds": round(seconds, 6),
        "quiesced_for": round(began - record.quiesced_at, 6),
        "hooks": done,
        "undo_errors": trouble,
    }
    record.ended(outcome, answer)
    log.info("thawed in %.3f s: %s", seconds, outcome)
    return answer


@contextlib.contextmanager
def urgently(hub: Hub) -> Iterator[None]:
    """Before everybody else until the answer is out, which would otherwise wait behind all that runs again."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(urgent())
        yield
        hub.after(ANSWERED, stack.pop_all().close)
