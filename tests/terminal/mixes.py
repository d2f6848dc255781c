"""Generated streams: mixes of text, sequences and resizes, each the same for the same seed.

Of four mixes one is mutated: bytes of it are flipped, dropped, doubled or swapped, so that most sequences are broken somewhere.  The
others are well formed but arbitrary: any sequence after any other, with parameters that are mostly small and sometimes absurd.
"""

# ruff: noqa: RUF001  (ambiguous characters are the point)

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from tests.terminal.stream import Chunk, Size, Stream, joined

WORDS = ("the", "quick", "brown", "fox", "a", "if", "--color=auto", "x" * 30, "/usr/bin/env", "100%", "     ", "-")
WIDE = ("漢", "字", "한", "あ", "Ａ", "。", "😀", "🚀", "🀄", "⌚")
ZERO = ("\u0301", "\u0308", "\u200d", "\ufe0f", "\u200b", "\u20e3", "\u0915\u094d", "\u1160", "\u2060")
ODD = (
    "é",
    "ß",
    "Ω",
    "☃",
    "❤",
    "│",
    "█",
    "\u00ad",
    "\u200e",
    "\u0627",
    "\u05d0",
    "\U0001f1e9",
    "𝒳",
    "\ufeff",
    "\ufffd",
    "·",
)
CLUSTERS = ("👨‍👩‍👧‍👦", "👍🏽", "❤️", "🇩🇪", "1️⃣", "e\u0301\u0302", "각", "🏳️‍🌈")
CONTROLS = (
    "\r\n",
    "\r\n",
    "\r\n",
    "\n",
    "\r",
    "\b",
    "\b\b\b",
    "\t",
    "\t\t",
    "\x0b",
    "\x0c",
    "\x07",
    "\x00",
    "\x0e",
    "\x0f",
    "\x7f",
    "\x05",
)

PRIVATE_MODES = (1, 3, 5, 6, 7, 9, 12, 25, 45, 47, 66, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 1047, 1048, 1049, 2004, 2026, 40, 69, 80)  # fmt: skip
COMMON_MODES = (1, 6, 7, 25, 1049, 1047, 47, 1048, 2004, 1002)
SGR = (
    *range(10),
    21,
    22,
    23,
    24,
    25,
    27,
    28,
    29,
    *range(30, 38),
    39,
    *range(40, 48),
    49,
    53,
    55,
    *range(90, 98),
    *range(100, 108),
)
COLONS = ("4:0", "4:3", "4:9", "38:5:17", "48:5:200", "38:2::1:2:3", "48:2:9:8:7", "58:2::1:2:3", "58;5;9", "59", "38;2;300;1;2", "38;5", "48;2;1", "38:5", "38;5;1;4", "")  # fmt: skip
STRINGS = (
    "\x1b]0;title {}\x07", "\x1b]2;ünï {} 漢\x1b\\", "\x1b]1;icon\x07", "\x1b]8;;http://x/{}\x07", "\x1b]8;;\x07", "\x1b]4;{};?\x07", "\x1b]10;?\x07", "\x1b]104\x07",
    "\x1bP1$r{}\x1b\\", "\x1bPq#0~~{}\x1b\\", "\x1b_G{};AAAA\x1b\\", "\x1b^pm {}\x1b\\", "\x1bXsos {}\x1b\\", "\x1b]133;A\x07", "\x1b]52;c;eA==\x07", "\x1b]{};x",
    "\x1bP$qm\x1b\\", "\x1bP$qr\x1b\\", "\x1b]2;cut {}\x18", "\x1bPcut\x1a", "\x1b_cut\x1b", "\x1b[22;{}t", "\x1b[23;{}t",
)  # fmt: skip
ESCAPES = ("7", "8", "7", "8", "D", "E", "M", "M", "H", "c", "=", ">", "(0", "(B", ")0", "(A", "*0", "n", "o", "~", "#8", "#3", "%G", "%@", "Z", "\\", "6", " F", "(", "[", "|", "}")  # fmt: skip
QUERIES = ("c", ">c", "=c", "5n", "6n", "?6n", "?1$p", "?1049$p", "4$p", ">q", "?u", "18t", "14t", "x")


class Mixer:
    """One mix; `random` is all that it depends on."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.columns = chance.choice((4, 10, 20, 20, 33, 40, 80))
        self.rows = chance.choice((2, 4, 6, 8, 8, 10, 24))

    def chunks(self) -> tuple[Chunk, ...]:
        """Some kinds only, so that a mix digs at one place rather than scratching everywhere."""
        chance = self.chance
        kinds = chance.sample(PARTS, chance.randint(3, len(PARTS)))
        pieces: list[Chunk] = []
        resizing = chance.random() < 0.3
        for _ in range(chance.randint(3, 60)):
            if resizing and chance.random() < 0.06:
                pieces.append(self.size())
            else:
                pieces.append(chance.choice(kinds)(self).encode("utf-8", "surrogatepass"))
        return joined(pieces)

    def size(self) -> Size:
        chance = self.chance
        if chance.random() < 0.5:
            self.columns = max(2, self.columns + chance.choice((-20, -5, -1, 1, 5, 20)))
        if chance.random() < 0.6:
            self.rows = max(1, self.rows + chance.choice((-10, -2, -1, 1, 2, 10)))
        return (self.columns, self.rows)

    def number(self) -> str:
        """A parameter: nothing, small, about the screen's size, or absurd."""
        chance = self.chance
        kind = chance.random()
        if kind < 0.15:
            return ""
        if kind < 0.7:
            return str(chance.randint(0, 5))
        if kind < 0.95:
            return str(chance.randint(0, max(self.columns, self.rows) + 2))
        return chance.choice(("999", "65536", "2147483648", "99999999999999999999", "1:2", "0001"))

    # What a mix is made of

    def words(self) -> str:
        return " ".join(self.chance.choices(WORDS, k=self.chance.randint(1, 8)))

    def lines(self) -> str:
        return "".join(f"{self.words()}\r\n" for _ in range(self.chance.randint(1, 6)))

    def filler(self) -> str:
        """Up to the last column, or just past it."""
        return self.chance.choice("abcxyz") * max(1, self.columns + self.chance.randint(-2, 2))

    def unicode(self) -> str:
        kinds = (WIDE, WIDE, ZERO, ODD, CLUSTERS, ("a", " "))
        return "".join(self.chance.choice(self.chance.choice(kinds)) for _ in range(self.chance.randint(1, 12)))

    def control(self) -> str:
        return "".join(self.chance.choices(CONTROLS, k=self.chance.randint(1, 3)))

    def move(self) -> str:
        chance = self.chance
        if chance.random() < 0.4:
            return f"\x1b[{self.number()};{self.number()}{chance.choice('Hf')}"
        return f"\x1b[{self.number()}{chance.choice('ABCDEFGdae`IZ')}"

    def place(self) -> str:
        """Where things happen: the corners and edges."""
        row = self.chance.choice((1, 2, self.rows - 1, self.rows))
        column = self.chance.choice((1, 2, self.columns - 1, self.columns))
        return f"\x1b[{row};{column}H"

    def erase(self) -> str:
        chance = self.chance
        return f"\x1b[{chance.choice(('', '', '', '', '?'))}{chance.choice(('', '0', '1', '2', '3', '7'))}{chance.choice('JK')}"

    def edit(self) -> str:
        return f"\x1b[{self.number()}{self.chance.choice('@@PPXXLMSTb')}"

    def margins(self) -> str:
        top = self.chance.randint(0, self.rows)
        bottom = self.chance.randint(0, self.rows + 1)
        return self.chance.choice((f"\x1b[{top};{bottom}r", f"\x1b[{min(top, bottom)};{max(top, bottom)}r", "\x1b[r"))

    def sgr(self) -> str:
        chance = self.chance
        values = [
            chance.choice(COLONS) if chance.random() < 0.15 else str(chance.choice(SGR))
            for _ in range(chance.randint(1, 4))
        ]
        if chance.random() < 0.2:
            values.append(chance.choice(("38;5;", "48;5;")) + str(chance.randint(0, 260)))
        if chance.random() < 0.2:
            values.append(chance.choice(("38;2;", "48;2;")) + ";".join(str(chance.randint(0, 255)) for _ in range(3)))
        return f"\x1b[{';'.join(values)}m"

    def mode(self) -> str:
        chance = self.chance
        if chance.random() < 0.2:
            return f"\x1b[{chance.choice((2, 4, 4, 12, 20))}{chance.choice('hhl')}"
        modes = COMMON_MODES if chance.random() < 0.6 else PRIVATE_MODES
        return f"\x1b[?{';'.join(str(chance.choice(modes)) for _ in range(chance.choice((1, 1, 1, 2))))}{chance.choice('hhl')}"

    def escape(self) -> str:
        return "\x1b" + self.chance.choice(ESCAPES)

    def string(self) -> str:
        return self.chance.choice(STRINGS).format(self.chance.randint(0, 20))

    def query(self) -> str:
        return f"\x1b[{self.chance.choice(QUERIES)}"

    def rare(self) -> str:
        """Sequences that few know: any prefix, parameters, intermediates and final byte."""
        chance = self.chance
        prefix = chance.choice(("", "", "", "?", ">", "<", "="))
        parameters = ";".join(self.number() for _ in range(chance.randint(0, 4)))
        between = chance.choice(("", "", "", " ", "!", "$", '"', "'", "*"))
        return f"\x1b[{prefix}{parameters}{between}{chr(chance.randint(0x40, 0x7E))}"

    def reset(self) -> str:
        return self.chance.choice(
            ("\x1b[!p", "\x1b[m", "\x1b[m", "\x1b[m", "\x1b[r\x1b[?6l", "\x1b[?7h", "\x1b[4l", "\x1b(B\x0f")
        )

    def tab_stop(self) -> str:
        return self.chance.choice(("\x1bH", "\x1b[g", "\x1b[3g", "\x1b[0g", "\t", "\x1b[Z", "\x1b[2I"))


# xterm.js does as it is told two billion times, for minutes: longer numbers are for the fuzzer, which it has no part in.  Controls
# and bytes that are no UTF-8 do not end a number.
LONG_NUMBER = re.compile(rb"(?:\d[\x00-\x17\x19\x1c-\x1f\x7f-\xff]*){5,}")

Part = Callable[[Mixer], str]
PARTS: Sequence[Part] = (
    Mixer.words, Mixer.words, Mixer.lines, Mixer.lines, Mixer.filler, Mixer.filler, Mixer.unicode, Mixer.unicode, Mixer.control,
    Mixer.control, Mixer.move, Mixer.move, Mixer.place, Mixer.erase, Mixer.edit, Mixer.edit, Mixer.margins, Mixer.sgr, Mixer.sgr,
    Mixer.mode, Mixer.escape, Mixer.string, Mixer.query, Mixer.rare, Mixer.reset, Mixer.tab_stop,
)  # fmt: skip


def mix(seed: int) -> Stream:
    """The mix of a seed."""
    chance = random.Random(f"mix {seed}")
    mixer = Mixer(chance)
    columns, rows = mixer.columns, mixer.rows
    chunks = mixer.chunks()
    if seed % 4 == 3:
        chunks = mutated(chunks, chance)
    chunks = tuple(LONG_NUMBER.sub(b"9999", chunk) if isinstance(chunk, bytes) else chunk for chunk in chunks)
    if chance.random() < 0.3:
        chunks = _torn(chunks, chance)
    return Stream(f"mix-{seed}", columns, rows, chunks, scrollback=chance.choice((0, 5, 30, 1000)))


def mixes(count: int, first: int = 0) -> list[Stream]:
    return [mix(seed) for seed in range(first, first + count)]


def mutated(chunks: Sequence[Chunk], chance: random.Random) -> tuple[Chunk, ...]:
    return tuple(_mutate(chunk, chance) if isinstance(chunk, bytes) else chunk for chunk in chunks)


def _mutate(data: bytes, chance: random.Random) -> bytes:
    work = bytearray(data)
    for _ in range(max(1, len(work) // chance.choice((10, 30, 100)))):
        if not work:
            break
        at = chance.randrange(len(work))
        match chance.randrange(6):
            case 0:
                work[at] ^= 1 << chance.randrange(8)
            case 1:
                del work[at : at + chance.randint(1, 4)]
            case 2:
                work[at:at] = work[at : at + chance.randint(1, 20)]
            case 3:
                work[at] = chance.randrange(256)
            case 4:
                work[at:at] = chance.choice(
                    (b"\x1b", b"\x18", b"\x9b", b"\xc2\x9b", b"\x1b[", b"\xff", b";", b"\x1b\\")
                )
            case 5:
                other = chance.randrange(len(work))
                work[at], work[other] = work[other], work[at]
    return bytes(work)


def _torn(chunks: Sequence[Chunk], chance: random.Random) -> tuple[Chunk, ...]:
    """Cut into small writes, in the middle of whatever it is."""
    pieces: list[Chunk] = []
    for chunk in chunks:
        if isinstance(chunk, bytes):
            at = 0
            while at < len(chunk):
                length = chance.choice((1, 2, 3, 7, 50))
                pieces.append(chunk[at : at + length])
                at += length
        else:
            pieces.append(chunk)
    return tuple(pieces)
