"""Which output only scrolls: text, CR, LF, BS, TAB, BEL and the sequences whose effect stays within the cursor's line.

These are SGR, EL, ECH, ICH, DCH, movements by column, hyperlinks and titles.  A terminal that takes a lot of it in need not draw what
scrolls away; see renderer/skip.py.  The search is cheap (some 500 MB/s where every line has colours), so the server can do it for a
renderer that is late.
"""

from __future__ import annotations

import mmap
import re

Buffer = bytes | bytearray | memoryview | mmap.mmap

WINDOW = 1 << 20  # bytes that are searched at once, so that what one search finds bounds the others
LONGEST = 8192  # bytes of a plain sequence; longer ones end the plain part

_SEQUENCE = rb"\x1b(?:\[[0-9;:]{0,256}[mKGCDXP@]|\](?:[0128]);[ -~\x80-\xc1\xc3-\xff]{0,%d}(?:\x07|\x1b\\)|\\)" % (
    LONGEST - 300
)
_PLAIN_SEQUENCE = re.compile(_SEQUENCE)
# The first byte is a literal, so that the search runs at the speed of memchr.
_ENDS = (
    re.compile(rb"\x1b(?!%s)" % _SEQUENCE[4:]),
    re.compile(rb"\x0b"),  # VT and FF: line feeds without CR
    re.compile(rb"\x0c"),
    re.compile(rb"\x0e"),  # SO and SI: other characters
    re.compile(rb"\x0f"),
    re.compile(rb"\xc2[\x80-\x9f]"),  # C1
)


def plain_end(buffer: Buffer, start: int, end: int) -> int:
    """The first offset from `start` on where something not plain begins, or `end`.

    A sequence that is cut at `end` is not plain; a cut character is.
    """
    while start < end:
        window = min(start + WINDOW, end)
        found = window
        for pattern in _ENDS:
            match = pattern.search(buffer, start, min(found + 1, end))  # a C1 control may lie across
            if match is not None and match.start() < found:
                found = match.start()
        if found == window:
            start = window
            continue
        whole = _PLAIN_SEQUENCE.match(buffer, found, end)  # cut by the window only
        if whole is None:
            return found
        start = whole.end()
    return end
