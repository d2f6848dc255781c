"""What others have shipped around snapshots (C27, C33 to C44), and that it does not happen here."""

from __future__ import annotations

import ast
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import trio

import guestagent.snapshot
from ptymux import connect
from ptymux.errors import ConnectionLost, DialError, HandshakeRefused
from ptymux.events import Marked, Output
from tests.e2e.programs import sink
from tests.e2e.raw import RawClient
from tests.e2e.sessions import following
from tests.harness import cutting_proxy, until
from tests.snapshot.clone import Snapshot, guest, host
from tests.snapshot.programs import count, counter, writer

DAYS = 3 * 86400
WAIT = 1.0  # seconds for which a restore cannot reach the guest: its clock would be as wrong.  (It is right to a few milliseconds.)


async def test_case_c27_a_ghost_delays_nobody(tmp_path: Path) -> None:
    """case C27: a stream that was attached at the pause is a ghost afterwards.  The restore drops it, and reading waits for nobody."""
    with guest(tmp_path / "source") as source:
        async with host(source) as agent:
            session = await agent.create(writer(), policy="hold")
            async with agent.quiesced() as report:
                snapshot = Snapshot.take(source)
            flood = [
                "raw",
                "sh",
                "-c",
                "while :; do echo 0123456789012345678901234567890123456789012345678901234567890123456789; done",
            ]
            with guest(tmp_path / "clone", snapshot=snapshot, standins={session.id: flood}) as clone:
                async with (
                    cutting_proxy(clone.path, tmp_path) as proxy,
                    connect(proxy.address) as ghost,
                    ghost.session(session.id).attach(),
                    host(clone) as driver,
                ):
                    proxy.hold_down()  # it acknowledges nothing any more, and nobody says that it is gone
                    head = (await driver.session(session.id).inspect())["offset"]
                    began = time.monotonic()
                    await driver.restore(report["ticket"])
                    assert (await driver.session(session.id).inspect())["attached"] == 0

                    async def far() -> bool:
                        return bool((await driver.session(session.id).inspect())["offset"] > head + 1_000_000)

                    await until(far, "output beyond any window")
                    assert time.monotonic() - began < 5
                    assert (await driver.stats())["connections"] == 1
                    ghost.contact.machine.fail(DialError("the ghost is laid"))
                    proxy.release_down()


async def test_case_c33_sent_is_not_delivered(tmp_path: Path) -> None:
    """case C33: a send that succeeded was never delivered.  Only our own acknowledgement counts; the rest is sent again."""
    file = tmp_path / "typed"
    with guest(tmp_path / "guest") as source:
        async with host(source) as agent, cutting_proxy(source.path, tmp_path, [("up", 2000)]) as proxy:
            session = await agent.create(sink(file, "<end>"))
            async with following(session) as stream:
                await stream.until(b"ready")
                async with connect(proxy.address) as client:
                    typing = client.session(session.id)
                    text = b"".join(b"%d;" % number for number in range(2000))
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(typing.send, text)  # the proxy swallows most of it and cuts
                        async with agent.quiesced():
                            await trio.sleep(0.1)
                    await typing.send(b"<end>")
                await stream.until(b"done")
        assert file.read_bytes() == text + b"<end>"
        assert proxy.cuts == 1


async def test_case_c34_detached_sessions_do_not_pile_up(tmp_path: Path) -> None:
    """case C34: listed, limited and kept for their time, over any number of restores; and so are connections."""
    with guest(tmp_path / "guest", tables="[limits]\nmax_sessions = 3\nretention = 1.5") as source:
        async with host(source) as agent:
            for _ in range(2):
                await agent.create(["cat"])
            ended = await agent.create(["true"])
            for _ in range(5):
                with RawClient(source) as raw:  # somebody who never says goodbye
                    raw.hello()
                    await agent.restore((await agent.snapshot_prepare())["ticket"])
            assert len(await agent.sessions()) == 3
            assert (await agent.stats())["connections"] == 1

            async def removed() -> bool:
                return ended.id not in [row["id"] for row in await agent.sessions()]

            await until(removed, "retention")


async def test_case_c35_the_resumed_source_is_not_restored(tmp_path: Path) -> None:
    """case C35: the source sees the same reset as a clone.  Only the host's word counts: same generation, no mark."""
    with guest(tmp_path / "source") as source:
        async with (
            host(source) as agent,
            cutting_proxy(source.path, tmp_path) as proxy,
            connect(proxy.address) as client,
        ):
            session = await agent.create(["sh", "-c", "stty raw -echo; printf hello; exec cat"])
            before = agent.generation
            async with following(session) as ready:
                await ready.until(b"hello")
            async with client.session(session.id).attach(repair="bytes") as stream:
                async with agent.quiesced():
                    Snapshot.take(source)
                    proxy.cut_all()
                await session.send(b" world")
                data = b""
                while data != b"hello world":
                    event = await anext(stream)
                    assert not isinstance(event, Marked)
                    data += event.data if isinstance(event, Output) else b""
            assert client.connections == 2
            assert client.generation == agent.generation == before
            assert source.machine.calls("reseed") == source.machine.calls("set_wall") == []


async def test_case_c36_nobody_waits_for_an_end_of_file(tmp_path: Path) -> None:
    """case C36: a blocked read is not woken by the reset.  The restore does not wait for connections that say nothing, and a client's
    next connection replaces the one that is stuck."""
    with guest(tmp_path / "guest") as source:
        async with host(source) as agent:
            stuck = [RawClient(source) for _ in range(20)]
            for raw in stuck:
                raw.hello()
            report = await agent.snapshot_prepare()
            began = time.monotonic()
            await agent.restore(report["ticket"])
            assert time.monotonic() - began < 1
            again = RawClient(source, stuck[0].client)
            again.hello()
            assert again.request("info").result["sessions"] == 0
            for raw in [*stuck, again]:
                raw.socket.close()


async def test_case_c37_connections_right_after_the_resume(tmp_path: Path) -> None:
    """case C37: they race the reset.  A client dials until a hello is answered."""
    with guest(tmp_path / "guest") as source:
        async with cutting_proxy(source.path, tmp_path, [1, 5, 20, 40]) as proxy:
            proxy.refuse = True
            async with trio.open_nursery() as nursery:

                async def heal() -> None:
                    await until(lambda: proxy.connections >= 3, "dials")
                    proxy.refuse = False

                nursery.start_soon(heal)
                async with connect(proxy.address, wait=10) as agent:
                    assert (await agent.restore((await agent.snapshot_prepare())["ticket"]))["outcome"] == "restored"
            assert proxy.connections >= 6


def test_case_c38_no_sleeps() -> None:
    """case C38: close and sleep before the freeze.  Nothing on the way to a quiesce, or back, waits for time to pass."""
    folder = Path(guestagent.snapshot.__file__).parent
    sleeps = []
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("sleep"):
                sleeps.append(path.name)
    assert sorted(sleeps) == [
        "lifecycle.py",
        "signals.py",
    ]  # the watchdog; and no event tells that a process has stopped


async def test_case_c39_c44_the_clock_first(tmp_path: Path) -> None:
    """case C39, case C44: the clock is days behind.  It is set before anything runs, the jump is reported, and our deadlines do not care."""
    started = tmp_path / "started"
    with guest(tmp_path / "source", tables="[limits]\nretention = 30") as source:
        async with host(source) as agent:
            session = await agent.create(["cat"])
            ended = await agent.create(["true"])
            async with following(ended) as stream:
                await stream.to_exit()
            async with agent.quiesced() as report:
                snapshot = Snapshot.take(source)
            standin = ["sh", "-c", f"cat {tmp_path}/clone/machine/clock >{started}; exec cat"]
            (tmp_path / "clone").mkdir()
            with guest(
                tmp_path / "clone", snapshot=snapshot, standins={session.id: standin}, tables="[limits]\nretention = 30"
            ) as clone:
                clone.machine.stale(DAYS)
                async with host(clone) as driver, connect(clone.address):
                    answer = await driver.restore(report["ticket"])
                    assert abs(answer["clock_jump"] - DAYS) < 5
                    assert abs(clone.machine.ahead) < 5
                    await until(lambda: started.exists() and started.read_text(), "the program")
                    assert abs(float(started.read_text())) < 5, "it ran before the clock was set"
                    steps = [step["step"] for step in answer["steps"]]
                    assert steps.index("clock") < steps.index("hooks") < steps.index("thaw")
                    async with following(driver.session(session.id)) as stream:
                        while not isinstance(event := await stream.step(), Marked):
                            pass
                    assert abs(event.data["clock_jump"] - DAYS) < 5
                    clone.kill_server()  # and the next server counts by the same clock
                    await trio.sleep(0.8)  # longer than housekeeping
                    rows = {row["id"]: row["state"] for row in await driver.sessions()}
                    assert rows == {session.id: "running", ended.id: "exited"}
                    assert driver.up


async def test_the_clock_of_a_restore_that_waits_for_contact(tmp_path: Path) -> None:
    """The time is the one at which the request is sent, or sent again, not the one at which it was asked for."""
    with guest(tmp_path / "guest") as source:
        async with cutting_proxy(source.path, tmp_path) as proxy, connect(proxy.address) as agent:
            for fixed in (False, True):
                report = await agent.snapshot_prepare()
                source.machine.stale(DAYS)
                proxy.refuse = True
                proxy.cut_all()
                await until(lambda: not agent.up, "the cut")
                now = time.time()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(
                        partial(agent.restore, report["ticket"], wall_time=now + DAYS if fixed else None)
                    )
                    await trio.sleep(WAIT)
                    proxy.refuse = False
                assert abs(source.machine.ahead - (DAYS if fixed else 0)) < WAIT / 2


async def test_the_clock_of_a_restore_that_is_sent_again(tmp_path: Path) -> None:
    """Its first frame got to a server that was killed before it set the clock."""
    with guest(tmp_path / "guest") as source:
        async with host(source) as agent, trio.open_nursery() as nursery:
            report = await agent.snapshot_prepare()
            source.machine.stale(DAYS)
            source.machine.fail(reseed={"hang": True})
            nursery.start_soon(agent.restore, report["ticket"])
            await until(lambda: source.machine.calls("reseed"), "the reseeding")
            await trio.sleep(WAIT)
            source.kill_server()
            source.machine.fail()
        assert len(source.machine.calls("set_wall")) == 1
        assert abs(source.machine.ahead) < WAIT / 2


async def test_the_clock_of_a_restore_that_waits_for_a_thaw(tmp_path: Path) -> None:
    """A new server first undoes what a killed one left half done; the restore that was sent to it waits meanwhile."""
    with guest(tmp_path / "guest") as source:
        source.hook("post-resume/slow", f"echo >>{tmp_path}/began; sleep {WAIT}")
        async with host(source) as agent, host(source) as other, trio.open_nursery() as nursery:
            report = await agent.snapshot_prepare()
            nursery.start_soon(agent.snapshot_resume, report["ticket"])
            await until((tmp_path / "began").exists, "the hook")
            source.kill_server()
            await until(lambda: (tmp_path / "began").read_text() == "\n\n", "the hook of the next server")
            source.machine.stale(DAYS)
            began = time.monotonic()
            await other.restore()
            assert time.monotonic() - began > WAIT / 2
        assert abs(source.machine.ahead) < WAIT / 2


async def test_case_c40_reseeded_before_anything(tmp_path: Path) -> None:
    """case C40: clones make the same UUIDs.  Until the kernel is reseeded nobody is greeted and nothing runs; if it cannot be, neither."""
    with guest(tmp_path / "source") as source:
        async with host(source) as agent:
            session = await agent.create(["cat"])
            async with agent.quiesced() as report:
                snapshot = Snapshot.take(source)
            seeds, generations = set(), set()
            for name in ("one", "two"):
                file = tmp_path / f"count-{name}"
                with guest(tmp_path / name, snapshot=snapshot, standins={session.id: counter(file)}) as clone:
                    clone.machine.fail(reseed={"hang": True})
                    async with host(clone) as driver, trio.open_nursery() as nursery:
                        nursery.start_soon(driver.restore, report["ticket"])
                        await until(lambda clone=clone: clone.machine.calls("reseed"), "the reseeding")
                        with pytest.raises(ConnectionLost):
                            async with connect(clone.address, wait=0.3):
                                pytest.fail("greeted before the reseeding")
                        assert count(file) == 0
                        clone.machine.fail()
                        await until(lambda file=file: count(file), "the program")
                    seeds.add(clone.machine.calls("reseed")[0][1])
                    async with host(clone) as driver:
                        generations.add(driver.generation)
            assert len(seeds) == len(generations) == 2


async def test_case_c41_the_old_token(tmp_path: Path) -> None:
    """case C41: every fork holds the same bearer token.  It is rotated by the restore call, which fails without one.

    (The rest is in test_branches.py: two branches, and every moment of a rotation.)
    """
    tokens = tmp_path / "tokens"
    tokens.write_text("old\n")
    with guest(tmp_path / "guest", "", "--token-file", str(tokens)) as source:
        async with host(source, token="old") as agent, host(source, token="old") as other:
            report = await agent.snapshot_prepare()
            await agent.restore(report["ticket"], tokens="admin new\nviewer looker\n")
            await until(lambda: other.contact.machine.failure is not None, "the old token to be refused")
            assert isinstance(other.contact.machine.failure, HandshakeRefused)
            assert (await agent.info())["role"] == "admin"
            async with host(source, token="looker") as looker:
                assert looker.role == "viewer"


_SIGNALS = """
import signal, sys
for number in signal.valid_signals():
    try:
        signal.signal(number, lambda number, frame: print("signal", number, flush=True))
    except (OSError, ValueError):
        pass
print("ready", flush=True)
while True:
    signal.pause()
"""


async def test_case_c42_no_signals(tmp_path: Path) -> None:
    """case C42: a signal as a hint kills programs without a handler.  A program that listens to all of them hears none."""
    with guest(tmp_path / "guest") as source:
        async with host(source) as agent:
            session = await agent.create([sys.executable, "-c", _SIGNALS])
            async with following(session) as stream:
                await stream.until(b"ready")
                async with agent.quiesced():
                    pass
                await agent.restore((await agent.snapshot_prepare())["ticket"])
                await session.signal("USR1")
                await stream.until(b"signal 10")
            assert bytes(stream.data) == b"ready\r\nsignal 10\r\n"


async def test_case_c43_the_list_after_a_restore(tmp_path: Path) -> None:
    """case C43: an empty list while the programs run.  It is the same before and after, in the source and in the clone."""
    with guest(tmp_path / "source") as source:
        async with host(source) as agent:
            for number in range(5):
                await agent.create(["cat"], name=f"session {number}", label="kept")
            async with following(await agent.create(["sh", "-c", "exit 3"])) as stream:
                await stream.to_exit()

            def facts(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
                return [
                    tuple(row.get(key) for key in ("id", "name", "label", "state", "started", "exit")) for row in rows
                ]

            async with agent.quiesced() as report:
                snapshot = Snapshot.take(source)
            before = facts(await agent.sessions())
            assert len(before) == 6
            with guest(tmp_path / "clone", snapshot=snapshot) as clone:
                async with host(clone) as driver:
                    assert facts(await driver.sessions()) == before
                    await driver.restore(report["ticket"])
                    assert facts(await driver.sessions()) == before
