"""The one door to what a test must not touch: clock, random numbers, identity, the machine's filesystems.

A test puts an object with the same methods here, by ``[snapshot] system = "module:Class"`` in the configuration (the class is
called without arguments).  All methods block and raise OSError.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Any, Protocol

from guestagent.snapshot import clock, entropy, filesystems
from guestagent.snapshot.detection import Detector, KernelDetector


class System(Protocol):
    def reseed(self, entropy: bytes) -> None: ...
    def wall(self) -> float: ...
    def set_wall(self, seconds: float) -> None: ...
    def set_hostname(self, name: str) -> None: ...
    def set_machine_id(self, value: str) -> list[str]: ...
    def set_boot_id(self, value: str) -> None: ...
    def renew_random_seed(self) -> list[str]: ...
    def mounts(self, pids: Collection[int]) -> list[str]: ...
    def sync(self, path: str) -> None: ...
    def freeze(self, path: str) -> None: ...
    def thaw(self, path: str) -> None: ...
    def detector(self) -> Detector: ...


class RealSystem:
    """The machine."""

    def reseed(self, data: bytes) -> None:
        entropy.reseed_kernel(data)

    def wall(self) -> float:
        return clock.wall()

    def set_wall(self, seconds: float) -> None:
        clock.set_wall(seconds)

    def set_hostname(self, name: str) -> None:
        from guestagent.snapshot import identity

        identity.set_hostname(name)

    def set_machine_id(self, value: str) -> list[str]:
        from guestagent.snapshot import identity

        return identity.set_machine_id(value)

    def set_boot_id(self, value: str) -> None:
        from guestagent.snapshot import identity

        identity.set_boot_id(value)

    def renew_random_seed(self) -> list[str]:
        from guestagent.snapshot import identity

        return identity.renew_random_seed()

    def mounts(self, pids: Collection[int]) -> list[str]:
        return [mount.path for mount in filesystems.mounts(pids)]

    def sync(self, path: str) -> None:
        filesystems.sync(path)

    def freeze(self, path: str) -> None:
        filesystems.freeze(path)

    def thaw(self, path: str) -> None:
        filesystems.thaw(path)

    def detector(self) -> Detector:
        return KernelDetector()


def load(name: str | None) -> System:
    """The system that the configuration names."""
    if name is None:
        return RealSystem()
    module, _, cls = name.partition(":")
    found: Any = getattr(importlib.import_module(module), cls)()
    system: System = found
    return system
