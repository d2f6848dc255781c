"""A client that attaches and then reads nothing: who else notices?

It holds a session of its own that prints two megabytes a second, and looks at eight others that another client reads.  Asked:
does that client get its bytes as fast as without it, are requests answered, does the server's memory stay what it was while
megabytes go unread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import procfs, servers, wire, work
from bench.report import Row, Target, progress
from bench.runner import HISTORY, check_bytes, run_command
from bench.servers import BUILD, Server
from bench.work import Work

NAMES = ["stalled-others", "stalled-answers", "stalled-memory"]
SESSIONS = 8
TOTAL, QUICK_TOTAL = 192 << 20, 64 << 20
# 64 KiB every 30 ms, for ever; raw, so that it costs hardly any CPU, which would be the others' loss and no stall.
DRIP = "stty raw -echo; while :; do head -c 65536 /dev/zero; sleep 0.03; done"
WATCH = 9.0  # seconds: past the 5 s after which an idle holder is not waited for any more
ASK_EVERY = 0.05

KEPT = Target(">=", 0.8, "kept")
ANSWERED = Target("<=", 1000, "ms")
GROWTH = Target("<=", 4, "MB")  # of anonymous memory; a queue for the stalled client would be ten times that


@dataclass
class Watch:
    """What a bystander sees of the server."""

    answers: list[float] = field(default_factory=list)  # seconds
    anonymous: list[int] = field(default_factory=list)  # bytes
    error: Exception | None = None


def measure(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    load = work.raw(folder, SESSIONS, QUICK_TOTAL if quick else TOTAL)
    alone: list[float] = []
    beside: list[float] = []
    answers: list[float] = []
    growth: list[float] = []
    for number in range(1, rounds + 1):
        with servers.agent(folder) as server, server.control() as control:
            alone.append(_transfer(server, control, load, None))
            before = procfs.memory(server.pid).anonymous
            with server.control() as stalled, _watching(server) as watch:
                held = control.create("sh", "-c", DRIP, history=HISTORY)
                stalled.attach(held, SESSIONS)
                beside.append(_transfer(server, control, load, stalled))
                if number == rounds:
                    time.sleep(WATCH)
                began = time.monotonic()
                control.ask("kill", session=held)
                watch.answers.append(time.monotonic() - began)
            if watch.error is not None:
                raise watch.error
            answers.append(max(watch.answers) * 1e3)
            growth.append((max(watch.anonymous) - before) / 1e6)
        progress(
            f"stalled {number}/{rounds}: {alone[-1]:.1f} MB/s alone, {beside[-1]:.1f} beside it, "
            f"slowest answer {answers[-1]:.1f} ms, memory +{growth[-1]:.1f} MB"
        )
    kept = median(one / other for one, other in zip(beside, alone, strict=True))
    cell = f"{kept:.3f}: {median(beside):.1f} of {median(alone):.1f} MB/s"
    return [
        Row("stalled-others", cell, samples={"alone": alone, "beside": beside}).judge(KEPT, kept),
        Row("stalled-answers", f"{max(answers):.1f} ms at most", samples={"ms": answers}).judge(ANSWERED, max(answers)),
        Row("stalled-memory", f"+{max(growth):.1f} MB", samples={"MB": growth}).judge(GROWTH, max(growth)),
    ]


def _transfer(server: Server, control: wire.Control, load: Work, stalled: wire.Control | None) -> float:
    """Rate of a client that reads eight sessions, at which `stalled` looks without reading."""
    sessions = [control.create(*load.command, str(index), history=HISTORY) for index in range(SESSIONS)]
    if stalled is not None:
        for index, session in enumerate(sessions):
            stalled.attach(session, index, view=True)
    chosen = [word for session in sessions for word in ("--session", session)]
    result = run_command([str(BUILD / "client"), *server.client_args, *chosen, "--gate", str(load.gate)])
    check_bytes(result, load.expected)
    rate: float = result["bytes"] / 1e6 / result["wall"]
    return rate


@contextmanager
def _watching(server: Server) -> Iterator[Watch]:
    """Ask for the list of sessions, and look at the server's memory, again and again."""
    watch, done = Watch(), threading.Event()

    def look() -> None:
        try:
            with server.control() as control:
                while not done.wait(ASK_EVERY):
                    began = time.monotonic()
                    control.ask("list")
                    watch.answers.append(time.monotonic() - began)
                    watch.anonymous.append(procfs.memory(server.pid).anonymous)
        except (OSError, wire.Refused) as error:
            watch.error = error

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watch
    finally:
        done.set()
        thread.join()
