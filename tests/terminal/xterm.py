"""xterm.js without a screen, the terminal that ours is compared with: its state after a stream, in the normal form.

The normal form is plain data, equal for equal terminals::

    {"columns", "rows", "cursor": {"x", "y", "pending_wrap", "visible"}, "alternate": bool, "screen": [row, ...],
     "main": [row, ...] or None, "scrollback": [row, ...], "modes": {...}, "title"}

`main` is the saved primary screen while the alternate one is shown, and `scrollback` is always the primary's.  A row is
`{"wrapped": bool, "cells": [[text, width, foreground, background, flags], ...]}` without its trailing default blanks.  The text of
a blank is a space, and the second half of a wide character is `["", 0, ...]`.  Colours are -1 for the default, 0 to 255 of the
palette, or `RGB | 0xRRGGBB`.  At a pending wrap the cursor is in the last column.
"""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.terminal.stream import Chunk, Stream, joined

FOLDER = Path(__file__).parent / "xterm"
PROGRAM = FOLDER / "xterm.mjs"

RGB = 0x1000000
BOLD, DIM, ITALIC, UNDERLINE, BLINK, INVERSE, INVISIBLE, STRIKE, OVERLINE = (1 << bit for bit in range(9))

State = dict[str, Any]


class XtermError(Exception):
    """xterm.js itself raised, or the program around it ended."""


class Xterm:
    """A process that renders streams; a context manager.

    States come with the answers that xterm gave to queries, as `"answers"`: a list of bytes.
    """

    def __init__(self) -> None:
        if not (FOLDER / "node_modules").is_dir():
            raise XtermError(f"cannot run xterm.js: no node_modules in {FOLDER} (`make xterm` installs them)")
        self._process = subprocess.Popen(
            ["node", str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=FOLDER
        )

    def __enter__(self) -> Xterm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def render(self, streams: Iterable[Stream]) -> list[State]:
        """The state after each stream; :exc:`XtermError` if xterm.js raises at one."""
        wanted = list(streams)
        states = list(self.states(wanted))
        for stream, state in zip(wanted, states, strict=True):
            if "error" in state:
                raise XtermError(f"xterm.js raised at {stream.name}: {state['error']}")
        return states

    def states(self, streams: Iterable[Stream]) -> Iterator[State]:
        """The same, in order, while later ones are still being rendered; must be iterated to its end.

        Where xterm.js raises, the state is `{"error": text}`.
        """
        assert self._process.stdout is not None
        wanted = list(streams)
        writer = threading.Thread(target=self._write, args=(wanted,), daemon=True)
        writer.start()
        for stream in wanted:
            line = self._process.stdout.readline()
            if not line:
                raise XtermError(f"node ended with status {self._process.wait()} at {stream.name}")
            state = json.loads(line)
            if "error" not in state:
                state["answers"] = [base64.b64decode(answer) for answer in state["answers"]]
            yield state
        writer.join()

    def _write(self, streams: list[Stream]) -> None:
        """In a thread of its own, since neither pipe holds a whole batch."""
        assert self._process.stdin is not None
        try:
            for stream in streams:
                self._process.stdin.write(json.dumps(_job(stream)).encode() + b"\n")
                self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # node ended, or we were closed: the reader says so


def _job(stream: Stream) -> dict[str, Any]:
    return {
        "columns": stream.columns,
        "rows": stream.rows,
        "scrollback": stream.scrollback,
        # Its decoder loses characters that are cut over two writes, so it gets all output up to a resize at once.
        "chunks": [_chunk(chunk) for chunk in joined(stream.chunks)],
    }


def _chunk(chunk: Chunk) -> dict[str, Any]:
    if isinstance(chunk, bytes):
        return {"data": base64.b64encode(chunk).decode()}
    return {"resize": list(chunk)}
