"""The agent as process 1 of a real machine: orphans, memory that runs out, servers that are killed, and the end."""

from __future__ import annotations

import contextlib

import pytest
import trio

from ptymux.errors import PtymuxError
from tests.e2e.sessions import following
from tests.harness import until
from tests.vm.agents import answer_of, connected, output_of, program
from tests.vm.lab.machine import VM

ORPHANS = """
import os, time
for number in range(1000):
    if number % 100 == 0:
        print(number, flush=True)
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            while os.getppid() != 1:
                time.sleep(0.001)
            os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
"""
ZOMBIES = """
import json, os
found = 0
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            found += open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            pass
print(json.dumps(found))
"""


async def test_process_1(vm: VM) -> None:
    async with connected(vm) as agent:
        assert b"init" in await output_of(agent, "cat", "/proc/1/cmdline")
        mounts = await output_of(agent, "cat", "/proc/mounts")
        for place in (b" /proc ", b" /sys ", b" /dev/pts ", b" /sys/fs/cgroup cgroup2 ", b" /run "):
            assert place in mounts
        assert b"LOOPBACK,UP" in await output_of(agent, "ip", "link", "show", "lo")


async def test_orphans_are_reaped(vm: VM) -> None:
    async with connected(vm) as agent:
        await output_of(agent, *program(ORPHANS))

        async def none_left() -> bool:
            return bool(await answer_of(agent, ZOMBIES) == 0)

        await until(none_left, "the last orphan to be reaped", 60)


async def test_a_killed_server_comes_back_with_its_sessions(vm: VM) -> None:
    """How fast is another test's business: here the processor is emulated."""
    async with connected(vm) as agent:
        session = await agent.create(["sh", "-c", "stty raw -echo; printf ready; exec cat"])
        async with following(session) as stream:
            await stream.until(b"ready")
            before = agent.connections
            with trio.move_on_after(30), contextlib.suppress(PtymuxError):
                await agent.create(["pkill", "-9", "-f", "guestagent.server"])
            await until(lambda: agent.connections > before, "the next server", 30)
            await session.send(b"still here")
            await stream.until(b"still here")
            assert (await session.inspect())["state"] == "running"


async def test_memory_runs_out_in_a_session(vm: VM) -> None:
    """The program goes, the agent stays, and the exit says why."""
    async with connected(vm) as agent:
        connections = agent.connections
        session = await agent.create(program("x = []\nwhile True: x.append(bytearray(b'x' * (1 << 20)))"))
        async with following(session) as stream:
            with trio.fail_after(120):
                end = await stream.to_exit()
        assert end.signal == 9
        assert end.data.get("oom") is True, end
        assert (await agent.sessions())[0]["state"] == "exited"
        assert agent.connections == connections


@pytest.mark.parametrize("how", ["the agent's method", "a signal to process 1"])
async def test_power_off(vm: VM, how: str) -> None:
    """The sessions are hung up, the disk is clean, and QEMU ends by itself."""
    async with connected(vm) as agent:
        await agent.create(["sh", "-c", 'trap "" HUP; sleep 1000'])
        with contextlib.suppress(PtymuxError), trio.move_on_after(30):
            if how == "the agent's method":
                await agent.request("poweroff", keyed=False)
            else:
                await agent.create(["kill", "-TERM", "1"])
        assert await trio.to_thread.run_sync(vm.wait) == 0
    assert "going down: poweroff" in vm.console()
