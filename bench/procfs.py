"""What /proc says about a process: CPU, memory, descendants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    user: float  # seconds
    system: float


class Memory(NamedTuple):
    """Bytes."""

    rss: int
    anonymous: int  # without files and shared memory, so without histories


class Process(NamedTuple):
    pid: int
    start: int  # ticks since boot: tells a process from a later one with the same pid


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on, or None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def usage(pid: int) -> Usage:
    """CPU time of `pid` without its children; of a zombie too."""
    fields = _stat(pid)
    if fields is None:
        raise ProcessLookupError(f"cannot read the CPU time of {pid}: no such process")
    return Usage(int(fields[11]) / _TICKS, int(fields[12]) / _TICKS)


def memory(pid: int) -> Memory:
    kib = {"VmRSS": 0, "RssAnon": 0}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in kib:
            kib[name] = int(value.split()[0])
    return Memory(kib["VmRSS"] * 1024, kib["RssAnon"] * 1024)


def alive(process: Process) -> bool:
    fields = _stat(process.pid)
    return fields is not None and int(fields[19]) == process.start and fields[0] not in "ZX"


def children(pid: int) -> list[Process]:
    """Direct children, the eldest first."""
    found: list[Process] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat(int(name))
            if fields is not None and int(fields[1]) == pid:
                found.append(Process(int(name), int(fields[19])))
    return sorted(found, key=lambda process: (process.start, process.pid))


def descendants(pid: int) -> list[Process]:
    found = children(pid)
    for process in found:  # grows while it is walked
        found.extend(children(process.pid))
    return found
