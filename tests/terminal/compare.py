"""`python -m tests.terminal.compare [--mixes N] [NAME ...]`: our terminal and xterm.js, fed the same streams.

Prints how many streams leave both in the same state, and of each other one the first field that differs.  A stream of the corpus is
compared at some places between two keys as well as at its end.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.terminal import corpus, differences, dumps
from tests.terminal.equality import Difference, compare, corpus_differences, general, mix_differences
from tests.terminal.minimise import minimal
from tests.terminal.mixes import mix, mixes
from tests.terminal.stream import Stream
from tests.terminal.xterm import Xterm


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.terminal.compare", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="streams of the corpus, or mix-SEED; default: the corpus"
    )
    parser.add_argument("--mixes", type=int, default=0, metavar="N", help="N generated mixes too")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first mix (0)")
    parser.add_argument("--no-corpus", action="store_true", help="only the mixes")
    parser.add_argument(
        "--dump", type=int, default=0, metavar="N", help="check dump() instead, at N places of each stream"
    )
    parser.add_argument("--minimise", type=int, default=0, metavar="N", help="shrink the first N differing streams")
    parser.add_argument("--cases", type=Path, help="write the shrunk streams to this file, shortest first")
    parser.add_argument("--list", type=Path, help="write the differences to this file, as rows for DIFFERENCES.md")
    options = parser.parse_args(arguments)
    recorded = [] if options.no_corpus else corpus.load()
    if options.names:
        recorded = [stream for stream in recorded if stream.name in options.names]
    seeds = [int(name.removeprefix("mix-")) for name in options.names if name.startswith("mix-")]
    started = time.monotonic()
    with Xterm() as xterm:
        if options.dump:
            streams = [*recorded, *(mix(seed) for seed in seeds), *mixes(options.mixes, options.first)]
            return _report_dumps(streams, options.dump, xterm)
        found = [
            _report("corpus", corpus_differences(recorded, xterm)),
            _report("mixes", mix_differences(options.mixes, xterm, options.first)),
            _report(
                "named mixes",
                dict(
                    zip((f"mix-{seed}" for seed in seeds), compare([mix(seed) for seed in seeds], xterm), strict=True)
                ),
            ),
        ]
        different = [one for part in found for one in part]
        print(f"{time.monotonic() - started:.1f} s")
        if options.list:
            options.list.write_text(differences.table([(one, _shrunk(one, xterm)) for one in different]))
        if options.minimise:
            _minimise(different, options.minimise, options.cases, xterm)
    return bool(different)


def _report(what: str, found: dict[str, Difference | None]) -> list[Difference]:
    different = [one for one in found.values() if one is not None]
    if not found:
        return []
    for one in different:
        print(f"{one.name:<24} {str(one)[:200]}")
    for field, count in collections.Counter(general(one.field) for one in different).most_common():
        print(f"  {count:>5}  {field}")
    equal = len(found) - len(different)
    print(f"{what}: {equal} of {len(found)} equal, {100 * equal / len(found):.2f} %", flush=True)
    return different


def _report_dumps(streams: Sequence[Stream], places: int, xterm: Xterm) -> int:
    failures = total = 0
    for stream in streams:
        results = dumps.check(stream, places, xterm)
        total += len(results)
        wrong = [result for result in results if result.fault]
        failures += len(wrong)
        if wrong:
            print(
                f"{stream.name:<24} {len(wrong)} of {len(results)} places: at byte {wrong[0].position}: {str(wrong[0].fault)[:200]}",
                flush=True,
            )
    print(f"dump: right at {total - failures} of {total} places of {len(streams)} streams")
    return bool(failures)


def _kind(one: Difference) -> tuple[str, str]:
    """So that shrinking does not end at another fault than it began with."""
    return general(one.field).partition(".")[0], repr((one.ours, one.theirs)) if "cells[" in one.field else ""


def _shrunk(one: Difference, xterm: Xterm) -> Difference:
    kind = _kind(one)

    def differ(candidates: Sequence[Stream]) -> list[bool]:
        return [found is not None and _kind(found) == kind for found in compare(candidates, xterm)]

    (found,) = compare([minimal(one.stream, differ)], xterm)
    return found or one


def _minimise(different: Sequence[Difference], most: int, path: Path | None, xterm: Xterm) -> None:
    """One of each kind first, so that what is shown is different."""
    kinds = collections.Counter[str]()
    ranked = []
    for one in sorted(different, key=lambda one: one.stream.size):
        kind = general(one.field)
        ranked.append((kinds[kind], one.stream.size, len(ranked), one))
        kinds[kind] += 1
    cases: list[Difference] = []
    for *_, one in sorted(ranked)[:most]:
        cases.append(_shrunk(one, xterm))
        print(".", end="", flush=True)
    print()
    cases.sort(key=lambda case: (case.stream.size, case.name))
    seen = set()
    lines = []
    for case in cases:
        if case.stream.chunks in seen:
            continue
        seen.add(case.stream.chunks)
        stream = case.stream
        lines.append(
            f"{stream.name}: Terminal({stream.columns}, {stream.rows}, scrollback={stream.scrollback}), {list(stream.chunks)}\n    {str(case)[:400]}\n"
        )
    if path:
        path.write_text("".join(lines))
    else:
        print("".join(lines), end="")


if __name__ == "__main__":
    sys.exit(main())
