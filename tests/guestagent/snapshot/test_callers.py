"""callers.py: who may drive the lifecycle.  (Real sessions are in tests/snapshot/test_quiesce.py.)"""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from guestagent.listeners.base import Peer
from guestagent.snapshot.callers import refusal


def refused(origin: Peer, **more: Any) -> str | None:
    """With this test as one that is no session's."""
    arguments = {"network": False, "root": None, "keeper": 999_999_999, "server": 999_999_998, "connected_for": 0.0}
    return refusal(origin, **{**arguments, **more})


def peer(kind: Any, **more: Any) -> Peer:
    return Peer(kind, "somebody", "admin", True, **more)


def test_vsock() -> None:
    assert refused(peer("vsock", cid=2)) is None
    for cid in (0, 1, 3, 17):
        assert "not the host" in (refused(peer("vsock", cid=cid)) or "")


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
def test_network(kind: str) -> None:
    assert "cannot be told apart" in (refused(peer(kind)) or "")
    assert refused(peer(kind), network=True) is None


def test_unix() -> None:
    assert refused(peer("unix", uid=0, pid=os.getpid())) is None
    assert refused(peer("unix", uid=0, pid=None)) == "its process is not known"


def test_a_process_that_is_gone() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert refused(peer("unix", pid=process.pid)) == "its process is gone"


def test_a_pid_that_was_given_to_somebody_else() -> None:
    """The process is younger than the connection."""
    process = subprocess.Popen(["sleep", "10"])
    try:
        assert refused(peer("unix", pid=process.pid)) is None
        assert refused(peer("unix", pid=process.pid), connected_for=5.0) == "its process is gone"
    finally:
        process.kill()
        process.wait()


def test_descendants_of_the_keeper() -> None:
    """All but the server's own, at any depth."""
    outer = subprocess.Popen(["sh", "-c", "sleep 100 & echo $!; wait"], stdout=subprocess.PIPE)
    assert outer.stdout is not None
    inner = int(outer.stdout.readline())
    try:
        for pid in (outer.pid, inner):
            assert refused(peer("unix", pid=pid), keeper=os.getpid()) == "it belongs to a session"
            assert refused(peer("unix", pid=pid), keeper=os.getpid(), server=outer.pid) is None
    finally:
        os.kill(inner, 9)
        outer.kill()
        outer.wait()
        outer.stdout.close()
