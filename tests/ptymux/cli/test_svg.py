"""svg.py: what a picture of a screen has in it."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from guestagent.renderer.terminal import Terminal
from ptymux.cli import svg

NS = "{http://www.w3.org/2000/svg}"


def screen(data: bytes, columns: int = 20, rows: int = 4, count: int = 0) -> dict[str, Any]:
    terminal = Terminal(columns, rows)
    terminal.feed(data)
    return terminal.screen_data(max(0, len(terminal.main.history) - count), count)


def drawn(shown: dict[str, Any]) -> ElementTree.Element:
    """The picture, parsed: it is well-formed."""
    return ElementTree.fromstring(svg.picture(shown))


def texts(picture: ElementTree.Element) -> dict[str, ElementTree.Element]:
    return {"".join(item.itertext()): item for item in picture.iter(f"{NS}text")}


def column(item: ElementTree.Element) -> float:
    return float(item.attrib["x"]) / svg.CELL_WIDTH


def test_colours_are_the_cells() -> None:
    found = texts(drawn(screen(b"plain \x1b[31mred\x1b[38;5;208mpalette\x1b[38;2;1;2;3mtrue\x1b[0m")))
    fills = {text.strip(): item.attrib["fill"] for text, item in found.items()}
    assert fills == {"plain": "#e5e5e5", "red": "#cd0000", "palette": "#ff8700", "true": "#010203"}


def test_backgrounds_inverse_and_a_changed_palette() -> None:
    picture = drawn(screen(b"\x1b]4;1;#123456\x07\x1b]11;#000080\x07\x1b[41mone\x1b[0;7mtwo\x1b[0m"))
    fills = [item.attrib["fill"] for item in picture.iter(f"{NS}rect")]
    assert fills[0] == "#000080"
    assert "#123456" in fills
    assert texts(picture)["two"].attrib["fill"] == "#000080"


def test_wide_characters_keep_the_columns() -> None:
    found = texts(drawn(screen("世界|\x1b[1mbold\x1b[0m é|".encode())))
    bold = found["bold"]
    assert column(bold) == pytest.approx(5)
    assert bold.attrib["font-weight"] == "bold"
    assert float(bold.attrib["textLength"]) == pytest.approx(4 * svg.CELL_WIDTH)
    wide = next(item for text, item in found.items() if text.startswith("世"))
    assert column(wide) == 0


@pytest.mark.parametrize(
    ("shape", "width", "height"),
    [(b"2", svg.CELL_WIDTH, svg.CELL_HEIGHT), (b"6", 2, svg.CELL_HEIGHT), (b"4", svg.CELL_WIDTH, 2)],
)
def test_the_cursor(shape: bytes, width: float, height: float) -> None:
    cursor = list(drawn(screen(b"\x1b[%s q\x1b[3;7H" % shape)).iter(f"{NS}rect"))[-1]
    assert float(cursor.attrib["x"]) == pytest.approx(6 * svg.CELL_WIDTH)
    assert 2 * svg.CELL_HEIGHT <= float(cursor.attrib["y"]) < 3 * svg.CELL_HEIGHT
    assert (float(cursor.attrib["width"]), float(cursor.attrib["height"])) == (
        pytest.approx(width),
        pytest.approx(height),
    )


def test_a_hidden_cursor_and_one_behind_the_last_column() -> None:
    assert len(list(drawn(screen(b"\x1b[?25l")).iter(f"{NS}rect"))) == 1
    cursor = list(drawn(screen(b"x" * 20)).iter(f"{NS}rect"))[-1]
    assert float(cursor.attrib["x"]) + svg.CELL_WIDTH <= 20 * svg.CELL_WIDTH + 0.01


def test_scrollback_is_above() -> None:
    shown = screen(b"".join(b"line %d\r\n" % n for n in range(10)), count=3)
    picture = drawn(shown)
    rows = [text.strip() for text in texts(picture)]
    assert rows == [f"line {n}" for n in range(4, 10)]
    assert float(picture.attrib["height"]) == 7 * svg.CELL_HEIGHT + 2 * svg.MARGIN


def test_nothing_that_a_program_writes_gets_out_of_its_text() -> None:
    """Markup, control characters in titles, scripts in links: harmless, and well-formed all the same."""
    data = b'<b>&amp;</b>"\'\x1b]2;<script>\x07\x1b]8;;javascript:alert(1)\x07bad\x1b]8;;http://a/?b="&c\x07good\x1b]8;;\x07'
    picture = drawn(screen(data, columns=60))
    assert "<b>&amp;</b>\"'" in texts(picture)
    assert [link.attrib["href"] for link in picture.iter(f"{NS}a")] == ['http://a/?b="&c']
    shown = screen(b"x")
    shown["title"] = "".join(map(chr, range(32))) + "\ud800\uffff"
    shown["cells"][0] = [["\x00\x1b\x08\ufffe", 4, 0]]
    drawn(shown)
