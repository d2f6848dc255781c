"""Stop everything that the sessions run, with the kernel's confirmation, and let it go on: cgroup v2's freezer.

Invisible to the processes: no signal, no wait status, nothing that a shell could print.  All groups are told first and confirmed
afterwards, so that the slowest one sets the time and not their sum.  The confirmation is an event of ``cgroup.events``, not a poll.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable
from typing import NamedTuple

import trio

from guestagent import cgroups

SHOWN = 32  # stragglers that are named: the first ones tell, and a report must fit a frame


class Straggler(NamedTuple):
    """A process that keeps its group from being frozen."""

    group: str
    pid: int
    state: str  # as in /proc: D sleeps in the kernel where nothing reaches it
    command: str

    def __str__(self) -> str:
        return f"{self.command} (pid {self.pid}, state {self.state}) in {os.path.basename(self.group)}"


class NotFrozen(Exception):
    """The kernel did not confirm in time."""

    def __init__(self, stragglers: list[Straggler]) -> None:
        super().__init__(f"not frozen in time: {', '.join(map(str, stragglers[:4])) or 'no process stands out'}")
        self.stragglers = stragglers


def groups_below(root: str) -> list[str]:
    """The sessions' groups, those of forgotten sessions with something left in them included."""
    try:
        return sorted(entry.path for entry in os.scandir(root) if entry.is_dir())
    except OSError:
        return []


def is_above(group: str, own: str) -> bool:
    """Is `group` the one `own` is in, or an ancestor of that?  To freeze it would be to freeze ourselves."""
    return f"{own.rstrip('/')}/".startswith(f"{group.rstrip('/')}/")


def extra_group(name: str) -> str:
    """The folder of a configured group: a path, or one below the cgroup v2 mount.  ValueError if it may not be frozen."""
    mounts = cgroups.mount_points()
    if not mounts:
        raise ValueError(f"cannot freeze {name}: cgroup v2 is not mounted")
    mount = mounts[0].rstrip("/")
    path = name if name.startswith(mount + "/") else f"{mount}/{name.strip('/')}"
    path = os.path.normpath(path)
    if is_above(path, os.path.normpath(mount + cgroups.own_group())):
        raise ValueError(f"cannot freeze {name}: the agent itself is in it")
    return path


async def freeze(groups: Iterable[str], seconds: float) -> None:
    """Until every group is frozen; NotFrozen after `seconds`.  Groups that are gone are as good as frozen.

    Cancelling leaves them told to freeze: whoever began it calls :func:`thaw`.
    """
    told = [group for group in groups if _write(group, "1")]
    with select.epoll() as changes, contextlib.ExitStack() as files, trio.move_on_after(seconds):
        waiting: dict[int, tuple[str, int]] = {}
        for group in told:
            with contextlib.suppress(OSError):
                fd = os.open(f"{group}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
                files.callback(os.close, fd)
                changes.register(fd, select.EPOLLPRI)
                waiting[fd] = (group, fd)
        while waiting := {fd: item for fd, item in waiting.items() if not _frozen(fd)}:
            await trio.lowlevel.wait_readable(changes.fileno())
            changes.poll(0)
        return
    raise NotFrozen(stragglers(told))


def thaw(groups: Iterable[str]) -> list[str]:
    """Let them go on; what the kernel refused.  Never waits, may be called twice."""
    return [f"cannot thaw {group}" for group in groups if not _write(group, "0") and os.path.exists(group)]


def stragglers(groups: Iterable[str]) -> list[Straggler]:
    """Who is not frozen in groups that should be."""
    found: list[Straggler] = []
    for group in groups:
        with contextlib.suppress(OSError):
            fd = os.open(f"{group}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _frozen(fd):
                    continue
            finally:
                os.close(fd)
            for pid in cgroups.processes(group):
                state, command, where = _look(pid)
                if state not in ("", "Z", "X") and where not in _FROZEN_AT:
                    found.append(Straggler(group, pid, state, command))
                    if len(found) == SHOWN:
                        return found
    return found


# Where a frozen task sits, in /proc/PID/wchan.
_FROZEN_AT = ("do_freezer_trap", "cgroup_enter_frozen", "get_signal")


def _look(pid: int) -> tuple[str, str, str]:
    """State letter, command and where in the kernel it sleeps; empty where that is not known."""
    state = command = where = ""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            head, _, rest = file.read().rpartition(")")
        command, state = head.partition("(")[2], rest.split()[0]
        with open(f"/proc/{pid}/wchan") as file:
            where = file.read()
    return state, command, where


def _frozen(fd: int) -> bool:
    try:
        return b"frozen 1" in os.pread(fd, 256, 0)
    except OSError:  # the group was removed
        return True


def _write(group: str, value: str) -> bool:
    try:
        with open(f"{group}/cgroup.freeze", "w") as file:
            file.write(value)
    except OSError:
        return False
    return True
