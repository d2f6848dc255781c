"""How fast output goes through: raw bytes, cooked lines and `seq`, at 1, 8 and 64 sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

from bench import work
from bench.report import Row, Target, progress
from bench.runner import Transfer, transfer
from bench.work import Work

SESSIONS = (1, 8, 64)
MIB = 1 << 20

# About a second a run and contestant: less is start-up noise, more is only patience.  (bytes in all, in --quick)
KINDS: dict[str, tuple[Callable[[Path, int, int], Work], int, int]] = {
    "raw": (work.raw, 192 * MIB, 96 * MIB),
    "log": (work.log, 64 * MIB, 32 * MIB),
    "seq": (work.seq, 32 * MIB, 16 * MIB),
}
TARGETS = {"raw": Target(">=", 0.85), "log": Target(">=", 0.95)}  # of the relay's rate over the same unix socket
WEBSOCKET_TARGET = Target(">=", 0.7)  # over WebSocket, of the relay's over a unix socket

BIG = "64x20MB"
BIG_SESSIONS, BIG_EACH = 64, 20 * MIB

NAMES = [
    *(f"{kind}-{count}" for kind in KINDS for count in SESSIONS),
    *(f"ws-{kind}-{count}" for kind in KINDS for count in SESSIONS),
]


def measure(folder: Path, kind: str, count: int, names: set[str], rounds: int, *, quick: bool) -> list[Row]:
    """The rows in `names` of one kind and count.  The unix and the WebSocket row share the relay's runs."""
    name = f"{kind}-{count}"
    make, total, quick_total = KINDS[kind]
    wanted = {"agent": name, "websocket": f"ws-{name}"}
    contestants = ["relay", *(contestant for contestant, row in wanted.items() if row in names)]
    runs = _rounds(folder, name, make(folder, count, quick_total if quick else total), contestants, rounds)
    targets = {"agent": TARGETS.get(kind), "websocket": WEBSOCKET_TARGET}
    return [_row(wanted[kind], runs[kind], runs["relay"], targets[kind]) for kind in contestants[1:]]


def measure_big(folder: Path, rounds: int) -> list[Row]:
    """64 sessions of 20 MB, each with its own content, over one connection: the row is about the bytes."""
    load = work.raw(folder, BIG_SESSIONS, BIG_SESSIONS * BIG_EACH)
    runs = _rounds(folder, BIG, load, ["relay", "agent"], rounds)
    row = _row(BIG, runs["agent"], runs["relay"], None)
    row.target, row.ok = "every byte", True  # or there would have been an exception
    return [row]


def _rounds(folder: Path, name: str, load: Work, contestants: list[str], rounds: int) -> dict[str, list[Transfer]]:
    """A B A B ..., so that whatever else the machine does meets all of them alike."""
    runs: dict[str, list[Transfer]] = {kind: [] for kind in contestants}
    for number in range(1, rounds + 1):
        for kind in contestants:
            run = transfer(kind, folder, load)
            runs[kind].append(run)
            progress(f"{name} {number}/{rounds} {kind}: {run.rate:.1f} MB/s, {run.megabytes:.0f} MB, bytes equal")
    return runs


def _row(name: str, agent: list[Transfer], relay: list[Transfer], target: Target | None) -> Row:
    # The ratio is taken within a round, where both had nearly the same machine, and then the median of these.
    ratio = median(one.rate / other.rate for one, other in zip(agent, relay, strict=True))
    row = Row(name, _cell(agent), _cell(relay), ratio)
    row.samples = {"agent": [asdict(run) for run in agent], "relay": [asdict(run) for run in relay]}
    return row if target is None else row.judge(target, ratio)


def spread(rows: list[Row]) -> str:
    """How far the relay was from itself: what a ratio of these rounds can mean at best."""
    spreads = []
    for row in rows:
        if row.name in NAMES and "relay" in row.samples:
            rates = [run["megabytes"] / run["seconds"] for run in row.samples["relay"]]
            spreads.append(max(rates) / min(rates) - 1)
    if not spreads:
        return ""
    return f"noise: the relay's fastest round beat its slowest by {median(spreads):.0%}, at worst by {max(spreads):.0%}"


def _cell(runs: list[Transfer]) -> str:
    cpu = sum(run.user for run in runs) / sum(run.megabytes for run in runs)  # ticks are 10 ms: add up, then divide
    return f"{median(run.rate for run in runs):.1f} MB/s, {cpu * 1e3:.2f} ms/MB"
