"""One session's terminal, kept up with its history.

A follower reads a history that the server goes on writing, and may be dropped at any moment: what it needs to go on is in the history's
checkpoint.  It is never waited for, so the ring may overtake it.

Invariants
    the terminal has taken every byte below `offset` and every mark below `mark`, or `approximate` says that some were overwritten
    `offset` never decreases
    answers are those to queries below `offset`, in order, and each is handed out once

Work is bounded: output that only scrolls is skipped over, and where even what has to be drawn is more than PATIENCE allows, drawing
begins at the last place where everything was painted anew (the modes set before it are carried along).
"""

from __future__ import annotations

import re
import time
from typing import Any

import msgpack

from guestagent.history import CHECKPOINT_SIZE
from guestagent.history_view import HistoryView
from guestagent.renderer import skip
from guestagent.renderer.terminal import Terminal
from ptymux import limits

PATIENCE = 0.25  # seconds of drawing for one request
PIECE = 64 * limits.KIB  # bytes between two looks at the clock
GULP = 4 * limits.MIB  # bytes copied out of the ring at a time
WORTH_SKIPPING = 16 * limits.KIB  # shorter stretches are drawn as fast as they are skipped
ANSWERS_KEPT = 64  # to queries that nobody has come for yet
SCREEN_MAX = limits.MAX_FRAME - 4 * limits.KIB  # bytes of a screen as data
PROGRESS = 4  # a checkpoint for each such part of the ring

# After one of these all cells are known: home and clear, clear, full reset, the alternate screen.
_SYNC = re.compile(rb"\x1b\[H\x1b\[[023]?J|\x1b\[2J|\x1bc|\x1b\[\?(?:1049|1047|47)h")
# What sets state that outlives the screen's contents.
_STATE = re.compile(
    rb"\x1b\[[?<>=!]?[0-9;:]*[ $\"]?[hlmrupqsgt]|\x1b[=>78cNOn|}~HM]|\x1b[()*+\-./][0-9A-Za-z<>%]+|[\x0e\x0f]"
    rb"|\x1b\](?:[0-9]+)(?:;[^\x07\x1b]{0,4096})?(?:\x07|\x1b\\)|\x1b\[\?(?:1049|1047|1048|47)[hl]"
)


class Follower:
    """`columns` and `rows` are the size that the terminal was born with."""

    def __init__(self, view: HistoryView, columns: int, rows: int) -> None:
        self.view = view
        self.offset = 0
        self.mark = 0
        self.approximate = False
        self.answers: list[tuple[int, bytes]] = []
        self._saved = 0  # offset of the last checkpoint
        saved = view.checkpoint()
        if saved is None:
            self.terminal = Terminal(columns, rows, limits.SNAPSHOT_SCROLLBACK)
        else:
            self.offset, self.mark, columns, rows, self.approximate, dump = msgpack.unpackb(saved)
            self.terminal = Terminal(columns, rows, limits.SNAPSHOT_SCROLLBACK)
            self.terminal.feed(dump)
            self._saved = self.offset
            self.terminal.answers.clear()

    # --- keeping up -------------------------------------------------------------------------------
    def advance(self) -> None:
        """Take everything that is in the history now."""
        head = self.view.head
        marks = [mark for mark in self.view.marks(self.mark) if mark.offset <= head]
        if marks and marks[0].number > self.mark:
            self.approximate = True  # a resize may be among those that were overwritten
        deadline = time.monotonic() + PATIENCE
        for mark in marks:
            self._take(mark.offset, deadline)
            self.mark = mark.number + 1
            if mark.kind == "resize":
                self.terminal.resize(mark.data["columns"], mark.data["rows"])
            elif mark.kind == "exit":
                self.terminal.reset_sticky()
        self._take(head, deadline)

    def _take(self, end: int, deadline: float) -> None:
        while self.offset < end:
            stop = min(end, self.offset + GULP)
            data = self.view.read(self.offset, stop)
            if data is None:
                self._lose(end)
            else:
                self._draw(data, deadline)

    def _lose(self, end: int) -> None:
        """The ring went on without us: go on at its oldest line."""
        self.approximate = True
        self._feed(b"\x18")  # whatever sequence had begun
        start = min(end, max(self.offset, self.view.oldest + self.view.size // 8))
        data = self.view.read(start, min(end, start + PIECE))
        newline = data.find(b"\n") + 1 if data else 0
        self.offset = min(end, start + newline)

    def _draw(self, data: bytes, deadline: float) -> None:
        size = len(data)
        at = 0
        while at < size:
            plain = skip.plain_end(data, at, size)
            if plain - at >= WORTH_SKIPPING:
                self._consume(skip.feed_plain, data[at:plain])
                at = plain
                continue
            stop = min(size, max(plain + 1, at + PIECE))
            if time.monotonic() > deadline and size - at > PIECE:
                at = self._jump(data, at)
                deadline += PATIENCE
                continue
            self._consume(Terminal.feed, data[at:stop])
            at = stop

    def _jump(self, data: bytes, at: int) -> int:
        """Leave out what we have no time to draw; where drawing goes on."""
        places = [found.start() for found in _SYNC.finditer(data, at)]
        if places:
            to = places[-1]
        else:
            self.approximate = True
            to = max(at, len(data) - PIECE)
            to = max(to, data.find(b"\x1b", to))
        base = self.offset - at
        self._feed(b"\x18")
        for found in _STATE.finditer(data, at, to):
            self._feed(found.group(), base + found.end())
        self.offset = base + to
        return to

    def _consume(self, feed: Any, data: bytes) -> None:
        before = self.terminal.fed
        feed(self.terminal, data)
        if b"\x1bc" in data:
            self.approximate = False  # everything begins anew
        self._collect(self.offset - before)
        self.offset += len(data)

    def _feed(self, data: bytes, end: int | None = None) -> None:
        """Bytes that do not count: not of the stream, or of a part that is left out, where they ended at `end`."""
        self.terminal.feed(data)
        if end is None:
            self.terminal.answers.clear()
        else:
            self._collect(end - self.terminal.fed)

    def _collect(self, base: int) -> None:
        """Take the terminal's answers; `base` is the stream's offset where the terminal had taken nothing."""
        self.answers.extend((base + place, answer) for place, answer in self.terminal.answers)
        self.terminal.answers.clear()
        del self.answers[:-ANSWERS_KEPT]

    # --- what others get ----------------------------------------------------------------------------
    def take_answers(self) -> list[tuple[int, bytes]]:
        found, self.answers = self.answers, []
        return found

    def checkpoint(self) -> bytes | None:
        """For the history, if it is time for one."""
        if self.offset - self._saved < self.view.size // PROGRESS:
            return None
        for scrollback in (limits.SNAPSHOT_SCROLLBACK, 100, 0):
            dump = self.terminal.dump(scrollback)
            if len(dump) < CHECKPOINT_SIZE - 64:
                self._saved = self.offset
                size = self.terminal.columns, self.terminal.lines
                saved: bytes = msgpack.packb([self.offset, self.mark, *size, self.approximate, dump])
                return saved
        return None

    def screen(self, start: int, count: int) -> bytes:
        """The screen as data, packed, with `count` lines of scrollback, or fewer if they do not fit into a frame.

        `start` counts upwards: 0 is the line just above the screen.
        """
        while True:
            end = max(0, len(self.terminal.main.history) - start)
            data = self.terminal.screen_data(max(0, end - count), min(count, end))
            packed: bytes = msgpack.packb(data)
            if len(packed) <= SCREEN_MAX:
                return packed
            if count == 0:
                raise ValueError(f"the screen takes {len(packed)} bytes, more than a frame")
            count //= 2

    def picture(self) -> bytes:
        """The screen as escape sequences, with as much scrollback as max_snapshot allows."""
        scrollback = limits.SNAPSHOT_SCROLLBACK
        while len(dump := self.terminal.dump(scrollback)) > limits.MAX_SNAPSHOT and scrollback:
            scrollback //= 4
        return dump
