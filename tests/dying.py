"""A real agent that a test may kill for good: SIGKILL to the keeper, and nobody cleans up but us."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from guestagent import cgroups
from tests.harness import AgentProcess, wait_for


class DyingAgent(AgentProcess):
    def die(self) -> None:
        """As a guest that is gone: keeper and server are killed, no goodbye is said."""
        if self.process.poll() is None:
            server = self.server_pid()
            self.process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)
            self.process.wait()
            wait_for(lambda: not _runs(server), "the server to be gone")

    def stop(self) -> int:
        self.die()
        group = self.cgroup()
        if group is not None:
            cgroups.kill(group)
            wait_for(lambda: cgroups.remove_tree(group) or not os.path.exists(group), "the sessions to be gone")
        self._log.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        return self.process.returncode


@contextlib.contextmanager
def dying_agent(folder: Path, *arguments: str) -> Iterator[DyingAgent]:
    agent = DyingAgent(folder, *arguments)
    try:
        yield agent
    finally:
        agent.stop()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False
