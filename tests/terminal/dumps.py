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
    fault: str | None


def positions(stream: Stream, places: int) -> list[int]:
    """Byte positions, the same in each run: at random, so that most are inside of something, and the end."""
    chance = random.Random(f"dump {stream.name}")
    return sorted({*(chance.randrange(stream.size + 1) for _ in range(places - 1)), stream.size})


def check(stream: Stream, places: int, xterm: Xterm) -> list[Checked]:
    results: list[Checked] = []
    dumped: list[tuple[int, Terminal, Stream]] = []
    for position in positions(stream, places):
        part = stream.cut(position)
        terminal = terminal_after(part)
        state = terminal.state()
        dumped.append(
            (
                position,
                terminal,
                Stream(part.name, state["columns"], state["rows"], (terminal.dump(),), part.scrollback),
            )
        )
    replayed = xterm.render([stream for _, _, stream in dumped])
    for (position, terminal, dump), theirs in zip(dumped, replayed, strict=True):
        fault = None
        again = terminal_after(dump)
        if again.key() != terminal.key():
            found = first_difference(again.state(), terminal.state())
            fault = f"replayed in ours: {found or 'key() differs'}"
        elif theirs["answers"]:
            fault = f"xterm.js answered to the dump: {theirs['answers']}"
        else:
            found = first_difference(_expressible(terminal.state()), _expressible(theirs))
            if found:
                fault = f"replayed in xterm.js, {found[0]}: ours {found[1]}, theirs {found[2]}"
        results.append(Checked(position, fault))
    return results


def _expressible(state: State) -> State:
    """Without what no sequence can tell xterm.js: that the oldest row of a buffer continues one that is gone."""
    changed = dict(state)
    primary = "main" if state["alternate"] else "screen"
    for name in ("screen", "main", "scrollback"):
        rows = changed[name]
        if rows and (name != primary or not state["scrollback"]):
            changed[name] = [{**rows[0], "wrapped": False}, *rows[1:]]
    return changed
