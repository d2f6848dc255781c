"""QEMU's monitor (QMP): one command at a time, every wait bounded."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any, Final

MAX_LINE: Final = 1 << 20
POLL: Final = 0.01  # seconds between two questions after something that QEMU does not announce


class MonitorError(Exception):
    """QEMU refused a command, or is gone, or does not answer."""


class Monitor:
    """Waits up to `patience` seconds for each answer.  `alive` says whether QEMU still runs."""

    def __init__(self, path: Path, patience: float = 20.0) -> None:
        self._patience = patience
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(patience)
        try:
            self._socket.connect(str(path))
            self._file = self._socket.makefile("rb")
            self._line()  # the greeting
            self.command("qmp_capabilities")
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def command(self, name: str, **arguments: Any) -> Any:
        """What QEMU returns; MonitorError."""
        line = json.dumps({"execute": name, "arguments": arguments}) + "\n"
        try:
            self._socket.sendall(line.encode())
            while True:
                answer = self._line()
                if "error" in answer:
                    raise MonitorError(f"cannot {name}: {answer['error']['desc']}")
                if "return" in answer:
                    return answer["return"]
        except OSError as error:
            raise MonitorError(f"cannot {name}: {error}") from None

    def status(self) -> str:
        """running, paused, inmigrate, postmigrate ..."""
        return str(self.command("query-status")["status"])

    def save(self, target: str) -> None:
        """Migrate to `target` (a stopped machine)."""
        self.command("migrate-set-parameters", **{"max-bandwidth": 1 << 34})
        self.command("migrate", uri=target)
        deadline = time.monotonic() + self._patience
        while (status := self.command("query-migrate").get("status")) != "completed":
            if status in ("failed", "cancelled") or time.monotonic() > deadline:
                raise MonitorError(f"cannot save: the migration is {status}")
            time.sleep(POLL)

    def loaded(self) -> None:
        """Wait until an incoming migration is in."""
        deadline = time.monotonic() + self._patience
        while (status := self.status()) == "inmigrate":
            if time.monotonic() > deadline:
                raise MonitorError(f"cannot restore: still {status}")
            time.sleep(POLL)

    def _line(self) -> dict[str, Any]:
        line = self._file.readline(MAX_LINE)
        if not line.endswith(b"\n"):
            raise MonitorError("cannot hear QEMU: it hung up")
        answer: dict[str, Any] = json.loads(line)
        return answer
