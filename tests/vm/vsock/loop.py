"""One selector and a clock: what the device's process runs on."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import Protocol


class HasFileno(Protocol):
    def fileno(self) -> int: ...


FileLike = int | HasFileno
Callback = Callable[[int], None]  # with selectors.EVENT_READ and EVENT_WRITE

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

TICK = 0.25  # seconds between looks at deadlines, which are of seconds


class Loop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._tickers: list[Callable[[float], None]] = []
        self._soon: list[Callable[[], None]] = []
        self.running = True

    def now(self) -> float:
        return time.monotonic()

    def watch(self, file: FileLike, events: int, callback: Callback) -> None:
        """Call `callback` when any of `events` is possible; with no events, never again."""
        try:
            present = self._selector.get_key(file)
        except KeyError:
            if events:
                self._selector.register(file, events, callback)
            return
        if not events:
            self._selector.unregister(file)
        elif present.events != events or present.data != callback:
            self._selector.modify(file, events, callback)

    def every_tick(self, callback: Callable[[float], None]) -> None:
        """Call `callback` with the time, every TICK or so."""
        self._tickers.append(callback)

    def soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, after everybody else had a turn."""
        if callback not in self._soon:
            self._soon.append(callback)

    def run(self) -> None:
        next_tick = 0.0
        while self.running:
            soon, self._soon = self._soon, []
            for callback in soon:
                callback()
            for key, events in self._selector.select(0 if self._soon else TICK):
                # An earlier callback of this round may have ended this one, or replaced its file by another.
                if self._selector.get_map().get(key.fd) is key:
                    key.data(events)
            if (now := self.now()) >= next_tick:
                next_tick = now + TICK
                for ticker in self._tickers:
                    ticker(now)

    def close(self) -> None:
        self._selector.close()
