"""One xterm.js for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.terminal.xterm import Xterm


@pytest.fixture(scope="module")
def xterm() -> Iterator[Xterm]:
    with Xterm() as process:
        yield process
