"""One cgroup v2 for each session, where the system has it: to kill, freeze and find everything that a session started.

No controller is needed, so a hybrid mount will do.  The groups live below the agent's own group, in a folder named after the
keeper's pid: ``<own group>/guestagent-<pid>/<session>``.  Without cgroup v2 :func:`find_root` answers None with a reason, and
sessions fall back to what shares their process session.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

PREFIX = "guestagent-"


def mount_points(mountinfo: str = "/proc/self/mountinfo") -> list[str]:
    """Where cgroup v2 is mounted."""
    found = []
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            before, _, after = line.partition(" - ")
            if after.startswith("cgroup2 "):
                found.append(_unescape(before.split()[4]))
    return found


def _unescape(text: str) -> str:
    """Spaces and the like are octal escapes in mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def own_group(cgroup: str = "/proc/self/cgroup") -> str:
    """This process's group below the mount point, beginning with a slash."""
    with open(cgroup, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            if line.startswith("0::"):
                return line[3:].rstrip("\n")
    return "/"


def find_root(pid: int) -> tuple[str | None, str]:
    """A fresh folder for this agent's groups, and None or why there is none."""
    for mount in mount_points():
        base = mount + own_group().rstrip("/")
        _sweep(base)
        root = f"{base}/{PREFIX}{pid}"
        try:
            os.mkdir(root)
        except OSError as error:
            return None, f"cannot make a cgroup below {base}: {error.strerror}"
        return root, ""
    return None, "cgroup v2 is not mounted"


def count_memory(root: str) -> None:
    """Have the memory controller in the sessions' groups, where we may: it tells whom the out-of-memory killer took.

    A group that has processes cannot have it below, unless it is the very root (process 1).  Where it was delegated to us
    (systemd's Delegate=) the processes in it are ours, and we move them aside.
    """
    base = os.path.dirname(root)
    with contextlib.suppress(OSError):
        if "memory" not in _read(f"{base}/cgroup.subtree_control").split():
            if _is_delegated(base):
                aside = f"{base}/agent"
                os.makedirs(aside, exist_ok=True)
                _write(f"{aside}/cgroup.procs", "0")  # this process; it has no children yet
            _write(f"{base}/cgroup.subtree_control", "+memory")
        _write(f"{root}/cgroup.subtree_control", "+memory")


def _is_delegated(group: str) -> bool:
    for name in ("trusted.delegate", "user.delegate"):
        with contextlib.suppress(OSError):
            return os.getxattr(group, name) == b"1"
    return False


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def oom_killed(group: str) -> bool:
    """Did the out-of-memory killer take a process of this group?  False also where nobody counted."""
    with contextlib.suppress(OSError, ValueError):
        for line in _read(f"{group}/memory.events").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count) > 0
    return False


def _sweep(base: str) -> None:
    """Remove empty groups that a killed keeper left."""
    with contextlib.suppress(OSError):
        for name in os.listdir(base):
            pid = name.removeprefix(PREFIX)
            if name.startswith(PREFIX) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                remove_tree(f"{base}/{name}")


def remove_tree(root: str) -> None:
    """Remove a group and those below it, as far as they are empty."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(root):
            if entry.is_dir():
                remove_tree(entry.path)
        os.rmdir(root)


def processes(group: str) -> list[int]:
    """Pids in a group and those below it; empty if it is gone."""
    return list(_walk(group))


def _walk(group: str) -> Iterator[int]:
    try:
        with open(f"{group}/cgroup.procs") as lines:
            yield from (int(line) for line in lines)
        below = [entry.path for entry in os.scandir(group) if entry.is_dir()]
    except OSError:
        return
    for path in below:
        yield from _walk(path)


def kill(group: str) -> bool:
    """SIGKILL to everything in the group at once; False where the kernel has no cgroup.kill (before 5.14)."""
    try:
        with open(f"{group}/cgroup.kill", "w") as file:
            file.write("1")
    except OSError:
        return not os.path.exists(group)
    return True
