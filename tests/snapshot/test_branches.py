"""Branches: what is different between two of them, and what a cursor of one means in another."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from ptymux import connect
from ptymux.client import Agent, Session
from ptymux.cursor import Cursor
from ptymux.errors import HandshakeRefused, RequestFailed
from ptymux.events import Event, Foreign, Gap, Marked, Output, ReplayEnd, Rewound
from tests.e2e.sessions import following
from tests.harness import clean_environment, cutting_proxy, ptymux_argv, until
from tests.snapshot.clone import Guest, Snapshot, guest, host
from tests.snapshot.programs import count, counter, numbered, writer

ECHO_HELLO = ["sh", "-c", "stty raw -echo; printf hello; exec cat"]
RAW_CAT = ["raw", "cat"]


@dataclass
class Branch:
    """One guest of a tree, and what a client saw in it last."""

    name: str
    guest: Guest
    agent: Agent
    ancestors: list[str]  # names, the eldest first
    forks: dict[str, int] = field(default_factory=dict)  # offset at which each ancestor was left
    generation: bytes = b""
    before: Cursor | None = None  # at its own beginning
    cursor: Cursor | None = None  # after output of its own
    text: bytes = b""  # everything that was written in its history


async def say(branch: Branch, session: Session, text: str) -> None:
    """Output of this branch's own; the branch's cursor is behind it."""
    shown = branch.agent.session(session.id)
    data = f"[{branch.name}: {text}]".encode()
    if branch.before is None and branch.text:
        async with following(shown) as stream:
            await stream.until(branch.text)  # what there was before
            branch.before = stream.attach.cursor
    branch.text += data
    async with following(shown) as stream:
        await shown.send(data)
        await stream.until(branch.text)
        branch.cursor = stream.attach.cursor


class Tree:
    """Guests that were cloned from each other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.branches: dict[str, Branch] = {}
        self._stack = contextlib.AsyncExitStack()

    async def root(self) -> Branch:
        running = self._stack.enter_context(guest(self.folder / "R"))
        agent = await self._stack.enter_async_context(host(running))
        self.branches["R"] = Branch("R", running, agent, [])
        return self.branches["R"]

    async def clone(self, parent: Branch, session: Session, *names: str) -> None:
        """Branches of one snapshot."""
        async with parent.agent.quiesced() as report:
            snapshot = Snapshot.take(parent.guest)
        for name in names:
            running = self._stack.enter_context(
                guest(self.folder / name, snapshot=snapshot, standins={session.id: RAW_CAT})
            )
            agent = await self._stack.enter_async_context(host(running))
            await agent.restore(report["ticket"], machine_id="random")
            offset = len(parent.text)
            self.branches[name] = Branch(
                name,
                running,
                agent,
                [*parent.ancestors, parent.name],
                {**parent.forks, parent.name: offset},
                text=parent.text,
            )

    async def __aenter__(self) -> Tree:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()


async def attach_events(agent: Agent, session: str, cursor: Cursor) -> tuple[list[Event], bytes, int]:
    """What comes up to the present head: discontinuities, bytes, and the offset at which those begin."""
    async with agent.session(session).attach(cursor, repair="bytes") as stream:
        events: list[Event] = []
        data, offset = b"", stream.answer["offset"]
        start = None
        while offset < stream.answer["head"]:
            event = await anext(stream)
            if isinstance(event, Output):
                start = event.offset if start is None else start
                data += event.data
                offset = event.offset + len(event.data)
            elif isinstance(event, Gap | Rewound | Foreign):
                events.append(event)
                offset = event.to
        return events, data, offset - len(data)


async def test_all_pairs_in_a_tree_of_branches(tmp_path: Path) -> None:
    """Three levels; every branch wrote something of its own before and after it was cloned.  A cursor of one in another: of an
    ancestor, it is resumed or rewound to the fork; of any other, foreign.  The bytes are always the branch's own."""
    async with Tree(tmp_path) as tree:
        root = await tree.root()
        session = await root.agent.create(ECHO_HELLO)
        async with following(session) as stream:
            await stream.until(b"hello")
        root.text = b"hello"
        await say(root, session, "before all")
        await tree.clone(root, session, "A", "B")
        await say(root, session, "after the first")
        for name in ("A", "B"):
            await say(tree.branches[name], session, "level one")
        await tree.clone(tree.branches["A"], session, "A1", "A2")
        await tree.clone(tree.branches["B"], session, "B1")
        for name in ("A", "B", "A1", "A2", "B1"):
            await say(tree.branches[name], session, "level two")
        branches = list(tree.branches.values())
        for branch in branches:
            branch.generation = branch.agent.generation or b""
        assert len({branch.generation for branch in branches}) == len(branches)
        tested = {"same": 0, "resumed": 0, "rewound": 0, "foreign": 0}
        for one in branches:
            for other in branches:
                for cursor in (one.before, one.cursor):
                    assert cursor is not None
                    assert cursor.generation == one.generation
                    events, data, start = await attach_events(other.agent, session.id, cursor)
                    assert data == other.text[start:]
                    if one is other:
                        tested["same"] += 1
                        assert (events, start) == ([], cursor.offset)
                    elif one.name not in other.ancestors:
                        tested["foreign"] += 1
                        assert events == [Foreign(0)]
                    elif cursor.offset <= other.forks[one.name]:
                        tested["resumed"] += 1
                        assert (events, start) == ([], cursor.offset)
                    else:
                        tested["rewound"] += 1
                        fork = other.forks[one.name]
                        assert (events, start) == ([Rewound(cursor.offset, fork)], fork)
        assert all(tested.values())
        print(f"\n{len(branches)} guests, cursors: {tested}")
        # And nothing of the machine is shared.
        clones = branches[1:]
        seeds = [branch.guest.machine.calls("reseed")[0][1] for branch in clones]
        ids = [(branch.guest.machine.folder / "machine-id").read_text() for branch in clones]
        assert len(set(seeds)) == len(set(ids)) == len(clones)
        info = await tree.branches["A2"].agent.info()
        assert info["lineage"] == [root.generation.hex(), tree.branches["A"].generation.hex()]


@asynccontextmanager
async def cloned(
    tmp_path: Path, program: list[str], standin: list[str], **more: str
) -> AsyncIterator[tuple[Guest, Agent, Session, Guest, str]]:
    """A guest, a client of it, a session, and a clone of the guest that was not restored yet, with its ticket."""
    with guest(tmp_path / "source", **more) as source:
        async with host(source) as agent:
            session = await agent.create(program, policy="block")
            async with following(session) as stream:
                await stream.step()
            async with agent.quiesced() as report:
                snapshot = Snapshot.take(source)
            with guest(tmp_path / "clone", snapshot=snapshot, standins={session.id: standin}, **more) as clone:
                yield source, agent, session, clone, report["ticket"]


# --- tokens -----------------------------------------------------------------------------------------------
async def test_tokens_of_branches(tmp_path: Path) -> None:
    """Two branches, two tokens.  The old one, and the other's, are refused from the first moment, and after a kill of the server."""
    tokens = tmp_path / "tokens"
    tokens.write_text("old\nviewer looker\n")
    with guest(tmp_path / "source", "", "--token-file", str(tokens)) as source:
        async with host(source, token="old") as agent:
            async with agent.quiesced() as report:
                snapshot = Snapshot.take(source)
            for name in ("first", "second"):
                folder = tmp_path / name
                folder.mkdir()
                own = folder / "tokens"
                own.write_text(tokens.read_text())
                with guest(folder, "", "--token-file", str(own), snapshot=snapshot) as clone:
                    async with host(clone, token="old") as driver:
                        with pytest.raises(RequestFailed, match="token is missing"):
                            await driver.restore(report["ticket"])
                        clone.machine.fail(set_wall={"hang": True})  # rotated, and not yet restored
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(
                                lambda driver=driver, name=name: driver.restore(report["ticket"], token=f"new-{name}")
                            )
                            await until(lambda clone=clone: clone.machine.calls("set_wall"), "the clock")
                            with trio.move_on_after(0.3):
                                async with connect(clone.address, token="old"):
                                    pytest.fail("the old token was good")
                            clone.machine.fail()
                        await until(
                            lambda driver=driver: driver.connections == 2 and driver.up, "the driver to come back"
                        )
                        assert driver.role == "admin"
                    for wrong in ("old", "looker", "new-second" if name == "first" else "new-first", None):
                        with pytest.raises(HandshakeRefused) as caught:
                            async with host(clone, token=wrong):
                                pytest.fail("a wrong token was good")
                        assert caught.value.code == "unauthorized"
                    clone.kill_server()
                    async with host(clone, token=f"new-{name}") as again:
                        assert again.role == "admin"
                    with pytest.raises(HandshakeRefused):
                        async with host(clone, token="old"):
                            pytest.fail("the old token was good again")
                    assert own.read_text() == f"new-{name}\n"


@pytest.mark.parametrize("prepared", [True, False])
async def test_the_answer_of_a_rotation_gets_lost(tmp_path: Path, prepared: bool) -> None:
    """The client's old token is refused on the next connection; it tries the new one, and gets the answer of the first call.

    Also without a ticket: the restore is known by the generation that the client asks for.
    """
    tokens = tmp_path / "tokens"
    tokens.write_text("old\n")
    with guest(tmp_path / "guest", "", "--token-file", str(tokens)) as source:
        async with cutting_proxy(source.path, tmp_path) as proxy, connect(proxy.address, token="old") as agent:
            ticket = (await agent.snapshot_prepare())["ticket"] if prepared else None
            proxy.hold_down()
            answers = []

            async def restore() -> None:
                answers.append(await agent.restore(ticket, token="new"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(restore)
                await until(source.restored, "the restore")
                first = source.restored()
                proxy.cut_all()
                proxy.release_down()
            assert answers[0]["outcome"] == "restored"
            assert agent.role == "admin"
            assert answers[0]["generation"] == (await agent.info())["generation"] == first, "it was carried out once"


# --- the restore call -----------------------------------------------------------------------------------------
async def test_restore_twice(tmp_path: Path) -> None:
    """With the same ticket it is one restore; without, it is another one, of a VM that was not quiesced."""
    async with cloned(tmp_path, ECHO_HELLO, RAW_CAT) as (_, _, session, clone, ticket), host(clone) as agent:
        first = await agent.restore(ticket, generation=b"g" * 16, env={"BRANCH": "one"})
        again = await agent.restore(ticket, generation=b"g" * 16)
        assert again["generation"] == first["generation"] == (b"g" * 16).hex()
        with pytest.raises(RequestFailed, match="must be a new one"):
            await agent.restore(generation=b"g" * 16)
        with pytest.raises(RequestFailed, match="ticket is not known"):
            await agent.restore("another")
        async with following(await agent.create(["sh", "-c", "echo $BRANCH"])) as stream:
            await stream.to_exit()
        assert bytes(stream.data) == b"one\r\n"
        other = await agent.restore()
        assert other["generation"] != first["generation"]
        assert other["lineage"] == []
        third = await agent.restore(generation=b"h" * 16)
        again = await agent.restore(generation=b"h" * 16)
        assert again["generation"] == third["generation"] == (b"h" * 16).hex(), "a repetition, known by its generation"
        assert len(await agent.sessions()) == 2
        events, _, _ = await attach_events(agent, session.id, Cursor(b"g" * 16, 6))
        assert [type(event) for event in events] == [Foreign]


async def test_a_snapshot_without_a_quiesce(tmp_path: Path) -> None:
    """Nobody knows where it forked: every earlier cursor is foreign, and the programs never stopped."""
    file = tmp_path / "count"
    with guest(tmp_path / "guest") as source:
        async with host(source) as agent:
            await agent.create(counter(file))
            session = await agent.create(ECHO_HELLO)
            async with following(session) as stream:
                await stream.until(b"hello")
                cursor = stream.attach.cursor
                assert cursor is not None
                before = agent.generation
                answer = await agent.restore()
                assert not answer["prepared"]
                event = await stream.step()
                while not isinstance(event, Foreign):
                    event = await stream.step()
                assert event == Foreign(0)
                await stream.until(b"hellohello")  # from the oldest byte on
            assert agent.generation != before
            now = count(file)
            await until(lambda: count(file) > now, "the counter")


async def test_the_watchdog_was_faster_than_the_host(tmp_path: Path) -> None:
    """The branch ran a while under its source's generation.  Its restore begins a new one at the snapshot, not where it got to."""
    with guest(tmp_path / "source", "thaw_after = 1") as source:
        async with host(source) as agent:
            session = await agent.create(ECHO_HELLO)
            async with following(session) as stream:
                await stream.until(b"hello")
            async with agent.quiesced() as report:
                snapshot = Snapshot.take(source)
            await session.send(b" source")
            async with following(session) as stream:
                await stream.until(b"hello source")
                cursor = stream.attach.cursor
            with guest(
                tmp_path / "clone", "thaw_after = 1", snapshot=snapshot, standins={session.id: RAW_CAT}
            ) as clone:
                async with host(clone) as there:
                    await until(lambda: clone.state() == "running", "the watchdog")
                    await there.session(session.id).send(b" the clone")
                    async with following(there.session(session.id)) as stream:
                        await stream.until(b"hello the clone")
                    await there.restore(report["ticket"])
                    assert cursor is not None
                    events, data, start = await attach_events(there, session.id, cursor)
                    assert events == [Rewound(12, 5)]
                    assert (data, start) == (b" the clone", 5)
                    events, data, _ = await attach_events(there, session.id, cursor._replace(offset=3, mark=0))
                    assert (events, data) == ([], b"lo the clone")


# --- an attach, and an exec, that span a restore -----------------------------------------------------------------
async def test_an_attach_that_spans_a_restore(tmp_path: Path) -> None:
    """It goes on by itself, in the branch to which its host has moved: the bytes follow, and a mark says where the branch began."""
    standin = ["raw", "sh", "-c", "n=0; while :; do printf 'branch %07d\n' $n; n=$((n+1)); sleep 0.01; done"]
    with guest(tmp_path / "source") as source:
        async with (
            host(source) as agent,
            cutting_proxy(source.path, tmp_path) as proxy,
            connect(proxy.address) as client,
        ):
            session = await agent.create(writer(0.01, 5))
            async with client.session(session.id).attach(repair="bytes") as stream:
                data = b""

                async def read(size: int) -> list[Marked]:
                    nonlocal data
                    marks: list[Marked] = []
                    while len(data) < size:
                        event = await anext(stream)
                        if isinstance(event, Output):
                            assert event.offset == len(data)
                            data += event.data
                        elif isinstance(event, Marked):
                            marks.append(event)
                        else:
                            assert isinstance(event, ReplayEnd), event
                    return marks

                await read(1600)
                async with agent.quiesced() as report:
                    fork = report["sessions"][0]["streams"]["stdout"]["offset"]
                    assert await read(fork) == []
                    snapshot = Snapshot.take(source)
                    with guest(tmp_path / "clone", snapshot=snapshot, standins={session.id: standin}) as clone:
                        proxy.target = clone.path
                        proxy.cut_all()
                        async with host(clone) as driver:
                            answer = await driver.restore(report["ticket"])
                            marks = await read(fork + 20 * 15)
        assert [(mark.offset, mark.kind, mark.data["generation"]) for mark in marks] == [
            (fork, "restored", answer["generation"])
        ]
        assert data[:fork] == numbered(fork)
        assert data[fork:].startswith(b"branch 0000000\nbranch 0000001\n")


@pytest.mark.parametrize("ahead", [False, True])
async def test_an_exec_in_a_branch(tmp_path: Path, ahead: bool) -> None:
    """It goes on if all that it printed was before the snapshot.  If not: 255, a message, and the branch's command lives on."""
    standin = (
        ["sh", "-c", "echo in the branch; read line; exit 7"]
        if not ahead
        else ["sh", "-c", "echo in the branch; exec cat"]
    )
    with guest(tmp_path / "source") as source:
        async with host(source) as agent, cutting_proxy(source.path, tmp_path) as proxy:
            program = ["sh", "-c", "echo before; read line; echo $line; read line"]
            process = await trio.lowlevel.open_process(
                ptymux_argv(proxy.address, "exec", "--", *program),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=clean_environment(),
            )
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            out = await process.stdout.receive_some()
            async with agent.quiesced() as report:
                snapshot = Snapshot.take(source)
            session = (await agent.sessions())[0]["id"]
            if ahead:
                await process.stdin.send_all(b"the source goes on\n")
                while b"goes on\r\nthe source" not in out:
                    out += await process.stdout.receive_some()
            with guest(tmp_path / "clone", snapshot=snapshot, standins={session: standin}) as clone:
                async with host(clone) as driver:
                    await driver.restore(report["ticket"])
                    proxy.target = clone.path
                    proxy.cut_all()
                    if not ahead:
                        await process.stdin.send_all(b"go\n")
                    with trio.fail_after(20):
                        err = b""
                        async for data in process.stderr:
                            err += data
                        async for data in process.stdout:
                            out += data
                        status = await process.wait()
                    if not ahead:
                        assert (status, err) == (7, b"")
                        assert (
                            out == b"before\r\nin the branch\r\ngo\r\n" or out == b"before\r\ngo\r\nin the branch\r\n"
                        )
                    else:
                        assert status == 255
                        assert b"this is a branch of the VM" in err
                        assert b"is left as it is" in err
                        rows = await driver.sessions()
                        assert [row["state"] for row in rows if row["id"] == session] == ["running"]
            await process.stdin.aclose()
            await process.stdout.aclose()
            await process.stderr.aclose()


# --- what the hardware says ----------------------------------------------------------------------------------------
async def test_the_hardware_says_restored_while_running(tmp_path: Path) -> None:
    """A VM that was snapshotted without anybody's word: its own generation, and no earlier cursor is believed."""
    with guest(tmp_path / "guest", "detect = true") as source:
        async with host(source) as agent:
            before = agent.generation
            source.machine.say_restored()
            await until(lambda: agent.generation != before, "the new generation")
            status = await agent.snapshot_status()
            assert status["last"]["outcome"] == "restored"
            assert status["lineage"] == []
            assert source.machine.calls("reseed")


async def test_the_hardware_says_restored_while_quiesced(tmp_path: Path) -> None:
    """The host is waited for; if it does not come, the guest thaws as a branch, not as its source."""
    with guest(tmp_path / "source", "detect = true\nthaw_after = 1") as source:
        async with host(source) as agent:
            before = agent.generation
            assert before is not None
            await agent.snapshot_prepare()
            source.machine.say_restored()
            await until(lambda: "says that this VM was restored" in source.log(), "the detection")
            assert (await agent.snapshot_status())["state"] == "quiesced"
            await until(lambda: source.state() == "running", "the watchdog")
            await until(lambda: agent.up and agent.generation != before, "the new generation")
            assert (await agent.snapshot_status())["lineage"] == [before.hex()]
