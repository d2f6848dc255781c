"""A quiesce and what is behind it: how fast, that nothing moves, that nothing is lost, that nobody notices."""

from __future__ import annotations

import os
import random
import re
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from ptymux import connect
from ptymux.client import Agent, Session
from ptymux.errors import RequestFailed
from ptymux.events import Gap, Output, ReplayEnd
from tests.e2e.sessions import WITHOUT_CGROUPS, Follower, following, state
from tests.harness import cutting_proxy, ptymux_argv, until
from tests.snapshot.clone import Guest, guest, host
from tests.snapshot.programs import bomb, count, counter, crowd, numbered, writer

ROUNDS = 50
SHELL = ["bash", "--norc", "--noprofile", "-i"]
QUIET = 0.3  # seconds in which a terminal would say what it has to say
TYPED_PROMPT, PROMPT = "rea''dy> ", b"ready> "  # what sets a shell's prompt does not look like it


@pytest.fixture(params=["cgroups", "signals"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guest]:
    """A guest with cgroup v2, and one without."""
    before = WITHOUT_CGROUPS if request.param == "signals" else ()
    with guest(tmp_path / "guest", before=before) as running:
        yield running


# --- how fast, and nothing is lost --------------------------------------------------------------------
@pytest.mark.slow
async def test_64_sessions_with_500_processes(tmp_path: Path) -> None:
    """Fifty rounds under load and cuts: quiesced in less than 250 ms, thawed in less than 100, every byte of every session once."""
    chance = random.Random(1)
    quiesced: list[float] = []
    thawed: list[float] = []
    counts: list[int] = []
    with guest(tmp_path / "guest") as source:
        async with (
            host(source) as agent,
            cutting_proxy(source.path, tmp_path) as proxy,
            connect(proxy.address) as client,
            trio.open_nursery() as nursery,
        ):
            sessions = [
                await agent.create(crowd(number % 2, 6 + number % 2, writer()), policy="block") for number in range(63)
            ]
            await agent.create(bomb(30))
            received = {session.id: bytearray() for session in sessions}

            async def follow(session: Session) -> None:
                async with client.session(session.id).attach(repair="bytes") as stream:
                    async for event in stream:
                        if isinstance(event, ReplayEnd):
                            continue
                        assert isinstance(event, Output), event
                        assert event.offset == len(received[session.id])
                        received[session.id] += event.data

            for session in sessions:
                nursery.start_soon(follow, session)
            await until(lambda: all(received.values()), "output of every session")
            for number in range(ROUNDS):
                if number % 3 == 0:
                    proxy.cut_all()
                async with agent.quiesced() as report:
                    if number % 5 == 1:
                        proxy.cut_all()
                    counts.append(report["processes"])
                    quiesced.append(report["seconds"])
                thawed.append((await agent.snapshot_status())["last"]["seconds"])
                await trio.sleep(chance.uniform(0, 0.1))
            async with agent.quiesced() as report:
                heads = {row["id"]: row["streams"]["stdout"]["offset"] for row in report["sessions"]}
                await until(
                    lambda: all(len(received[name]) == heads[name] for name in received), "what there is", most=60
                )
            nursery.cancel_scope.cancel()
    for data in received.values():
        assert data == numbered(len(data))
    print(
        f"\n64 sessions, {min(counts)} to {max(counts)} processes, {ROUNDS} rounds, {proxy.cuts} cuts, "
        f"{sum(map(len, received.values()))} bytes: quiesced in {_figures(quiesced)}, thawed in {_figures(thawed)}"
    )
    assert statistics.median(counts) >= 500
    assert statistics.median(quiesced) < 0.25
    assert statistics.median(thawed) < 0.1


def _figures(seconds: list[float]) -> str:
    return (
        f"{1000 * statistics.median(seconds):.1f} ms (median; {1000 * min(seconds):.1f} to {1000 * max(seconds):.1f})"
    )


async def test_what_the_terminals_hold_is_in_the_histories(tmp_path: Path) -> None:
    """Drained after the freeze, so that the report's offsets are where everything is."""
    with guest(tmp_path / "guest") as source:
        async with host(source) as agent:
            session = await agent.create(writer(0, 100), policy="overwrite")
            for _ in range(10):
                await trio.sleep(0.02)
                async with agent.quiesced() as report:
                    place = report["sessions"][0]["streams"]["stdout"]
                    await trio.sleep(0.02)
                    head = (await session.inspect())["streams"]["stdout"]["head"]
                assert place["drained"]
                assert place["offset"] == head


# --- nothing moves --------------------------------------------------------------------------------------
async def test_nothing_moves(either: Guest, tmp_path: Path) -> None:
    """Counters stand still while quiesced, for as long as that lasts, and go on afterwards."""
    files = [tmp_path / f"count-{number}" for number in range(6)]
    async with host(either) as agent:
        for file in files:
            await agent.create(counter(file))
        daemon = tmp_path / "daemon"  # in a process session of its own
        leader = await agent.create(["sh", "-c", 'setsid "$@" & echo $!; exec sleep 1000', "sh", *counter(daemon)])
        files.append(daemon)
        await until(lambda: all(map(count, files)), "all to count")
        for _ in range(3):
            async with agent.quiesced() as report:
                before = [count(file) for file in files]
                await trio.sleep(0.2)
                assert [count(file) for file in files] == before
            await until(
                lambda before=before: all(a > b for a, b in zip(map(count, files), before, strict=True)), "all to go on"
            )
        async with following(leader) as stream:
            pid = int((await stream.until(b"\n")).split()[0])
        os.kill(pid, signal.SIGKILL)  # without cgroups, nobody else would
        assert report["method"] == (await agent.snapshot_status())["method"]


async def test_no_new_sessions_and_no_changes(tmp_path: Path) -> None:
    with guest(tmp_path / "guest") as source:
        async with host(source) as agent:
            session = await agent.create(["cat"], name="there")
            async with agent.quiesced():
                for change in (
                    agent.create(["cat"]),
                    session.signal("TERM"),
                    session.kill(),
                    session.remove(force=True),
                    agent.request("label", {"session": session.id, "label": "x"}),
                    agent.request("upgrade", keyed=False),
                ):
                    with pytest.raises(RequestFailed) as caught:
                        await change
                    assert caught.value.code == "quiescing"
                await session.resize(100, 30)  # what a terminal's owner does is done afterwards
                assert (await session.inspect())["size"] == [80, 24]
                assert [row["name"] for row in await agent.sessions()] == ["there"]
            await until(lambda: _has_size(session, [100, 30]), "the size")
            await (await agent.create(["true"])).remove(force=True)


async def _has_size(session: Session, size: list[int]) -> bool:
    return bool((await session.inspect())["size"] == size)


# --- who may ------------------------------------------------------------------------------------------------
async def test_no_process_of_a_session_may(either: Guest, tmp_path: Path) -> None:
    """Not as it is, not from a daemon that left everything behind, and not with the pid of somebody who is gone."""
    script = (
        "for what in prepare status abort restore; do "
        + " ".join(ptymux_argv(either.address, "snapshot", '"$what"'))
        + '; echo "status $?"; done'
    )
    async with host(either) as agent:
        async with following(await agent.create(["bash", "-c", script])) as inside:
            await inside.to_exit()
        text = bytes(inside.data).decode()
        assert text.count("only the host may") == text.count("status 1") == 4, text
        told = tmp_path / "told"
        await agent.create(
            ["bash", "-c", f"(setsid bash -c '({script}) >{told} 2>&1; echo end >>{told}' &) ; sleep 0.1"]
        )
        await until(lambda: told.exists() and told.read_text().endswith("end\n"), "the daemon")
        assert told.read_text().count("only the host may") == 4
        assert (await agent.snapshot_status())["state"] == "running"


async def test_network_peers_may_not_unless_configured(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("s3cret\n")
    for allowed in (False, True):
        with guest(
            tmp_path / f"guest-{allowed}",
            f"network = {str(allowed).lower()}",
            "--websocket",
            "127.0.0.1:0",
            "--token-file",
            str(tokens),
        ) as source:
            async with connect(f"ws://127.0.0.1:{source.websocket_port()}/", token="s3cret") as agent:
                if allowed:
                    assert (await agent.snapshot_status())["state"] == "running"
                else:
                    with pytest.raises(RequestFailed, match="cannot be told apart") as caught:
                        await agent.snapshot_status()
                    assert caught.value.code == "forbidden"


async def test_the_role_is_needed_too(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("s3cret\ncontroller typist\n")
    with guest(tmp_path / "guest", "", "--token-file", str(tokens)) as source:
        async with host(source, token="typist") as agent:
            with pytest.raises(RequestFailed, match="admin is needed"):
                await agent.snapshot_prepare()


# --- nobody notices -------------------------------------------------------------------------------------------
async def quiet(stream: Follower) -> None:
    """Until the terminal says nothing more.  To be sure of what a program does, wait for what it says."""
    while True:
        with trio.move_on_after(QUIET) as scope:
            await stream.step()
        if scope.cancelled_caught:
            return


async def unnoticed(agent: Agent, stream: Follower) -> None:
    """A quiesce that shows nothing in this stream."""
    await quiet(stream)
    before = bytes(stream.data)
    async with agent.quiesced():
        await trio.sleep(0.1)
    await quiet(stream)
    assert stream.data[len(before) :] == b""
    assert not [event for event in stream.events if isinstance(event, Gap)]


async def test_job_control(either: Guest, tmp_path: Path) -> None:
    """A vim that the user stopped stays stopped, the shell says nothing of it, and `fg` brings it back."""
    file = tmp_path / "file"
    async with host(either) as agent:
        shell = await agent.create(SHELL, term="vt100")  # asks its terminal nothing
        async with following(shell) as stream:
            await shell.send(f"PS1='{TYPED_PROMPT}'; vim -u NONE -N {file}\n".encode())
            await stream.until(b"[New]")
            await shell.send(b"ihello\x1b\x1a")
            await stream.until(PROMPT)
            assert b"Stopped" in stream.data
            await shell.send(b"sleep 1000 &\n")
            await stream.until(PROMPT, 2)
            assert b"[2] " in stream.data
            await unnoticed(agent, stream)
            await shell.send(b"jobs\n")
            text = (await stream.until(PROMPT, 3)).decode()
            assert re.search(r"\[1\]\+\s+Stopped\s+vim", text.rpartition("jobs")[2]), text
            assert re.search(r"\[2\]-\s+Running\s+sleep", text.rpartition("jobs")[2]), text
            await unnoticed(agent, stream)
            shown = stream.data.count(b"hello")
            await shell.send(b"fg\n")
            await stream.until(b"hello", shown + 1)  # or the shell would take what is meant for vim
            await shell.send(b":wq\n")
            await stream.until(PROMPT, 4)  # and the other way round
            assert file.read_text() == "hello\n"
            await shell.send(b"kill %2; exit\n")
            await stream.to_exit()


async def test_a_foreground_program_and_its_shell(either: Guest) -> None:
    """A sleep in the middle, in a shell that waits for it: no "Stopped", and it ends as it should."""
    async with host(either) as agent:
        shell = await agent.create(SHELL)
        async with following(shell) as stream:
            await shell.send(b"PS1='$ '; echo beg''un; sleep 2; echo slept-$?\n")
            began = time.monotonic()
            await stream.until(b"begun")
            await unnoticed(agent, stream)
            text = await stream.until(b"slept-0")
            assert b"Stopped" not in text
            assert time.monotonic() - began < 4
            await shell.send(b"jobs; echo jobs-$((2+2))\n")
            assert b"Stopped" not in await stream.until(b"jobs-4")
            await shell.send(b"exit\n")
            await stream.to_exit()


async def test_a_pipeline(either: Guest) -> None:
    script = "n=0; while [ $n -lt 300 ]; do echo $n; n=$((n+1)); sleep 0.002; done | sort -n | awk '{s+=$1} END {print \"sum\", s}'"
    async with host(either) as agent:
        session = await agent.create(["bash", "-c", script])
        async with following(session) as stream:
            for _ in range(4):
                async with agent.quiesced():
                    await trio.sleep(0.05)
                await trio.sleep(0.05)
            end = await stream.to_exit()
    assert end.code == 0
    assert bytes(stream.data) == b"sum 44850\r\n"


async def test_a_prompt(either: Guest) -> None:
    """input() waits; half of the answer is typed before, half after."""
    program = "print('hello', input('name? '))"
    async with host(either) as agent:
        session = await agent.create([sys.executable, "-c", program])
        async with following(session) as stream:
            await stream.until(b"name? ")
            await session.send(b"Ada ")
            await stream.until(b"Ada ")
            await unnoticed(agent, stream)
            await session.send(b"Lovelace\n")
            assert (await stream.to_exit()).code == 0
    assert bytes(stream.data).endswith(b"hello Ada Lovelace\r\n")


_SERVER = """
import socket
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    peer, _ = listener.accept()
    with peer:
        while data := peer.recv(65536):
            peer.sendall(data)
"""
_CLIENT = """
import socket, sys, time
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as server:
    file = server.makefile("rwb")
    for number in range(200):
        file.write(b"%d\\n" % number)
        file.flush()
        assert file.readline() == b"%d\\n" % number
        time.sleep(0.005)
print("all echoed")
"""


async def test_a_tcp_client_and_its_server(either: Guest) -> None:
    async with host(either) as agent, following(await agent.create([sys.executable, "-c", _SERVER])) as server:
        port = (await server.until(b"\n")).decode().strip()
        async with following(await agent.create([sys.executable, "-c", _CLIENT, port])) as client:
            for _ in range(5):
                async with agent.quiesced():
                    await trio.sleep(0.05)
                await trio.sleep(0.05)
            assert (await client.to_exit()).code == 0
            assert bytes(client.data) == b"all echoed\r\n"
        assert (await server.to_exit()).code == 0


async def test_no_mark_while_quiesced(tmp_path: Path) -> None:
    """Whoever comes, goes, types or resizes: the streams end where the report says, and that is where a branch forks."""
    with guest(tmp_path / "guest") as source:
        async with host(source) as agent:
            session = await agent.create(["cat"])
            async with agent.quiesced() as report:
                place = report["sessions"][0]["streams"]["stdout"]
                async with connect(source.address) as client:
                    visited = client.session(session.id)
                    async with visited.attach(size=(90, 20)):
                        await visited.resize(91, 21)
                        await visited.send(b"x", wait=False)
                        await trio.sleep(0.1)
                source.kill_server()
                stdout = (await session.inspect())["streams"]["stdout"]
                assert (stdout["head"], stdout["marks"][1]) == (place["offset"], place["mark"])


async def test_the_server_is_killed_while_quiesced(either: Guest, tmp_path: Path) -> None:
    """The next one knows whom to let go on, also where it was done by signals."""
    file = tmp_path / "count"
    async with host(either) as agent:
        stopped = await agent.create(["sh", "-c", "sleep 1000 & kill -STOP $!; echo $!; wait"])
        async with following(stopped) as stream:
            pid = int((await stream.until(b"\n")).split()[0])
        await agent.create(counter(file))
        await until(lambda: count(file), "the counter")
        async with agent.quiesced():
            either.kill_server()
            assert (await agent.snapshot_status())["state"] == "quiesced"
            now = count(file)
            await trio.sleep(0.1)
            assert count(file) == now
        await until(lambda: count(file) > now, "the counter to go on")
        assert state(pid) == "T"
