"""A screen as a picture for people: SVG from what the `screen` method answers.

Every run of equal cells is one <text> with a fixed length, so columns stay columns whatever font the viewer has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

CELL_WIDTH, CELL_HEIGHT, FONT_SIZE, BASELINE, MARGIN = 8.4, 18, 14, 13.5, 10
FOREGROUND, BACKGROUND, CURSOR = 0xE5E5E5, 0x101010, 0xE5E5E5
BOLD, DIM, ITALIC, UNDERLINE, BLINK, INVERSE, INVISIBLE, STRIKE, OVERLINE = (1 << bit for bit in range(9))
RGB = 1 << 24
_BASIC = (
    0x000000, 0xCD0000, 0x00CD00, 0xCDCD00, 0x3B78FF, 0xCD00CD, 0x00CDCD, 0xE5E5E5,
    0x7F7F7F, 0xFF0000, 0x00FF00, 0xFFFF00, 0x5C5CFF, 0xFF00FF, 0x00FFFF, 0xFFFFFF,
)  # fmt: skip
_LEVELS = (0, 95, 135, 175, 215, 255)

Screen = Mapping[str, Any]


def picture(screen: Screen) -> str:
    """`screen` as Session.screen() gives it, with whatever scrollback is in it above."""
    above = len(screen["scrollback"]["cells"])
    rows: Sequence[Any] = [*screen["scrollback"]["cells"], *screen["cells"]]
    width, height = screen["columns"] * CELL_WIDTH + 2 * MARGIN, len(rows) * CELL_HEIGHT + 2 * MARGIN
    colors = _Colors(screen)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}">',
        f"<title>{escape(_clean(screen['title']) or 'terminal')}</title>",
        f'<rect width="100%" height="100%" rx="6" fill="{_hex(colors.background)}"/>',
        f'<g transform="translate({MARGIN} {MARGIN})" xml:space="preserve" font-size="{FONT_SIZE}"'
        ' font-family="DejaVu Sans Mono, Menlo, Consolas, Noto Sans Mono CJK SC, monospace">',
    ]
    for y, row in enumerate(rows):
        lines.extend(_row(y, row, screen, colors))
    cursor = screen["cursor"]
    if cursor["visible"]:
        lines.append(_cursor(cursor, cursor["y"] + above, colors))
    return "\n".join([*lines, "</g>", "</svg>", ""])


class _Colors:
    def __init__(self, screen: Screen) -> None:
        self._palette: Mapping[str, int] = screen["palette"]
        self.foreground = self._palette.get("256", FOREGROUND)
        self.background = self._palette.get("257", BACKGROUND)
        self.cursor = self._palette.get("258", CURSOR)
        if screen["modes"]["reverse_video"]:
            self.foreground, self.background = self.background, self.foreground

    def of(self, color: int, default: int) -> int:
        if color < 0:
            return default
        if color >= RGB:
            return color & 0xFFFFFF
        return self._palette.get(str(color), _default(color))


def _default(index: int) -> int:
    if index < 16:
        return _BASIC[index]
    if index < 232:
        index -= 16
        return _LEVELS[index // 36] << 16 | _LEVELS[index // 6 % 6] << 8 | _LEVELS[index % 6]
    return (8 + 10 * (index - 232)) * 0x010101


def _row(y: int, row: Sequence[Any], screen: Screen, colors: _Colors) -> Iterator[str]:
    x = 0
    for text, width, index in row:
        style = screen["styles"][index]
        flags: int = style.get("flags", 0)
        fg, bg = colors.of(style.get("fg", -1), colors.foreground), colors.of(style.get("bg", -1), colors.background)
        if flags & INVERSE:
            fg, bg = bg, fg
        left, top, length = x * CELL_WIDTH, y * CELL_HEIGHT, width * CELL_WIDTH
        if bg != colors.background:
            yield f'<rect x="{left:g}" y="{top:g}" width="{length:g}" height="{CELL_HEIGHT}" fill="{_hex(bg)}"/>'
        if text.strip() and not flags & INVISIBLE:
            look = _look(style, flags, fg, colors)
            shown = escape(_clean(text))
            body = (
                f'<text x="{left:g}" y="{top + BASELINE:g}" textLength="{length:g}" lengthAdjust="spacingAndGlyphs"{look}>'
                f"{shown}</text>"
            )
            uri = style.get("link", "").partition(";")[2]
            safe = uri.startswith(("http://", "https://", "mailto:", "file:"))
            yield f"<a href={quoteattr(_clean(uri))}>{body}</a>" if safe else body
        x += width


def _look(style: Mapping[str, Any], flags: int, fg: int, colors: _Colors) -> str:
    look = f' fill="{_hex(fg)}"'
    if flags & BOLD:
        look += ' font-weight="bold"'
    if flags & ITALIC:
        look += ' font-style="italic"'
    if flags & DIM:
        look += ' opacity="0.6"'
    lines = [
        name
        for flag, name in ((UNDERLINE, "underline"), (STRIKE, "line-through"), (OVERLINE, "overline"))
        if flags & flag
    ]
    if lines:
        kinds = ("solid", "solid", "double", "wavy", "dotted", "dashed")
        color = colors.of(style.get("underline_color", -1), fg)
        look += f' style="text-decoration:{" ".join(lines)} {kinds[style.get("underline", 0)]} {_hex(color)}"'
    return look


def _cursor(cursor: Mapping[str, Any], y: int, colors: _Colors) -> str:
    left, top = cursor["x"] * CELL_WIDTH, y * CELL_HEIGHT
    width: float = CELL_WIDTH
    height: float = CELL_HEIGHT
    if cursor["shape"] == "bar":
        width = 2
    elif cursor["shape"] == "underline":
        top, height = top + CELL_HEIGHT - 2, 2
    return f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" fill="{_hex(colors.cursor)}" opacity="0.6"/>'


def _hex(color: int) -> str:
    return f"#{color:06x}"


def _clean(text: str) -> str:
    """Without what XML cannot hold."""
    return "".join(
        char
        if (char >= " " and not "\ud800" <= char <= "\udfff" and char < "\ufffe") or char >= "\U00010000"
        else "\ufffd"
        for char in text
    )
