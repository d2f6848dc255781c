"""The list of what differs from xterm.js, and why: corpus/DIFFERENCES.md.

Reasons are its second-level headings; a row of its table names a stream, the field that differs, and the reason.
"""

from __future__ import annotations

import re

from tests.terminal.corpus import FOLDER
from tests.terminal.equality import Difference, general

PATH = FOLDER / "DIFFERENCES.md"
ROW = re.compile(r"^\| (?!stream |-)([a-z0-9-]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
DUMP = "dump()"  # in the column of fields
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def listed() -> dict[str, str]:
    """Name of a stream -> why the two differ after it."""
    return {name: reason for name, field, reason in ROW.findall(PATH.read_text()) if field != DUMP}


def listed_dumps() -> dict[str, str]:
    """Name of a stream -> why its dump does not say all to xterm.js."""
    return {name: reason for name, field, reason in ROW.findall(PATH.read_text()) if field == DUMP}


def reasons() -> list[str]:
    return [heading for heading in HEADING.findall(PATH.read_text()) if heading != "Streams"]


UNKNOWN = "?"
WIDE = re.compile(
    "[\u1100-\u115f\u231a\u231b\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff01-\uff60\U0001f000-\U0001faff]"
)


def suggested(case: Difference) -> str:
    """The reason that a shrunk case looks like; to be read before it is believed."""
    output = b"".join(chunk for chunk in case.stream.chunks if isinstance(chunk, bytes))
    resized = any(isinstance(chunk, tuple) for chunk in case.stream.chunks)
    wide = WIDE.search(output.decode(errors="replace")) is not None
    if case.field == "xterm.js raised":
        return "xterm.js raises"
    if case.field.endswith(".wrapped") and re.search(rb"\x1b\[\??1J", output):
        return "ED 1 in the last column"
    if resized and re.search(rb"\x1b\[\?[\d;]*(?:47|1047|1049)[\d;]*h", output):
        return "Columns beyond the edge of the alternate screen"
    if resized and wide:
        return "Wide characters at the edge of a narrower screen"
    if wide and re.search(rb"\x1b\[\d*[@P]", output):
        return "Halves of wide characters"
    return UNKNOWN


def table(found: list[tuple[Difference, Difference]]) -> str:
    """Rows for DIFFERENCES.md: known reasons stay, others are suggested.  `found` are pairs of a difference and its shrunk case."""
    known = listed() | listed_dumps()
    rows = [f"| {one.name} | {general(one.field)} | {known.get(one.name) or suggested(case)} |" for one, case in found]
    return "\n".join(rows) + "\n"
