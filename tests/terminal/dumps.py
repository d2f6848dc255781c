"""`dump()`, judged by xterm.js and by our own model: what it rebuilds equals what was dumped, at any byte of a stream."""

from __future__ import annotations

import random
from typing import NamedTuple

from guestagent.renderer.terminal import Terminal
from tests.terminal.equality import first_difference, terminal_after
from tests.terminal.stream import Stream
from tests.terminal.xterm import State, Xterm


class Checked(NamedTuple):
    position: int  # bytes of output before the dump
    in_ours: str | None  # what is wrong when our own model replays it
    in_xterm: str | None

    @property
    def fault(self) -> str | None:
        return self.in_ours or self.in_xterm


def positions(stream: Stream, places: int) -> list[int]:
    """Byte positions, the same in each run: at random, so that most are inside of something, and the end."""
    chance = random.Random(f"dump {stream.name}")
    return sorted({*(chance.randrange(stream.size + 1) for _ in range(places - 1)), stream.size})


def check(stream: Stream, places: int, xterm: Xterm) -> list[Checked]:
    parts = [(position, stream.cut(position)) for position in positions(stream, places)]
    terminals = [terminal_after(part) for _, part in parts]
    replays = [
        Stream(part.name, state["columns"], state["rows"], (terminal.dump(),), part.scrollback)
        for terminal, (_, part) in zip(terminals, parts, strict=True)
        for state in [terminal.state()]
    ]
    return [
        Checked(position, _in_ours(terminal, replay), _in_xterm(terminal, theirs))
        for (position, _), terminal, replay, theirs in zip(
            parts, terminals, replays, xterm.render(replays), strict=True
        )
    ]


def _in_ours(terminal: Terminal, replay: Stream) -> str | None:
    again = terminal_after(replay)
    if again.key() == terminal.key():
        return None
    if terminal.lines == 1 and not first_difference(_unwrapped(again.state()), _unwrapped(terminal.state())):
        return None  # which rows go on the one above cannot be said there; see dump.py
    return f"replayed in ours: {first_difference(again.state(), terminal.state()) or 'key() differs'}"


def _in_xterm(terminal: Terminal, theirs: State) -> str | None:
    if theirs["answers"]:
        return f"xterm.js answered to the dump: {theirs['answers']}"
    told = _unwrapped if terminal.lines == 1 else _expressible  # see _in_ours
    found = first_difference(told(terminal.state()), told(theirs))
    return found and f"replayed in xterm.js, {found[0]}: ours {found[1]}, theirs {found[2]}"


def _unwrapped(state: State) -> State:
    changed = dict(state)
    for name in ("screen", "main", "scrollback"):
        changed[name] = changed[name] and [{**row, "wrapped": False} for row in changed[name]]
    return changed


def _expressible(state: State) -> State:
    """Without what no sequence can tell: that the oldest row of a buffer continues one that is gone, and what continues
    what on a screen of one row, where nothing wraps into another row."""
    changed = dict(state)
    if state["rows"] == 1:
        for name in ("screen", "main", "scrollback"):
            changed[name] = state[name] and [{**row, "wrapped": False} for row in state[name]]
        return changed
    primary = "main" if state["alternate"] else "screen"
    for name in ("screen", "main", "scrollback"):
        rows = changed[name]
        if rows and (name != primary or not state["scrollback"]):
            changed[name] = [{**rows[0], "wrapped": False}, *rows[1:]]
    return changed
