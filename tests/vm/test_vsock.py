"""The promise, over a real AF_VSOCK between a real guest and this host."""

from __future__ import annotations

import hashlib
import json
import random
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from ptymux.client import Agent
from ptymux.errors import DialError, HandshakeRefused, RequestFailed
from ptymux.events import Exit, Output
from tests.e2e.sessions import following
from tests.harness import cutting_proxy, spread_budgets
from tests.vm.agents import (
    BLOCK,
    answer_of,
    connected,
    output_of,
    program,
    proxied,
    ptymux,
    raw,
    stream_bytes,
    stream_text,
)
from tests.vm.lab.machine import VM
from tests.vm.lab.rootfs import ADMIN, PORT, VIEWER

LONG = 120.0  # seconds for what moves many bytes through a guest without hardware to help it


async def received(agent: Agent, command: list[str]) -> tuple[int, str]:
    """How much arrived of what a command wrote, and its hash."""
    session = await agent.create(command, policy="block")
    size, sum = 0, hashlib.sha256()
    async with session.attach(repair="bytes") as stream:
        async for event in stream:
            if isinstance(event, Output):
                assert event.offset == size
                size += len(event.data)
                sum.update(event.data)
            elif isinstance(event, Exit):
                assert event.code == 0
    await session.remove()
    return size, sum.hexdigest()


async def test_a_hundred_megabytes_through_cuts(vm: VM, tmp_path: Path) -> None:
    blocks = 100_000_000 // BLOCK + 1
    cuts = spread_budgets(30, blocks * BLOCK, seed=4)
    async with cutting_proxy(str(vm.vsock.path), tmp_path, cuts) as proxy:
        async with connected(proxied(str(proxy.listen))) as agent:
            with trio.fail_after(LONG):
                arrived = await received(agent, raw(program(stream_text(blocks, seed=1))))
        assert arrived == (blocks * BLOCK, hashlib.sha256(stream_bytes(blocks, seed=1)).hexdigest())
        assert proxy.cuts == len(cuts)


async def test_input_is_typed_exactly_once_through_cuts(vm: VM, tmp_path: Path) -> None:
    data = random.Random(2).randbytes(BLOCK)
    counting = ["sh", "-c", f"stty raw -echo; echo ready; head -c {len(data)} | sha256sum"]
    async with cutting_proxy(str(vm.vsock.path), tmp_path, spread_budgets(20, len(data), seed=5)) as proxy:
        async with connected(proxied(str(proxy.listen))) as agent:
            session = await agent.create(counting)
            session.keep_input(None)
            async with following(session) as stream:
                await stream.until(b"ready")
                with trio.fail_after(LONG):
                    for start in range(0, len(data), 50_000):
                        await session.send(data[start : start + 50_000])
                await stream.to_exit()
        assert proxy.cuts >= 15
    assert stream.data.split()[1].decode() == hashlib.sha256(data).hexdigest()


async def test_twenty_connections(vm: VM) -> None:
    """Each with a stream of its own, at the same time."""
    sums = {}
    blocks = 2

    async def one(number: int) -> None:
        async with connected(vm) as agent:
            # Not a Python for each, which with the histories fills a guest of 256 MiB.  It then reads its programs from the disk
            # again and again (a refault for each page that runs), kills nobody for minutes, and answers nobody either.
            sums[number] = await received(agent, ["sh", "-c", f"stty raw; printf '%6d' {number}; cat /root/stream"])

    with trio.fail_after(LONG):
        async with connected(vm) as agent:
            await output_of(agent, "sh", "-c", '"$@" >/root/stream', "sh", *program(stream_text(blocks, seed=3)))
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(one, number)
    for number in range(20):
        wanted = hashlib.sha256(b"%6d" % number + stream_bytes(blocks, seed=3)).hexdigest()
        assert sums[number] == (6 + blocks * BLOCK, wanted)


async def test_fifty_dials_at_once(vm: VM) -> None:
    """Must end well in bounded time, whatever the guest's queue of waiting connections is."""
    clients = set()

    async def one() -> None:
        async with connected(vm) as agent:
            await agent.info()
            clients.add(agent.client_id)

    with trio.fail_after(LONG):
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(one)
    assert len(clients) == 50


async def test_the_command_line_from_the_host(vm: VM) -> None:
    done = await trio.to_thread.run_sync(partial(ptymux, vm, "exec", "--", "sh", "-c", "uname -n; exit 7"))
    assert (done.returncode, done.stderr) == (7, b"")
    assert done.stdout


# --- who may come in --------------------------------------------------------------------------------
DIAL = """
import json, os, socket
os.setuid({uid})
answers = dict()
for cid in {cids}:
    with socket.socket(socket.AF_VSOCK) as there:
        there.settimeout(10)
        try:
            there.connect((cid, {port}))
            there.sendall({hello!r})
            data = b""
            while part := there.recv(4096):
                data += part
            answers[cid] = data.decode("latin-1")
        except OSError as error:
            answers[cid] = "OSError " + str(error)
print(json.dumps(answers))
"""


@pytest.mark.parametrize("uid", [0, 65534])
async def test_a_process_in_the_guest_is_not_the_host(vm: VM, uid: int) -> None:
    """It dials CID 1, or the guest's own, with a good token, and is sent away in words."""
    from ptymux import messages as m

    hello = m.encode(m.Hello(m.MAGIC, [1, 1], b"c" * 16, ADMIN.encode(), b"n" * 16))
    async with connected(vm) as agent:
        text = DIAL.format(uid=uid, cids=(1, vm.spec.cid), port=PORT, hello=hello)
        answers = await answer_of(agent, text)
        for cid in ("1", str(vm.spec.cid)):
            assert "unauthorized" in answers[cid], answers
            assert "welcome" not in answers[cid]
        assert await agent.sessions() == []


async def test_tokens_and_roles(vm: VM) -> None:
    with pytest.raises(HandshakeRefused):
        async with connected(vm, token="wrong"):
            pass
    async with connected(vm, token=VIEWER) as agent:
        assert agent.role == "viewer"
        with pytest.raises(RequestFailed) as caught:
            await agent.create(["true"])
        assert caught.value.code == "forbidden"


async def test_a_user_of_the_guest_gets_nowhere(vm: VM) -> None:
    """Not to the unix socket, which is root's, and not to the token."""
    text = """
    import json, os, socket
    os.setuid(65534)
    answers = {}
    try:
        socket.socket(socket.AF_UNIX).connect("/run/guestagent.sock")
    except OSError as error:
        answers["socket"] = error.strerror
    try:
        open("/etc/guestagent/tokens")
    except OSError as error:
        answers["tokens"] = error.strerror
    print(json.dumps(answers))
    """
    async with connected(vm) as agent:
        assert await answer_of(agent, text) == {"socket": "Permission denied", "tokens": "Permission denied"}


async def test_both_listeners_at_once(vm: VM) -> None:
    """A client in the guest comes by WebSocket, this one by vsock, and they see the same sessions."""
    ask = f"ptymux --to ws://127.0.0.1:{PORT}/ --token-file /run/token ls --json"
    async with connected(vm) as agent:
        session = await agent.create(["sleep", "1000"], name="sleeper")
        rows = json.loads(await output_of(agent, "sh", "-c", f"echo {ADMIN} >/run/token; {ask}"))
        assert session.id in [row["id"] for row in rows]


async def test_nobody_listens(vm: VM) -> None:
    """A wrong port is told at once, not after a time-out."""
    from ptymux import connect

    started = time.monotonic()
    with pytest.raises(DialError):
        async with connect(vm.address(PORT + 1)):
            pass
    assert time.monotonic() - started < 2
