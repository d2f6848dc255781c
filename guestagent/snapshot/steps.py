"""What a quiesce consists of: pairs of do and undo, in the order in which they are done.

Every undo may be called for a step that was done, half done or only begun, by the server that began it or by a later one, which knows
no more than what is in the keeper's store: each step says there what it is about to do before it does it.  An undo never raises; it
says what went wrong.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import trio

from guestagent import cgroups
from guestagent.snapshot import filesystems, freezer, hooks, signals
from guestagent.stream import StreamState
from ptymux import limits

if TYPE_CHECKING:
    from guestagent.hub import Hub
    from guestagent.snapshot.system import System

log = logging.getLogger("guestagent.snapshot")

STOPPED = "snapshot/stopped"  # store: pids that were stopped by signals
FROZEN = "snapshot/frozen"  # store: filesystems that may be frozen; the keeper thaws them if all else fails, and says nothing meanwhile
GROUPS = "snapshot/groups"  # store: further cgroups that may be frozen; likewise
UNDO_TIME = 10.0  # seconds for a call into a filesystem that should take none


class StepFailed(Exception):
    """A step could not be done; the text says why, `details` go into the report."""

    def __init__(self, text: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        self.details = details or {}


class Step(NamedTuple):
    name: str
    do: Callable[[], Awaitable[None]]
    undo: Callable[[str], Awaitable[list[str]]] | None  # gets the outcome, answers what went wrong


@dataclass
class Report:
    """What is told of a quiesce."""

    hooks: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    synced: list[str] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    method: str = ""

    def to_wire(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "steps": self.steps,
            "hooks": self.hooks,
            "synced": self.synced,
            "frozen_filesystems": self.frozen,
            "extra_groups": self.groups,
        }


class Quiesce:
    """One quiesce, or what is left of an earlier server's."""

    def __init__(self, hub: Hub, system: System, ticket: str, quiet: filesystems.QuietLog) -> None:
        self.hub = hub
        self.system = system
        self.ticket = ticket
        self.quiet = quiet
        self.report = Report()
        self.deadline = float("inf")  # of the budget, by time.monotonic
        self.stopped: list[signals.Stopped] = []
        self.frozen: list[str] = []
        self.steps = (
            Step("gate", self._gate, self._open_gate),
            Step("hooks", self._before_hooks, self._after_hooks),
            Step("input", self._hold_input, self._release_input),
            Step("freeze", self._freeze, self._thaw),
            Step("drain", self._drain, None),
            Step("sync", self._sync, None),
            Step("filesystems", self._freeze_filesystems, self._thaw_filesystems),
        )

    def recovered(self, store: dict[str, bytes]) -> None:
        """Learn from the keeper's store what an earlier server has done."""
        if store.get(STOPPED):
            self.stopped = [(pid, started) for pid, started in msgpack.unpackb(store[STOPPED])]
        if store.get(FROZEN):
            self.frozen = msgpack.unpackb(store[FROZEN])
        self.report.frozen = list(self.frozen)
        self.report.method = "cgroups" if self.hub.cgroups is not None else "signals"

    async def undo(self, begun: list[str], outcome: str, keep: tuple[str, ...] = ()) -> list[str]:
        """Undo these steps, the last one first; what went wrong."""
        trouble: list[str] = []
        for step in reversed(self.steps):
            if step.name in begun and step.name not in keep and step.undo is not None:
                try:
                    trouble += await step.undo(outcome)
                except Exception as error:
                    log.exception("cannot undo %s", step.name)
                    trouble.append(f"cannot undo {step.name}: {error}")
        return trouble

    # --- nothing new ------------------------------------------------------------------------------
    async def _gate(self) -> None:
        """Sessions that are being started are waited for; new ones the lifecycle's state refuses."""
        self.report.method = "cgroups" if self.hub.cgroups is not None else "signals"
        await self.hub.keeper.settled()

    async def _open_gate(self, outcome: str) -> list[str]:
        return []

    # --- the site's own ---------------------------------------------------------------------------
    async def _before_hooks(self) -> None:
        await self.run_hooks(hooks.PRE_SNAPSHOT, {})

    async def _after_hooks(self, outcome: str) -> list[str]:
        """The source's; a restored VM has run its own by now."""
        if outcome != "restored":
            await self.run_hooks(hooks.POST_RESUME, {"GUESTAGENT_OUTCOME": outcome})
        return [
            f"hook {result['hook']}: {result.get('error') or 'status {}'.format(result['status'])}"
            for result in self.report.hooks
            if result["hook"].startswith(hooks.POST_RESUME) and result.get("status") != 0
        ]

    async def run_hooks(self, event: str, more: dict[str, str]) -> None:
        config = self.hub.config.snapshot
        environment = {"GUESTAGENT_TICKET": self.ticket, **more}
        await hooks.run_all(config.hooks, event, environment, config.hook_timeout, self.report.hooks)

    # --- input ------------------------------------------------------------------------------------
    async def _hold_input(self) -> None:
        self.hub.held = True

    async def _release_input(self, outcome: str) -> list[str]:
        self.hub.held = False
        for session in list(self.hub.sessions.values()):
            session.release(outcome != "restored")
        self.hub.flush()
        return []

    # --- freeze -----------------------------------------------------------------------------------
    def groups(self) -> list[str]:
        """All cgroups that are frozen, and thawed, now."""
        root = self.hub.cgroups
        found = [] if root is None else freezer.groups_below(root)
        for name in self.hub.config.snapshot.extra_groups:
            group = freezer.extra_group(name)
            if os.path.isdir(group):
                found.append(group)
        return found

    async def _freeze(self) -> None:
        seconds = max(0.01, 0.9 * (self.deadline - time.monotonic()))
        extra = self.hub.config.snapshot.extra_groups
        groups = self.groups()
        found = [(name, freezer.extra_group(name)) for name in extra if freezer.extra_group(name) in groups]
        self.report.groups = [name for name, _ in found]
        if found:
            self.hub.store(GROUPS, msgpack.packb([group for _, group in found]))
        try:
            if self.hub.cgroups is None:
                self.stopped = await signals.stop(self.hub.keeper_pid, os.getpid(), seconds, self._remember_stopped)
            await freezer.freeze(groups, seconds)
        except freezer.NotFrozen as error:
            raise StepFailed(str(error), {"stragglers": [_named(one._asdict()) for one in error.stragglers]}) from None
        except signals.NotStopped as error:
            left = [_named(one._asdict()) for one in error.left[: freezer.SHOWN]]
            raise StepFailed(str(error), {"stragglers": left}) from None

    def _remember_stopped(self, stopped: Any) -> None:
        self.stopped = list(stopped)
        self.hub.store(STOPPED, msgpack.packb(self.stopped))

    async def _thaw(self, outcome: str) -> list[str]:
        return self.thaw()

    def thaw(self) -> list[str]:
        """Let everything run; at once, and as often as one likes."""
        trouble = freezer.thaw(self.groups())
        if self.hub.config.snapshot.extra_groups:
            self.hub.store(GROUPS, None)
        if self.stopped:
            signals.go_on(self.stopped)
            self.stopped = []
            self.hub.store(STOPPED, None)
        return trouble

    async def _drain(self) -> None:
        """What the terminals hold into the histories, as far as flow limits allow.  (The rest is in the VM's memory.)"""
        for session in list(self.hub.sessions.values()):
            for stream in session.streams.values():
                while stream.state is StreamState.OPEN and not stream.paused and stream.fill(limits.MAX_OUTPUT_DATA):
                    pass
            self.hub.flush()
            await trio.lowlevel.checkpoint()

    # --- the disk ---------------------------------------------------------------------------------
    async def _sync(self) -> None:
        config = self.hub.config.snapshot
        if not config.sync:
            return
        paths = list(config.sync_paths)
        if not paths:
            pids = [session.pid for session in self.hub.sessions.values() if session.status is None]
            paths = self.system.mounts(pids)
        for path in paths:
            try:
                await filesystems.in_thread(partial(self.system.sync, path))
            except OSError as error:
                raise StepFailed(f"cannot sync {path}: {error.strerror}") from None
            self.report.synced.append(path)

    async def _freeze_filesystems(self) -> None:
        paths = self.hub.config.snapshot.freeze_filesystems
        if not paths:
            return
        self._check_sockets(paths)
        self.quiet.hush()
        for path in paths:
            self.frozen.append(path)
            self.hub.store(FROZEN, msgpack.packb(self.frozen))
            await self.hub.keeper.settled()  # it must know before it is true
            try:
                await filesystems.in_thread(partial(self.system.freeze, path), partial(self.system.thaw, path))
            except OSError as error:
                self.frozen.remove(path)  # or we would thaw what somebody else froze
                self.hub.store(FROZEN, msgpack.packb(self.frozen))
                raise StepFailed(f"cannot freeze filesystem {path}: {error.strerror}") from None
        self.report.frozen = list(self.frozen)

    def _check_sockets(self, paths: Sequence[str]) -> None:
        """A server that is started while all is frozen makes its socket's file anew, and must not sleep over it."""
        unix = self.hub.config.listen.unix
        if unix is not None:
            for path in paths:
                with contextlib.suppress(OSError):
                    if os.stat(path).st_dev == os.stat(os.path.dirname(unix.path) or ".").st_dev:
                        raise StepFailed(f"cannot freeze filesystem {path}: the agent's own socket is on it")

    async def _thaw_filesystems(self, outcome: str) -> list[str]:
        return await self.thaw_filesystems()

    async def thaw_filesystems(self) -> list[str]:
        trouble = []
        for path in reversed(self.frozen):
            try:
                with trio.fail_after(UNDO_TIME):
                    await filesystems.in_thread(partial(self.system.thaw, path))
            except OSError as error:
                if error.errno != 22:  # EINVAL: it is not frozen
                    trouble.append(f"cannot thaw {path}: {error.strerror}")
            except trio.TooSlowError:
                trouble.append(f"cannot thaw {path}: no answer within {UNDO_TIME:g} s")
        if self.frozen:
            self.frozen = []
            self.hub.store(FROZEN, None)
            await self.hub.keeper.settled()
        self.quiet.speak()
        return trouble


def _named(process: dict[str, Any]) -> dict[str, Any]:
    return {key: process[key] for key in ("pid", "state", "command")}


def members(hub: Hub) -> dict[str, int]:
    """How many processes each session has."""
    if hub.cgroups is None:
        alive = Counter(process.session for process in signals.table().values() if process.state not in "ZX")
        return {session.id: alive[session.pid] for session in hub.sessions.values()}
    return {
        session.id: len(cgroups.processes(session.group)) if session.group is not None else 0
        for session in hub.sessions.values()
    }
