"""The processes of a session, and signals to them: by cgroup where there is one, else by process session.

Used by the keeper (to end everything) and by the server (to carry out `signal` and `kill`).
"""

from __future__ import annotations

import contextlib
import os
import signal

from guestagent import cgroups

# Where the kernel puts a process to sleep that reads a terminal (and, in recent versions, also one that reads some sockets).
_READING = (b"wait_woken", b"n_tty_read")


def members(pid: int, group: str | None, *, reaped: bool) -> list[int]:
    """Pids that belong to the session whose first process is, or was (`reaped`), `pid`."""
    if group is not None:
        return cgroups.processes(group)
    if reaped and os.path.exists(f"/proc/{pid}"):
        return []  # the kernel gave the number away, which it does once nobody is left in the process session
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if int(fields[3]) == pid and fields[0] != b"Z":
                found.append(int(name))
    return found


def waits_for_input(pids: list[int], foreground: int) -> bool:
    """Does one of these processes, in the terminal's foreground group, sleep in a read?  False also where /proc does not say."""
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            with open(f"/proc/{pid}/stat", "rb") as file:
                group = int(file.read().rpartition(b")")[2].split()[2])
            if group == foreground:
                with open(f"/proc/{pid}/wchan", "rb") as file:
                    if file.read() in _READING:
                        return True
    return False


def signal_all(pid: int, group: str | None, number: int, *, reaped: bool) -> int:
    """Send a signal to every process of the session; how many took it."""
    if number == signal.SIGKILL:
        return kill_all(pid, group, reaped=reaped)
    return _send(members(pid, group, reaped=reaped), number)


def kill_all(pid: int, group: str | None, *, reaped: bool) -> int:
    """SIGKILL to every process of the session, those that fork meanwhile included."""
    count = len(members(pid, group, reaped=reaped))
    if group is not None and cgroups.kill(group):
        return count
    for _ in range(100):  # a fork bomb outruns one pass; a hundred passes over a handful of processes do not last
        if not _send(members(pid, group, reaped=reaped), signal.SIGKILL):
            break
    return count


def _send(pids: list[int], number: int) -> int:
    count = 0
    for pid in pids:
        # PermissionError: it became another user's, and we are not root; it will see its terminal hang up.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            count += 1
    return count
