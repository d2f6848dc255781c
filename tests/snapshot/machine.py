"""A machine that a test may do anything to: everything is in a folder, named by GUESTAGENT_TEST_MACHINE.

==============  ===================================================================================================
log             one JSON line for each call: [name, arguments]
faults.json     what goes wrong, by method: {"sync": {"errno": 28}, "reseed": {"hang": true}}; a hang lasts until it is gone
clock           seconds that the wall clock is ahead of the real one
restored        as soon as it is there, the hardware says that the VM was restored
==============  ===================================================================================================
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import trio

VARIABLE = "GUESTAGENT_TEST_MACHINE"
LOOK = 0.005


class Machine:
    """Implements guestagent.snapshot.system.System."""

    def __init__(self) -> None:
        self.folder = Path(os.environ[VARIABLE])

    def _call(self, name: str, *arguments: Any) -> None:
        with (self.folder / "log").open("a") as file:
            file.write(json.dumps([name, *arguments]) + "\n")
        while (fault := self._fault(name)).get("hang"):
            time.sleep(LOOK)
        if "errno" in fault:
            raise OSError(fault["errno"], os.strerror(fault["errno"]))

    def _fault(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "faults.json").read_text()).get(name, {})
        except (OSError, ValueError):
            return {}
        return found

    def reseed(self, entropy: bytes) -> None:
        self._call("reseed", hashlib.sha256(entropy).hexdigest(), len(entropy))

    def wall(self) -> float:
        try:
            return time.time() + float((self.folder / "clock").read_text())
        except OSError:
            return time.time()

    def set_wall(self, seconds: float) -> None:
        self._call("set_wall", seconds)
        (self.folder / "clock").write_text(str(seconds - time.time()))

    def set_hostname(self, name: str) -> None:
        self._call("set_hostname", name)

    def set_machine_id(self, value: str) -> list[str]:
        self._call("set_machine_id", value)
        (self.folder / "machine-id").write_text(value)
        return [str(self.folder / "machine-id")]

    def set_boot_id(self, value: str) -> None:
        self._call("set_boot_id", value)

    def renew_random_seed(self) -> list[str]:
        self._call("renew_random_seed")
        return []

    def mounts(self, pids: Collection[int]) -> list[str]:
        return ["/disk"]

    def sync(self, path: str) -> None:
        self._call("sync", path)

    def freeze(self, path: str) -> None:
        self._call("freeze", path)
        if (self.folder / "frozen").exists():
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        (self.folder / "frozen").touch()

    def thaw(self, path: str) -> None:
        self._call("thaw", path)
        try:
            (self.folder / "frozen").unlink()
        except FileNotFoundError:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from None

    def detector(self) -> Machine:
        return self

    async def watch(self, restored: Callable[[str], None]) -> None:
        while not (self.folder / "restored").exists():  # noqa: ASYNC110 - a test makes it
            await trio.sleep(LOOK)
        restored("test")


class Control:
    """The test's side of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def fail(self, **faults: dict[str, Any]) -> None:
        """Have these calls fail from now on, and no others."""
        new = self.folder / "faults.new"
        new.write_text(json.dumps(faults))
        new.rename(self.folder / "faults.json")

    def calls(self, name: str | None = None) -> list[list[Any]]:
        try:
            lines = (self.folder / "log").read_text().splitlines()
        except OSError:
            return []
        calls: list[list[Any]] = [json.loads(line) for line in lines]
        return [call for call in calls if name in (None, call[0])]

    @property
    def ahead(self) -> float:
        """Seconds that the wall clock was set ahead of the real one."""
        try:
            return float((self.folder / "clock").read_text())
        except OSError:
            return 0.0

    def stale(self, seconds: float) -> None:
        """The snapshot lay about for so long."""
        (self.folder / "clock").write_text(str(-seconds))

    @property
    def frozen(self) -> bool:
        return (self.folder / "frozen").exists()

    def say_restored(self) -> None:
        (self.folder / "restored").touch()
