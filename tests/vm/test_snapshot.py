"""Snapshots of a real VM's memory: killed, restored, branched, and the terminals go on."""

from __future__ import annotations

import contextlib
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from ptymux import connect
from ptymux.client import Agent, Session
from ptymux.cursor import Cursor
from ptymux.errors import HandshakeRefused, RequestFailed
from ptymux.events import Foreign, Rewound
from tests.e2e.sessions import following
from tests.harness import cutting_proxy, until
from tests.snapshot.programs import numbered
from tests.vm.agents import WAIT, answer_of, connected, fresh_token, output_of, program, proxied, ptymux
from tests.vm.lab.machine import VM, Snapshot, restored
from tests.vm.lab.rootfs import ADMIN, IMPATIENT, THAW_AFTER
from tests.vm.recording import Recording, recorded

LONG = 120.0
CLOCK = 0.05  # seconds that a restored guest's clock may be off ...
TRIES = 4  # ... in the best of so many branches

WRITER = """
import os, sys, time, tty
tty.setraw(1)
number = 0
while True:
    os.write(1, b"".join(b"%015d\\n" % n for n in range(number, number + 20)))
    number += 20
    time.sleep({pause})
"""
CLOCKS = """
import sys, time
print("ready", flush=True)
for line in sys.stdin:
    print(repr(time.time()), flush=True)
"""


def writer(pause: float = 0.05) -> list[str]:
    """Numbered lines for ever."""
    return program(WRITER.format(pause=pause))


async def taken(vm: VM, agent: Agent, name: str = "snapshot") -> tuple[dict[str, Any], Snapshot]:
    """Quiesce, and save the memory; the guest stays paused."""
    report = await agent.snapshot_prepare(budget=30)
    return report, await trio.to_thread.run_sync(vm.save, vm.folder / name)


@contextlib.asynccontextmanager
async def branch(snapshot: Snapshot, report: dict[str, Any], **wishes: Any) -> Any:
    """A VM of its own, restored; and a client with its new token."""
    token = fresh_token()
    with restored(snapshot) as vm:
        async with connected(vm) as agent:
            await agent.snapshot_restore(report["ticket"], token=token, **wishes)
            yield vm, agent


def check_numbered(recording: Recording) -> None:
    assert recording.breaks() == []
    whole = numbered(recording.end)
    assert recording.data == whole[recording.start :], recording.data[-100:]


async def clock_error(agent: Agent) -> float:
    """How far the guest's clock is from ours, less what the way there and back leaves open; the best of a few."""
    session = await agent.create(["sh", "-c", 'stty -echo; exec "$@"', "sh", *program(CLOCKS)])
    errors = []
    async with following(session) as stream:
        await stream.until(b"ready\r\n")
        for _ in range(10):
            before = len(stream.data)
            asked = time.time()
            await session.send(b"\n")
            await stream.until(b"\n", stream.data.count(b"\n") + 1)
            answered = time.time()
            guest = float(stream.data[before:])
            errors.append(max(0.0, asked - guest, guest - answered))
    await session.remove(force=True)
    return min(errors)


# --- the whole of it ----------------------------------------------------------------------------------
class Eight:
    """Eight sessions of a development environment, followed by one client."""

    COMMANDS: dict[str, list[str]] = {
        "vim": ["vim.tiny", "-u", "NONE", "-n", "/root/unsaved"],
        "build": writer(0.2),
        "counter": writer(0.02),
        "python": ["python3", "-q"],
        "job": ["bash", "--norc", "-i"],
        "cat": ["sh", "-c", "stty raw -echo; echo ready; exec cat"],
        "shell": ["bash", "--norc", "-i"],
        "sleep": ["sh", "-c", "echo sleeping; sleep 5; echo slept"],
    }

    def __init__(self, agent: Agent, stack: contextlib.AsyncExitStack) -> None:
        self.agent = agent
        self.sessions: dict[str, Session] = {}
        self.seen: dict[str, Recording] = {}
        self._stack = stack

    async def start(self) -> None:
        for name in self.COMMANDS:
            if name != "sleep":
                await self.create(name)
        await self.seen["vim"].until(b"unsaved")
        await self.type("vim", b"ithe text that nobody saved\x1b", b"saved")
        await self.seen["python"].until(b">>> ")
        await self.type("python", b"answer = 6 * 7\n", b">>> ")
        await self.type("job", b"sleep 1000\n", b"sleep 1000")
        await until(partial(self.foreground, "job", "sleep"), "the job to run")
        await self.type("job", b"\x1a", b"Stopped")
        await self.type("shell", b"here=kept; cd /var/log\n", b"$ ")
        await self.seen["cat"].until(b"ready")
        for name in ("build", "counter"):
            await self.seen[name].more(2000)
        await self.create("sleep")  # the last one, so that it is in the middle of it
        await self.seen["sleep"].until(b"sleeping")

    async def create(self, name: str) -> None:
        self.sessions[name] = session = await self.agent.create(self.COMMANDS[name], name=name, env={"PS1": "$ "})
        self.seen[name] = await self._stack.enter_async_context(recorded(session))

    async def type(self, name: str, keys: bytes, answer: bytes) -> None:
        since = self.seen[name].end
        await self.sessions[name].send(keys)
        await self.seen[name].until(answer, since)

    async def foreground(self, name: str, command: str) -> bool:
        pid = (await self.sessions[name].inspect())["pid"]
        line = await output_of(self.agent, "sh", "-c", f"cat /proc/{pid}/task/{pid}/children")
        for child in line.split():
            if command in (await output_of(self.agent, "cat", f"/proc/{child.decode()}/comm")).decode():
                return True
        return False

    async def check(self) -> None:
        """Everything is as it was, and goes on."""
        for name in ("build", "counter"):
            await self.seen[name].more(2000)
            check_numbered(self.seen[name])
        await self.type("vim", b":w\r", b"written")
        assert await output_of(self.agent, "cat", "/root/unsaved") == b"the text that nobody saved\n"
        await self.type("python", b"print(answer * 2)\n", b"\r\n84\r\n>>> ")
        await self.type("job", b"jobs\n", b"Stopped")
        assert b"Stopped" not in bytes(self.seen["job"].data[self._at_restore("job") :]).split(b"jobs")[0]
        await self.type("cat", b"typed in the branch", b"typed in the branch")
        await self.type("shell", b"echo $here $PWD\n", b"kept /var/log")
        await self.seen["sleep"].until(b"slept\r\n")
        for recording in self.seen.values():
            assert recording.breaks() == []

    def _at_restore(self, name: str) -> int:
        return self.seen[name].marks("restored")[-1].offset - self.seen[name].start


async def test_eight_sessions_outlive_the_machine(vm: VM, tmp_path: Path) -> None:
    """One client follows eight sessions; QEMU is killed, its memory restored elsewhere, and every stream goes on at its cursor."""
    with trio.fail_after(LONG):
        async with (
            cutting_proxy(str(vm.vsock.path), tmp_path) as proxy,
            connected(proxied(str(proxy.listen))) as agent,
            contextlib.AsyncExitStack() as stack,
        ):
            eight = Eight(agent, stack)
            await eight.start()
            first = agent.generation
            report, snapshot = await taken(vm, agent)
            assert {row["id"] for row in report["sessions"]} == {each.id for each in eight.sessions.values()}
            vm.kill()
            await until(lambda: not agent.up, "contact to be lost")
            token = fresh_token()
            with restored(snapshot) as new:
                proxy.target = str(new.vsock.path)
                await until(lambda: agent.up, "contact")
                result = await agent.snapshot_restore(report["ticket"], token=token)
                assert result["clock_jump"] > 0
                for recording in eight.seen.values():
                    await recording.reached(partial(recording.marks, "restored"), "the mark")
                await eight.check()
                assert agent.generation not in (first, None)
                # The old token is refused, the new one is good for others too.
                with pytest.raises(HandshakeRefused):
                    async with connected(new):
                        pass
                async with connected(new, token=token) as other:
                    assert len(await other.sessions()) == len(eight.sessions)


async def test_the_clock(vm: VM) -> None:
    """case C44: right, however long the snapshot lay about; and the jump is reported in every stream."""
    async with connected(vm) as agent:
        session = await agent.create(["sleep", "1000"])
        report, snapshot = await taken(vm, agent)
        vm.kill()
    await trio.sleep(1)  # the guest's clock stands still
    errors = []
    for _ in range(TRIES):  # on a busy machine the very request that sets it takes longer than it may be off
        async with branch(snapshot, report) as (_, agent):
            async with recorded(agent.session(session.id)) as seen:
                await seen.reached(partial(seen.marks, "restored"), "the mark")
                assert seen.marks("restored")[0].data["clock_jump"] > 1
            errors.append(await clock_error(agent))
        if errors[-1] < CLOCK:
            return
    raise AssertionError(f"the clock is off by {errors}")


async def test_two_branches_at_once(vm: VM) -> None:
    """They share a past and nothing else: not their random numbers, not their identity, not their output."""
    async with connected(vm) as agent:
        session = await agent.create(writer())
        async with recorded(session) as seen:
            await seen.more(5000)
            report, snapshot = await taken(vm, agent)
            cursor = seen.attach.cursor
    assert cursor is not None
    vm.kill()
    async with branch(snapshot, report) as (one, first), branch(snapshot, report) as (other, second):
        assert first.generation != second.generation
        noise = {await output_of(each, "head", "-c", "32", "/dev/urandom") for each in (first, second)}
        assert len(noise) == 2
        made = [await answer_of(each, "import uuid; print('\"%s\"' % uuid.uuid4())") for each in (first, second)]
        assert made[0] != made[1]  # case C40
        ids = [(await each.create(["sleep", "100"])).id for each in (first, second)]
        assert ids[0] != ids[1]
        ends: list[Cursor] = []
        for each in (first, second):
            async with recorded(each.session(session.id), cursor) as seen:
                await seen.more(3000)
                check_numbered(seen)
                assert len(seen.marks("restored")) == 1
                assert seen.attach.cursor is not None
                ends.append(seen.attach.cursor)
        # One branch's cursor in the other: never the other's bytes as if they followed.
        async with second.session(session.id).attach(ends[0], repair="bytes") as attach:
            assert isinstance(await anext(attach), Foreign)
        assert one.device()["broken"] is None
        assert other.device()["violations"] == 0


async def test_a_chain_of_snapshots(vm: VM) -> None:
    """Restore, work, snapshot, three times; a client of the first life finds its place in the last one, or is told."""
    depth = 3
    with contextlib.ExitStack() as machines:
        present, token = vm, ADMIN
        async with connected(present) as agent:
            session = await agent.create(["sh", "-c", "stty raw -echo; printf begin.; exec cat"])
            async with recorded(session) as seen:
                await seen.until(b"begin.")
                cursor = seen.attach.cursor  # of generation 0, before every fork
        text, generations = b"begin.", set()
        beyond = None
        for level in range(depth):
            async with connected(present, token=token) as agent:
                generations.add(agent.generation)
                report, snapshot = await taken(present, agent, f"level-{level}")
                if level == 0:
                    # The source goes on, and its client sees what will never have happened in the branches.
                    present.resume()
                    await agent.snapshot_resume(report["ticket"])
                    await session_says(agent, session.id, text, b"elsewhere.")
                    async with recorded(agent.session(session.id)) as seen:
                        await seen.until(b"elsewhere.")
                        beyond = seen.attach.cursor
            present.kill()
            present = machines.enter_context(restored(snapshot))
            async with connected(present, token=token) as agent:
                token = fresh_token()
                await agent.snapshot_restore(report["ticket"], token=token)
                await session_says(agent, session.id, text, b"level %d." % level)
                text += b"level %d." % level
        assert cursor is not None
        assert beyond is not None
        async with connected(present, token=token) as leaf:
            generations.add(leaf.generation)
            assert len(generations) == depth + 1
            async with recorded(leaf.session(session.id), cursor) as seen:
                await seen.until(text[cursor.offset :])
                assert seen.breaks() == []
                assert len(seen.marks("restored")) == depth
            async with leaf.session(session.id).attach(beyond, repair="bytes") as attach:
                event = await anext(attach)
                assert event == Rewound(beyond.offset, len(b"begin."))
                async with recorded(leaf.session(session.id)) as seen:
                    await seen.until(text)
                    assert seen.data == text


async def session_says(agent: Agent, id: str, before: bytes, text: bytes) -> None:
    """Type into a `cat`."""
    async with recorded(agent.session(id)) as seen:
        await seen.until(before)
        await agent.session(id).send(text)
        await seen.until(before + text)
        assert seen.data == before + text


async def test_the_source_goes_on(vm: VM) -> None:
    """case C35: same generation; the guest's connections were reset and come back by themselves; nothing is lost."""
    async with connected(vm) as agent:
        session = await agent.create(writer())
        async with recorded(session) as seen:
            await seen.more(2000)
            generation, before = agent.generation, agent.connections
            async with agent.quiesced(budget=30):
                await trio.to_thread.run_sync(vm.save, vm.folder / "snapshot")
                vm.resume()
                vm.device("reset-guest")  # as Firecracker does it
            await seen.more(3000)
            check_numbered(seen)
            assert seen.marks("restored") == []
        assert agent.generation == generation
        assert agent.connections > before


# --- hosts that do not behave -------------------------------------------------------------------------
async def test_fifty_dials_at_the_moment_of_the_restore(vm: VM) -> None:
    """With ports that start over, so that they meet pairs that the guest still holds from before."""
    ports: set[bytes] = set()
    async with contextlib.AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(connected(vm)) for _ in range(20)]
        report, snapshot = await taken(vm, agents[0])
        vm.kill()

    async def dial(address: str) -> None:
        async with connect(address, token=ADMIN, wait=WAIT) as agent:
            await agent.snapshot_status()
            ports.add(agent.client_id)

    with restored(snapshot) as new, trio.fail_after(LONG):
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(dial, new.address())
        assert len(ports) == 50
        async with connected(new) as agent:
            await agent.snapshot_restore(report["ticket"], token=fresh_token())
            assert (await agent.snapshot_status())["state"] == "running"


async def test_the_host_dies_between_prepare_and_snapshot(vm: VM) -> None:
    """The guest thaws by itself, says so, and a host that comes too late is told."""
    async with connected(vm) as agent:
        await output_of(agent, "cp", IMPATIENT, "/etc/guestagent/config.toml")
        before = agent.connections
        await agent.request("upgrade", keyed=False)  # a new server, which reads it
        await until(lambda: agent.connections > before, "the new server", LONG)
        session = await agent.create(writer())
        async with recorded(session) as seen:
            await seen.more(1000)
        report = await agent.snapshot_prepare(budget=30)
    with trio.fail_after(LONG):
        async with connected(vm) as later:
            started = time.monotonic()
            async with recorded(later.session(session.id)) as seen:
                await seen.more(seen.attach.answer["head"] + 1000)  # what there is, and what comes once it thaws
                assert time.monotonic() - started < 10 * THAW_AFTER
                check_numbered(seen)
            assert (await later.snapshot_status())["state"] == "running"
            with pytest.raises(RequestFailed) as caught:
                await later.snapshot_resume(report["ticket"])
            assert caught.value.code == "state"


async def test_a_snapshot_without_prepare_makes_every_cursor_foreign(vm: VM) -> None:
    """It cannot know where it forked."""
    async with connected(vm) as agent:
        session = await agent.create(writer())
        async with recorded(session) as seen:
            await seen.more(2000)
            cursor = seen.attach.cursor
        snapshot = await trio.to_thread.run_sync(vm.save, vm.folder / "snapshot")
        vm.kill()
    with restored(snapshot) as new:
        async with connected(new) as agent:
            await agent.snapshot_restore(None, token=fresh_token())
            async with agent.session(session.id).attach(cursor, repair="bytes") as attach:
                assert isinstance(await anext(attach), Foreign)


async def test_restore_called_twice(vm: VM) -> None:
    """The second call with the ticket changes nothing."""
    async with connected(vm) as agent:
        report, snapshot = await taken(vm, agent)
        vm.kill()
    async with branch(snapshot, report) as (_, agent):
        generation = (await agent.info())["generation"]
        with contextlib.suppress(RequestFailed):
            await agent.snapshot_restore(report["ticket"], token=fresh_token())
        assert (await agent.info())["generation"] == generation


async def test_nobody_in_the_guest_drives_the_lifecycle(vm: VM) -> None:
    """Not even root with the admin token."""
    ask = "ptymux --to unix:/run/guestagent.sock --token-file /run/token snapshot prepare --json"
    async with connected(vm) as agent:
        answer = json.loads(
            await output_of(agent, "sh", "-c", f"echo {ADMIN} >/run/token; {ask} 2>/dev/null", status=None)
        )
        assert answer["error"] == "forbidden"
        assert (await agent.snapshot_status())["state"] == "running"


def test_the_command_line(vm: VM, tmp_path: Path) -> None:
    """`ptymux snapshot` from the host, all of it."""
    made = ptymux(vm, "new", "--name", "work", "--json", "--", "sh", "-c", "echo hello; exec cat")
    assert made.returncode == 0, made.stderr
    report = json.loads(ptymux(vm, "snapshot", "prepare", "--budget", "30", "--json").stdout)
    assert json.loads(ptymux(vm, "snapshot", "status", "--json").stdout)["state"] == "quiesced"
    snapshot = vm.save(vm.folder / "snapshot")
    vm.kill()
    token = fresh_token()
    (tmp_path / "token").write_text(token)
    with restored(snapshot) as new:
        arguments = ("--ticket", report["ticket"], "--new-token-file", str(tmp_path / "token"), "--json")
        done = ptymux(new, "snapshot", "restore", *arguments)
        assert done.returncode == 0, done.stderr
        assert ptymux(new, "snapshot", "status").returncode != 0  # the old token
        read = ptymux(new, "read", "work", "--from", "0", token=token)
        assert b"hello" in read.stdout, read.stderr
