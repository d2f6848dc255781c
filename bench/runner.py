"""One run of the C client against one contestant, and what it cost the server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import procfs, servers
from bench.servers import BUILD, Server
from bench.work import Work
from ptymux import limits

CLIENT_TIMEOUT = 300.0  # the client itself gives up after a minute without a byte
HISTORY = limits.DEFAULT_HISTORY  # bytes a session keeps


class BytesDiffer(Exception):
    """What arrived is not what was written."""


@dataclass(frozen=True)
class Transfer:
    megabytes: float  # a million bytes each
    seconds: float
    user: float  # CPU seconds of the server process
    system: float
    client_cpu: float
    frames: int

    @property
    def rate(self) -> float:
        return self.megabytes / self.seconds


@contextmanager
def contestant(kind: str, folder: Path) -> Iterator[Server]:
    """`relay`, `agent` (over its unix socket) or `websocket` (the agent as well)."""
    if kind == "relay":
        with servers.relay(folder) as server:
            yield server
    else:
        with servers.agent(folder, websocket=kind == "websocket") as server:
            yield server


def run_client(server: Server, work: Work, *options: str) -> dict[str, Any]:
    command = [BUILD / "client", *server.client_args, "--gate", work.gate, "--history", HISTORY, *options]
    return run_command([*map(str, command), "--create", str(work.sessions), "--", *work.command])


def run_command(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_TIMEOUT)
    if done.returncode:
        raise RuntimeError(f"the client failed: {done.stderr.strip() or done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check_bytes(result: dict[str, Any], expected: tuple[str, ...]) -> None:
    """Every session's bytes are those that it was to write, in order, and it ended well."""
    for index, (session, wanted) in enumerate(zip(result["sessions"], expected, strict=True)):
        got = f"{session['hash']} {session['bytes']}"
        if got != wanted or session["code"] != 0:
            raise BytesDiffer(f"session {index}: got {got} (code {session['code']}), written {wanted}")
    if result["gaps"]:
        raise BytesDiffer(f"{result['gaps']} gaps")


def transfer(kind: str, folder: Path, work: Work) -> Transfer:
    """All sessions' output from the opening of the gate to the last exit."""
    with contestant(kind, folder) as server:
        if kind != "relay":
            with server.control() as control:  # the renderer, which follows floods, takes 0.2 s of a CPU to start
                control.ask("screen", session=control.create("cat"))
        before = procfs.usage(server.pid)
        result = run_client(server, work)
        after = procfs.usage(server.pid)
    check_bytes(result, work.expected)
    return Transfer(
        result["bytes"] / 1e6,
        result["wall"],
        after.user - before.user,
        after.system - before.system,
        result["user"] + result["system"],
        result["frames"],
    )
