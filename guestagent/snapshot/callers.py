"""Who may drive the lifecycle: the host, and never what it is done to.

The role `admin` is needed and not enough.  By transport:

=========  ====================================================================================================================
vsock      CID 2, the host, which the hypervisor vouches for
unix       any process that does not belong to a session.  It does if its cgroup is below the agent's, or if it descends from the keeper
           (which is subreaper, so every orphan of a session does); a process that cannot be looked at any more counts as one
tcp, ws    nobody, unless ``[snapshot] network = true``: whether a connection comes from inside the guest cannot be told
=========  ====================================================================================================================

What root in the guest can do anyway (leave its cgroup, trace the agent) is not pretended away: see the threat model in SPEC.md.
"""

from __future__ import annotations

import os
import time

from guestagent import cgroups
from guestagent.listeners.base import Peer as Origin
from guestagent.snapshot import signals

HOST_CID = 2
TICK = 1 / os.sysconf("SC_CLK_TCK")


def refusal(
    origin: Origin, *, network: bool, root: str | None, keeper: int, server: int, connected_for: float
) -> str | None:
    """Why this peer may not drive the lifecycle, or None if it may.

    `root` is the folder of the sessions' cgroups, `connected_for` how many seconds ago it connected: a process that is younger only has
    the pid of the one that did.
    """
    if origin.kind == "vsock":
        return None if origin.cid == HOST_CID else f"CID {origin.cid} is not the host"
    if origin.kind != "unix":
        return None if network else f"{origin.kind} peers cannot be told apart from the guest's own processes"
    if origin.pid is None:
        return "its process is not known"
    process = signals.look(origin.pid)
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - (process.started * TICK if process else 0)
    if process is None or age + 2 * TICK < connected_for:
        return "its process is gone"
    if root is not None and _in_group(origin.pid, root):
        return "it belongs to a session"
    seen = 0
    while process is not None and process.pid > 1 and seen < 4096:
        if process.pid == server:
            return None  # the agent's own, a hook for one
        if process.pid == keeper or process.parent == keeper:
            return "it belongs to a session"
        process = signals.look(process.parent)
        seen += 1
    return None


def _in_group(pid: int, root: str) -> bool:
    try:
        own = cgroups.own_group(f"/proc/{pid}/cgroup")
    except OSError:
        return True
    return any(f"{mount}{own}/".startswith(f"{root}/") for mount in cgroups.mount_points())
