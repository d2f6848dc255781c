"""What runs in the guests: load whose every byte is known, and programs that would show if they had run while quiesced."""

from __future__ import annotations

import sys
from pathlib import Path

LINE = 16  # bytes of a numbered line

# Numbered lines without end, at a pace; `argv[1]` seconds between two bursts of `argv[2]` lines.
_WRITER = """
import os, sys, time, tty
tty.setraw(1)
number, pause, burst = 0, float(sys.argv[1]), int(sys.argv[2])
while True:
    os.write(1, b"".join(b"%015d\\n" % n for n in range(number, number + burst)))
    number += burst
    time.sleep(pause)
"""

# Forks as fast as it can, with at most `argv[1]` children at a time, each of which forks once more and ends.
_BOMB = """
import os, sys, time
most, children = int(sys.argv[1]), 0
while True:
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        time.sleep(0.2)
        os._exit(0)
    children += 1
    if children >= most:
        os.wait()
        children -= 1
"""

# Counts into a file as fast as it can.
_COUNTER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
number = 0
while True:
    number += 1
    os.pwrite(fd, b"%020d" % number, 0)
"""


def writer(pause: float = 0.05, burst: int = 20) -> list[str]:
    """Numbered lines (see :func:`numbered`) for ever."""
    return [sys.executable, "-c", _WRITER, str(pause), str(burst)]


def numbered(size: int) -> bytes:
    """The first `size` bytes of what a writer writes."""
    return b"".join(b"%015d\n" % number for number in range(size // LINE + 1))[:size]


def crowd(busy: int, sleepers: int, then: list[str]) -> list[str]:
    """A session with so many busy loops and sleepers in the background, and `then` in front."""
    script = (
        "n=0; while [ $n -lt $1 ]; do (while :; do :; done) & n=$((n+1)); done; "
        'n=0; while [ $n -lt $2 ]; do sleep 100000 & n=$((n+1)); done; shift 2; exec "$@"'
    )
    return ["sh", "-c", script, "sh", str(busy), str(sleepers), *then]


def bomb(most: int) -> list[str]:
    return [sys.executable, "-c", _BOMB, str(most)]


def counter(file: Path) -> list[str]:
    return [sys.executable, "-c", _COUNTER, str(file)]


def count(file: Path) -> int:
    """Where a counter is."""
    try:
        return int(file.read_bytes() or b"0")
    except OSError:
        return 0
