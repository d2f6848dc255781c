"""What makes a restored VM one of its own, in an order that lets nobody see half of it.

==============  ==============================================================================================================
reseed          the kernel's random numbers; if that is not certain, nothing else is done (C40: clones with the same UUIDs)
filesystems     thawed, since what follows writes files
tokens          the new ones instead of all old ones (C41), which are refused from the first connection on
clock           before anything runs (C39, C44)
identity        host name, machine id, boot id, random seed
environment     for new sessions
generation      **the point of no return**: stored, the streams fork here, all input that was not written is given back
marks           `restored` in every stream that has not ended
hooks           post-restore, with everything still frozen; a failing one is reported
thaw            as a resume does it
==============  ==============================================================================================================

All earlier connections were dropped before the first of these and none is greeted before the generation is there: whatever the agent
answers, it answers with random numbers, tokens and a generation of its own.  Each step may be done again; a restore that failed
can be tried again, with the new token where the tokens were already rotated.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack

from guestagent import access
from guestagent.params import Params, bad, texts
from guestagent.snapshot import entropy, filesystems, hooks, lineage
from guestagent.snapshot.steps import Quiesce, StepFailed
from ptymux import limits
from ptymux.cursor import Position

if TYPE_CHECKING:
    from guestagent.hub import Hub
    from guestagent.snapshot.system import System

log = logging.getLogger("guestagent.snapshot")

TOKENS = "snapshot/tokens"  # store: what was rotated in
ENVIRONMENT = "snapshot/environment"  # store: of new sessions

Forks = dict[str, Position]


@dataclass
class Wishes:
    """The checked parameters of `snapshot_restore`."""

    generation: bytes | None = None
    wall_time: float | None = None  # when it was asked ...
    asked: float = 0.0  # ... which was then, on the clock that a restore does not move
    entropy: bytes = b""
    tokens: str | None = None  # the text of a token file
    environment: dict[str, str] = field(default_factory=dict)
    hostname: str | None = None
    machine_id: str | None = None
    boot_id: bool = False
    random_seed: bool = False

    @classmethod
    def of(cls, params: Params, new: bytes | None, hub: Hub, asked: float) -> Wishes:
        """What was asked at `asked`, on the monotonic clock, with the `new` generation.  RequestFailed if something is wrong or missing."""
        seed = params.raw("entropy")
        if type(seed) is not bytes or not entropy.LEAST <= len(seed) <= entropy.MOST:
            raise bad(f"entropy must be {entropy.LEAST} to {entropy.MOST} random bytes")
        when = params.raw("wall_time")
        if when is not None and (type(when) not in (int, float) or not 0 < when < 1 << 40):
            raise bad("wall_time must be seconds since 1970")
        variables = params.get("env", dict, {})
        texts("env", [*variables.keys(), *variables.values()])
        return cls(
            generation=new,
            wall_time=when,
            asked=asked,
            entropy=seed,
            tokens=_tokens(params, hub),
            environment=variables,
            hostname=_name(params.text("hostname", 64)),
            machine_id=_machine_id(params.text("machine_id", 32)),
            boot_id=params.get("boot_id", bool, False),
            random_seed=params.get("random_seed", bool, False),
        )


def generation(params: Params) -> bytes | None:
    """The new generation that a request asks for, if it does.  RequestFailed if it is malformed."""
    value = params.raw("generation")
    if value is None:
        return None
    if type(value) is str:
        try:
            value = bytes.fromhex(value)
        except ValueError:
            raise bad("generation must be 16 bytes") from None
    if type(value) is not bytes or len(value) != limits.GENERATION_SIZE:
        raise bad("generation must be 16 bytes")
    return value


def _tokens(params: Params, hub: Hub) -> str | None:
    text = params.get("tokens", str, "") or params.get("token", str, "")
    if text:
        try:
            tokens = access.Tokens(text)
        except ValueError as error:
            raise bad(f"tokens: {error}") from None
        if not tokens:
            raise bad("tokens must not be empty")
        return text
    if hub.tokens and not params.get("keep_tokens", bool, False):
        raise bad("token is missing: this agent has tokens, and every branch has the same ones until they are rotated")
    return None


def _name(value: str | None) -> str | None:
    if value is not None and not (value.isascii() and all(c.isalnum() or c in "-." for c in value)):
        raise bad("hostname must be letters, digits, - and .")
    return value


def _machine_id(value: str | None) -> str | None:
    """32 hex digits, or `random`."""
    if value is None or value == "random":
        return value
    if len(value) != 32 or any(c not in "0123456789abcdef" for c in value):
        raise bad("machine_id must be 32 hex digits, or random")
    return value


class Restoration:
    """One restore, over all attempts at it."""

    def __init__(self, hub: Hub, system: System, quiesce: Quiesce) -> None:
        self.hub = hub
        self.system = system
        self.quiesce = quiesce
        self.jump = 0.0
        self.facts: dict[str, Any] = {}
        self.steps: list[dict[str, Any]] = []
        self.generation = b""
        self.forks: Forks | None = None  # where the streams were when the snapshot was taken; None: nobody knows

    async def prepare(self, wishes: Wishes) -> None:
        """Everything before the point of no return.  StepFailed if one of it could not be done."""
        await self._step("reseed", lambda: self._reseed(wishes))
        await self._step("filesystems", self._filesystems)
        await self._step("tokens", lambda: self._rotate(wishes))
        await self._step("clock", lambda: self._clock(wishes))
        await self._step("identity", lambda: self._identity(wishes))
        await self._step("environment", lambda: self._environment(wishes))
        self.generation = wishes.generation or os.urandom(limits.GENERATION_SIZE)
        await self.hub.keeper.settled()

    async def _step(self, name: str, do: Callable[[], Awaitable[None]]) -> None:
        began = time.monotonic()
        try:
            await do()
        except OSError as error:
            raise StepFailed(f"{name}: {error.strerror or error}") from None
        finally:
            self.steps.append({"step": name, "seconds": round(time.monotonic() - began, 6)})

    async def _reseed(self, wishes: Wishes) -> None:
        await filesystems.in_thread(lambda: self.system.reseed(wishes.entropy))
        self.facts["reseeded"] = ["kernel", *entropy.reseed_process()]

    async def _filesystems(self) -> None:
        trouble = await self.quiesce.thaw_filesystems()
        if trouble:
            raise StepFailed("; ".join(trouble))

    async def _rotate(self, wishes: Wishes) -> None:
        if wishes.tokens is None:
            return
        self.hub.tokens = access.Tokens(wishes.tokens)
        self.hub.store(TOKENS, wishes.tokens.encode())
        await self.hub.keeper.settled()
        source = self.hub.config.access.token_file
        self.facts["token_file"] = None
        if source is not None and not source.startswith("fd:"):
            # For an agent that is started anew.  This one goes by the keeper's store, whatever becomes of the file.
            from guestagent.snapshot import identity

            data = wishes.tokens.encode() + b"\n"
            try:
                await filesystems.in_thread(lambda: identity.replace_file(source, data, 0o600))
                self.facts["token_file"] = "rewritten"
            except OSError as error:
                self.facts["token_file"] = f"cannot rewrite {source}: {error.strerror}"
                log.error("%s: an agent that is started anew would take the old tokens", self.facts["token_file"])

    async def _clock(self, wishes: Wishes) -> None:
        if wishes.wall_time is None:
            return
        # The steps before this one take a tenth of a second in a guest without hardware to help it.
        now = wishes.wall_time + time.monotonic() - wishes.asked
        before = self.system.wall()
        self.system.set_wall(now)
        self.jump += now - before

    async def _identity(self, wishes: Wishes) -> None:
        system = self.system
        if wishes.hostname is not None:
            name = wishes.hostname
            await filesystems.in_thread(lambda: system.set_hostname(name))
            self.facts["hostname"] = name
        if wishes.machine_id is not None:
            value = os.urandom(16).hex() if wishes.machine_id == "random" else wishes.machine_id
            await filesystems.in_thread(lambda: self.facts.update(machine_id_files=system.set_machine_id(value)))
            self.facts["machine_id"] = value
        if wishes.boot_id:
            digits = os.urandom(16).hex()
            boot = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
            await filesystems.in_thread(lambda: system.set_boot_id(boot))
            self.facts["boot_id"] = boot
        if wishes.random_seed:
            await filesystems.in_thread(lambda: self.facts.update(random_seed=system.renew_random_seed()))

    async def _environment(self, wishes: Wishes) -> None:
        if wishes.environment:
            self.hub.environment = {**self.hub.environment, **wishes.environment}
            self.hub.store(ENVIRONMENT, msgpack.packb(self.hub.environment))

    # --- the point of no return ---------------------------------------------------------------------
    def commit(self) -> None:
        """The new generation begins.  Synchronous: nobody sees a part of it."""
        hub = self.hub
        streams = {stream.key for session in hub.sessions.values() for stream in session.streams.values()}
        before = hub.lineage
        now = [] if self.forks is None else lineage.extended(before, hub.generation, self.forks, streams)
        lineage.save(hub.store, before, now, {"agent": hub.agent_id, "generation": self.generation})
        hub.lineage, hub.generation = now, self.generation
        for session in hub.sessions.values():
            session.input.give_back()

    def mark(self) -> None:
        """`restored` in every stream that goes on, once."""
        data = {"clock_jump": self.jump, "generation": self.generation.hex()}
        for session in self.hub.sessions.values():
            for stream in session.streams.values():
                last = stream.history.last_mark("restored")
                said = last is not None and last.data.get("generation") == data["generation"]
                if not said and stream.history.last_mark("exit") is None:  # `exit` is the last mark
                    stream.history.add_mark("restored", data)
                    stream.wake()

    async def hooks(self) -> None:
        began = time.monotonic()
        generation = self.generation.hex()
        more = {"GUESTAGENT_OUTCOME": "restored", "GUESTAGENT_GENERATION": generation}
        await self.quiesce.run_hooks(hooks.POST_RESTORE, more)
        self.steps.append({"step": "hooks", "seconds": round(time.monotonic() - began, 6)})

    def answer(self) -> dict[str, Any]:
        return {
            "outcome": "restored",
            "ticket": self.quiesce.ticket or None,
            "generation": self.generation.hex(),
            "clock_jump": self.jump,
            "lineage": [ancestor.generation.hex() for ancestor in self.hub.lineage],
            "steps": self.steps,
            "hooks": [result for result in self.quiesce.report.hooks if result["hook"].startswith(hooks.POST_RESTORE)],
            **self.facts,
        }


def forks_now(hub: Hub) -> Forks:
    """Where every stream is."""
    return {
        stream.key: Position(stream.history.head, stream.history.next_mark)
        for session in hub.sessions.values()
        for stream in session.streams.values()
    }
