"""Guests that can be cloned, and their snapshots.

A guest's connections go through a CuttingProxy where a test wants them cut as a restore cuts them: without notice, on both sides.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack

from ptymux import connect
from ptymux.client import Agent
from tests.harness import AgentProcess, clean_environment, wait_for
from tests.snapshot.keeper import CLONE, DUMP
from tests.snapshot.machine import VARIABLE, Control

_numbers = itertools.count(1)

StandIns = Mapping[str, list[str]]


class Guest(AgentProcess):
    """An agent in a machine of its own."""

    def __init__(
        self,
        folder: Path,
        configuration: str = "",
        *arguments: str,
        snapshot: Snapshot | None = None,
        standins: StandIns | None = None,
        tables: str = "",
        before: Sequence[str] = (),
    ) -> None:
        """`configuration` is for the table [snapshot]; `tables` are further ones."""
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.machine = Control(folder / "machine")
        self.hooks = folder / "hooks"
        (folder / "dump").mkdir(exist_ok=True)
        environment = {VARIABLE: str(self.machine.folder), DUMP: str(folder / "dump")}
        if snapshot is not None:
            environment |= {CLONE: str(snapshot.folder), "GUESTAGENT_TEST_NAME": folder.name}
            (snapshot.folder / f"standins.{folder.name}").write_bytes(msgpack.packb(dict(standins or {})))
        file = folder / "agent.toml"
        file.write_text(
            f'[snapshot]\nsystem = "tests.snapshot.machine:Machine"\nhooks = "{self.hooks}"\n{configuration}\n{tables}\n'
        )
        super().__init__(
            folder,
            "--config",
            str(file),
            *arguments,
            before=(*before, sys.executable, "-m", "tests.snapshot.keeper"),
            environment=clean_environment(**environment),
        )

    def hook(self, name: str, script: str) -> Path:
        """Install a hook, ``pre-snapshot/10-thing``."""
        path = self.hooks / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def stored(self) -> dict[str, Any]:
        """What the keeper holds."""
        try:
            state: dict[str, Any] = msgpack.unpackb((self.folder / "dump" / "state").read_bytes())
        except OSError:
            return {"store": {}, "records": []}
        return state

    def state(self) -> str:
        """The lifecycle's state as the keeper knows it."""
        blob = self.stored()["store"].get("snapshot/state")
        return "running" if blob is None else str(msgpack.unpackb(blob)["state"])

    def restored(self) -> str:
        """The generation of the restore that was the last to end, as the keeper knows it; empty if there was none."""
        blob = self.stored()["store"].get("snapshot/state")
        last = (blob and msgpack.unpackb(blob)["last"]) or {}
        return str(last["generation"]) if last.get("outcome") == "restored" else ""


class Snapshot:
    """A copy of a guest's state, as a VM monitor would take it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def take(cls, guest: Guest, *, state: str = "quiesced") -> Snapshot:
        """While the guest is quiesced, or with another `state`, whatever it does."""
        wait_for(lambda: guest.state() == state, "the keeper to know")
        folder = guest.folder / f"snapshot-{next(_numbers)}"
        folder.mkdir()
        held = guest.stored()
        for record in held["records"]:
            for name, fd in record["histories"].items():
                with open(f"/proc/{guest.keeper_pid}/fd/{fd}", "rb") as memory:
                    (folder / f"{record['id']}.{name}").write_bytes(memory.read())
        (folder / "state").write_bytes(msgpack.packb(held))
        return cls(folder)


@contextlib.contextmanager
def guest(folder: Path, configuration: str = "", *arguments: str, **more: Any) -> Iterator[Guest]:
    running = Guest(folder, configuration, *arguments, **more)
    try:
        yield running
    finally:
        running.stop()


@asynccontextmanager
async def host(guest: Guest, **more: Any) -> AsyncIterator[Agent]:
    """The host's own connection."""
    async with connect(guest.address, wait=5, **more) as agent:
        yield agent


def frozen(group: str) -> bool:
    with open(os.path.join(group, "cgroup.events")) as file:
        return "frozen 1" in file.read()
