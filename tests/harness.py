"""What the end-to-end tests stand on: a real agent process, and a proxy that cuts its connections.

An :class:`AgentProcess` is checked when it stops: no process, cgroup or socket of it may be left.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import trio

from guestagent import cgroups

T = TypeVar("T")

PATIENCE = 20.0  # seconds that anything may take on a busy machine; never waited out when things go well


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without what would change the commands under test."""
    dropped = ("PTYMUX_TO", "PTYMUX_TOKEN_FILE", "NOTIFY_SOCKET", "PYTHONDONTWRITEBYTECODE")
    return {**{key: value for key, value in os.environ.items() if key not in dropped}, **more}


class AgentProcess:
    """`guestagent serve` with a unix socket in `folder`; `arguments` are further options.

    `before` is a command that ends in an exec of what follows it.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        before: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        **popen: Any,
    ) -> None:
        self.path = str(folder / "agent.sock")
        self.address = f"unix:{self.path}"
        self.log_path = folder / "agent.log"
        self._log = self.log_path.open("wb")
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "guestagent.cli", "serve", "--unix", self.path, *arguments],
            stdin=subprocess.DEVNULL,
            stderr=self._log,
            stdout=self._log,
            env=environment or clean_environment(),
            **popen,
        )
        try:
            wait_for(self._listens, "the agent to listen")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _listens(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"the agent ended with {self.process.returncode}: {self.log()}")
        return "listening on" in self.log()

    @property
    def keeper_pid(self) -> int:
        return self.process.pid

    def server_pid(self) -> int:
        """The present server process (waits for one during a restart)."""
        return int(wait_for(lambda: next(iter(children(self.keeper_pid, "guestagent.server")), 0), "a server process"))

    def websocket_port(self) -> int:
        """Where it listens for WebSocket, whatever port was asked for."""
        return int(re.findall(r"listening on .*\bws://[^/]*:(\d+)", self.log())[-1])

    def kill_server(self) -> int:
        """SIGKILL the server; the pid that it had."""
        pid = self.server_pid()
        os.kill(pid, signal.SIGKILL)
        return pid

    def cgroup(self) -> str | None:
        """The folder of this agent's cgroups, if the machine has them."""
        for mount in cgroups.mount_points():
            return f"{mount}{cgroups.own_group().rstrip('/')}/{cgroups.PREFIX}{self.keeper_pid}"
        return None

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self) -> int:
        """SIGTERM, and nothing may be left; the exit status."""
        group = self.cgroup()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self._log.close()
        assert group is None or not os.path.exists(group), f"the agent left cgroups behind: {group}"
        assert not os.path.exists(self.path), "the agent left its socket behind"
        assert "Traceback" not in self.log(), self.log()
        return status


@contextlib.contextmanager
def running_agent(folder: Path, *arguments: str, **more: Any) -> Iterator[AgentProcess]:
    agent = AgentProcess(folder, *arguments, **more)
    try:
        yield agent
    finally:
        agent.stop()


def children(pid: int, containing: str = "") -> list[int]:
    """Live child processes of `pid` whose command line contains a text."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if int(fields[1]) == pid and fields[0] != b"Z" and containing in line:
                    found.append(int(name))
    return found


def wait_for(condition: Callable[[], T], what: str, most: float = PATIENCE) -> T:
    """The first true value of `condition`."""
    deadline = time.monotonic() + most
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {most:g} s for {what}")
        time.sleep(0.01)
    return value


async def until(condition: Callable[[], Any], what: str, most: float = PATIENCE) -> Any:
    """As :func:`wait_for`, in trio; the condition may be async."""
    try:
        with trio.fail_after(most):
            while True:
                value = condition()
                if inspect.isawaitable(value):
                    value = await value
                if value:
                    return value
                await trio.sleep(0.01)  # other processes do not set our events
    except trio.TooSlowError:
        raise TimeoutError(f"waited {most:g} s for {what}") from None


def ptymux(
    address: str, *arguments: str, input: bytes | None = None, timeout: float = PATIENCE, **more: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run the command line client to its end."""
    stdin = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
    return subprocess.run(
        ptymux_argv(address, *arguments), capture_output=True, timeout=timeout, env=clean_environment(), **stdin, **more
    )


def ptymux_argv(address: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "ptymux.cli", "--to", address, *arguments]


def ptymux_json(address: str, *arguments: str) -> Any:
    done = ptymux(address, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# How many bytes pass before a connection is cut: of both directions together, or of one of them; None: it is not cut.
Budget = int | tuple[Literal["up", "down"], int] | None
Endpoint = str | tuple[str, int]  # a unix socket's path, or host and port


class CuttingProxy:
    """A relay that cuts connections at arbitrary bytes; unix sockets by default, TCP where an endpoint is (host, port).

    `budgets` gives, for each connection in turn, how many bytes pass before it is cut; after the last one, connections are not
    cut.  A cut drops what is in flight, in the middle of whatever it is.
    """

    def __init__(self, target: Endpoint, listen: Endpoint, budgets: Iterable[Budget]) -> None:
        self.target = target
        self.listen = listen
        self.cuts = 0
        self.connections = 0
        self.refuse = False  # accept and hang up at once
        self.up = 0  # bytes that went from clients to the agent
        self.down = 0  # and from the agent to clients
        self._budgets = iter(budgets)
        self._open: set[trio.CancelScope] = set()
        self._down_gate = _open_gate()

    @property
    def address(self) -> str:
        """What clients dial."""
        return f"unix:{self.listen}" if isinstance(self.listen, str) else f"tcp:{self.listen[0]}:{self.listen[1]}"

    def cut_all(self) -> None:
        """Cut every open connection now."""
        for scope in list(self._open):
            scope.cancel()
            self.cuts += 1

    def hold_down(self) -> None:
        """From now on keep what the agent sends, until :meth:`release_down`; a cut drops it."""
        self._down_gate = trio.Event()

    def release_down(self) -> None:
        self._down_gate.set()

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        if isinstance(self.listen, str):
            listener = trio.socket.socket(trio.socket.AF_UNIX)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.listen)
            await listener.bind(self.listen)
        else:
            listener = trio.socket.socket(trio.socket.AF_INET)
            await listener.bind(self.listen)
            self.listen = listener.getsockname()
        listener.listen(64)
        task_status.started()
        await trio.serve_listeners(self._relay, [trio.SocketListener(listener)])

    async def _dial(self) -> trio.SocketStream:
        if isinstance(self.target, str):
            return await trio.open_unix_socket(self.target)
        return await trio.open_tcp_stream(*self.target)

    async def _relay(self, client: trio.SocketStream) -> None:
        self.connections += 1
        if self.refuse:
            await trio.aclose_forcefully(client)
            return
        left = next(self._budgets, None)
        try:
            server = await self._dial()
        except OSError:  # the agent's server is restarting
            await trio.aclose_forcefully(client)
            return
        async with server, client:
            with trio.CancelScope() as scope:
                self._open.add(scope)
                try:
                    async with trio.open_nursery() as nursery:
                        state = _Budget(left, scope, self)
                        nursery.start_soon(self._pass, "up", client, server, state)
                        nursery.start_soon(self._pass, "down", server, client, state)
                except* (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
                finally:
                    self._open.discard(scope)
            await trio.aclose_forcefully(client)
            await trio.aclose_forcefully(server)

    async def _pass(
        self, direction: Literal["up", "down"], source: trio.SocketStream, target: trio.SocketStream, budget: _Budget
    ) -> None:
        while data := await source.receive_some(65536):
            if direction == "down":
                await self._down_gate.wait()
            data = budget.take(direction, data)
            setattr(self, direction, getattr(self, direction) + len(data))
            await target.send_all(data)
            if budget.left == 0:
                self.cuts += not budget.scope.cancel_called
                break
        budget.scope.cancel()


def _open_gate() -> trio.Event:
    gate = trio.Event()
    gate.set()
    return gate


class _Budget:
    """What is left of one connection's budget."""

    def __init__(self, budget: Budget, scope: trio.CancelScope, proxy: CuttingProxy) -> None:
        self.scope = scope
        self._direction, self.left = budget if isinstance(budget, tuple) else (None, budget)

    def take(self, direction: str, data: bytes | bytearray) -> bytes | bytearray:
        """What may pass of `data`."""
        if self.left is None or self._direction not in (None, direction):
            return data
        data = data[: self.left]
        self.left -= len(data)
        return data


@contextlib.asynccontextmanager
async def cutting_proxy(
    target: Endpoint, folder: Path | None, budgets: Iterable[Budget] = ()
) -> AsyncIterator[CuttingProxy]:
    """A proxy for the length of the block: on a unix socket in `folder`, or on a free TCP port if that is None."""
    proxy = CuttingProxy(target, str(folder / "proxy.sock") if folder is not None else ("127.0.0.1", 0), budgets)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        failure: BaseException | None = None
        try:
            yield proxy
        except trio.Cancelled:
            raise
        except BaseException as error:
            failure = error  # raised below, outside of the nursery, which would wrap it in a group
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def random_budgets(count: int, mean: float, seed: int) -> list[int]:
    """`count` budgets around `mean` bytes, some of them tiny: a cut inside the handshake is a cut too."""
    chance = random.Random(seed)
    return [chance.choice((chance.randrange(1, 200), int(chance.expovariate(1 / mean)) + 1)) for _ in range(count)]


def spread_budgets(count: int, total: int, seed: int, least: int = 2000) -> list[int]:
    """`count` cuts at random places of a stream of `total` bytes; one in ten, at random too, is inside a handshake.

    The others have at least `least` bytes, so that each connection gets somewhere and the client does not wait to dial again.
    """
    chance = random.Random(seed)
    mean = 0.8 * total / count - least  # a little early, so that the stream does not end before the last cut
    assert mean > 0, "too many cuts for so few bytes"
    budgets = [least + min(int(chance.expovariate(1 / mean)), int(3 * mean)) for _ in range(count)]
    for index in range(5, count, 10):
        budgets[index] = chance.randrange(1, least // 4)
    return budgets
