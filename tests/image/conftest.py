"""Root file systems for the tests: a tiny made-up one, and a real one from the cache."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from image import agent, debian, start
from image.entries import Entry
from image.folder import FolderRoot
from image.target import Target, detect
from tests.vm.lab.rootfs import PACKAGES  # the same base as the VM tests have: it takes a minute to make


@pytest.fixture(scope="session")
def entries() -> list[Entry]:
    """The agent's folder for Debian 12."""
    return agent.build(Target())


def fake_python(machine: int = 62) -> bytes:
    """As much of a program as anybody looks at who does not run it."""
    return b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 3, machine) + bytes(44)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A root file system as far as an installation looks at it, with merged folders like Debian's."""
    root = tmp_path / "tiny"
    for folder in ("usr/bin", "usr/sbin", "usr/lib", "etc", "opt", "usr/local/bin"):
        (root / folder).mkdir(parents=True)
    for name in ("bin", "sbin", "lib"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "usr/bin/python3.11").write_bytes(fake_python())
    (root / "usr/bin/python3").symlink_to("python3.11")
    (root / "etc/kept").write_text("as it was\n")
    (root / "etc/kept").chmod(0o640)
    return root


@pytest.fixture(scope="session")
def rootfs(entries: list[Entry]) -> Iterator[Path]:
    """A Debian with the agent as its init, in a folder; the base comes from the cache."""
    if os.geteuid() != 0:
        pytest.skip("only root can unpack a root file system")
    with tempfile.TemporaryDirectory(prefix="ga-root-") as name:
        folder = Path(name, "r")
        folder.mkdir()
        subprocess.run(["tar", "-xf", debian.base(PACKAGES.split(",")), "-C", folder], check=True)
        root = FolderRoot(folder)
        assert detect(root) == Target()
        root.install([*entries, *start.entries(root, "init")], replace=[agent.BASE])
        yield folder
