"""Programs that the tests run in sessions, and how they read what those write."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import trio

from ptymux.client import Attach
from ptymux.events import Event, Exit, Output
from tests.harness import PATIENCE

READY = b"ready\n"

# Echoes what is typed, byte for byte and nothing else.
ECHO = ["sh", "-c", "stty raw -echo; echo ready; exec cat"]

# A terminal program that does not look at its input before it gets SIGUSR1; then it reads so many bytes and prints their hash.
_READER = """
import hashlib, os, signal, sys, tty
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
tty.setraw(0)
os.write(1, b"ready\\n")
if "--wait" in sys.argv:
    signal.sigwait([signal.SIGUSR1])
left = int(sys.argv[1])
found = hashlib.sha256()
while left:
    data = os.read(0, left)
    found.update(data)
    left -= len(data)
os.write(1, found.hexdigest().encode() + b"\\n")
"""

# A raw terminal program that keeps what is typed in a file, up to and with an end text.
_SINK = """
import os, sys, tty
tty.setraw(0)
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
end = sys.argv[2].encode()
os.write(1, b"ready\\n")
tail = b""
while not tail.endswith(end):
    data = os.read(0, 65536)
    os.write(file, data)
    tail = (tail + data)[-len(end):]
os.write(1, b"done\\n")
"""

# Kills the process whose pid is typed as soon as it gets SIGRTMIN (which the kernel counts and never merges), then waits for a line
# and says how many of those signals came up to then.
_AVENGER = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
while True:
    pid = int(input("whom? "))
    print("armed", flush=True)
    signal.sigwait([signal.SIGRTMIN])
    os.kill(pid, signal.SIGKILL)
    input()
    count = 1
    while signal.sigtimedwait([signal.SIGRTMIN], 0):
        count += 1
    print(f"signals: {count}", flush=True)
"""

# Numbered lines (see data.py) without end, in writes of all sizes.
_COUNTER = """
import os, random, tty
tty.setraw(1)
number = 0
while True:
    count = random.choice((1, 1, 1, 10, 100, 1000))
    os.write(1, b"".join([b"%015d\\n" % n for n in range(number, number + count)]))
    number += count
"""


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, *arguments]


def reader(size: int, *, wait: bool = False) -> list[str]:
    """Reads `size` bytes from a raw terminal and prints their sha256 in a line; with `wait` only after SIGUSR1."""
    return python(_READER, str(size), *(["--wait"] if wait else []))


def sink(file: Path, end: str) -> list[str]:
    """Keeps what is typed in a file, then says "done"."""
    return python(_SINK, str(file), end)


def counter() -> list[str]:
    """Writes the numbered lines of data.py for ever."""
    return python(_COUNTER)


def avenger() -> list[str]:
    """Takes revenge for SIGRTMIN on whom it is told, and counts how often it gets it."""
    return python(_AVENGER)


class Reading:
    """The output of one attach, checked: every byte follows the one before, or a discontinuity was told."""

    def __init__(self, stream: Attach, offset: int = 0) -> None:
        self.stream = stream
        self.data = bytearray()
        self.offset = offset  # of the next byte
        self.events: list[Event] = []  # other than output
        self.exit: Exit | None = None

    async def next(self) -> Event:
        with trio.fail_after(PATIENCE):
            event = await anext(self.stream)
        if isinstance(event, Output):
            assert event.offset == self.offset, f"output at {event.offset} where {self.offset} follows"
            self.data += event.data
            self.offset += len(event.data)
        else:
            self.events.append(event)
            to = getattr(event, "to", None)
            if type(event).__name__ in ("Gap", "Rewound", "Foreign"):
                self.offset = to
            if isinstance(event, Exit):
                assert event.offset == self.offset
                self.exit = event
        return event

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self.next()

    async def until_text(self, text: bytes) -> bytes:
        """Read until `text` has come; what came up to its end, which is taken away."""
        await self.until(lambda: text in self.data)
        end = self.data.index(text) + len(text)
        found = bytes(self.data[:end])
        del self.data[:end]
        return found

    async def until_exit(self) -> Exit:
        await self.until(lambda: self.exit)
        assert self.exit is not None
        return self.exit

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]
