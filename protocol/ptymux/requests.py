"""Requests that survive a reconnect, both ends.

The client gives every request that changes something a random idempotency key and sends it again, under a new id but with the
same key, on every connection until an answer comes.  The agent remembers (client, key) and its answer, so that a retry is the
same request: it gets the answer of the first, or waits for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ptymux import limits
from ptymux.errors import ProtocolError
from ptymux.messages import Failure, Request, Response


class Call:
    """One request of a client, over all its connections; with `once`, only on the one on which it was asked.

    `stamp` gives parameters that are true only for a moment, such as the time: it is asked anew at each sending.  They make no other
    request of it: what tells requests apart is the key.
    """

    def __init__(
        self,
        method: str,
        params: dict[str, Any],
        key: bytes | None,
        *,
        once: bool = False,
        stamp: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.method = method
        self.params = params
        self.key = key
        self.once = once
        self.stamp = stamp
        self.answer: Response | Failure | None = None
        self.on_answer: Callable[[], None] = lambda: None

    def frame(self, number: int) -> Request:
        """To be sent now."""
        return Request(number, self.method, {**self.params, **self.stamp()}, self.key)


class RequestTable:
    """The client's end: what is unanswered, in the order in which it was asked."""

    def __init__(self) -> None:
        self._next_id = 0
        self._waiting: list[Call] = []
        self._on_wire: dict[int, Call] = {}

    def ask(self, call: Call) -> None:
        self._waiting.append(call)

    def cancel(self, call: Call) -> None:
        """Nobody waits for the answer any more; the request may still be carried out."""
        if call in self._waiting:
            self._waiting.remove(call)
        for number, known in self._on_wire.items():
            if known is call:
                known.on_answer = lambda: None
                known.answer = Failure(number, "state", "cancelled")

    def disconnected(self) -> None:
        """What was on the wire is to be asked again, before everything newer."""
        self._waiting = [call for call in self.abandon() if not call.once]

    def abandon(self) -> list[Call]:
        """Forget everything; what was unanswered."""
        calls = [*(call for call in self._on_wire.values() if call.answer is None), *self._waiting]
        self._on_wire.clear()
        self._waiting.clear()
        return calls

    def frames(self) -> list[Request]:
        """Requests to send now, at most :data:`limits.MAX_REQUESTS` at a time."""
        out: list[Request] = []
        while self._waiting and len(self._on_wire) < limits.MAX_REQUESTS:
            call = self._waiting.pop(0)
            self._next_id = (self._next_id + 1) & 0xFFFFFFFF
            self._on_wire[self._next_id] = call
            out.append(call.frame(self._next_id))
        return out

    def on_answer(self, frame: Response | Failure) -> None:
        call = self._on_wire.pop(frame.id, None)
        if call is None:
            raise ProtocolError(f"malformed {type(frame).__name__}: no request {frame.id}")
        if call.answer is None:
            call.answer = frame
            call.on_answer()


Answer = tuple[str, Any]  # ("ok", result) or ("error", (code, message, details))


class Remembered:
    """A request that was begun: its answer, or who waits for it."""

    __slots__ = ("answer", "waiters")

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.waiters: list[Callable[[Answer], None]] = []

    def settle(self, answer: Answer) -> None:
        self.answer = answer
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter(answer)


class ReplyCache:
    """The agent's end: the last :data:`limits.MAX_REPLIES` requests with a key, the oldest settled ones forgotten first."""

    def __init__(self, most: int = limits.MAX_REPLIES) -> None:
        self._most = most
        self._known: OrderedDict[tuple[bytes, bytes], Remembered] = OrderedDict()

    def begin(self, client: bytes, key: bytes) -> tuple[Remembered, bool]:
        """The entry for this request, and whether it is new (then carry it out and settle it)."""
        entry = self._known.get((client, key))
        if entry is not None:
            return entry, False
        while len(self._known) >= self._most:
            oldest = next((k for k, e in self._known.items() if e.answer is not None), None)
            if oldest is None:
                break  # all are being carried out; each connection may have only max_requests of these
            del self._known[oldest]
        entry = self._known[client, key] = Remembered()
        return entry, True

    def knows(self, client: bytes, key: bytes) -> bool:
        """Was this request begun?"""
        return (client, key) in self._known

    def restore(self, client: bytes, key: bytes, answer: Answer) -> None:
        """An answer that an earlier server process gave."""
        self.begin(client, key)[0].settle(answer)
