"""SGR: parameters to attributes, and attributes to parameters."""

from __future__ import annotations

from guestagent.renderer.cells import (
    BLANK,
    BLINK,
    BOLD,
    DIM,
    INVERSE,
    INVISIBLE,
    ITALIC,
    OVERLINE,
    RGB,
    STRIKE,
    UNDERLINE,
    Attr,
)
from guestagent.renderer.parser import MAX_PARAM, MAX_PARAMS

_SET = {1: BOLD, 2: DIM, 3: ITALIC, 5: BLINK, 7: INVERSE, 8: INVISIBLE, 9: STRIKE, 53: OVERLINE}
_CLEAR = {22: BOLD | DIM, 23: ITALIC, 25: BLINK, 27: INVERSE, 28: INVISIBLE, 29: STRIKE, 55: OVERLINE}
_CACHED = 8192  # pairs of attributes and parameters that are remembered

_cache: dict[tuple[Attr, bytes], Attr] = {}


def applied(pen: Attr, params: bytes) -> Attr:
    """The pen after ``CSI params m``."""
    found = _cache.get((pen, params))
    if found is None:
        found = _apply(pen, params)
        if len(_cache) >= _CACHED:
            _cache.clear()
        if len(params) <= 64:
            _cache[pen, params] = found
    return found


def _number(text: bytes, missing: int) -> int:
    return min(int(text.lstrip(b"0")[:11] or b"0"), MAX_PARAM) if text else missing


def _apply(pen: Attr, params: bytes) -> Attr:
    if len(params) > 4096:  # nothing that means anything
        return pen
    parts = params.split(b";")[:MAX_PARAMS]
    values: list[list[int]] = []
    room = MAX_PARAMS  # sub-parameters of a whole sequence
    for part in parts:
        head, *tail = part.split(b":")
        tail = tail[:room]
        room -= len(tail)
        values.append([_number(head, 0), *(_number(sub, -1) for sub in tail)])
    fg, bg, flags, style, color, link = pen
    index = 0
    while index < len(values):
        code, *subs = values[index]
        if code == 0:
            fg, bg, flags, style, color = -1, -1, 0, 0, -1
        elif code in _SET:
            flags |= _SET[code]
        elif code in _CLEAR:
            flags &= ~_CLEAR[code]
        elif code in (4, 21, 24):
            style = (subs[0] if subs else 1) if code == 4 else 2 if code == 21 else 0
            if not 0 <= style <= 5:
                style = 1
            flags = flags | UNDERLINE if style else flags & ~UNDERLINE
        elif 30 <= code <= 37:
            fg = code - 30
        elif 40 <= code <= 47:
            bg = code - 40
        elif 90 <= code <= 97:
            fg = code - 82
        elif 100 <= code <= 107:
            bg = code - 92
        elif code == 39:
            fg = -1
        elif code == 49:
            bg = -1
        elif code == 59:
            color = -1
        elif code in (38, 48, 58):
            skip, chosen = _color(values, index)
            index += skip
            if chosen is not None:
                if code == 38:
                    fg = chosen
                elif code == 48:
                    bg = chosen
                else:
                    color = chosen
        index += 1
    return Attr(fg, bg, flags, style, color, link)


def _color(values: list[list[int]], index: int) -> tuple[int, int | None]:
    """Parameters used behind the first one, and the colour; colons, semicolons and mixtures as xterm.js reads them."""
    found = [0, 0, -1, 0, 0, 0]  # target, kind, colour space, then the values
    used, shift = 0, 0
    while True:
        head, *subs = values[index + used]
        found[used + shift] = head
        if subs:
            for place, sub in enumerate(subs):
                if found[1] == 5:
                    shift = 1
                if used + place + 1 + shift >= len(found):
                    break
                found[used + place + 1 + shift] = sub
            break
        if (found[1] == 5 and used + shift >= 2) or (found[1] == 2 and used + shift >= 5):
            break
        if found[1]:
            shift = 1
        used += 1
        if index + used >= len(values) or used + shift >= len(found):
            break
    kind, first, second, third = found[1], *(0 if value == -1 else value & 255 for value in found[3:])
    if kind == 2:
        return used, RGB | first << 16 | second << 8 | third
    if kind == 5:
        return used, first
    return used, None


def _color_code(color: int, base: int) -> str:
    if color >= RGB:
        return f"{base + 8};2;{color >> 16 & 255};{color >> 8 & 255};{color & 255}"
    if color >= 16:
        return f"{base + 8};5;{color}"
    return f"{base + color}" if color < 8 else f"{base + 52 + color}"


def parameters(attr: Attr) -> str:
    """SGR parameters that make the pen look like this, whatever it was."""
    found = ["0"]
    for code, flag in _SET.items():
        if attr.flags & flag:
            found.append(str(code))
    if attr.flags & UNDERLINE:
        found.append("4" if attr.underline <= 1 else f"4:{attr.underline}")
    if attr.fg >= 0:
        found.append(_color_code(attr.fg, 30))
    if attr.bg >= 0:
        found.append(_color_code(attr.bg, 40))
    if attr.underline_color >= RGB:
        color = attr.underline_color
        found.append(f"58:2::{color >> 16 & 255}:{color >> 8 & 255}:{color & 255}")
    elif attr.underline_color >= 0:
        found.append(f"58:5:{attr.underline_color}")
    return ";".join(found)


def sequence(attr: Attr) -> str:
    return "\x1b[m" if attr._replace(link="", flags=attr.flags & 0x1FF) == BLANK else f"\x1b[{parameters(attr)}m"
