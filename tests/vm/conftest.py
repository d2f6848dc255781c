"""Fixtures of the VM tests: one boot for all of them, a branch of its snapshot for each."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from image import kernel as kernels
from tests.vm.lab import initrd
from tests.vm.lab.machine import VM, Snapshot, Spec, booted, restored
from tests.vm.lab.rootfs import READY, rootfs

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever is here and not in unit/ boots a machine."""
    for item in items:
        if HERE in item.path.parents and HERE / "unit" not in item.path.parents:
            item.add_marker(pytest.mark.vm)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def kernel() -> Path:
    """The folder with `vmlinuz` and `initrd`."""
    return kernels.build()


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """For snapshots, a hundred megabytes each."""
    folder = Path(tempfile.mkdtemp(prefix="vms-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def tiny(kernel: Path) -> Spec:
    """A guest with nothing but vsock port 5000."""
    return Spec(kernel / "vmlinuz", initrd.tiny(kernel), memory=128)


@pytest.fixture(scope="session")
def tiny_snapshot(tiny: Spec, scratch: Path) -> Snapshot:
    with booted(tiny) as vm:
        vm.wait_console("tiny: ready")
        return vm.save(scratch / "tiny")


@pytest.fixture(scope="session")
def guest(kernel: Path) -> Spec:
    """A guest with the agent as process 1."""
    return Spec(kernel / "vmlinuz", initrd.with_modules(kernel, "vsock_loopback"), rootfs())


@pytest.fixture(scope="session")
def guest_snapshot(guest: Spec, scratch: Path) -> Snapshot:
    """Just booted, the agent listening, never connected to; not quiesced."""
    with booted(guest) as vm:
        vm.wait_console(READY)
        return vm.save(scratch / "guest")


@pytest.fixture
def vm(guest_snapshot: Snapshot) -> Iterator[VM]:
    """A private branch of the snapshot."""
    with restored(guest_snapshot) as branch:
        yield branch
