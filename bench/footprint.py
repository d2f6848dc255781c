"""What the agent costs while nothing happens: memory, and the time until it answers."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench import procfs, servers
from bench.report import Row, progress

MEMORY_NAMES = ["rss-idle", "rss-session"]
READY_NAMES = ["ready"]
IDLE_SESSIONS = 100
SETTLE = 1.0  # seconds: for what start-up or the last creation left to do


def memory(folder: Path) -> list[Row]:
    """Resident memory of keeper and server, idle and for each of a hundred idle sessions."""
    with servers.agent(folder) as server:
        time.sleep(SETTLE)
        before = [procfs.memory(pid).rss for pid in server.processes]
        with server.control() as control:
            for _ in range(IDLE_SESSIONS):
                control.create("sleep", "1000")
            time.sleep(SETTLE)
            after = [procfs.memory(pid).rss for pid in server.processes]
    parts = " + ".join(f"{size / 1e6:.1f}" for size in before)
    each = (sum(after) - sum(before)) / IDLE_SESSIONS
    progress(f"memory: {parts} MB, {each / 1e3:.1f} kB a session")
    samples = {"idle": before, "sessions": IDLE_SESSIONS, "with sessions": after}
    return [
        Row("rss-idle", f"{sum(before) / 1e6:.1f} MB (keeper + server: {parts})", samples=samples),
        Row("rss-session", f"{each / 1e3:.1f} kB each of {IDLE_SESSIONS}", samples=samples),
    ]


def ready(folder: Path, rounds: int) -> list[Row]:
    """From start to the first answered request, beside a Python that does nothing; both with their .pyc files."""
    with servers.agent(folder):
        pass  # writes the .pyc files that are missing
    agent: list[float] = []
    bare: list[float] = []
    for _ in range(rounds):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "pass"], env=servers.environment(), check=True)
        bare.append(time.monotonic() - began)
        began = time.monotonic()
        with servers.agent(folder):
            agent.append(time.monotonic() - began)
    progress(f"ready: {median(agent) * 1e3:.0f} ms, bare Python {median(bare) * 1e3:.0f} ms")
    ratio = median(one / other for one, other in zip(agent, bare, strict=True))
    row = Row("ready", f"{median(agent) * 1e3:.0f} ms", f"{median(bare) * 1e3:.0f} ms (python -c pass)", ratio)
    row.samples = {"agent": agent, "python": bare}
    return [row]
