"""Where there is no cgroup v2: stop the sessions by signals, without the processes or their shells noticing more than they must.

* **Parents before children.**  A shell whose child stops before it does gets SIGCHLD, waits for it and prints ``[1]+  Stopped``.  A shell
  that is stopped first gets the signal, but runs only after the child was continued, and `wait` tells of a stop only while it
  lasts.  To be sent the signal first is not enough: where CPUs are busy, a shell that waits for one comes out of its `wait` with the
  child's stop in hand, and stops only then.  So a child is told when its parent is seen to have stopped.  For the same reason
  children are continued before parents.
* **What the user had stopped** (Ctrl-Z, SIGSTOP) is left alone when everything stops, and so it is when everything continues: its shell knows
  it as stopped, and so it stays.
* **Processes that fork meanwhile** are found by looking again until a look finds nobody new; a parent that is stopped cannot fork.
* **Everything below the keeper** but the server is meant, whatever process session or group it made itself: the keeper is subreaper,
  so no daemon gets away.
* SIGCONT can be caught: an editor repaints its screen.  That is why this is the fallback, and why the report says so.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection
from typing import NamedTuple

import trio

LOOK_AGAIN = 0.002  # seconds; nothing tells when a process has stopped


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    state: str
    started: int  # in ticks since boot: with it a pid is never taken for another process's
    command: str


Stopped = tuple[int, int]  # pid, started


class NotStopped(Exception):
    """Somebody would not stop in time."""

    def __init__(self, left: list[Process]) -> None:
        names = ", ".join(f"{process.command} (pid {process.pid}, state {process.state})" for process in left[:4])
        super().__init__(f"not stopped in time: {names}")
        self.left = left


def table() -> dict[int, Process]:
    """Every process, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := look(int(name))) is not None:
            found[process.pid] = process
    return found


def look(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            head, _, rest = file.read().rpartition(")")
        fields = rest.split()
        return Process(pid, int(fields[1]), int(fields[3]), fields[0], int(fields[19]), head.partition("(")[2])
    except (OSError, IndexError, ValueError):
        return None


def below(keeper: int, server: int, processes: dict[int, Process]) -> list[Process]:
    """The keeper's descendants but for the server and its own, parents before children."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    row = [keeper]
    while row:
        members = [child for pid in row for child in children.get(pid, ()) if child.pid != server]
        found += members
        row = [child.pid for child in members]
    return found


async def stop(
    keeper: int, server: int, seconds: float, remember: Callable[[Collection[Stopped]], None]
) -> list[Stopped]:
    """Stop all; whom we stopped, parents first.  NotStopped after `seconds`.

    `remember` is called with everybody we are about to stop, before we do: another server may have to continue them.
    """
    ours: dict[int, int] = {}
    left: list[Process] = []
    with trio.move_on_after(seconds):
        while True:
            left = [process for process in below(keeper, server, table()) if process.state not in "TtZX"]
            if not left:
                return list(ours.items())
            run = {process.pid for process in left}
            new = [process for process in left if process.pid not in ours and process.parent not in run]
            if new:
                ours.update((process.pid, process.started) for process in new)
                remember(list(ours.items()))
                for process in new:
                    _signal(process.pid, process.started, signal.SIGSTOP)
            await trio.sleep(LOOK_AGAIN)
    raise NotStopped(left)


def go_on(stopped: Collection[Stopped]) -> None:
    """Continue whom we stopped, children before parents.  May be called twice."""
    for pid, started in reversed(list(stopped)):
        _signal(pid, started, signal.SIGCONT)


def _signal(pid: int, started: int, number: int) -> None:
    process = look(pid)
    if process is not None and process.started == started:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
