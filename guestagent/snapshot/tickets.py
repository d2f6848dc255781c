"""How the last tickets ended, for those who ask again: with short answers, so that all fit one message to the next server."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack

TICKETS = "snapshot/tickets"  # store
KEPT = 32


class Ended(NamedTuple):
    """How a ticket ended."""

    outcome: str  # resumed, aborted, failed, thawed (by the watchdog), restored
    answer: dict[str, Any]


class Tickets:
    def __init__(self) -> None:
        self._ended: OrderedDict[str, Ended] = OrderedDict()

    def load(self, store: Mapping[str, bytes]) -> None:
        for ticket, outcome, answer in msgpack.unpackb(store[TICKETS]) if TICKETS in store else ():
            self._ended[ticket] = Ended(outcome, answer)

    def get(self, ticket: str | None) -> Ended | None:
        return self._ended.get(ticket or "")

    def end(self, ticket: str, outcome: str, answer: dict[str, Any]) -> None:
        """It cannot be used again; the oldest is forgotten."""
        self._ended[ticket] = Ended(outcome, answer)
        while len(self._ended) > KEPT:
            self._ended.popitem(last=False)

    def packed(self) -> bytes:
        """For the store."""
        body: bytes = msgpack.packb([[ticket, one.outcome, short(one.answer)] for ticket, one in self._ended.items()])
        return body


def short(answer: dict[str, Any]) -> dict[str, Any]:
    """What is worth keeping of an answer for a retry: it must fit a message to the next server."""
    kept = {key: value for key, value in answer.items() if key not in ("steps", "lineage", "stragglers")}
    for key, value in kept.items():
        if isinstance(value, list):
            kept[key] = [_result(item) if isinstance(item, dict) else str(item)[:100] for item in value[:4]]
        elif isinstance(value, str):
            kept[key] = value[:200]
    return kept


def _result(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "output"}
