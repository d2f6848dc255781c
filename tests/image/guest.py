"""A root file system as a machine of its own, without a VM: `guestagent init` in a PID namespace.

The kernel is this machine's, so nothing here may listen on vsock, and devices are a few bind mounts and not the machine's /dev.
All mounts are in the namespace and end with it; a reboot or power-off there ends the namespace (reboot(2)).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from guestagent import cgroups
from tests.harness import PATIENCE, children, clean_environment, wait_for

CONFIG = """\
[listen.unix]
path = "/shared/agent.sock"
"""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
ENTER = f"""\
set -e
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
for name in {" ".join(DEVICES)}; do : >"$1/dev/$name"; mount --bind "/dev/$name" "$1/dev/$name"; done
ln -s pts/ptmx "$1/dev/ptmx"
exec chroot "$@"
"""
NAMESPACES = ("--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--net")


class Guest:
    """Process 1 of `root`, which is to be /opt/guestagent/init; ended by :func:`running_guest`."""

    def __init__(self, root: Path, log: Path, group: str | None, program: str = "/opt/guestagent/init") -> None:
        self.root = root
        self.socket = root / "shared/agent.sock"
        self.address = f"unix:{self.socket}"
        self._log = log
        self.group = group
        argv = ["unshare", *NAMESPACES, "sh", "-c", ENTER, "enter", str(root), program]
        if group is not None:
            argv = ["sh", "-c", 'echo 0 >"$0/cgroup.procs"; exec "$@"', group, *argv]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=clean_environment()
            )

    def console(self) -> str:
        return self._log.read_text(errors="replace")

    def until(self, text: str) -> None:
        def said() -> bool:
            if text not in self.console() and self.process.poll() is not None:
                raise RuntimeError(f"the guest ended with {self.process.returncode}: {self.console()}")
            return text in self.console()

        wait_for(said, f"the console to say {text!r}")

    @property
    def init_pid(self) -> int:
        """Of process 1, as this machine counts."""
        return int(wait_for(lambda: next(iter(children(self.process.pid)), 0), "process 1"))

    def server_pid(self) -> int:
        return int(
            wait_for(lambda: next(iter(children(self.init_pid, "guestagent.server")), 0), "the server in the guest")
        )

    def end(self) -> int:
        """How it ended: minus SIGINT is a power-off, minus SIGHUP a reboot."""
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def running_guest(root: Path, folder: Path, config: str = CONFIG) -> Iterator[Guest]:
    """A guest for the length of the block; nothing of it is left."""
    (root / "etc/guestagent").mkdir(exist_ok=True)
    (root / "etc/guestagent/config.toml").write_text(config)
    (root / "shared").mkdir(exist_ok=True)
    group = None
    for mount in cgroups.mount_points():
        # A group of its own: it must not see those of other agents on this machine.
        group = tempfile.mkdtemp(prefix="image-test-", dir=f"{mount}{cgroups.own_group().rstrip('/')}")
        break
    guest = Guest(root, folder / "console", group)
    try:
        yield guest
    finally:
        if guest.process.poll() is None:
            for pid in children(guest.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # process 1, and with it its namespace
            guest.process.wait(PATIENCE)
        shutil.rmtree(root / "shared", ignore_errors=True)
        if group is not None:
            wait_for(lambda: not cgroups.processes(group), "the guest's processes to be gone")
            cgroups.remove_tree(group)
            assert not os.path.exists(group), "the guest left cgroups behind"
