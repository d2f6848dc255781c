"""SPEC.md says what the code does: its tables are compared with the ones that the code runs on."""

from __future__ import annotations

import re
from pathlib import Path

from ptymux import handshake, limits
from ptymux.errors import CODES
from ptymux.messages import AGENT, CLIENT, TABLE

SPEC = (Path(__file__).parents[2] / "protocol" / "SPEC.md").read_text()


def section(name: str) -> str:
    match = re.search(rf"<!-- {name}:begin.*?-->\n(.*?)<!-- {name}:end -->", SPEC, re.DOTALL)
    assert match, f"SPEC.md has no section {name}"
    return match.group(1)


def rows(name: str) -> list[list[str]]:
    lines = [line for line in section(name).splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_frames() -> None:
    expected = []
    for number, row in TABLE.items():
        senders = " ".join(letter for letter, side in (("c", CLIENT), ("a", AGENT)) if side in row.sender)
        fields = ", ".join(f"{name}?" if name in row.cls._field_defaults else name for name in row.cls._fields)
        expected.append([f"0x{number:02x}", row.cls.__name__, senders, fields])
    assert rows("frames") == expected


def test_handshake_diagram() -> None:
    lines = [
        f"    {before.name} --> {after.name}: {message.__name__}"
        for (before, message), after in handshake.TRANSITIONS.items()
    ]
    assert section("handshake") == "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def test_codes() -> None:
    assert rows("codes") == [[f"`{code}`", text] for code, text in CODES.items()]


def test_limits() -> None:
    assert rows("limits") == [
        [f"`{name}`", f"{value:g}" if isinstance(value, float) else str(value)]
        for name, value in limits.defaults().items()
    ]
