"""How long the guest takes to stand still for a snapshot, and to go on: 64 sessions with 500 processes, every second session busy."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from bench import servers, wire
from bench.report import Row, Target, progress
from tests.snapshot.programs import crowd, writer

NAMES = ["quiesce", "thaw"]
SESSIONS = 64
QUIESCES = 20
BETWEEN = 0.1  # seconds in which everything runs
QUIESCED = Target("<=", 250, "ms worst")
THAWED = Target("<=", 100, "ms worst")


def measure(folder: Path) -> list[Row]:
    """Quiesce is what the host waits for.  Thaw is by the agent's own word: here, the host would have to get a CPU from what was let go."""
    quiesced: list[float] = []
    thawed: list[float] = []
    counts: list[int] = []
    steps: dict[str, list[float]] = {}
    with servers.agent(folder) as server, server.control() as control:
        sessions = _fill(control)
        for _ in range(QUIESCES):
            time.sleep(BETWEEN)
            began = time.monotonic()
            report = control.ask("snapshot_prepare")
            quiesced.append((time.monotonic() - began) * 1e3)
            thawed.append(control.ask("snapshot_resume", ticket=report["ticket"])["seconds"] * 1e3)
            counts.append(report["processes"])
            for step in report["steps"]:
                steps.setdefault(step["step"], []).append(step["seconds"] * 1e3)
        for session in sessions:  # or the look for what the agent leaves behind would have to get a CPU from them
            control.ask("remove", session=session, force=True)
    parts = ", ".join(f"{name} {max(times):.0f}" for name, times in steps.items())
    progress(f"quiesce: {min(counts)} to {max(counts)} processes; worst of each step in ms: {parts}")
    samples = {"quiesced": quiesced, "thawed": thawed, "processes": counts, "steps": steps}
    return [_row("quiesce", quiesced, QUIESCED, samples), _row("thaw", thawed, THAWED, samples)]


def _fill(control: wire.Control) -> list[str]:
    """Sessions that all run."""
    sessions = [control.create(*crowd(number % 2, 6 + number % 2, writer())) for number in range(SESSIONS)]
    for session in sessions:
        while not control.ask("inspect", session=session)["offset"]:
            time.sleep(0.01)
    return sessions


def _row(name: str, times: list[float], target: Target, samples: dict[str, object]) -> Row:
    cell = f"{median(times):.1f} ms p50, {max(times):.1f} worst of {len(times)}"
    return Row(name, cell, samples=samples).judge(target, max(times))
