"""Every byte that a program wrote arrives once and in order, whatever the transport and however often it is cut."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
import trio

from ptymux import connect
from ptymux.client import Agent, Attach
from ptymux.events import Exit, Output
from ptymux.limits import MAX_WINDOW
from tests.e2e.data import Material, check_equal, random_bytes, sha256
from tests.e2e.programs import ECHO, READY
from tests.harness import (
    PATIENCE,
    AgentProcess,
    Budget,
    CuttingProxy,
    clean_environment,
    cutting_proxy,
    ptymux_argv,
    running_agent,
    spread_budgets,
)

MODES = ("raw", "cooked")
CUTS = (0, 1, 100)


def budgets(cuts: int, size: int) -> list[int]:
    """So many cuts, all of them before `size` bytes have passed."""
    return spread_budgets(cuts, size, seed=cuts) if cuts > 1 else [size // 2] * cuts


async def execute(
    address: str, *command: str, options: tuple[str, ...] = (), to: tuple[str, ...] = ()
) -> tuple[int, bytes, bytes]:
    """`ptymux exec`: its status, stdout and stderr."""
    argv = ptymux_argv(address, *to, "--wait", str(PATIENCE), "exec", *options, "--", *command)
    done = await trio.run_process(
        argv, stdin=b"", capture_stdout=True, capture_stderr=True, check=False, env=clean_environment()
    )
    return done.returncode, done.stdout, done.stderr


async def check_exec(agent: AgentProcess, folder: Path, material: Material, mode: str, cuts: int) -> None:
    async with cutting_proxy(agent.path, folder, budgets(cuts, len(material.data))) as proxy:
        status, out, err = await execute(proxy.address, *material.printing(mode, status=cuts % 7))
    assert err == b""
    assert status == cuts % 7
    assert proxy.cuts == cuts
    assert sha256(out) == material.hash(mode), f"{len(out)} bytes arrived"


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("mode", MODES)
async def test_exec_copies_every_byte(
    agent: AgentProcess, tmp_path: Path, small: Material, mode: str, cuts: int
) -> None:
    await check_exec(agent, tmp_path, small, mode, cuts)


@pytest.mark.slow
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("mode", MODES)
async def test_exec_copies_200_mb(agent: AgentProcess, tmp_path: Path, big: Material, mode: str, cuts: int) -> None:
    await check_exec(agent, tmp_path, big, mode, cuts)


async def test_exec_of_a_plain_command(agent: AgentProcess, small: Material) -> None:
    """`ptymux exec -- cat FILE`, nothing else."""
    status, out, err = await execute(agent.address, "cat", str(small.path))
    assert (status, err, sha256(out)) == (0, b"", small.cooked)


async def test_binary_output_passes_a_raw_terminal(agent: AgentProcess, tmp_path: Path) -> None:
    """All 256 byte values, alone, in runs and at random, and text that is not UTF-8."""
    data = bytes(range(256)) + b"".join(bytes([value]) * 300 for value in range(256)) + random_bytes(2_000_000, seed=3)
    data += b"\xff\xfe\xc3\x28 \xf0\x9f\x98 half of an emoji \xed\xa0\x80 a surrogate \x00\x80"
    material = Material.write(tmp_path / "binary", data)
    await check_exec(agent, tmp_path, material, "raw", cuts=100)


@pytest.fixture
def web_agent(tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent that listens for WebSocket too; its token is in the file `tokens`."""
    (tmp_path / "tokens").write_text("admin correct-horse\n")
    with running_agent(tmp_path, "--websocket", "127.0.0.1:0", "--token-file", str(tmp_path / "tokens")) as running:
        yield running


async def check_websocket(agent: AgentProcess, folder: Path, material: Material, cuts: int) -> None:
    # A WebSocket message is whole or nothing, and holds up to 256 KiB of output: give each connection time for one.
    where = spread_budgets(cuts, len(material.data), seed=cuts, least=300_000) if cuts else []
    async with cutting_proxy(("127.0.0.1", agent.websocket_port()), None, where) as proxy:
        address = f"ws://127.0.0.1:{proxy.listen[1]}/"
        to = ("--token-file", str(folder / "tokens"))
        status, out, err = await execute(address, *material.printing("raw", status=3), to=to)
    assert (status, err) == (3, b"")
    assert proxy.cuts == cuts
    assert sha256(out) == material.raw, f"{len(out)} bytes arrived"


@pytest.mark.parametrize("cuts", [0, 1, 10])
async def test_websocket_copies_every_byte(web_agent: AgentProcess, tmp_path: Path, small: Material, cuts: int) -> None:
    """The same over WebSocket, where a cut is one in the middle of a message or of the HTTP upgrade."""
    await check_websocket(web_agent, tmp_path, small, cuts)


@pytest.mark.slow
async def test_websocket_copies_200_mb(web_agent: AgentProcess, tmp_path: Path, big: Material) -> None:
    await check_websocket(web_agent, tmp_path, big, cuts=100)


async def test_a_session_can_be_removed_under_a_websocket_that_is_stuck(web_agent: AgentProcess) -> None:
    """What waits for a stalled WebSocket must not keep the session's memory mapped."""
    token = "correct-horse"
    target = ("127.0.0.1", web_agent.websocket_port())
    async with cutting_proxy(target, None) as proxy, connect(web_agent.address, token=token) as healthy:
        session = await healthy.create(["sh", "-c", "stty raw; cat /dev/zero"], policy="overwrite")

        async def attach_and_stall(client: Agent) -> None:
            async with client.session(session.id).attach(window=MAX_WINDOW):
                raise AssertionError("the answer was held back")

        async def stuck() -> bool:
            """No socket takes so much: the agent waits in the middle of a message."""
            attaches = (await session.inspect())["streams"]["stdout"]["attaches"]
            return any(attach["lag"] > MAX_WINDOW // 2 for attach in attaches)

        async with connect(f"ws://127.0.0.1:{proxy.listen[1]}/", token=token) as client, trio.open_nursery() as nursery:
            proxy.hold_down()
            nursery.start_soon(attach_and_stall, client)
            with trio.fail_after(PATIENCE):
                while not await stuck():
                    pass
            await session.remove(force=True)
            assert await healthy.sessions() == []
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("cuts", CUTS)
async def test_stdout_and_stderr_of_pipes_stay_apart(
    agent: AgentProcess, tmp_path: Path, small: Material, cuts: int
) -> None:
    """`exec --no-tty`: two streams that are written at the same time, each equal to the byte, binary ones included."""
    other = Material.write(tmp_path / "other", random_bytes(3_000_000, seed=4))
    script = f"cat {shlex.quote(str(other.path))} >&2 & cat {shlex.quote(str(small.path))}; wait; exit 4"
    async with cutting_proxy(agent.path, tmp_path, budgets(cuts, len(small.data))) as proxy:
        status, out, err = await execute(proxy.address, "sh", "-c", script, options=("--no-tty",))
    assert status == 4
    assert proxy.cuts == cuts
    assert sha256(out) == small.raw
    assert sha256(err) == other.raw


# --- a cut at every byte ----------------------------------------------------------------------------
# Valid and invalid UTF-8, characters of one to four bytes and UTF-16 surrogate pairs, ZWJ sequences, escapes: whoever counts
# characters, or units of UTF-16, or decodes a piece, comes out elsewhere than the bytes do.
SCRIPTS = (
    "emoji 😀😃 family 👨‍👩‍👧‍👦 flag 🇩🇪 CJK 漢字かな交じり文 한국어 combining é ẍ \x1b[1;31mred\x1b[0m\r\n".encode()
    + b"broken \xff\xfe \xc3( \xf0\x9f\x98 \xed\xa0\x80 \x80\r\n"
)


async def read_to_exit(stream: Attach) -> bytes:
    got = bytearray()
    async for event in stream:
        if isinstance(event, Output):
            assert event.offset == len(got)
            got += event.data
        elif isinstance(event, Exit):
            assert event.offset == len(got)
            assert event.status == 5
            return bytes(got)
    raise AssertionError("the stream ended without an exit")


async def read_to(stream: Attach, end: bytes, least: int = 1) -> bytes:
    """Output from here on, at least `least` bytes, until it ends with `end`."""
    got = b""
    async for event in stream:
        got += event.data if isinstance(event, Output) else b""
        if len(got) >= least and got.endswith(end):
            return got
    raise AssertionError("the stream ended")


WORKERS = 10  # who cut at the same time: each waits for a moment after a cut in a welcome


async def cut_everywhere(
    agent: AgentProcess,
    folder: Path,
    direction: Literal["up", "down"],
    use: Callable[[CuttingProxy, str], Awaitable[int]],
) -> int:
    """Run `use` once for each byte that it makes pass in one direction, with its first connection cut behind that byte.

    `use` gets a proxy and a word of its own, and returns how many bytes have passed when nothing was cut.  Returns that number.
    """
    async with cutting_proxy(agent.path, folder) as proxy:
        size = await use(proxy, "uncut")

    async def work(number: int) -> None:
        own = folder / str(number)
        own.mkdir()
        plan: deque[Budget] = deque()

        def budgets() -> Iterator[Budget]:
            while True:
                yield plan.popleft() if plan else None

        async with cutting_proxy(agent.path, own, budgets()) as proxy:
            for count, cut in enumerate(range(1 + number, size, WORKERS), 1):
                plan.append((direction, cut))
                await use(proxy, f"cut-at-{cut}")
                assert proxy.cuts == count

    async with trio.open_nursery() as nursery:
        for number in range(WORKERS):
            nursery.start_soon(work, number)
    print(f"\n{size - 1} cuts {direction}")
    return size


@pytest.mark.slow
async def test_a_cut_at_every_byte_from_the_agent(agent: AgentProcess, tmp_path: Path) -> None:
    """case C24, case C25: a cut at each byte of welcome, answer, output and exit mark; the next connection goes on right there."""
    file = tmp_path / "scripts"
    file.write_bytes(SCRIPTS)
    async with connect(agent.address) as setup:
        session = await setup.create(["sh", "-c", f"stty raw; cat {file}; exit 5"])

        async def use(proxy: CuttingProxy, name: str) -> int:
            async with connect(proxy.address, wait=PATIENCE) as client, client.session(session.id).attach() as stream:
                check_equal(await read_to_exit(stream), SCRIPTS)
                return proxy.down

        async with session.attach() as stream:
            await read_to_exit(stream)  # it has ended from here on: all connections carry the same bytes
        assert await cut_everywhere(agent, tmp_path, "down", use) > len(SCRIPTS) + 300


@pytest.mark.slow
async def test_a_cut_at_every_byte_to_the_agent(agent: AgentProcess, tmp_path: Path) -> None:
    """A cut at each byte of hello, create, attach, input and remove: one session, and what was typed arrives once."""

    async def use(proxy: CuttingProxy, name: str) -> int:
        label = f"{name:12}"  # of the same size for all
        async with connect(proxy.address, wait=PATIENCE) as client:

            async def found() -> list[str]:
                return [row["id"] for row in await client.sessions() if row["label"] == label]

            session = await client.create(ECHO, label=label)
            async with session.attach() as stream:
                await read_to(stream, READY)
                await session.send(SCRIPTS)
                check_equal(await read_to(stream, SCRIPTS[-1:], len(SCRIPTS)), SCRIPTS)
            assert await found() == [session.id]
            await session.remove(force=True)
            assert await found() == []
            return proxy.up

    assert await cut_everywhere(agent, tmp_path, "up", use) > len(SCRIPTS) + 300
