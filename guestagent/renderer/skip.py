"""Long output that only scrolls: found, and passed over but for its last lines.

*Plain* output is text, CR, LF, BS, TAB, BEL and the sequences whose effect stays within the cursor's line: SGR, EL, ECH, ICH,
DCH, movements by column, hyperlinks and titles.  Each ``CR LF`` of it at the bottom of the screen scrolls one row off.  So of a
long piece only as many last lines count as screen and scrollback have rows; what the rest leaves behind is the pen, the
hyperlink and the titles, which are found by searching backwards.

Without that: margins, or a mode in which BS leaves the line.
"""

from __future__ import annotations

import mmap
import re
from typing import TYPE_CHECKING

from guestagent.renderer.cells import Row

if TYPE_CHECKING:
    from guestagent.renderer.terminal import Terminal

Buffer = bytes | bytearray | memoryview | mmap.mmap

WINDOW = 1 << 20  # bytes that are searched at once, so that what one search finds bounds the others
LONGEST_SGR = 256  # bytes
LONGEST = 8192  # bytes of a plain sequence; longer ones end the plain part
WORTH_IT = 1 << 16  # bytes; drawing less takes no longer than looking for a place to cut

_SEQUENCE = rb"\x1b(?:\[[0-9;:]{0,%d}[mKGCDXP@]|\](?:[0128]);[ -~\x80-\xc1\xc3-\xff]{0,%d}(?:\x07|\x1b\\)|\\)" % (
    LONGEST_SGR - 3,
    LONGEST - 300,
)
_PLAIN_SEQUENCE = re.compile(_SEQUENCE)
_NOT_PLAIN = re.compile(rb"\x1b(?!%s)" % _SEQUENCE[4:])
_C1 = re.compile(rb"\xc2[\x80-\x9f]")
# VT and FF feed lines without CR, SO and SI change the characters.
_CONTROLS = (b"\x0b", b"\x0c", b"\x0e", b"\x0f")
_SGR = re.compile(rb"\x1b\[([0-9;:]*)m")
_OSC = re.compile(rb"\x1b\]([0128]);([^\x07\x1b]*)")
_RESETS = (b"\x1b[0m", b"\x1b[m")


def plain_end(buffer: Buffer, start: int, end: int) -> int:
    """The first offset from `start` on where something not plain begins, or `end`.

    A sequence that is cut at `end` is not plain; a cut character is.
    """
    while start < end:
        part = bytes(buffer[start : min(start + WINDOW, end) + 1])  # a C1 control may lie across
        size = min(WINDOW, end - start)
        found = _first_other(part, size)
        if found == size:
            start += size
            continue
        whole = _PLAIN_SEQUENCE.match(buffer, start + found, end)  # cut by the window only
        if whole is None:
            return start + found
        start = whole.end()
    return end


def _first_other(part: bytes, found: int) -> int:
    """Where the first thing that is not plain begins in the first `found` bytes.  Searches for one byte are memchr's."""
    if part.find(b"\x1b", 0, found) >= 0 and (match := _NOT_PLAIN.search(part, 0, found)) is not None:
        found = match.start()
    for control in _CONTROLS:
        at = part.find(control, 0, found)
        if at >= 0:
            found = at
    if part.find(b"\xc2", 0, found) >= 0 and (match := _C1.search(part, 0, found + 1)) is not None:
        found = min(found, match.start())
    return found


def advance(terminal: Terminal, buffer: Buffer, start: int, end: int) -> None:
    """Feed [start, end), passing over what need not be drawn."""
    view = memoryview(buffer)
    while start < end:
        stop = plain_end(view, start, end) if terminal.parser.idle else start
        if stop - start >= WORTH_IT:
            feed_plain(terminal, view[start:stop])
        else:
            stop = min(max(stop, start) + 4096, end)
            terminal.feed(bytes(view[start:stop]))
        start = stop


def feed_plain(terminal: Terminal, data: Buffer) -> None:
    """The same final state as :meth:`Terminal.feed`; `data` must be plain."""
    view = memoryview(data)
    cut = _cut(terminal, view)
    if cut:
        _carry(terminal, view[:cut])
    for start in range(cut, len(view), WINDOW):
        terminal.feed(bytes(view[start : start + WINDOW]))


def _cut(terminal: Terminal, view: memoryview) -> int:
    """An offset just behind a CR LF before which nothing needs to be drawn; 0 if there is none."""
    active = terminal.active
    full = (active.top, active.bottom) == (0, terminal.lines - 1)
    if not (full and terminal.parser.idle) or terminal.reverse_wrap or len(view) < 2:
        return 0
    needed = terminal.lines + active.scrollback + 1
    end = len(view)
    while end > 0:
        start = max(end - WINDOW, 0)
        part = bytes(view[start:end])
        count = part.count(b"\r\n")
        if count < needed:
            needed -= count
            # A CR LF across the windows is not counted: one line more is drawn.
            end = start
            continue
        at = len(part)
        for _ in range(needed):
            at = part.rfind(b"\r\n", 0, at)
        cut = start + at + 2
        # The cursor must have reached the bottom by then, wherever it was.
        return cut if _lines_before(view, cut, terminal.lines) else 0
    return 0


def _lines_before(view: memoryview, cut: int, needed: int) -> bool:
    found = 0
    for start in range(0, cut, WINDOW):
        found += bytes(view[start : min(start + WINDOW, cut)]).count(b"\n")
        if found >= needed:
            return True
    return False


def _carry(terminal: Terminal, view: memoryview) -> None:
    """The state behind `view`, as far as it lasts; the rows are anything, as they will scroll away."""
    size = len(view)
    terminal.feed(b"\0")  # ends what marks could join
    terminal.parser.fed += size - 1
    for start in range(0, size, WINDOW):
        part = bytes(view[max(start - 1, 0) : start + WINDOW])
        if part.find(b"\x1b") >= 0 and b"\x1b]" in part:
            _strings(terminal, view, max(start - 1, 0), min(start + WINDOW, size))
    terminal.sgr_all(_last_pen(view))
    terminal.cursor.x, terminal.cursor.y = 0, terminal.lines - 1
    terminal.rows[-1] = Row(terminal.columns, terminal.erase_attr)


def _strings(terminal: Terminal, view: memoryview, start: int, end: int) -> None:
    """The last of each kind that begins in [start, end)."""
    last = {}
    for match in _OSC.finditer(view, start, min(end + LONGEST, len(view))):
        if match.start() < end:
            last[match[1]] = (match.start(), match[1], bytes(match[2]))
    for _, kind, payload in sorted(last.values()):
        terminal.osc(int(kind), payload.decode("utf-8", "ignore").replace("\ufeff", ""))


def _last_pen(view: memoryview) -> list[bytes]:
    """Parameters of the SGRs since the last one that resets all; of all if none does."""
    end = len(view)
    found: list[list[bytes]] = []
    while end > 0:
        start = max(end - (WINDOW >> 2), 0)
        part = bytes(view[start : end + LONGEST_SGR])  # with the rest of one that begins before `end`
        if part.find(b"\x1b", 0, end - start) >= 0:
            reset = max(part.rfind(sequence, 0, end - start + len(sequence) - 1) for sequence in _RESETS)
            matches = _SGR.finditer(part, max(reset, 0))
            found.append([match[1] for match in matches if match.start() < end - start])
            if reset >= 0:
                break
        end = start
    return [params for part_of_it in reversed(found) for params in part_of_it]
