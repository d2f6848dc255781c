"""Character sets for G0 to G3: DEC line drawing and the national replacements of the VT220.

They replace ASCII only, in UTF-8 mode too (ncurses draws boxes with them).  None is US-ASCII.
"""

# ruff: noqa: RUF001  (accents are what the sets consist of)

from __future__ import annotations

Charset = dict[int, str]


def _replacing(where: str, by: str) -> Charset:
    return dict(zip(map(ord, where), by, strict=True))


_LINE_DRAWING = _replacing("`abcdefghijklmnopqrstuvwxyz{|}~", "◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")
_FINNISH = _replacing("[\\]^`{|}~", "ÄÖÅÜéäöåü")
_NORWEGIAN = _replacing("@[\\]^`{|}~", "ÄÆØÅÜäæøåü")
_SWEDISH = _replacing("@[\\]^`{|}~", "ÉÄÖÅÜéäöåü")

CHARSETS: dict[str, Charset | None] = {
    "0": _LINE_DRAWING,
    "A": _replacing("#", "£"),
    "B": None,
    "4": _replacing("#@[\\]{|}~", "£¾i½|¨f¼´"),  # Dutch; its ij is two characters, of which xterm.js has the first
    "C": _FINNISH,
    "5": _FINNISH,
    "R": _replacing("#@[\\]{|}~", "£à°ç§éùè¨"),
    "Q": _replacing("@[\\]^`{|}~", "àâçêîôéùèû"),
    "K": _replacing("@[\\]{|}~", "§ÄÖÜäöüß"),
    "Y": _replacing("#@[\\]`{|}~", "£§°çéùàòèì"),
    "E": _NORWEGIAN,
    "6": _NORWEGIAN,
    "Z": _replacing("#@[\\]{|}", "£§¡Ñ¿°ñç"),
    "H": _SWEDISH,
    "7": _SWEDISH,
    "=": _replacing("#@[\\]^_`{|}~", "ùàéçêîèôäöüû"),
}
