"""Checked access to the parameters of a request: what is wrong becomes one RequestFailed that names it."""

from __future__ import annotations

import signal
from typing import Any, TypeVar

from ptymux import limits
from ptymux.errors import RequestFailed

T = TypeVar("T")


class Params:
    """Checked access to a request's parameters."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def get(self, name: str, kind: type[T], default: T) -> T:
        value = self._values.get(name)
        if value is None:
            return default
        if type(value) is not kind:
            raise bad(f"{name} must be {kind.__name__}")
        return value

    def need(self, name: str, kind: type[T]) -> T:
        value = self._values.get(name)
        if type(value) is not kind:
            raise bad(f"{name} must be {kind.__name__}")
        return value

    def text(self, name: str, most: int) -> str | None:
        value = self.get(name, str, "") or None
        if value is not None and len(value) > most:
            raise limit(f"{name} has more than {most} characters", f"max_{name}", most)
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = self.get(name, str, default)
        if value not in choices:
            raise bad(f"{name} must be one of {', '.join(choices)}")
        return value

    def between(self, name: str, least: int, most: int, default: int) -> int:
        value = self.get(name, int, default)
        if not least <= value <= most:
            raise bad(f"{name} must be from {least} to {most}")
        return value

    def size(self, name: str) -> tuple[int, int] | None:
        value = self.get(name, list, [])
        if not value:
            return None
        if len(value) != 2:
            raise bad(f"{name} must be [columns, rows]")
        return check_size(*value)

    def raw(self, name: str) -> Any:
        return self._values.get(name)


def bad(message: str) -> RequestFailed:
    return RequestFailed("bad_params", message)


def limit(message: str, name: str, value: float) -> RequestFailed:
    return RequestFailed("limit", f"{message} ({name})", {"limit": name, "value": value})


def check_size(columns: Any, rows: Any) -> tuple[int, int]:
    if type(columns) is not int or not limits.MIN_COLUMNS <= columns <= limits.MAX_COLUMNS:
        raise bad(f"columns must be from {limits.MIN_COLUMNS} to {limits.MAX_COLUMNS}")
    if type(rows) is not int or not 1 <= rows <= limits.MAX_COLUMNS:
        raise bad(f"rows must be from 1 to {limits.MAX_COLUMNS}")
    return columns, rows


def texts(name: str, values: list[Any]) -> list[str]:
    if not all(type(value) is str and "\0" not in value for value in values):
        raise bad(f"{name} must be texts without NUL")
    return values


def signal_number(value: Any) -> int:
    """A signal by number or name, with or without SIG."""
    if type(value) is str and value.isdigit():
        value = int(value)
    try:
        if type(value) is int:
            return int(signal.Signals(value))
        if type(value) is str:
            name = value.upper()
            return int(signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])
    except (ValueError, KeyError):
        pass
    raise bad(f"signal {str(value)[:32]!r} is not known")
