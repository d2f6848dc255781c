"""processes.py: who belongs to a session, and signals to all of them, with a cgroup and without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from guestagent import cgroups, processes
from tests.harness import wait_for

# A process session of four: its leader, a job in a group of its own, and that one's child that ignores what it can.
PROGRAM = """
import os, signal, sys, time
group = sys.argv[1]
if group:
    open(f"{group}/cgroup.procs", "w").write("0")
os.setsid()
read, write = os.pipe()
if os.fork() == 0:
    os.setpgid(0, 0)
    if os.fork() == 0:
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            os.write(write, b"x")
            time.sleep(1000)
        time.sleep(1000)
    time.sleep(1000)
os.read(read, 1)
print(os.getpid(), flush=True)
time.sleep(1000)
"""


class Session:
    def __init__(self, group: str | None) -> None:
        self.group = group
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, group or ""], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline())

    def members(self) -> list[int]:
        return processes.members(self.pid, self.group, reaped=self.process.returncode is not None)

    def kill_all(self) -> int:
        return processes.kill_all(self.pid, self.group, reaped=self.process.returncode is not None)

    def signal_all(self, number: int) -> int:
        return processes.signal_all(self.pid, self.group, number, reaped=self.process.returncode is not None)

    def wait_gone(self) -> None:
        self.process.wait()
        wait_for(lambda: not self.members(), "the kernel to forget them")


@pytest.fixture(params=["cgroup", "process session"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    root = None
    if request.param == "cgroup":
        root, why = cgroups.find_root(os.getpid())
        if root is None:
            pytest.skip(why)
    found = Session(root)
    yield found
    found.kill_all()
    found.wait_gone()
    assert found.process.stdout is not None
    assert found.process.stdout.read() == b""  # everybody has let go of the pipe, so nobody has got away
    found.process.stdout.close()
    if root is not None:
        wait_for(lambda: not cgroups.processes(root), "an empty group")
        cgroups.remove_tree(root)


def test_members(session: Session) -> None:
    members = session.members()
    assert len(members) == 4
    assert session.pid in members
    assert os.getpid() not in members


def test_a_signal_to_all(session: Session) -> None:
    """Also to background jobs, whatever their process group."""
    assert session.signal_all(signal.SIGTERM) == 4
    session.process.wait()
    wait_for(lambda: len(session.members()) == 2, "those that do not ignore it to end")
    assert session.signal_all(signal.SIGKILL) == 2
    session.wait_gone()


def test_members_of_a_session_whose_first_process_has_ended(session: Session) -> None:
    os.kill(session.pid, signal.SIGKILL)
    session.process.wait()
    wait_for(lambda: len(session.members()) == 3, "the first to be gone")
    assert session.kill_all() == 3
    session.wait_gone()


def test_nobody_is_left(session: Session) -> None:
    session.kill_all()
    session.wait_gone()
    assert session.kill_all() == 0
    assert session.signal_all(signal.SIGTERM) == 0


def test_killed_one_by_one_where_the_kernel_cannot_kill_a_group(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "kill", lambda group: False)
    assert session.kill_all() == 4
    session.wait_gone()


def test_a_process_that_is_not_ours_to_signal(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when `sudo` runs in a session and the agent is not root: the others get the signal, nothing is raised."""
    real = os.kill

    def kill(pid: int, number: int) -> None:
        if pid == session.pid:
            raise PermissionError(1, "Operation not permitted")
        real(pid, number)

    monkeypatch.setattr(os, "kill", kill)
    assert session.signal_all(signal.SIGCONT) == 3


def test_a_number_that_the_kernel_gave_to_somebody_else() -> None:
    """A session that has ended has nobody left, whoever has its pid now."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as stranger:
        assert processes.members(stranger.pid, None, reaped=False) == [stranger.pid]
        assert processes.members(stranger.pid, None, reaped=True) == []
        assert processes.kill_all(stranger.pid, None, reaped=True) == 0
        assert stranger.poll() is None
        stranger.kill()
