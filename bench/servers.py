"""Starts and stops the two contestants.  What the bench assumes about the agent's command line is all here."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import procfs, wire

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
READY_WITHIN = 30.0  # seconds; a loaded machine without .pyc files needs a few
STOP_WITHIN = 15.0


@dataclass
class Server:
    """A running contestant."""

    pid: int  # of the process that moves the bytes: its CPU counts
    client_args: list[str]  # how the C client gets there
    path: str  # of its unix socket
    processes: list[int]  # whose memory counts
    token: bytes | None = None

    def control(self) -> wire.Control:
        return wire.Control(self.path, self.token)


class LeftBehind(Exception):
    """The agent was stopped, and processes that it had started lived on."""


def environment() -> dict[str, str]:
    """Ours, but Python may keep its .pyc files: without them every start is 3.4 times slower."""
    env = dict(os.environ)
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


@contextmanager
def relay(folder: Path) -> Iterator[Server]:
    """A C relay for one client; it ends when that client leaves."""
    path = folder / "relay.sock"
    path.unlink(missing_ok=True)
    with subprocess.Popen([BUILD / "relay", path], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError("cannot start the relay")
            yield Server(process.pid, ["--unix", str(path)], str(path), [process.pid])
        finally:
            process.terminate()
    path.unlink(missing_ok=True)


def agent_command(path: Path) -> list[str]:
    command = shutil.which("guestagent", path=str(Path(sys.executable).parent)) or "guestagent"
    return [command, "serve", "--unix", str(path)]


@contextmanager
def agent(folder: Path, *, websocket: bool = False) -> Iterator[Server]:
    """The agent, ready to answer.  On leaving it is stopped with SIGTERM, and nothing of it may be left."""
    path, token_file, log = folder / "agent.sock", folder / "token", folder / "agent.log"
    command, client_args = agent_command(path), ["--unix", str(path)]
    token: bytes | None = None
    port: int | None = None
    if websocket:
        # Without a token the agent does not listen on anything that has no owner.
        token, port = secrets.token_hex(16).encode(), _free_port()
        token_file.write_bytes(token)
        command += ["--websocket", f"127.0.0.1:{port}", "--token-file", str(token_file)]
        client_args = ["--websocket", f"127.0.0.1:{port}", "--token-file", str(token_file)]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, env=environment(), cwd=folder, stdin=subprocess.DEVNULL, stderr=sink)
    try:
        with wait_ready(process, path, token, port) as control:
            info = control.ask("info")
        yield Server(info["server_pid"], client_args, str(path), [info["keeper_pid"], info["server_pid"]], token)
    except Exception:
        sys.stderr.write(log.read_text(errors="replace")[-4000:])
        raise
    finally:
        stop(process)


def wait_ready(process: subprocess.Popen[bytes], path: Path, token: bytes | None, port: int | None) -> wire.Control:
    """A connection, as soon as a hello is answered (and the WebSocket listener is there)."""
    end = time.monotonic() + READY_WITHIN
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"cannot start the agent: exit status {process.returncode}")
        try:
            if port is not None:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return wire.Control(str(path), token)
        except (OSError, wire.Refused):
            if time.monotonic() > end:
                raise
            time.sleep(0.001)


def stop(process: subprocess.Popen[bytes]) -> None:
    family = procfs.descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        _kill(family)
        raise RuntimeError(f"cannot stop the agent: still there {STOP_WITHIN:.0f} s after SIGTERM") from None
    left = [member for member in family if procfs.alive(member)]
    _kill(left)
    if left:
        raise LeftBehind(f"{len(left)} of {len(family)} processes outlived the agent")


def _kill(processes: list[procfs.Process]) -> None:
    for member in processes:
        if procfs.alive(member):
            os.kill(member.pid, signal.SIGKILL)


def _free_port() -> int:
    """A port that was free a moment ago; the agent's own failure to bind would tell of a race."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
