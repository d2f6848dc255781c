"""Rows, targets and the table."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_COMPARE: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}
COLUMNS = ("row", "agent", "relay", "ratio", "target", "ok")


class Target(NamedTuple):
    """`text` says of what: the ratio, if it is empty."""

    comparison: str
    value: float
    text: str = ""

    def met(self, value: float) -> bool:
        return _COMPARE[self.comparison](value, self.value)

    def __str__(self) -> str:
        return f"{self.comparison} {self.value:g}{' ' if self.text else ''}{self.text}"


@dataclass
class Row:
    name: str
    agent: str = "-"
    relay: str = "-"
    ratio: float | None = None
    target: str = ""
    ok: bool | None = None  # None: nothing was to be reached
    samples: dict[str, Any] = field(default_factory=dict)  # for --json

    def judge(self, target: Target, value: float) -> Row:
        self.target = str(target)
        self.ok = target.met(value)
        return self

    def cells(self) -> tuple[str, ...]:
        ratio = "-" if self.ratio is None else f"{self.ratio:.3f}"
        verdict = {None: "", True: "yes", False: "NO"}[self.ok]
        return (self.name, self.agent, self.relay, ratio, self.target, verdict)


def failed(name: str, error: Exception) -> Row:
    """The row could not be measured, which is no success."""
    return Row(name, agent=f"{type(error).__name__}", target="(measured)", ok=False, samples={"error": str(error)})


def table(rows: list[Row]) -> str:
    lines = [COLUMNS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def progress(text: str) -> None:
    """One line to standard error: a run takes minutes, and each number that goes into a median is worth seeing."""
    print(text, file=sys.stderr, flush=True)
