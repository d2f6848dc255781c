"""Kill the server at the worst moment, again and again: in the middle of a read or of a write.

The windows are a few microseconds wide, so luck would not do: the server is stopped, the memory that it shares with the keeper is
looked at, and it is killed if something is in flight there, else it goes on.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import trio

from guestagent.history import H_HEAD, H_INTENT, INPUTS
from guestagent.input_table import INTENT, WRITTEN
from tests.harness import PATIENCE, AgentProcess


class Crosshair:
    """For an agent with one session, on a terminal, and one client that types."""

    def __init__(self, agent: AgentProcess) -> None:
        self._agent = agent
        folder = Path(f"/proc/{agent.keeper_pid}/fd")
        (name,) = [name for name in os.listdir(folder) if "guestagent-history" in os.readlink(folder / name)]
        fd = os.open(folder / name, os.O_RDONLY)
        size = os.fstat(fd).st_size
        self._words = memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ)).cast("Q")
        os.close(fd)

    def reading(self) -> bool:
        """The server took bytes from the terminal and has not said how many."""
        return bool(self._words[H_INTENT] == self._words[H_HEAD] + 1)

    def writing(self) -> bool:
        """The server gave bytes to the terminal and has not said how many."""
        slot = INPUTS // 8
        return bool(self._words[slot + INTENT] == self._words[slot + WRITTEN] + 1)

    async def kill(self, in_flight: Callable[[], bool]) -> None:
        """SIGKILL the server as soon as it is found with something in flight."""
        await trio.to_thread.run_sync(self._kill, in_flight)

    def _kill(self, in_flight: Callable[[], bool]) -> None:
        pid = self._agent.server_pid()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            os.kill(pid, signal.SIGSTOP)
            while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                pass
            if in_flight():
                os.kill(pid, signal.SIGKILL)
                return
            os.kill(pid, signal.SIGCONT)
            time.sleep(random.random() / 2000)
        raise TimeoutError(f"the server was never found in the middle of anything: {in_flight.__name__}")
