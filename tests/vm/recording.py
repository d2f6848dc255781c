"""A client's view of one session's stream, kept up in the background across whatever happens to the connection or the VM."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from ptymux.client import Attach, Session
from ptymux.cursor import Cursor
from ptymux.events import Event, Foreign, Gap, Marked, Output, Rewound
from tests.harness import until

PATIENCE = 60.0


class Recording:
    """`data` are all bytes from `start` on; each event is checked to go on where the one before ended."""

    def __init__(self, attach: Attach, start: int) -> None:
        self.attach = attach
        self.start = start
        self.data = bytearray()
        self.events: list[Event] = []  # everything else

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    async def run(self) -> None:
        async for event in self.attach:
            if isinstance(event, Output):
                assert event.offset == self.end, f"output at {event.offset} after {self.end}"
                self.data += event.data
            else:
                self.events.append(event)

    def breaks(self) -> list[Event]:
        """Where the stream did not simply go on."""
        return [event for event in self.events if isinstance(event, Gap | Rewound | Foreign)]

    def marks(self, kind: str) -> list[Marked]:
        return [event for event in self.events if isinstance(event, Marked) and event.kind == kind]

    async def more(self, count: int) -> None:
        """So many bytes more than there are."""
        end = self.end
        await self.reached(lambda: self.end >= end + count, f"{count} bytes more")

    async def until(self, text: bytes, since: int = 0) -> None:
        """Until `text` is in what came from the offset `since` on."""
        await self.reached(lambda: text in self.data[max(0, since - self.start) :], f"{text!r}")

    async def reached(self, condition: Callable[[], Any], what: str) -> None:
        try:
            await until(condition, what, PATIENCE)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; events {self.events}, the end is {bytes(self.data[-300:])!r}") from None


@asynccontextmanager
async def recorded(
    session: Session, cursor: Cursor | None = None, start: int | None = None
) -> AsyncGenerator[Recording]:
    """Attached at `cursor`; at `start` the stream is expected to go on (the cursor's offset, or 0)."""
    if start is None:
        start = cursor.offset if cursor is not None else 0
    async with session.attach(cursor, repair="bytes") as attach, trio.open_nursery() as nursery:
        recording = Recording(attach, start)
        nursery.start_soon(recording.run)
        yield recording
        nursery.cancel_scope.cancel()
