"""What screens cost: the output path while somebody looks ten times a second, and how long a look takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import servers, wire, work
from bench.report import Row, Target, progress
from bench.runner import check_bytes, run_command
from bench.servers import BUILD, Server
from bench.work import Work

NAMES = ["screens-kept", "screens-log", "screens-tui"]
TOTAL, QUICK_TOTAL = 256 << 20, 96 << 20
LOG, QUICK_LOG = 100_000_000, 30_000_000
LOOK_EVERY = 0.1
LOOKS = 10

KEPT = Target(">=", 0.9, "kept")
AFTER_LOG = Target("<=", 150, "ms p50")
IN_TUI = Target("<=", 500, "ms p50")

# Paints a full screen of coloured cells at random places, as fast as it is read.
TUI = r"""
import os, random, tty
tty.setraw(1)
chance = random.Random(1)
frames = [b"".join(b"\x1b[%d;%dH\x1b[3%dm%04d" % (chance.randrange(1, 25), chance.randrange(1, 77), n % 8, n) for n in range(400)) for _ in range(50)]
os.write(1, b"\x1b[?1049h\x1b[H\x1b[2J")
while True:
    for frame in frames:
        os.write(1, frame)
"""


@dataclass
class Looks:
    times: list[float] = field(default_factory=list)  # seconds
    error: Exception | None = None


def measure(folder: Path, names: set[str], rounds: int, *, quick: bool) -> list[Row]:
    rows: list[Row] = []
    if "screens-kept" in names:
        rows.append(_kept(folder, rounds, quick=quick))
    if "screens-log" in names:
        rows.append(_after_log(folder, rounds, QUICK_LOG if quick else LOG))
    if "screens-tui" in names:
        rows.append(_in_tui(folder, rounds))
    return rows


def _kept(folder: Path, rounds: int, *, quick: bool) -> Row:
    """A flood of log lines that a client reads, without and with a look at its screen ten times a second."""
    load = work.log(folder, 1, QUICK_TOTAL if quick else TOTAL)
    alone: list[float] = []
    looked: list[float] = []
    times: list[float] = []
    for number in range(1, rounds + 1):
        with servers.agent(folder) as server, server.control() as control:
            control.ask("screen", session=control.create("cat"))  # so that the renderer runs in both
            looks = Looks()
            for beside in (number % 2 == 0, number % 2 == 1):  # whichever comes second finds caches warm
                if beside:
                    looked.append(_transfer(server, control, load, looks))
                else:
                    alone.append(_transfer(server, control, load, None))
            if looks.error is not None or not looks.times:
                raise RuntimeError(f"cannot look: {looks.error}")
            times += looks.times
        progress(
            f"screens {number}/{rounds}: {alone[-1]:.1f} MB/s alone, {looked[-1]:.1f} beside {len(looks.times)} looks of {median(looks.times) * 1e3:.0f} ms"
        )
    kept = median(one / other for one, other in zip(looked, alone, strict=True))
    cell = f"{kept:.3f}: {median(looked):.1f} of {median(alone):.1f} MB/s"
    return Row("screens-kept", cell, samples={"alone": alone, "looked": looked, "looks": times}).judge(KEPT, kept)


def _transfer(server: Server, control: wire.Control, load: Work, looks: Looks | None) -> float:
    session = control.create(*load.command, "0")
    with _looking(server, session, looks):
        command = [str(BUILD / "client"), *server.client_args, "--session", session, "--gate", str(load.gate)]
        result = run_command(command)
    check_bytes(result, load.expected)
    rate: float = result["bytes"] / 1e6 / result["wall"]
    return rate


@contextmanager
def _looking(server: Server, session: str, looks: Looks | None) -> Iterator[None]:
    if looks is None:
        yield
        return
    done = threading.Event()

    def look() -> None:
        try:
            with server.control() as control:
                while not done.wait(LOOK_EVERY):
                    looks.times.append(_look(control, session))
        except (OSError, wire.Refused) as error:
            looks.error = error

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _look(control: wire.Control, session: str) -> float:
    begun = time.monotonic()
    control.ask("screen", session=session)
    return time.monotonic() - begun


def _after_log(folder: Path, rounds: int, size: int) -> Row:
    """The first look after a build log that nobody looked at."""
    load = work.log(folder, 1, size)
    times: list[float] = []
    for number in range(1, rounds + 1):
        with servers.agent(folder) as server, server.control() as control:
            control.ask("screen", session=control.create("cat"))
            session = control.create(*load.command, "0")
            command = [str(BUILD / "client"), *server.client_args, "--session", session, "--gate", str(load.gate)]
            check_bytes(run_command(command), load.expected)
            begun = time.monotonic()
            shown = control.ask("screen", session=session)
            times.append((time.monotonic() - begun) * 1e3)
            if shown["approximate"]:
                raise RuntimeError("the screen after the log is approximate")
        progress(f"screens-log {number}/{rounds}: {times[-1]:.0f} ms")
    return _latency("screens-log", times, AFTER_LOG)


def _in_tui(folder: Path, rounds: int) -> Row:
    """Looks at a program that paints as fast as it can, which nobody slows down."""
    script = folder / "tui.py"
    script.write_text(TUI)
    times: list[float] = []
    for number in range(1, rounds + 1):
        with servers.agent(folder) as server, server.control() as control:
            session = control.create("python3", str(script))
            while control.ask("inspect", session=session)["offset"] < 1_000_000:
                time.sleep(0.01)
            times += [_look(control, session) * 1e3 for _ in range(LOOKS)][1:]  # the first starts the renderer
            control.ask("kill", session=session)
        progress(f"screens-tui {number}/{rounds}: {median(times):.0f} ms, at most {max(times):.0f}")
    return _latency("screens-tui", times, IN_TUI)


def _latency(name: str, times: list[float], target: Target) -> Row:
    cell = f"{median(times):.0f} ms, at most {max(times):.0f}"
    return Row(name, cell, samples={"ms": times}).judge(target, median(times))
