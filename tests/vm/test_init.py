"""The agent as process 1 of a real machine: orphans, memory that runs out, servers that are killed, and the end."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
import trio

from ptymux.errors import PtymuxError
from tests.e2e.sessions import following
from tests.harness import until
from tests.vm.agents import answer_of, connected, output_of, program
from tests.vm.lab.machine import VM

ORPHANS = 10_000
# Perl, because every Debian has it and a fork of it costs a third of a Python's.  Each round leaves its children dead and not waited
# for, and then leaves them to process 1; all at once would be more than a guest of 256 MiB may have.
MAKE_ORPHANS = f"""
for (1 .. {ORPHANS // 250}) {{
    my $round = fork;
    if (!$round) {{
        for (1 .. 250) {{
            my $child = fork;
            die "cannot fork" if !defined $child;
            kill 9, $$ if !$child;
        }}
        exit;
    }}
    waitpid $round, 0;
    exit 1 if $?;
    syswrite STDOUT, ".";
}}
"""
# Until somebody listens at the unix socket again, by the guest's clock, and the processor time that the new server took for it.
KILL = """
import json, os, socket, subprocess, time

def server():
    return int(subprocess.check_output(["pgrep", "-o", "-f", "guestagent[.]server"]))

old = server()
os.kill(old, 9)
began = time.monotonic()
while os.path.exists(f"/proc/{old}"):
    time.sleep(0.01)
while True:
    try:
        with socket.socket(socket.AF_UNIX) as there:
            there.connect("/run/guestagent.sock")
        break
    except OSError:
        time.sleep(0.02)
back = time.monotonic() - began
with open(f"/proc/{server()}/stat") as file:
    fields = file.read().rpartition(")")[2].split()
print(json.dumps([back, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")]))
"""
# Until there is a spare server and it has nothing more to do.
SPARE = """
import subprocess, time

def work():
    pids = subprocess.check_output(["pgrep", "-f", "guestagent[.]server"]).split()
    with open(f"/proc/{int(pids[-1])}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return len(pids), int(fields[11]) + int(fields[12])

last = 0, 0
while last[0] != 2 or last != work():
    last = work()
    time.sleep(0.5)
print("true")
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


async def test_ten_thousand_orphans_are_reaped(vm: VM) -> None:
    async with connected(vm) as agent:
        began = time.monotonic()
        await output_of(agent, "perl", "-e", MAKE_ORPHANS)

        async def none_left() -> bool:
            return bool(await answer_of(agent, ZOMBIES) == 0)

        await until(none_left, "the last orphan to be reaped", 60)
        print(f"{ORPHANS} orphans made and reaped in {time.monotonic() - began:.1f} s")


@pytest.mark.parametrize("spare", [True, False], ids=["with a spare", "without"])
async def test_a_killed_server_comes_back_with_its_sessions(vm: VM, spare: bool) -> None:
    """Within a second; without a spare, but for the start of a Python program, for which an emulated processor takes more than that.

    tests/image/test_init.py has the whole on a real processor, without a spare.
    """
    async with connected(vm) as agent:
        if spare:
            await output_of(agent, "sed", "-i", "1i spare_server = true", "/etc/guestagent/config.toml")
            before = agent.connections
            await agent.request("upgrade", keyed=False)  # a new server, which reads it
            await until(lambda: agent.connections > before, "the new server", 30)
            assert await answer_of(agent, SPARE)
        session = await agent.create(["sh", "-c", "stty raw -echo; printf ready; exec cat"])
        async with following(session) as stream:
            await stream.until(b"ready")
            before, began = agent.connections, time.monotonic()
            killer = await agent.create(program(KILL))
            await until(lambda: agent.connections > before, "the next server", 30)
            contact = time.monotonic() - began
            await session.send(b"still here")
            await stream.until(b"still here")
            assert (await session.inspect())["state"] == "running"
        async with following(killer) as stream:
            await stream.to_exit()
            back, work = json.loads(stream.data)
    text = f"{back:.2f} s, its own start {work:.2f} s of processor; the client is back after {contact:.2f} s"
    print(f"a killed server listens again after {text}")
    assert back - (0 if spare else work) < 1, text


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
