"""One session's terminal, kept up with its history.

A follower reads a history that the server goes on writing, and may be dropped at any moment: what it needs to go on is in the history's
checkpoint.  It is never waited for, so the ring may overtake it.

Invariants
    the terminal has taken every byte below `drawn` and every mark below `mark`, or `approximate` says that some were overwritten;
    of those below `offset` it is known that they only scroll, and they are drawn when somebody looks
    `offset` never decreases
    answers are those to queries below `offset`, in order, and each is handed out once

Work is bounded: output that only scrolls is skipped over, and where what has to be drawn is more than DRAW_MAX, drawing begins at the
last place where everything was painted anew (the modes set before it are carried along).
"""

from __future__ import annotations

import re

import msgpack

from guestagent.history import CHECKPOINT_SIZE
from guestagent.history_view import HistoryView
from guestagent.plain import plain_end
from guestagent.renderer import skip
from guestagent.renderer.terminal import Terminal
from ptymux import limits

DRAW_MAX = 640 * limits.KIB  # bytes that are drawn for one request: some 0.15 s.  More than comes between two follows
PIECE = 64 * limits.KIB  # bytes that are drawn at a time
GULP = limits.MIB  # bytes copied out of the ring at a time
LONGEST = 256  # bytes of a sequence that is waited for
WORTH_SKIPPING = 16 * limits.KIB  # shorter stretches are drawn as fast as they are skipped
ANSWERS_KEPT = 64  # to queries that nobody has come for yet
HASTE = 8  # how often a part of the ring is copied that is overwritten meanwhile: others may have had the CPU
SCREEN_MAX = limits.MAX_FRAME - 4 * limits.KIB  # bytes of a screen as data
PROGRESS = 4  # a checkpoint for each such part of the ring

# A sequence that is not complete.
_OPEN = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[P\]_^X][^\x07\x1b]*\x1b?|[ -/]*)?\Z")
# After one of these all cells are known: home and clear, clear, full reset, the alternate screen.
_SYNC = re.compile(rb"\x1b\[H\x1b\[[023]?J|\x1b\[2J|\x1bc|\x1b\[\?(?:1049|1047|47)h")
# What sets state that outlives the screen's contents (but for the pen).
_STATE = re.compile(
    rb"\x1b(?:\[(?:\?[0-9;]*[hl]|[0-9;]*[rhlsu]|[<>=?][0-9;]*[um]|[0-9]* q|[>?=]?[0-9;]*c|\??[0-9;]*n|\??[0-9;]*\$p|>[0-9]*q|!p|[0-9;]*t)"
    rb"|[=>78cnoNO|}~]|[()*+\-./][0-9A-Za-z<>%]|\]1?[0-9][0-9]?[0-9]?(?:;[^\x07\x1b]{0,4096})?(?:\x07|\x1b\\)|P[$+]q[^\x1b]{0,256}\x1b\\)"
    rb"|[\x0e\x0f]"
)
_RESET = re.compile(rb"\x1b\[0?m")
_SGR = re.compile(rb"\x1b\[[0-9;:]*m")


class Follower:
    """`columns` and `rows` are the size that the terminal was born with."""

    def __init__(self, view: HistoryView, columns: int, rows: int) -> None:
        self.view = view
        self.offset = 0
        self.mark = 0
        self.approximate = False
        self.answers: list[tuple[int, bytes]] = []
        self._drawn = 0  # [drawn, offset) is plain, and will be drawn when somebody looks
        saved = view.checkpoint()
        if saved is not None:
            self.offset, self.mark, columns, rows, self.approximate, dump = msgpack.unpackb(saved)
        self.terminal = Terminal(columns, rows, limits.SNAPSHOT_SCROLLBACK)
        if saved is not None:
            self._drawn = self.offset
            self._feed(dump)
        self._saved = self.offset  # offset of the last checkpoint

    # --- keeping up -------------------------------------------------------------------------------
    def follow(self) -> int:
        """Look at everything that is in the history now, and draw no more than must be; up to where."""
        return self._advance(lazy=True)

    def unfinished(self, seen: int) -> int:
        """How many bytes of a sequence or character that is not complete are at the end of what was looked at, up to `seen`."""
        return seen - self._begun

    @property
    def _begun(self) -> int:
        """Where what the terminal has taken an unfinished beginning of begins; `offset` if there is no such thing."""
        parser = self.terminal.parser
        return self.offset if parser.idle else self._drawn - len(parser.pending())

    def draw(self) -> None:
        """Draw everything that is in the history now."""
        self._advance(lazy=False)
        self._settle()

    def _advance(self, *, lazy: bool) -> int:
        head = self.view.head
        marks = [mark for mark in self.view.marks(self.mark) if mark.offset <= head]
        if marks and marks[0].number > self.mark:
            self.approximate = True  # a resize may be among those that were overwritten
        for mark in marks:
            self._take(mark.offset, lazy=False)
            self.mark = mark.number + 1
            if mark.kind == "resize":
                self._settle()
                self.terminal.resize(mark.data["columns"], mark.data["rows"])
            elif mark.kind == "exit":
                self._settle()
                self.terminal.reset_sticky()
        return head if self._take(head, lazy=lazy) else self.offset

    def _take(self, end: int, *, lazy: bool) -> bool:
        """Take everything below `end`; False if nothing can be had just now, and nothing is lost by that."""
        while self.offset < end:
            # One byte back where the end was only looked at: it may begin a character.
            start = self.offset - 1 if self.offset > self._drawn else self.offset
            data = self.view.read(start, min(end, start + GULP))
            if data is None:
                if not self._recover():
                    if lazy and self._vouched():
                        return False  # the ring goes round too fast for us: later
                    self._drawn = self.offset = self._lose(self.offset, end)
                continue
            at = self._draw(data, self.offset - start)
            if at < len(data) and start + len(data) >= end:
                if lazy:
                    return True  # a sequence that is not complete; the rest of it decides whether anything must be drawn
                self._settle()
                self._consume(data[at:])
        return True

    def _draw(self, data: bytes, at: int) -> int:
        """Take `data` from `at` on, but for the beginning of a sequence at its end; up to where."""
        size = len(data)
        while at < size:
            pending = self.offset > self._drawn
            scanned = max(at - 1, 0) if pending else at
            plain = max(at, plain_end(data, scanned, size)) if pending or self.terminal.parser.idle else at
            if plain - at >= WORTH_SKIPPING or (pending and plain > at):
                self.offset += plain - at
                at = plain
                self._pass_over()
                continue
            if size - at <= LONGEST and data[at] == 0x1B and _OPEN.match(data, at):
                return at
            self._settle()
            if size - at > DRAW_MAX:
                at = self._jump(data, at)
                continue
            stop = min(size, max(plain + 1, at + PIECE))
            self._consume(data[at:stop])
            at = stop
        return at

    def _pass_over(self) -> None:
        """Do not let what is to be drawn some day grow older than the ring is long."""
        if self.offset - self._drawn >= self.view.size // PROGRESS:
            data = self.view.read(self._drawn, self.offset)
            if data is not None:
                self._drawn += skip.pass_over(self.terminal, data)

    def _settle(self) -> None:
        """Draw what was put off."""
        while self.offset > self._drawn:
            data = self.view.read(self._drawn, self.offset)
            if data is not None:
                self.terminal.feed_plain(data)
                self._drawn = self.offset
            elif not self._recover():
                self._drawn = self._lose(self._drawn, self.offset)

    def _recover(self) -> bool:
        """What the ring has lost of plain output is no loss if enough of that is still there.

        Known to be plain is what we put off drawing, and what the server has looked at because we were late.
        """
        # The less we copy, the farther is the ring's end from it.
        for span in (*[self.view.size // 16] * HASTE, self.view.size // 4, self.view.size):
            start, end = self.view.plain
            end = max(self.offset, end) if start <= self._begun else self.offset
            begin = max(end - span, self.view.oldest + self.view.size // 16)
            if begin < end and self._begin_at(begin, end):
                return True
        return False

    def _vouched(self) -> bool:
        """Does the server say that what was overwritten only scrolls?"""
        start, end = self.view.plain
        return start <= self._begun and self.view.oldest < end

    def _begin_at(self, begin: int, end: int) -> bool:
        """Leave out everything plain before `begin`; False if [begin, end) does not say enough."""
        data = self.view.read(begin, end)
        if data is None:
            return False
        line = data.find(b"\n") + 1
        reset = _RESET.search(data, line)
        if reset is None and (b"\x1b" in data or not self.terminal.parser.idle):
            return False  # the pen that it began with is not known
        if not self.terminal.parser.idle:
            self._feed(b"\x18")  # it was plain, and so is the rest of it
        cut = skip.pass_over(self.terminal, data[line:])
        if not cut or (reset is not None and reset.start() >= line + cut):
            return False
        self._drawn = begin + line + cut
        self.offset = end
        return True

    def _lose(self, start: int, end: int) -> int:
        """The ring went on without us, and some of [start, end) is gone: where drawing goes on, at the oldest line in it."""
        self.approximate = True
        self._feed(b"\x18")  # whatever sequence had begun
        start = min(end, max(start, self.view.oldest + self.view.size // 8))
        data = self.view.read(start, min(end, start + PIECE))
        newline = data.find(b"\n") + 1 if data else 0
        return min(end, start + newline)

    def _jump(self, data: bytes, at: int) -> int:
        """Leave out what we have no time to draw; where drawing goes on."""
        places = [found.start() for found in _SYNC.finditer(data, at)]
        if places:
            to = places[-1]
        else:
            self.approximate = True
            to = len(data) - PIECE
            to = max(to, data.find(b"\x1b", to))
        base = self.offset - at
        self._feed(b"\x18")
        for found in _STATE.finditer(data, at, to):
            self._feed(found.group(), base + found.end())
        pen = max((found.start() for found in _RESET.finditer(data, max(at, to - PIECE), to)), default=at)
        self._feed(b"".join(_SGR.findall(data, pen, to)[-64:]))
        self._drawn = self.offset = base + to
        return to

    def _consume(self, data: bytes) -> None:
        before = self.terminal.fed
        self.terminal.feed(data)
        if b"\x1bc" in data:
            self.approximate = False  # everything begins anew
        self._collect(self.offset - before)
        self.offset += len(data)
        self._drawn = self.offset

    def _feed(self, data: bytes, end: int | None = None) -> None:
        """Bytes that do not count: not of the stream, or of a part that is left out, where they ended at `end`."""
        self.terminal.feed(data)
        if end is None:
            self.terminal.answers.clear()
        else:
            self._collect(end - self.terminal.fed)

    def _collect(self, base: int) -> None:
        """Take the terminal's answers; `base` is the stream's offset where the terminal had taken nothing."""
        for place, answer in self.terminal.answers:
            if self.answers and self.answers[-1][0] == base + place:  # one question may have several answers
                answer = self.answers.pop()[1] + answer
            self.answers.append((base + place, answer))
        self.terminal.answers.clear()
        del self.answers[:-ANSWERS_KEPT]

    # --- what others get ----------------------------------------------------------------------------
    def take_answers(self) -> list[tuple[int, bytes]]:
        found, self.answers = self.answers, []
        return found

    def checkpoint(self) -> bytes | None:
        """For the history, if it is time for one.  What is to be drawn yet is not in it: it will be found in the ring."""
        if self._drawn - self._saved < self.view.size // PROGRESS:
            return None
        for scrollback in (limits.SNAPSHOT_SCROLLBACK, 100, 0):
            dump = self.terminal.dump(scrollback)
            if len(dump) < CHECKPOINT_SIZE - 64:
                self._saved = self._drawn
                size = self.terminal.columns, self.terminal.lines
                saved: bytes = msgpack.packb([self._drawn, self.mark, *size, self.approximate, dump])
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
