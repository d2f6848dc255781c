"""What a terminal would answer: taken out of replayed output, so that nobody answers a question twice.

A program's query was answered, or given up, when it was new.  A terminal that is shown the same bytes again would answer
again, and the answer would be typed into whatever runs now (``2R0;276;0c`` at a shell prompt).
"""

from __future__ import annotations

import re

# The sequences that make terminals answer: DA1-3, DSR and CPR, DECREQTPARM, DECRQM, XTVERSION, window reports, kitty keyboard,
# DECRQSS and XTGETTCAP, and OSC colour and clipboard queries.
_QUERY = re.compile(
    rb"\x1b\[[>=?]?[0-9;]*c"
    rb"|\x1b\[\??[0-9;]*n"
    rb"|\x1b\[[0-9]*x"
    rb"|\x1b\[\??[0-9;]*\$p"
    rb"|\x1b\[>[0-9]*q"
    rb"|\x1b\[(?:1[13-9]|2[01])(?:;[0-9]+)?t"
    rb"|\x1b\[\?u"
    rb"|\x1bP[$+]q[^\x1b]*\x1b\\"
    rb"|\x1b\](?:4;[0-9]+|1[0-9]|52;[a-z]?);\?(?:\x07|\x1b\\)"
    rb"|\x1bZ|\x05"
)
# A sequence that is not finished at the end of the data.
_OPEN = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[P\]][^\x07\x1b]*\x1b?)?\Z")
LONGEST = 256  # bytes; a query is short, so a longer unfinished sequence is none


class QueryFilter:
    """Feed replayed bytes; what comes out asks nothing.  Unfinished sequences wait for their end."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        data = self._held + data
        self._held = b""
        match = _OPEN.search(data, max(0, len(data) - LONGEST))
        if match is not None:
            data, self._held = data[: match.start()], data[match.start() :]
        return _QUERY.sub(b"", data)

    def finish(self) -> bytes:
        """What is still held; the replay is over."""
        held, self._held = self._held, b""
        return held
