"""A fake link: two byte pipes that can be cut at any byte.  What is delivered has passed through the real frames."""

from __future__ import annotations

from typing import Any

from ptymux import messages as m
from ptymux.frames import Decoder


class Pipe:
    """One direction.  `send` takes bytes, `deliver` moves some of them into the other side's decoder."""

    def __init__(self, sender: str) -> None:
        self._decoder = Decoder(sender)
        self._decoder.greeted()
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes)

    def send(self, data: bytes) -> None:
        self._bytes += data

    def deliver(self, count: int | None = None) -> list[Any]:
        """The messages that are complete with the next `count` bytes (None: all)."""
        part = bytes(self._bytes[:count])
        del self._bytes[: len(part)]
        return list(self._decoder.feed(part))


class Link:
    """A connection.  To cut it is to forget it: what is in the pipes is lost, a frame cut in the middle included."""

    def __init__(self) -> None:
        self.to_client = Pipe(m.AGENT)
        self.to_agent = Pipe(m.CLIENT)
