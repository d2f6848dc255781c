"""The list of what differs from xterm.js, and why: corpus/DIFFERENCES.md.

Reasons are its second-level headings; a row of its table names a stream, the field that differs, and the reason.
"""

from __future__ import annotations

import re

from tests.terminal.corpus import FOLDER

PATH = FOLDER / "DIFFERENCES.md"
ROW = re.compile(r"^\| ([a-z0-9-]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
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
