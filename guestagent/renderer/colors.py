"""The palette: xterm's 256 colours and what OSC 4, 10, 11 and 12 made of them."""

from __future__ import annotations

import re

FOREGROUND, BACKGROUND, CURSOR = 256, 257, 258
_BASIC = (
    0x000000, 0xCD0000, 0x00CD00, 0xCDCD00, 0x0000EE, 0xCD00CD, 0x00CDCD, 0xE5E5E5,
    0x7F7F7F, 0xFF0000, 0x00FF00, 0xFFFF00, 0x5C5CFF, 0xFF00FF, 0x00FFFF, 0xFFFFFF,
)  # fmt: skip
_LEVELS = (0, 95, 135, 175, 215, 255)
_RGB = re.compile(r"rgb:([0-9a-f]{1,4})/([0-9a-f]{1,4})/([0-9a-f]{1,4})\Z", re.IGNORECASE)
_HASH = re.compile(r"#((?:[0-9a-f]{3}){1,4})\Z", re.IGNORECASE)


def default(index: int) -> int:
    """A colour nobody set, as 0xRRGGBB.  Programs that ask for the background want to know: it is dark."""
    if index < 16:
        return _BASIC[index]
    if index < 232:
        index -= 16
        return _LEVELS[index // 36] << 16 | _LEVELS[index // 6 % 6] << 8 | _LEVELS[index % 6]
    if index < 256:
        return (8 + 10 * (index - 232)) * 0x010101
    return 0x000000 if index == BACKGROUND else 0xE5E5E5


def parse(spec: str) -> int | None:
    """``rgb:r/g/b`` or ``#rgb`` with one to four digits a colour, as 0xRRGGBB."""
    if match := _RGB.match(spec):
        parts: list[str] = list(match.groups())
        values = [int(part, 16) * 255 // ((1 << 4 * len(part)) - 1) for part in parts]
    elif match := _HASH.match(spec):
        digits = match[1]
        size = len(digits) // 3
        values = [int(digits[at : at + size].ljust(2, "0")[:2], 16) for at in range(0, len(digits), size)]
    else:
        return None
    return values[0] << 16 | values[1] << 8 | values[2]


def spec(color: int) -> str:
    red, green, blue = color >> 16, color >> 8 & 255, color & 255
    return f"rgb:{red:02x}{red:02x}/{green:02x}{green:02x}/{blue:02x}{blue:02x}"
