"""Long output that only scrolls: found, and passed over but for its last lines.

*Plain* output is text, CR, LF, BS, TAB, BEL and the sequences whose effect stays within the cursor's line: SGR, EL, ECH, ICH,
DCH, movements by column, hyperlinks and titles.  Each ``CR LF`` of it at the bottom of the screen scrolls one row off.  So of a
long piece only as many last lines count as screen and scrollback have rows; what the rest leaves behind is the pen, the
hyperlink and the titles, which are found by searching backwards.

Without that: margins, or a mode in which BS leaves the line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from guestagent.plain import LONGEST, WINDOW, Buffer, plain_end
from guestagent.renderer.cells import Row

if TYPE_CHECKING:
    from guestagent.renderer.terminal import Terminal

WORTH_IT = 1 << 16  # bytes; drawing less takes no longer than looking for a place to cut

_SGR = re.compile(rb"\x1b\[([0-9;:]*)m")
_OSC = re.compile(rb"\x1b\]([0128]);([^\x07\x1b]*)")
_RESETS = (b"\x1b[0m", b"\x1b[m")


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
    for start in range(pass_over(terminal, view), len(view), WINDOW):
        terminal.feed(bytes(view[start : start + WINDOW]))


def pass_over(terminal: Terminal, data: Buffer) -> int:
    """Take as much of the beginning of `data`, which must be plain, as need not be drawn; how many bytes that is.

    What the terminal shows then is right only once the rest was fed.
    """
    view = memoryview(data)
    cut = _cut(terminal, view)
    if cut:
        _carry(terminal, view[:cut])
    return cut


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
        if b"\x1b]" in bytes(view[max(start - 1, 0) : start + WINDOW]):
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
    parts: list[bytes] = []
    while end > 0:
        start = max(end - (WINDOW >> 4), 0)
        part = bytes(view[start:end])
        reset = max(part.rfind(sequence) for sequence in _RESETS)
        parts.append(part if reset < 0 else part[reset:])
        if reset >= 0:
            break
        end = start
    # Parts are cut anywhere: join them before they are searched.
    return [bytes(match[1]) for match in _SGR.finditer(b"".join(reversed(parts)))]
