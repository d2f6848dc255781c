"""What a screen is made of: attributes, rows, and how wide a character is.

A row is two lists of equal length, one of texts and one of attributes, because slices of lists are stored at C speed.

Invariants of a row
    a cell's text is one printed character with the marks that joined it, or NUL where nothing was printed, or TAIL
    TAIL stands in the second half of a wide character and nowhere else
    a wide character has its TAIL behind it, or is a *half*: without autowrap its TAIL is printed over in the last column, or a
    mark that follows a wide character without room makes the character before two columns wide (STRETCHED stands before
    its text).  Halves are as in xterm.js; none is in the last column, nor is a wide character behind one
    a NUL carries only a background (what an erase leaves), except in the last column, where a wide character that did
    not fit leaves the attributes it would have had
"""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

from wcwidth import wcwidth

NUL = "\0"
TAIL = ""
STRETCHED = "\x80"  # a control, which is never printed

BOLD, DIM, ITALIC, UNDERLINE, BLINK, INVERSE, INVISIBLE, STRIKE, OVERLINE = (1 << bit for bit in range(9))
PROTECTED = 1 << 9  # DECSCA; not to be seen, respected by DECSED and DECSEL
RGB = 1 << 24  # marks a colour of 24 bits; others are -1 (default) or 0..255 (palette)

# Marks that one cell keeps.  Longest clusters in use have about ten code points; without a limit a stream of combining
# marks would grow one cell for ever.
LONGEST_CELL = 32


class Attr(NamedTuple):
    """How a cell looks."""

    fg: int = -1
    bg: int = -1
    flags: int = 0
    underline: int = 0  # style 1..5 where UNDERLINE is set
    underline_color: int = -1
    link: str = ""  # "parameters;URI" of OSC 8


BLANK = Attr()
_ERASED = {-1: BLANK}


def erased(pen: Attr) -> Attr:
    """What an erase with this pen leaves: its background."""
    bg = pen.bg
    found = _ERASED.get(bg)
    if found is None:
        if len(_ERASED) > 1024:  # one entry a colour in use; 24-bit colours are many
            _ERASED.clear()
            _ERASED[-1] = BLANK
        found = _ERASED[bg] = Attr(bg=bg)
    return found


class Row:
    __slots__ = ("attrs", "beyond", "chars", "wrapped")

    def __init__(self, columns: int, attr: Attr, wrapped: bool = False) -> None:
        self.chars = [NUL] * columns
        self.attrs = [attr] * columns
        self.wrapped = wrapped  # it continues the row above
        # Cells that a narrower screen hides, until it is wider again: only on the alternate screen, and not part of the state,
        # since no sequence can say them and the program draws everything anew.
        self.beyond: list[tuple[str, Attr]] = []

    def key(self) -> tuple[tuple[str, ...], tuple[Attr, ...], bool]:
        return (tuple(self.chars), tuple(self.attrs), self.wrapped)

    def text(self) -> str:
        return "".join(self.shown()).replace(NUL, " ")

    def shown(self) -> list[str]:
        """Texts that take as many columns as they have: there is no room for a half."""
        halves = self.halves()
        if not halves:
            return self.chars
        chars = self.chars.copy()
        for x in halves:
            chars[x] = " "
        return chars

    def halves(self) -> list[int]:
        """Columns of wide characters without a TAIL."""
        chars = self.chars
        if "".join(chars).isascii():
            return []
        return [x for x in range(len(chars) - 1) if chars[x + 1] != TAIL and cell_width(chars[x]) == 2]

    def wide_before(self, x: int) -> bool:
        """Is the second column of a wide character at x?"""
        if not x:
            return False
        text = self.chars[x - 1]
        return not text.isascii() and cell_width(text) == 2

    def printed(self) -> int:
        """Columns up to the last one that something was printed in."""
        chars = self.chars
        end = len(chars)
        while end and chars[end - 1] == NUL:
            end -= 1
        return end + 1 if end < len(chars) and self.wide_before(end) else end

    def punch(self, x: int, pen: Attr) -> None:
        """One column of a wide character was overwritten: nothing is left in the other but the pen's attributes."""
        keeps = x == len(self.chars) - 1 or pen == erased(pen)
        self.chars[x] = NUL if keeps else " "
        self.attrs[x] = pen

    def part(self, x: int, pen: Attr) -> None:
        """Something will be printed at x: no wide character lies across its left edge any more."""
        if self.chars[x] == TAIL and cell_width(self.chars[x - 1]) == 2:
            self.punch(x - 1, pen)

    def erase(self, start: int, end: int, attr: Attr) -> None:
        """Cells [start, end), and the other halves of wide characters that are cut."""
        chars = self.chars
        columns = len(chars)
        end = min(end, columns)
        if start >= end:
            return
        attrs = self.attrs
        if self.wide_before(start):
            chars[start - 1], attrs[start - 1] = NUL, attr
        if end < columns and self.wide_before(end):
            chars[end], attrs[end] = NUL, attr
        chars[start:end] = [NUL] * (end - start)
        attrs[start:end] = [attr] * (end - start)

    def erase_unprotected(self, start: int, end: int, attr: Attr) -> None:
        """As :meth:`erase`, but what DECSCA protects stays."""
        attrs = self.attrs
        for x in range(start, min(end, len(attrs))):
            if not attrs[x].flags & PROTECTED:
                self.erase(x, x + 1, attr)

    def insert(self, x: int, count: int, attr: Attr) -> None:
        """Shift the cells from x on to the right; what leaves the row is lost."""
        chars, attrs = self.chars, self.attrs
        columns = len(chars)
        if self.wide_before(x):
            self.punch(x - 1, attr)
            if chars[x] == TAIL:
                self.punch(x, attr)
        count = min(count, columns - x)
        chars[x:x] = [NUL] * count
        attrs[x:x] = [attr] * count
        if count and self.wide_before(columns):
            chars[columns - 1], attrs[columns - 1] = NUL, attr
        del chars[columns:], attrs[columns:]

    def delete(self, x: int, count: int, attr: Attr) -> None:
        """Shift the cells behind [x, x + count) to the left."""
        chars, attrs = self.chars, self.attrs
        columns = len(chars)
        count = min(count, columns - x)
        if self.wide_before(x):
            chars[x - 1], attrs[x - 1] = NUL, attr
        if chars[-1] == NUL and attrs[-1] != erased(attrs[-1]):
            chars[-1] = " "  # it leaves the last column
        del chars[x : x + count], attrs[x : x + count]
        chars += [NUL] * count
        attrs += [attr] * count
        if chars[x] == TAIL:
            chars[x], attrs[x] = NUL, attr

    def resize(self, columns: int, keep: bool = False) -> None:
        """`keep`: what has no room may come back, as on the alternate screen of xterm.js."""
        chars, attrs = self.chars, self.attrs
        old = len(chars)
        if columns > old:
            back = self.beyond[: columns - old]
            missing = columns - old - len(back)
            chars += [*(char for char, _ in back), *[NUL] * missing]
            attrs += [*(attr for _, attr in back), *[BLANK] * missing]
            self.beyond = []
            for x in (old, columns - 1):  # wide characters that were cut, then and now
                if (chars[x] == TAIL and cell_width(chars[x - 1]) != 2) or (x == columns - 1 and cell_width(chars[x]) == 2):
                    chars[x] = NUL
        elif columns < old:
            self.beyond = [*zip(chars[columns:], attrs[columns:], strict=True), *self.beyond] if keep else []
            if self.wide_before(columns):
                chars[columns - 1] = NUL
            del chars[columns:], attrs[columns:]

    def settle(self) -> None:
        """After a resize: what a wide character left in the last column is not there any more; it is a space elsewhere."""
        chars, attrs = self.chars, self.attrs
        for x in range(len(chars) - 1):
            if chars[x] == NUL and attrs[x] is not BLANK and attrs[x] != erased(attrs[x]):
                chars[x] = " "


_REGIONAL = range(0x1F1E6, 0x1F200)  # halves of flags; one column each, as they do not join into one cell


def _measure(char: str) -> int:
    """wcwidth's tables, with what xterm.js has otherwise and so does every client that draws with it."""
    category = unicodedata.category(char)
    if category == "Mc" or ord(char) in _REGIONAL:
        return 1  # spacing marks do not join
    if category == "Cf" and char != "\u00ad":
        return 0
    return max(wcwidth(char), 0)


class _Widths(dict[str, int]):
    def __missing__(self, char: str) -> int:
        width = _measure(char)
        if len(self) < 65536:  # the characters in use; without a limit, all of Unicode (100 MB)
            self[char] = width
        return width


WIDTHS = _Widths({STRETCHED: 2})  # character -> 0, 1 or 2 columns


def cell_width(text: str) -> int:
    """Columns of a cell: 0 for a TAIL or a mark that stands alone, 2 for a wide character."""
    return WIDTHS[text[0]] if text and text != NUL else len(text)
