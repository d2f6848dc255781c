"""What a terminal would answer: taken out of replayed output, so that nobody answers a question twice.

A program's query was answered, or given up, when it was new.  A terminal that is shown the same bytes again would answer
again, and the answer would be typed into whatever runs now (``2R0;276;0c`` at a shell prompt).
"""

from __future__ import annotations

import re

# The sequences that make terminals answer.
_QUERY = re.compile(
    rb"\x1b\[[>=?]?[0-9;]*c"  # DA1, DA2, DA3
    rb"|\x1b\[\??[0-9;]*n"  # DSR, CPR, DECDSR
    rb"|\x1b\[[0-9]*x"  # DECREQTPARM
    rb"|\x1b\[\??[0-9;]*\$p"  # DECRQM
    rb"|\x1b\[[0-9]*\$w"  # DECRQPSR
    rb"|\x1b\[[0-9;]*\*y"  # DECRQCRA
    rb"|\x1b\[>[0-9]*q"  # XTVERSION
    rb"|\x1b\[\?[0-9;]*[Sm]"  # XTSMGRAPHICS, XTQMODKEYS
    rb"|\x1b\[(?:1[13-9]|2[01])(?:;[0-9]+)?t"  # window reports
    rb"|\x1b\[\?u"  # kitty keyboard
    rb"|\x1bP[$+]q[^\x1b]*\x1b\\"  # DECRQSS, XTGETTCAP
    rb"|\x1b_G[^\x1b;]*a=q[^\x1b]*\x1b\\"  # kitty graphics
    rb"|\x1b\](?:[45](?:;[0-9]+;\?)+|1[0-9](?:;\?)+|52;[a-z0-9]*;\?)(?:\x07|\x1b\\)"  # colours, clipboard
    rb"|\x1bZ|\x05"  # DECID, ENQ
)
# Stands where a query was: does nothing, and breaks off an unfinished sequence before it as the query did, so that what comes
# behind cannot complete that to another query.
_NOTHING = b"\x1b\\"
# A sequence that is not finished at the end of the data.
_OPEN = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[P\]_][^\x07\x1b]*\x1b?)?\Z")
LONGEST = 256  # bytes; a query is short, so a longer unfinished sequence is none


def end_of_last(data: bytes) -> int:
    """Where the last query in `data` ends; 0 if there is none."""
    return max((match.end() for match in _QUERY.finditer(data)), default=0) if b"\x1b" in data else 0


def _instead(query: re.Match[bytes]) -> bytes:
    return b"" if query[0] == b"\x05" else _NOTHING


class QueryFilter:
    """Feed replayed bytes; what comes out asks nothing.  Unfinished sequences wait for their end."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        data = self._held + data
        while (rest := _QUERY.sub(_instead, data)) != data:  # again, because ENQ may be in the middle of another
            data = rest
        match = _OPEN.search(data, max(0, len(data) - LONGEST))
        self._held = b"" if match is None else match.group()
        return data[: len(data) - len(self._held)]

    def finish(self) -> bytes:
        """What is still held; the replay is over."""
        held, self._held = self._held, b""
        return held
