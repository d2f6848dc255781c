"""The process of our vsock device, one for each VM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

from image import cache
from tests.vm.vsock.table import FIRST_PORT

Mode = Literal["ioctl", "user"]
SOURCES = Path(__file__).parent.parent.parent.parent
SHIM = Path(__file__).parent.parent / "vsock" / "shim.c"


def shim() -> Path:
    """The library that makes QEMU talk to the device in ioctl mode."""

    def make(file: Path) -> None:
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", file, SHIM, "-ldl"], check=True)

    return cache.keep(f"shim/{cache.key(SHIM.read_bytes())}.so", make)


class Vsock:
    """The device at ``folder/v.sock`` for programs of the host and ``folder/vhost.sock`` for QEMU."""

    def __init__(self, folder: Path, mode: Mode, *, cid: int, first_port: int = FIRST_PORT) -> None:
        self.path = folder / "v.sock"
        self.socket = folder / "vhost.sock"
        self.log_path = folder / "vsock.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.vm.vsock", "--mode", mode, "--cid", str(cid)),
                    *("--socket", self.socket, "--path", self.path, "--first-port", str(first_port)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=SOURCES,
            )
        if self._line() != b"ready\n":
            self.close()
            raise RuntimeError(f"the vsock device did not start: {self.log()}")

    def command(self, word: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def close(self) -> None:
        """It ends with its standard input."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()
