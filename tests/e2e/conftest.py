"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.data import NUMBERED_LINES, Material, numbered, random_text
from tests.harness import AgentProcess, running_agent

BIG = 200_000_000
SMALL = 5_000_000


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent with the default configuration on a unix socket."""
    with running_agent(tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def data_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ptymux-e2e-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def big(data_folder: Path) -> Material:
    """200 MB of random text."""
    return Material.write(data_folder / "big", random_text(BIG, seed=1))


@pytest.fixture(scope="session")
def small(data_folder: Path) -> Material:
    """5 MB of random text."""
    return Material.write(data_folder / "small", random_text(SMALL, seed=2))


@pytest.fixture(scope="session")
def lines(data_folder: Path) -> Material:
    """100 MB of numbered lines: any 32 bytes in a row say where in the file they are."""
    return Material.write(data_folder / "lines", numbered(NUMBERED_LINES))
