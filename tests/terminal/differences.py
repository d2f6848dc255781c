"""The list of what differs from xterm.js, and why: corpus/DIFFERENCES.md.

Reasons are its second-level headings; a row of its table names a stream and the reason.
"""

from __future__ import annotations

import re

from tests.terminal.corpus import FOLDER

PATH = FOLDER / "DIFFERENCES.md"
ROW = re.compile(r"^\| ([a-z0-9-]+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def listed() -> dict[str, str]:
    """Name of a stream -> reason."""
    return dict(ROW.findall(PATH.read_text()))


def reasons() -> list[str]:
    return [heading for heading in HEADING.findall(PATH.read_text()) if heading != "Streams"]
