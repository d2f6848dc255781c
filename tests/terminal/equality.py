"""Our terminal and xterm.js, fed the same streams: whether they are equal, and if not, in what."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from guestagent.renderer.terminal import Terminal
from tests.terminal.mixes import mixes
from tests.terminal.stream import Stream
from tests.terminal.xterm import State, Xterm

CHECKPOINTS = 12  # of a stream of the corpus
CELL = re.compile(r"cells\[\d+\]$")
FIELDS = ("columns", "rows", "alternate", "cursor", "modes", "screen", "main", "scrollback", "title")


class Difference(NamedTuple):
    stream: Stream  # up to where it showed
    field: str  # with a path to it: "screen[3].cells[10]"
    ours: Any
    theirs: Any

    @property
    def name(self) -> str:
        return self.stream.name

    def __str__(self) -> str:
        return f"{self.field}: ours {json.dumps(self.ours, ensure_ascii=False, default=str)}, theirs {json.dumps(self.theirs, ensure_ascii=False, default=str)}"


def terminal_after(stream: Stream) -> Terminal:
    # Prompts that reset modes are ours; xterm.js takes no notice of them.
    terminal = Terminal(stream.columns, stream.rows, scrollback=stream.scrollback, prompt_resets=False)
    for chunk in stream.chunks:
        if isinstance(chunk, bytes):
            terminal.feed(chunk)
        else:
            terminal.resize(*chunk)
    return terminal


def checkpoints(stream: Stream, most: int = CHECKPOINTS) -> list[Stream]:
    """The stream up to some of its chunks, evenly spread, and as a whole."""
    count = len(stream.chunks)
    ends = sorted({max(1, round(count * number / most)) for number in range(1, most + 1)})
    return [stream._replace(chunks=stream.chunks[:end]) for end in ends]


def compare(streams: Iterable[Stream], xterm: Xterm) -> Iterator[Difference | None]:
    """For each stream the first difference, or None."""
    wanted = list(streams)
    for stream, theirs in zip(wanted, xterm.states(wanted), strict=True):
        yield difference(stream, theirs)


def difference(stream: Stream, theirs: State) -> Difference | None:
    try:
        terminal = terminal_after(stream)
        terminal.check()
        ours = terminal.state()
    except Exception as error:
        return Difference(stream, "exception", f"{type(error).__name__}: {error}", None)
    if "error" in theirs:
        return Difference(stream, "xterm.js raised", None, theirs["error"].splitlines()[0])
    found = first_difference(ours, theirs)
    return found and Difference(stream, *found)


def first_difference(ours: State, theirs: State) -> tuple[str, Any, Any] | None:
    for name in FIELDS:
        if ours[name] != theirs[name]:
            return _descend(name, ours[name], theirs[name])
    return None


def _descend(path: str, ours: Any, theirs: Any) -> tuple[str, Any, Any]:
    """Down to the first smallest part that differs; a cell is not taken apart."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in theirs:
            if ours.get(key) != theirs[key]:
                return _descend(f"{path}.{key}", ours.get(key), theirs[key])
    if isinstance(ours, list) and isinstance(theirs, list) and not CELL.search(path):
        for index, (left, right) in enumerate(zip(ours, theirs, strict=False)):
            if left != right:
                return _descend(f"{path}[{index}]", left, right)
        return (f"{path}.length", len(ours), len(theirs))
    return (path, ours, theirs)


def corpus_differences(streams: Sequence[Stream], xterm: Xterm) -> dict[str, Difference | None]:
    """Of each stream the first difference, at any of its checkpoints."""
    parts = [part for stream in streams for part in checkpoints(stream)]
    found: dict[str, Difference | None] = dict.fromkeys((stream.name for stream in streams), None)
    for part, result in zip(parts, compare(parts, xterm), strict=True):
        if found[part.name] is None:
            found[part.name] = result
    return found


def mix_differences(count: int, xterm: Xterm, first: int = 0, batch: int = 500) -> dict[str, Difference | None]:
    found: dict[str, Difference | None] = {}
    for start in range(first, first + count, batch):
        streams = mixes(min(batch, first + count - start), start)
        found.update(zip((stream.name for stream in streams), compare(streams, xterm), strict=True))
    return found


def general(field: str) -> str:
    """Without the indices."""
    return "".join(character for character in field if not character.isdigit()).replace("[]", "")
