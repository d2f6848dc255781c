"""Which output only scrolls: text, CR, LF, BS, TAB, BEL and the sequences whose effect stays within the cursor's line.

These are SGR, EL, ECH, ICH, DCH, movements by column, hyperlinks and titles.  A terminal that takes a lot of it in need not draw what
scrolls away; see renderer/skip.py.  The search is cheap (some 500 MB/s where every line has colours), so the server can do it for a
renderer that is late.
"""

from __future__ import annotations

import mmap
import re

Buffer = bytes | bytearray | memoryview | mmap.mmap

WINDOW = 1 << 17  # bytes that are searched at once, so that what one search finds bounds the others
LONGEST_SGR = 256  # bytes
LONGEST = 8192  # bytes of a plain sequence; longer ones end the plain part

_SEQUENCE = rb"\x1b(?:\[[0-9;:]{0,%d}[mKGCDXP@]|\](?:[0128]);[ -~\x80-\xc1\xc3-\xff]{0,%d}(?:\x07|\x1b\\)|\\)" % (
    LONGEST_SGR - 3,
    LONGEST - 300,
)
_PLAIN_SEQUENCE = re.compile(_SEQUENCE)
_NOT_PLAIN = re.compile(rb"\x1b(?!%s)" % _SEQUENCE[4:])
_C1 = re.compile(rb"\xc2[\x80-\x9f]")
# VT and FF feed lines without CR, SO and SI change the characters.
_CONTROLS = (b"\x0b", b"\x0c", b"\x0e", b"\x0f")


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
