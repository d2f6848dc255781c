"""notify.py: what the service manager is told."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from guestagent.notify import notify
from tests.ptymux.streams.tools import descriptors


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_hears(abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"@guestagent-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("READY=1\nSTATUS=listening")
        manager.settimeout(5)
        assert manager.recv(1000) == b"READY=1\nSTATUS=listening"


@pytest.mark.parametrize("value", [None, "", "/nonexistent/notify", "x" * 300])
def test_no_manager(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is None:
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    else:
        monkeypatch.setenv("NOTIFY_SOCKET", value)
    before = descriptors()
    notify("READY=1")
    assert descriptors() == before
