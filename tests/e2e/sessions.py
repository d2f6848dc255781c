"""What the tests of sessions share: following one session's stream, and what the operating system says of processes."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio

from guestagent import cgroups
from ptymux.client import Agent, Attach, Session
from ptymux.events import Event, Exit, Output
from tests.harness import PATIENCE, AgentProcess, running_agent, until

# Start an agent in a mount namespace of its own, without cgroup v2.
_UNMOUNT = "".join(f"umount -l '{mount}' && " for mount in cgroups.mount_points())
WITHOUT_CGROUPS = ("unshare", "-m", "sh", "-c", _UNMOUNT + 'exec "$@"', "sh")

E = TypeVar("E", bound=Event)
T = TypeVar("T")


class Follower:
    """Reads an attached stream as far as a test wants to know; nothing here waits longer than PATIENCE."""

    def __init__(self, attach: Attach) -> None:
        self.attach = attach
        self.data = bytearray()  # all output so far
        self.events: list[Event] = []  # and everything else

    async def step(self) -> Event:
        with trio.fail_after(PATIENCE):
            event = await anext(self.attach)
        if isinstance(event, Output):
            self.data += event.data
        else:
            self.events.append(event)
        return event

    async def until(self, text: bytes, count: int = 1) -> bytes:
        """Until the output has `text` in it (so many times); all output so far."""
        while self.data.count(text) < count:
            await self.step()
        return bytes(self.data)

    async def event(self, kind: type[E]) -> E:
        """The next event of a kind."""
        while not isinstance(event := await self.step(), kind):
            pass
        return event

    async def to_exit(self) -> Exit:
        return await self.event(Exit)

    async def to_end(self) -> bytes:
        """To the stream's last mark; all output."""
        with contextlib.suppress(StopAsyncIteration):
            while True:
                await self.step()
        return bytes(self.data)


@asynccontextmanager
async def following(session: Session, **arguments: Any) -> AsyncGenerator[Follower]:
    async with session.attach(**{"repair": "bytes", **arguments}) as attach:
        yield Follower(attach)


async def output_of(agent: Agent, *argv: str, status: int | None = 0, **arguments: Any) -> bytes:
    """Run a program to its end in a session; everything that it wrote, with the terminal's CR LF as LF."""
    session = await agent.create(argv, **arguments)
    async with following(session) as stream:
        end = await stream.to_exit()
    assert status is None or end.code == status, (end, bytes(stream.data))
    await session.remove(force=True)
    return bytes(stream.data).replace(b"\r\n", b"\n")


async def eventually(ask: Callable[[], Awaitable[T]], good: Callable[[T], Any], what: str) -> T:
    """The first answer that is good."""
    with trio.move_on_after(PATIENCE):
        while not good(answer := await ask()):  # noqa: ASYNC110 - nothing tells us
            await trio.sleep(0.005)
        return answer
    raise TimeoutError(f"waited {PATIENCE:g} s for {what}")


async def ended(session: Session) -> dict[str, Any]:
    """What the agent says of the session once it has said `exit`."""
    return await eventually(session.inspect, lambda row: row["state"] == "exited", "exit")


async def stream_is(session: Session, **wanted: Any) -> dict[str, Any]:
    """What the agent says of the session once its stdout is so."""

    def good(row: dict[str, Any]) -> bool:
        return all(row["streams"]["stdout"][key] == value for key, value in wanted.items())

    return await eventually(session.inspect, good, f"a stream with {wanted}")


async def gone(agent: Agent, name: str) -> None:
    """Until the agent has no such session."""
    await eventually(agent.sessions, lambda rows: name not in [row["id"] for row in rows], "its removal")


@contextlib.contextmanager
def configured_agent(folder: Path, configuration: str, *arguments: str, **more: Any) -> Iterator[AgentProcess]:
    """An agent with a configuration file."""
    file = folder / "agent.toml"
    file.write_text(configuration)
    with running_agent(folder, "--config", str(file), *arguments, **more) as agent:
        yield agent


class Gate:
    """A place at which a shell script waits (``{gate.wait}``) until the test opens it.  For one passage."""

    def __init__(self, path: Path) -> None:
        self._path = path
        os.mkfifo(path)
        self.wait = f"read word <{path}"

    async def open(self) -> None:
        """Once the script is there."""
        fd = await until(self._reached, "a script at the gate")
        os.write(fd, b"go\n")
        os.close(fd)

    def _reached(self) -> int | None:
        try:
            return os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads
            return None


# --- processes -------------------------------------------------------------------------------------------
def alive(pid: int) -> bool:
    """Is there such a process, other than a zombie?"""
    return state(pid) not in ("", "Z", "X")


def state(pid: int) -> str:
    """The letter that `ps` shows; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def children_of(pid: int) -> dict[int, str]:
    """Child processes, zombies included, and their states."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid:
                    found[int(name)] = fields[0]
    return found


def descendants(pid: int) -> list[int]:
    """`pid` and everything below it."""
    found = [pid]
    for child in children_of(pid):
        found += descendants(child)
    return found


def foreground(pid: int) -> int:
    """The foreground process group of a process's terminal."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[5])


def command(pid: int) -> str:
    """A process's command line; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def open_files(pid: int) -> list[str]:
    """What a process has open, without the numbers of sockets and pipes."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(re.sub(r"\[\d+\]", "", os.readlink(f"/proc/{pid}/fd/{name}")))
    return sorted(found)


def terminals(pid: int) -> int:
    """How many PTY masters a process has open."""
    return sum(name.endswith("ptmx") for name in open_files(pid))


def histories(pid: int) -> int:
    """How many history memfds a process has open or mapped through a descriptor."""
    return sum("guestagent-history" in name for name in open_files(pid))
