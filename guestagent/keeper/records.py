"""What the keeper holds of one session: enough for any later server to carry on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from guestagent.keeper.spawn import Child


@dataclass
class Record:
    id: str
    child: Child
    tty: bool
    group: str | None
    meta: bytes  # the server's own facts, opaque here
    started: float
    histories: dict[str, int] = field(default_factory=dict)  # name -> memfd
    status: int | None = None  # as from wait, once the process has ended
    ended: float | None = None
    oom: bool = False  # the kernel killed something in it for want of memory; known once it has ended

    def to_wire(self) -> tuple[dict[str, Any], list[int]]:
        """The record as the server gets it, and the descriptors beside it."""
        fds = {**self.child.fds, **self.histories}
        record = {
            "id": self.id,
            "pid": self.child.pid,
            "tty": self.tty,
            "group": self.group,
            "meta": self.meta,
            "started": self.started,
            "status": self.status,
            "ended": self.ended,
            "oom": self.oom,
            "fds": list(fds),
        }
        return record, list(fds.values())

    def close(self) -> None:
        self.child.close()
        for fd in self.histories.values():
            os.close(fd)
        self.histories.clear()
