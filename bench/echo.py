"""How long a keystroke takes to come back, alone and while eight sessions flood, and what that costs the flood."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import work
from bench.report import Row, Target, progress
from bench.runner import contestant, run_client

FLOODS = 8
SECONDS, QUICK_SECONDS = 4.0, 2.0
KEY_PAUSE = 5.0  # ms: faster than anyone types, slow enough to be a keystroke each

IDLE = Target("<=", 0.4, "ms p50")
FLOODED = Target("<=", 1.0, "ms p50")
KEPT = Target(">=", 0.8, "kept")
NAMES = ["echo-idle", "echo-floods", "echo-kept"]


def measure(folder: Path, names: set[str], rounds: int, *, quick: bool) -> list[Row]:
    """Rows of `names`; a cell of the first two is p50 / p90 / p99."""
    seconds = QUICK_SECONDS if quick else SECONDS
    idle, flooded = work.echo(folder, 0), work.echo(folder, FLOODS)
    plan = {
        "idle": (idle, KEY_PAUSE, "echo-idle" in names),
        "silent": (flooded, 0.0, "echo-kept" in names),
        "typing": (flooded, KEY_PAUSE, "echo-kept" in names or "echo-floods" in names),
    }
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(1, rounds + 1):
        for step, (load, pause, wanted) in plan.items():
            for kind in ("relay", "agent") if wanted else ():
                with contestant(kind, folder) as server:
                    result = run_client(server, load, "--echo", f"{seconds}", "--gap", f"{pause}")
                if result["gaps"] or (pause and not result["echoes"]):
                    raise RuntimeError(f"cannot measure echo: {result}")
                runs.setdefault((kind, step), []).append(result)
                p50 = f"echo {result['p50']:.3f} ms, " if pause else ""
                progress(f"echo {number}/{rounds} {step} {kind}: {p50}flood {_rate(result):.1f} MB/s")
    rows: list[Row] = []
    if "echo-idle" in names:
        rows.append(_latency("echo-idle", runs["agent", "idle"], runs["relay", "idle"], IDLE))
    if "echo-floods" in names:
        rows.append(_latency("echo-floods", runs["agent", "typing"], runs["relay", "typing"], FLOODED))
    if "echo-kept" in names:
        rows.append(_kept(runs))
    return rows


def _latency(name: str, agent: Sequence[dict[str, Any]], relay: Sequence[dict[str, Any]], target: Target) -> Row:
    p50 = median(run["p50"] for run in agent)
    row = Row(name, _quantiles(agent), _quantiles(relay), p50 / median(run["p50"] for run in relay))
    row.samples = {"agent": agent, "relay": relay}
    return row.judge(target, p50)


def _quantiles(runs: Sequence[dict[str, Any]]) -> str:
    return " / ".join(f"{median(run[name] for run in runs):.2f}" for name in ("p50", "p90", "p99")) + " ms"


def _kept(runs: dict[tuple[str, str], list[dict[str, Any]]]) -> Row:
    """The flood's rate while someone types in the ninth session, of its rate while nobody does."""
    cells: dict[str, str] = {}
    kept: dict[str, float] = {}
    for kind in ("agent", "relay"):
        typing, silent = ([_rate(run) for run in runs[kind, step]] for step in ("typing", "silent"))
        kept[kind] = median(one / other for one, other in zip(typing, silent, strict=True))
        cells[kind] = f"{kept[kind]:.3f}: {median(typing):.1f} of {median(silent):.1f} MB/s"
    row = Row("echo-kept", cells["agent"], cells["relay"], kept["agent"] / kept["relay"])
    row.samples = {f"{kind} {step}": value for (kind, step), value in runs.items()}
    return row.judge(KEPT, kept["agent"])


def _rate(result: dict[str, Any]) -> float:
    rate: float = result["bytes"] / 1e6 / result["wall"]
    return rate
