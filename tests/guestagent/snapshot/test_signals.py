"""signals.py: everybody is stopped, in the right order, and nobody else is continued."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from guestagent.snapshot import signals
from tests.harness import PATIENCE, until, wait_for
from tests.snapshot.programs import count, counter


def state(pid: int) -> str:
    process = signals.look(pid)
    return process.state if process else ""


def below_this(keeper: int) -> list[int]:
    return [process.pid for process in signals.below(keeper, 0, signals.table())]


def end(keeper: subprocess.Popen[bytes]) -> None:
    """Kill it and all below it."""
    for pid in [*reversed(below_this(keeper.pid)), keeper.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    keeper.wait()


@pytest.fixture
def family(tmp_path: Path) -> object:
    """A "keeper" with a shell below it, that has a counter in a process session of its own, and a process that was stopped."""
    script = 'setsid "$@" & sleep 1000 & kill -STOP $!; echo ready; sleep 1000'
    process = subprocess.Popen(
        ["sh", "-c", 'sh -c "$0" sh "$@"; :', script, *counter(tmp_path / "count")], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    wait_for(lambda: count(tmp_path / "count"), "the counter")
    yield process.pid
    end(process)
    process.stdout.close()


async def test_stop_and_go_on(family: int, tmp_path: Path) -> None:
    file = tmp_path / "count"
    everybody = below_this(family)
    sleeping = [pid for pid in everybody if state(pid) == "T"]
    assert len(sleeping) == 1
    remembered: list[list[signals.Stopped]] = []
    stopped = await signals.stop(family, 0, 5, lambda pids: remembered.append(list(pids)))
    assert remembered[-1] == stopped
    pids = [pid for pid, _ in stopped]
    assert sorted(pids) == sorted(set(everybody) - set(sleeping))
    assert all(state(pid) == "T" for pid in everybody)
    parents = {pid: process.parent for pid in pids if (process := signals.look(pid))}
    assert all(pids.index(parent) < pids.index(pid) for pid, parent in parents.items() if parent in pids)
    now = count(file)
    signals.go_on(stopped)
    signals.go_on(stopped)
    await until(lambda: count(file) > now, "the counter")
    assert [pid for pid in everybody if state(pid) == "T"] == sleeping


# Waits for its child as a shell does, and says if that stopped.  It gets the CPU only when the hog on it sleeps, its child has another one.
_SLOW_SHELL = """
import os, time
first, *others = sorted(os.sched_getaffinity(0))
child = os.fork()
if child == 0:
    os.sched_setaffinity(0, others or [first])
    time.sleep(1000)
hog = os.fork()
os.sched_setaffinity(0, [first])
if hog == 0:
    while True:
        pass
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.write(1, b"ready\\n")
while True:
    pid, status = os.waitpid(child, os.WUNTRACED)
    os.write(1, b"stopped\\n" if os.WIFSTOPPED(status) else b"ended\\n")
    if not os.WIFSTOPPED(status):
        break
"""


@pytest.fixture
def slow_shell(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A "keeper" with such a shell below it, and the file in which that tells."""
    told = tmp_path / "told"
    with told.open("w") as file:
        keeper = subprocess.Popen(["sh", "-c", '"$@"; :', "sh", sys.executable, "-c", _SLOW_SHELL], stdout=file)
    try:
        wait_for(lambda: told.read_text() == "ready\n", "the shell")
        yield keeper.pid, told
    finally:
        end(keeper)


async def test_a_shell_on_a_busy_cpu_does_not_see_its_child_stop(slow_shell: tuple[int, Path]) -> None:
    """It was sent its signal before its child, but that is not yet to have stopped: it may still be in waitpid when the child stops."""
    keeper, told = slow_shell
    for _ in range(20):
        signals.go_on(await signals.stop(keeper, 0, PATIENCE, lambda _: None))
        await trio.sleep(0.02)  # in which it would tell
    assert told.read_text() == "ready\n"


async def test_a_pid_that_was_given_to_somebody_else(family: int) -> None:
    """It is known by when it was started, too."""
    [sleeping] = [pid for pid in below_this(family) if state(pid) == "T"]
    process = signals.look(sleeping)
    assert process is not None
    signals.go_on([(sleeping, process.started + 1)])
    assert state(sleeping) == "T"
    signals.go_on([(sleeping, process.started)])
    await until(lambda: state(sleeping) == "S", "it to go on")


async def test_the_server_is_left_alone(family: int) -> None:
    first = below_this(family)[0]
    assert signals.below(family, first, signals.table()) == []
    assert await signals.stop(family, first, 5, lambda _: None) == []
