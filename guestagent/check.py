"""`guestagent check`: what this system gives the agent, and what it will have to do without.

Nothing is changed and no vsock socket is opened; exit status 1 if the agent could not run at all.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from guestagent import cgroups
from ptymux import __version__


class Finding(NamedTuple):
    name: str
    ok: bool
    needed: bool  # the agent cannot run without
    text: str


def _terminals() -> Finding:
    try:
        master, slave = os.openpty()
    except OSError as error:
        return Finding("terminals", False, True, f"cannot open a terminal: {error.strerror} (is devpts mounted?)")
    os.close(master)
    os.close(slave)
    return Finding("terminals", True, True, "PTYs can be opened")


def _memfd() -> Finding:
    try:
        os.close(os.memfd_create("guestagent-check"))
    except OSError as error:
        return Finding("memfd", False, True, f"cannot make a memfd: {error.strerror}")
    return Finding("memfd", True, True, "histories can outlive the server")


def _cgroups() -> Finding:
    root, why = cgroups.find_root(os.getpid())
    if root is None:
        return Finding("cgroups", False, False, f"sessions are process groups only: {why}")
    kill = os.path.exists(f"{root}/cgroup.kill")
    freeze = os.path.exists(f"{root}/cgroup.freeze")
    cgroups.remove_tree(root)
    missing = [name for name, there in (("cgroup.kill", kill), ("cgroup.freeze", freeze)) if not there]
    more = f"; the kernel lacks {' and '.join(missing)}" if missing else ""
    return Finding("cgroups", True, False, f"cgroup v2, one group a session below {os.path.dirname(root)}{more}")


def _vsock() -> Finding:
    there = os.path.exists("/dev/vsock")
    return Finding(
        "vsock", there, False, "/dev/vsock is there" if there else "no /dev/vsock: the vsock module is not loaded"
    )


def _files() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    sessions = (hard - 64) // 2
    return Finding("files", sessions >= 16, True, f"{hard} open files, enough for about {sessions} sessions")


def _user() -> Finding:
    root = os.geteuid() == 0
    return Finding(
        "user", root, False, "root: sessions can be other users'" if root else "not root: sessions are this user's"
    )


CHECKS: tuple[Callable[[], Finding], ...] = (_terminals, _memfd, _cgroups, _vsock, _files, _user)


def main(argv: Sequence[str]) -> int:
    if any(argument != "--json" for argument in argv):
        print("usage: guestagent check [--json]", file=sys.stderr)
        return 2
    findings = [check() for check in CHECKS]
    if argv:
        rows = {
            finding.name: {"ok": finding.ok, "needed": finding.needed, "text": finding.text} for finding in findings
        }
        print(
            json.dumps(
                {"version": __version__, "python": platform.python_version(), "kernel": platform.release(), **rows}
            )
        )
    else:
        print(f"guestagent {__version__}, Python {platform.python_version()}, Linux {platform.release()}")
        for finding in findings:
            print(f"{'ok  ' if finding.ok else 'NO  ' if finding.needed else '-   '}{finding.name:<10} {finding.text}")
    return 0 if all(finding.ok for finding in findings if finding.needed) else 1
