"""`python -m bench [--quick] [--rounds N] [--json FILE] [ROW ...]`: the table of ratios.

The machine is taken to be noisy: rounds are interleaved, ratios are taken within a round, and the median of these counts.
A missed target is printed as such and makes the exit status 1; so does a byte that differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from bench import echo, footprint, quiesce, report, screens, stalled, throughput, work
from bench.report import Row, progress
from bench.servers import BUILD

ROUNDS, QUICK_ROUNDS = 5, 3

GROUPS: dict[str, list[str]] = {
    "throughput": throughput.NAMES,
    "echo": echo.NAMES,
    throughput.BIG: [throughput.BIG],
    "stalled": stalled.NAMES,
    "screens": screens.NAMES,
    "quiesce": quiesce.NAMES,
    "memory": footprint.MEMORY_NAMES,
    "start": footprint.READY_NAMES,
}
ORDER = [name for names in GROUPS.values() for name in names]


def arguments() -> argparse.Namespace:
    names = ", ".join(f"{group} ({', '.join(rows)})" for group, rows in GROUPS.items())
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__, epilog=f"rows: {names}")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, less data")
    parser.add_argument("--rounds", type=int, help=f"how often each pair is measured (default {ROUNDS})")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every sample there")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="a row, a group, the beginning of either, or a pattern")
    chosen = parser.parse_args()
    if chosen.rounds is not None and chosen.rounds < 1:
        parser.error("--rounds must be at least 1")
    for pattern in chosen.rows:
        if not selected([pattern]):
            parser.error(f"no row is called {pattern}")
    return chosen


def selected(patterns: list[str]) -> set[str]:
    """Names of the rows that match any of `patterns`; all if there is none."""
    everything = [(group, name) for group, names in GROUPS.items() for name in names]
    return {
        name
        for group, name in everything
        if not patterns
        or any(word.startswith(pattern) or fnmatchcase(word, pattern) for pattern in patterns for word in (group, name))
    }


def measure(folder: Path, names: set[str], rounds: int, *, quick: bool) -> list[Row]:
    """All rows in `names`.  What fails becomes a row that says so, and the rest is measured nevertheless."""
    big_rounds = 1 if quick else rounds  # 1.3 GB twice: one round shows whether every byte is there
    plan: list[tuple[list[str], Callable[[], list[Row]]]] = [
        *(
            (
                [f"{kind}-{count}", f"ws-{kind}-{count}"],
                partial(throughput.measure, folder, kind, count, names, rounds, quick=quick),
            )
            for kind in throughput.KINDS
            for count in throughput.SESSIONS
        ),
        (echo.NAMES, lambda: echo.measure(folder, names, rounds, quick=quick)),
        ([throughput.BIG], lambda: throughput.measure_big(folder, big_rounds)),
        (stalled.NAMES, lambda: stalled.measure(folder, rounds, quick=quick)),
        (screens.NAMES, lambda: screens.measure(folder, names, rounds, quick=quick)),
        (quiesce.NAMES, lambda: quiesce.measure(folder)),
        (footprint.MEMORY_NAMES, lambda: footprint.memory(folder)),
        (footprint.READY_NAMES, lambda: footprint.ready(folder, rounds)),
    ]
    rows: list[Row] = []
    for group, run in plan:
        wanted = [name for name in group if name in names]
        if not wanted:
            continue
        try:
            rows += run()
        except Exception as error:  # noqa: BLE001 - whatever went wrong is these rows' result
            progress(f"{', '.join(wanted)}: {type(error).__name__}: {error}")
            rows += [report.failed(name, error) for name in wanted]
    # Unix sockets first, then WebSocket: a table to read, whatever the order of measuring was.
    return sorted(rows, key=lambda row: ORDER.index(row.name))


def main() -> int:
    options = arguments()
    missing = [name for name in ("relay", "client") if not (BUILD / name).exists()]
    if missing:
        print(f"cannot run: {BUILD / missing[0]} is not there; use `make bench`", file=sys.stderr)
        return 2
    # Let SIGTERM unwind the context managers like Ctrl-C does: servers and files must not stay behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir="/tmp"))  # short: a socket's path has at most 107 bytes
    try:
        work.check_hash()
        rows = measure(folder, selected(options.rows), rounds, quick=options.quick)
    finally:
        shutil.rmtree(folder)
    cpus = os.cpu_count()
    print(
        f"{rounds} interleaved rounds, medians; {cpus} CPUs, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    )
    print(
        "MB = 10^6 bytes; ms/MB = user CPU of the server process; ws-*: agent over WebSocket, relay over a unix socket"
    )
    print(report.table(rows))
    if noise := throughput.spread(rows):
        print(noise)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 1 if any(row.ok is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
