"""Every failure of every step ends in `running`, with everything undone, or in a state that was reported and can be tried again."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from ptymux import connect
from ptymux.client import Agent, Session
from ptymux.errors import RequestFailed
from ptymux.events import Marked, Output
from tests.e2e.raw import RawClient
from tests.e2e.sessions import following
from tests.harness import cutting_proxy, until
from tests.snapshot.clone import Guest, frozen, guest, host
from tests.snapshot.programs import count, counter

CONFIGURATION = 'freeze_filesystems = ["/disk"]\nhook_timeout = 0.6\nthaw_after = 60'
HANG = {"hang": True}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """One guest for all faults: each must leave it as it was."""
    with guest(tmp_path_factory.mktemp("faults") / "guest", CONFIGURATION) as running:
        yield running


@dataclass
class Witness:
    """What shows that a guest is as it was."""

    guest: Guest
    agent: Agent
    typed: Session
    counter: Path
    group: str = ""
    before: list[str] = field(default_factory=list)  # names of pre-snapshot hooks that were installed

    async def as_before(self) -> None:
        """Running, and everything undone."""
        status = await self.agent.snapshot_status()
        assert status["state"] == "running"
        assert status["ticket"] is None
        assert status["frozen_filesystems"] == []
        assert not self.guest.machine.frozen
        assert not frozen(self.group)
        now = count(self.counter)
        await until(lambda: count(self.counter) > now, "the counter to go on")
        await self.typed.send(b"x")  # acknowledged, so it was written
        await (await self.agent.create(["true"])).remove(force=True)

    async def still_quiesced(self) -> None:
        """Quiesced, and nothing moves."""
        assert (await self.agent.snapshot_status())["state"] == "quiesced"
        assert frozen(self.group)
        now = count(self.counter)
        await trio.sleep(0.05)
        assert count(self.counter) == now


@asynccontextmanager
async def witness(guest: Guest, tmp_path: Path) -> AsyncIterator[Witness]:
    guest.machine.fail()
    file = tmp_path / "count"
    async with host(guest) as agent:
        session = await agent.create(counter(file))
        typed = await agent.create(["sh", "-c", "stty raw -echo; exec cat >/dev/null"])
        await until(lambda: count(file), "the counter")
        found = Witness(guest, agent, typed, file, (await session.inspect())["cgroup"])
        try:
            yield found
        finally:
            guest.machine.fail()
            for path in guest.hooks.glob("*/*"):
                path.unlink()
            with contextlib.suppress(RequestFailed):
                await agent.snapshot_abort()
            await session.remove(force=True)
            await typed.remove(force=True)


# --- a step of the quiesce fails --------------------------------------------------------------------------
@dataclass
class Fault:
    text: str  # in the failure
    hooks: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    budget: float = 5.0
    last: str = ""  # the step in which it ended


PREPARE_FAULTS = {
    "hook fails": Fault("hook pre-snapshot/20-no failed: status 3: not now", {"20-no": "echo not now; exit 3"}, last="hooks"),
    "hook cannot be started": Fault("hook pre-snapshot/20-no failed: cannot start", {"20-no": "#"}, last="hooks"),
    "hook hangs": Fault("killed after 0.6 s", {"20-no": "sleep 100"}, last="hooks"),
    "hook over budget": Fault("over the budget of 0.1 s in hooks", {"20-no": "sleep 100"}, budget=0.1, last="hooks"),
    "sync: no space": Fault("cannot sync /disk: No space left", machine={"sync": {"errno": errno.ENOSPC}}, last="sync"),
    "sync: I/O error": Fault("cannot sync /disk: Input/output", machine={"sync": {"errno": errno.EIO}}, last="sync"),
    "sync hangs": Fault("over the budget of 0.2 s in sync", machine={"sync": HANG}, budget=0.2, last="sync"),
    "filesystem is frozen": Fault(
        "cannot freeze filesystem /disk: Device or resource busy",
        machine={"freeze": {"errno": errno.EBUSY}},
        last="filesystems",
    ),
    "filesystem cannot be frozen": Fault(
        "cannot freeze filesystem /disk: Operation not supported",
        machine={"freeze": {"errno": errno.EOPNOTSUPP}},
        last="filesystems",
    ),
    "freezing hangs": Fault("over the budget of 0.2 s in filesystems", machine={"freeze": HANG}, budget=0.2, last="filesystems"),
    "no time at all": Fault("over the budget of 0.001 s", {"20-slow": "sleep 0.05"}, budget=0.001),
}  # fmt: skip


@pytest.mark.parametrize("name", PREPARE_FAULTS)
async def test_a_quiesce_that_fails(shared: Guest, tmp_path: Path, name: str) -> None:
    fault = PREPARE_FAULTS[name]
    async with witness(shared, tmp_path) as seen:
        told = tmp_path / "told"
        shared.hook("pre-snapshot/90-first", f"echo first >>{told}")
        shared.hook("post-resume/90-last", f"echo last $GUESTAGENT_OUTCOME >>{told}")
        for hook, script in fault.hooks.items():
            path = shared.hook(f"pre-snapshot/{hook}", script)
            if script == "#":
                path.write_text("#!/no/such/interpreter\n")
        shared.machine.fail(**fault.machine)
        with pytest.raises(RequestFailed) as caught:
            await seen.agent.snapshot_prepare(ticket=f"ticket {name}", budget=fault.budget)
        assert caught.value.code == "not_quiesced"
        assert fault.text in str(caught.value)
        details = caught.value.details
        assert details["undo_errors"] == []
        if fault.last:
            assert details["steps"][-1]["step"] == fault.last
        thawed = len(shared.machine.calls("thaw"))
        shared.machine.fail()
        if fault.machine.get("freeze") is HANG:  # it goes on only now, and comes late
            await until(lambda: len(shared.machine.calls("thaw")) > thawed, "a freeze that was late to undo itself")
        await until(lambda: not shared.machine.frozen, "the file system to be as before")
        await seen.as_before()
        ran = details["steps"][-1]["step"] != "gate"
        assert told.exists() == ran
        if ran:
            assert told.read_text().splitlines()[-1] == "last failed"
        # The same request again is the same failure; a new one is free to try.
        with pytest.raises(RequestFailed, match="everything was undone"):
            await seen.agent.snapshot_prepare(ticket=f"ticket {name}")
        for path in shared.hooks.glob("pre-snapshot/20-*"):
            path.unlink()
        async with seen.agent.quiesced():
            await seen.still_quiesced()
        await seen.as_before()


async def test_abort_in_the_middle(shared: Guest, tmp_path: Path) -> None:
    """Whoever waits for the quiesce is told, and everything is undone."""
    async with witness(shared, tmp_path) as seen, trio.open_nursery() as nursery:
        shared.machine.fail(sync=HANG)
        failures: list[RequestFailed] = []

        async def prepare() -> None:
            with pytest.raises(RequestFailed) as caught:
                await seen.agent.snapshot_prepare(ticket="to be aborted")
            failures.append(caught.value)

        nursery.start_soon(prepare)
        await until(lambda: shared.state() == "quiescing", "the quiesce to begin")
        assert (await seen.agent.snapshot_abort("to be aborted"))["outcome"] == "aborted"
        shared.machine.fail()
        await seen.as_before()
        await until(lambda: failures, "the one who waited")
        assert "aborted" in str(failures[0])
        assert (await seen.agent.snapshot_abort("to be aborted"))["outcome"] == "aborted"


# --- a step of the restore fails --------------------------------------------------------------------------
RESTORE_FAULTS = {
    "reseed": ({"reseed": {"errno": errno.EPERM}}, {}, "reseed: Operation not permitted"),
    "clock": ({"set_wall": {"errno": errno.EPERM}}, {}, "clock: Operation not permitted"),
    "hostname": ({"set_hostname": {"errno": errno.EROFS}}, {"hostname": "branch"}, "identity: Read-only"),
    "machine id": ({"set_machine_id": {"errno": errno.ENOSPC}}, {"machine_id": "random"}, "identity: No space"),
    "boot id": ({"set_boot_id": {"errno": errno.EPERM}}, {"boot_id": True}, "identity: Operation not permitted"),
    "random seed": ({"renew_random_seed": {"errno": errno.EIO}}, {"random_seed": True}, "identity: Input/output"),
    "filesystem": ({"thaw": {"errno": errno.EIO}}, {}, "cannot thaw /disk"),
}


@pytest.mark.parametrize("name", RESTORE_FAULTS)
async def test_a_restore_that_fails(shared: Guest, tmp_path: Path, name: str) -> None:
    """It is quiesced as before, under the generation as before, and the same call succeeds once the cause is gone."""
    faults, wishes, text = RESTORE_FAULTS[name]
    async with witness(shared, tmp_path) as seen:
        before = (await seen.agent.info())["generation"]
        report = await seen.agent.snapshot_prepare()
        shared.machine.fail(**faults)
        with pytest.raises(RequestFailed) as caught:
            await seen.agent.restore(report["ticket"], **wishes)
        assert caught.value.code == "not_restored"
        assert text in str(caught.value)
        assert caught.value.details["state"] == "quiesced"
        assert (await seen.agent.info())["generation"] == before
        await seen.still_quiesced()
        shared.machine.fail()
        if name == "filesystem":
            (shared.machine.folder / "frozen").unlink(missing_ok=True)
        answer = await seen.agent.restore(report["ticket"], **wishes)
        assert answer["generation"] == (await seen.agent.info())["generation"] != before
        await seen.as_before()


async def test_a_hook_after_the_restore_fails(shared: Guest, tmp_path: Path) -> None:
    """It is reported, the others run, and the VM still thaws."""
    async with witness(shared, tmp_path) as seen:
        told = tmp_path / "told"
        shared.hook("post-restore/10-no", "echo alas; exit 5")
        shared.hook("post-restore/20-slow", "sleep 100")
        shared.hook("post-restore/30-yes", f"echo $GUESTAGENT_EVENT $GUESTAGENT_OUTCOME $GUESTAGENT_GENERATION >{told}")
        report = await seen.agent.snapshot_prepare()
        answer = await seen.agent.restore(report["ticket"])
        hooks = {result["hook"]: result for result in answer["hooks"]}
        assert list(hooks) == ["post-restore/10-no", "post-restore/20-slow", "post-restore/30-yes"]
        assert (hooks["post-restore/10-no"]["status"], hooks["post-restore/10-no"]["output"]) == (5, "alas\n")
        assert hooks["post-restore/20-slow"]["error"] == "killed after 0.6 s"
        assert told.read_text() == f"post-restore restored {answer['generation']}\n"
        await seen.as_before()


async def test_the_hooks_order_and_their_output(shared: Guest, tmp_path: Path) -> None:
    async with witness(shared, tmp_path) as seen:
        told = tmp_path / "told"
        for event in ("pre-snapshot", "post-resume"):
            for name in ("10-database", "20-application"):
                shared.hook(
                    f"{event}/{name}", f"echo $GUESTAGENT_EVENT {name} $GUESTAGENT_OUTCOME >>{told}; seq 1 100000"
                )
        shared.hook("pre-snapshot/.hidden", "exit 1")
        shared.hook("pre-snapshot/30-not-executable", "exit 1").chmod(0o644)
        async with seen.agent.quiesced() as report:
            output = report["hooks"][0]["output"]
            assert output.startswith("1\n2\n")
            assert output.endswith("99999\n100000\n")
            assert "bytes left out" in output
            assert len(output) < 5000
        assert told.read_text().splitlines() == [
            "pre-snapshot 20-application",
            "pre-snapshot 10-database",
            "post-resume 10-database resumed",
            "post-resume 20-application resumed",
        ]


# --- the connection dies ------------------------------------------------------------------------------------
async def test_the_connection_dies_in_the_middle(shared: Guest, tmp_path: Path) -> None:
    """The quiesce goes on, and the client, on its next connection, is told the outcome of the one that it asked for."""
    async with (
        witness(shared, tmp_path) as seen,
        cutting_proxy(shared.path, tmp_path) as proxy,
        connect(proxy.address) as client,
        trio.open_nursery() as nursery,
    ):
        shared.machine.fail(sync=HANG)
        reports: list[dict[str, Any]] = []

        async def prepare() -> None:
            reports.append(await client.snapshot_prepare(ticket="over a cut"))

        nursery.start_soon(prepare)
        await until(lambda: shared.state() == "quiescing", "the quiesce to begin")
        proxy.cut_all()
        await until(lambda: client.connections == 2, "the next connection")
        shared.machine.fail()
        await until(lambda: reports, "the report")
        assert reports[0] == await seen.agent.snapshot_prepare(ticket="over a cut")  # and again
        proxy.cut_all()
        await client.snapshot_resume("over a cut")
        assert (await client.snapshot_resume("over a cut"))["outcome"] == "resumed"
        await seen.as_before()


async def test_a_cancelled_block_goes_on(shared: Guest, tmp_path: Path) -> None:
    async with witness(shared, tmp_path) as seen:
        with trio.move_on_after(0.3):
            async with seen.agent.quiesced():
                await trio.sleep_forever()
        await seen.as_before()
        shared.machine.fail(sync=HANG)
        with trio.move_on_after(0.2):
            async with seen.agent.quiesced():
                pytest.fail("it cannot be")
        shared.machine.fail()
        await seen.as_before()


# --- the server is killed in each state ------------------------------------------------------------------------
async def killed(seen: Witness) -> None:
    restarts = (await seen.agent.info())["restarts"]
    seen.guest.kill_server()

    async def restarted() -> bool:
        return bool((await seen.agent.info())["restarts"] > restarts)

    await until(restarted, "the next server")


async def test_killed_while_running(shared: Guest, tmp_path: Path) -> None:
    async with witness(shared, tmp_path) as seen:
        async with seen.agent.quiesced(ticket="before the kill"):
            pass
        await killed(seen)
        await seen.as_before()
        assert (await seen.agent.snapshot_resume("before the kill"))["outcome"] == "resumed"
        with pytest.raises(RequestFailed, match="was used: resumed"):
            await seen.agent.snapshot_prepare(ticket="before the kill")


@pytest.mark.parametrize("step", ["hooks", "sync", "filesystems"])
async def test_killed_while_quiescing(shared: Guest, tmp_path: Path, step: str) -> None:
    """The next server undoes it."""
    async with witness(shared, tmp_path) as seen, trio.open_nursery() as nursery:
        told = tmp_path / "told"
        shared.hook("post-resume/10-undo", f"echo $GUESTAGENT_OUTCOME >>{told}")
        gate = tmp_path / "gate"
        if step == "hooks":
            shared.hook("pre-snapshot/10-wait", f"touch {gate}; sleep 0.5")
        shared.machine.fail(**{"sync": HANG} if step == "sync" else {"freeze": HANG} if step == "filesystems" else {})
        outcome: list[object] = []

        async def prepare() -> None:
            try:
                outcome.append(await seen.agent.snapshot_prepare(ticket=f"killed in {step}"))
            except RequestFailed as error:
                outcome.append(error)

        nursery.start_soon(prepare)
        name = {"sync": "sync", "filesystems": "freeze"}.get(step)
        calls = len(shared.machine.calls(name))
        await until(lambda: gate.exists() or (name and len(shared.machine.calls(name)) > calls), "the step")
        await killed(seen)
        shared.machine.fail()
        await until(lambda: outcome, "an answer")
        assert isinstance(outcome[0], RequestFailed), outcome
        assert outcome[0].code in ("not_quiesced", "state")
        await until(lambda: told.exists() and told.read_text() == "failed\n", "the hook that undoes")
        await seen.as_before()
        assert (await seen.agent.snapshot_status())["last"]["outcome"] == "failed"


async def test_killed_while_quiesced(shared: Guest, tmp_path: Path) -> None:
    """The next server goes on with it: same state, same ticket, nothing has moved; and so does the one after that."""
    async with witness(shared, tmp_path) as seen:
        report = await seen.agent.snapshot_prepare(ticket="kept")
        for _ in range(2):
            await killed(seen)
            await seen.still_quiesced()
            assert shared.machine.frozen
            again = await seen.agent.snapshot_prepare(ticket="kept")
            assert again["sessions"] == report["sessions"]
        with trio.move_on_after(0.2):
            await seen.typed.send(b"not now")
            pytest.fail("input was acknowledged while quiesced")
        await seen.agent.snapshot_resume("kept")
        await seen.typed.flush_input()
        await seen.as_before()


async def test_killed_while_thawing(shared: Guest, tmp_path: Path) -> None:
    """The next server completes it."""
    async with witness(shared, tmp_path) as seen, trio.open_nursery() as nursery:
        await seen.agent.snapshot_prepare(ticket="to thaw")
        gate = tmp_path / "gate"
        shared.hook("post-resume/10-wait", f"touch {gate}; sleep 0.5")
        answers: list[dict[str, Any]] = []

        async def resume() -> None:
            answers.append(await seen.agent.snapshot_resume("to thaw"))

        nursery.start_soon(resume)
        await until(lambda: gate.exists() and shared.state() == "thawing", "the hook")
        await killed(seen)
        await until(lambda: answers, "the answer")
        assert (answers[0]["outcome"], answers[0]["server_was_killed"]) == ("resumed", True)
        await seen.as_before()


async def test_killed_before_the_new_generation(shared: Guest, tmp_path: Path) -> None:
    """Quiesced as before; the restore that was asked for is carried out by the next server, once."""
    async with witness(shared, tmp_path) as seen, trio.open_nursery() as nursery:
        before = (await seen.agent.info())["generation"]
        await seen.agent.snapshot_prepare(ticket="restored in two")
        shared.machine.fail(reseed=HANG)
        calls = len(shared.machine.calls("reseed"))
        answers: list[dict[str, Any]] = []

        async def restore() -> None:
            answers.append(await seen.agent.restore("restored in two"))

        nursery.start_soon(restore)
        await until(lambda: len(shared.machine.calls("reseed")) > calls, "the reseeding")
        calls += 1
        shared.kill_server()
        # The host's client tries again by itself, and meets a guest that is quiesced again.
        await until(lambda: len(shared.machine.calls("reseed")) > calls, "the second attempt")
        shared.machine.fail()
        await until(lambda: answers, "the answer")
        assert answers[0]["generation"] == (await seen.agent.info())["generation"] != before
        await seen.as_before()


async def test_killed_after_the_new_generation(shared: Guest, tmp_path: Path) -> None:
    """The next server completes the restore: one generation, one mark in each stream."""
    async with witness(shared, tmp_path) as seen, trio.open_nursery() as nursery:
        before = (await seen.agent.info())["generation"]
        await seen.agent.snapshot_prepare(ticket="restored")
        gate = tmp_path / "gate"
        shared.hook("post-restore/10-wait", f"touch {gate}; sleep 0.5")
        answers: list[dict[str, Any]] = []

        async def restore() -> None:
            answers.append(await seen.agent.restore("restored"))

        nursery.start_soon(restore)
        await until(gate.exists, "the hook")
        shared.kill_server()
        await until(lambda: answers, "the answer")
        info = await seen.agent.info()
        assert answers[0]["generation"] == info["generation"] != before
        assert info["lineage"][-1] == before
        async with seen.typed.attach(repair="bytes") as stream:
            event = await anext(stream)
            while isinstance(event, Output):
                event = await anext(stream)
        assert isinstance(event, Marked)
        assert event.data["generation"] == info["generation"]
        assert (await seen.typed.inspect())["streams"]["stdout"]["marks"][1] == event.number + 1
        await seen.as_before()


# --- what is not allowed -------------------------------------------------------------------------------------------
def requests(agent: Agent, ticket: str) -> dict[str, Any]:
    return {
        "prepare": lambda: agent.snapshot_prepare(),
        "resume": lambda: agent.snapshot_resume(ticket),
        "abort": lambda: agent.snapshot_abort(ticket),
        "restore": lambda: agent.restore(ticket),
    }


@pytest.mark.parametrize("state", ["running", "quiescing", "quiesced", "thawing"])
async def test_illegal_requests(shared: Guest, tmp_path: Path, state: str) -> None:
    """With a wrong ticket, in every state: an error that names the state, and nothing happens."""
    async with witness(shared, tmp_path) as seen, trio.open_nursery() as nursery:
        ticket = f"right in {state}"
        gate = tmp_path / "gate"
        if state == "quiescing":
            shared.machine.fail(sync=HANG)
            nursery.start_soon(lambda: seen.agent.snapshot_prepare(ticket=ticket))
        elif state != "running":
            await seen.agent.snapshot_prepare(ticket=ticket)
        if state == "thawing":
            shared.hook("post-resume/10-wait", f"touch {gate}; sleep 0.5")
            nursery.start_soon(seen.agent.snapshot_resume, ticket)
            await until(gate.exists, "the hook")
        await until(lambda: shared.state() == state, state)
        for name, request in requests(seen.agent, "wrong").items():
            if state == "running" and name == "prepare":
                continue
            with pytest.raises(RequestFailed) as caught:
                await request()
            assert caught.value.code == "state"
            assert f"the agent is {state}" in str(caught.value)
            assert caught.value.details.get("state", state) == state
        shared.machine.fail()
        if state in ("quiescing", "quiesced"):
            await until(lambda: shared.state() == "quiesced", "the quiesce")
            await seen.agent.snapshot_resume(ticket)
        await until(lambda: shared.state() == "running", "the thaw")
        nursery.cancel_scope.cancel()
        await seen.as_before()


@pytest.mark.parametrize(
    "params",
    [
        {"entropy": b"short"},
        {"entropy": "text"},
        {"wall_time": -1},
        {"wall_time": "now"},
        {"generation": b"short"},
        {"generation": "no hex"},
        {"hostname": "a b"},
        {"machine_id": "xyz"},
        {"env": {"A": 1}},
        {"token": "two words more"},
    ],
)
async def test_bad_parameters_of_a_restore(shared: Guest, params: dict[str, Any]) -> None:
    async with host(shared) as agent:
        with pytest.raises(RequestFailed) as caught:
            await agent.request("snapshot_restore", {"entropy": b"e" * 64, **params}, keyed=False)
        assert caught.value.code == "bad_params"
        assert (await agent.snapshot_status())["state"] == "running"


# --- the keeper ends -------------------------------------------------------------------------------------------------
async def test_the_agent_ends_while_quiesced(tmp_path: Path) -> None:
    """SIGTERM: filesystems are thawed, and the sessions end decently (they get their SIGHUP)."""
    told = tmp_path / "told"
    with guest(tmp_path / "guest", CONFIGURATION) as source:
        async with host(source) as agent:
            session = await agent.create(
                ["sh", "-c", f"trap 'echo hup >{told}; exit' HUP; echo ready; while :; do sleep 0.01; done"]
            )
            async with following(session) as stream:
                await stream.until(b"ready")
            await agent.snapshot_prepare()
            assert source.machine.frozen
    assert told.read_text() == "hup\n"


async def test_the_keeper_is_killed_while_quiesced(tmp_path: Path) -> None:
    """The server thaws everything before it ends."""
    file = tmp_path / "count"
    source = Guest(tmp_path / "guest", CONFIGURATION)
    group = source.cgroup()
    try:
        async with host(source) as agent:
            session = await agent.create(counter(file))
            pid = (await session.inspect())["pid"]
            await until(lambda: count(file), "the counter")
            await agent.snapshot_prepare()
            assert source.machine.frozen
            source.process.kill()
            source.process.wait()
            await until(lambda: not source.machine.frozen, "the filesystem to be thawed")
            now = count(file)
            await until(lambda: count(file) > now or not os.path.exists(f"/proc/{pid}"), "the session to go on")
    finally:
        from guestagent import cgroups

        if group is not None:
            cgroups.kill(group)
            await until(lambda: cgroups.remove_tree(group) or not os.path.exists(group), "the sessions to be gone")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        source._log.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(source.path)


# --- the watchdog ------------------------------------------------------------------------------------------------------
async def test_the_host_never_comes_back(tmp_path: Path) -> None:
    """The guest thaws after a time of its own clock, under the same generation, and says so; also if its server dies meanwhile."""
    with guest(tmp_path / "guest", 'freeze_filesystems = ["/disk"]\nthaw_after = 0.8') as source:
        async with witness(source, tmp_path) as seen:
            generation = (await seen.agent.info())["generation"]
            for kill in (False, True):
                began = time.monotonic()
                report = await seen.agent.snapshot_prepare()
                source.machine.stale(-1000)  # the wall clock is none of its business
                if kill:
                    await killed(seen)
                await until(lambda: source.state() == "running", "the watchdog")
                assert 0.75 < time.monotonic() - began < 5
                status = await seen.agent.snapshot_status()
                assert (status["last"]["outcome"], status["last"]["ticket"]) == ("thawed", report["ticket"])
                assert (await seen.agent.info())["generation"] == generation
                with pytest.raises(RequestFailed, match="was used: thawed") as caught:
                    await seen.agent.snapshot_resume(report["ticket"])
                assert caught.value.code == "state"
                await seen.as_before()
        assert source.log().count("the host did not come back") == 2


def test_a_raw_client_may_ask_too(shared: Guest) -> None:
    with RawClient(shared) as raw:
        raw.hello()
        answer = raw.request("snapshot_status")
        assert answer.result["state"] == "running"
