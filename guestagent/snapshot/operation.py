"""What is under way, for those who ask for the same."""

from __future__ import annotations

from typing import Any

import trio

from ptymux.errors import RequestFailed


class Operation:
    def __init__(self, kind: str, ticket: str) -> None:
        self.kind = kind
        self.ticket = ticket
        self.done = trio.Event()
        self.scope = trio.CancelScope()
        self.result: dict[str, Any] | None = None
        self.failure: RequestFailed | None = None

    async def outcome(self) -> dict[str, Any]:
        """Its result, once there is one."""
        await self.done.wait()
        if self.failure is not None:
            raise self.failure
        assert self.result is not None
        return self.result
