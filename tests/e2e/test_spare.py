"""A second server process that has started already and takes over when the first one dies (`spare_server`)."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptymux import connect
from ptymux.client import Agent
from tests.e2e.programs import Reading
from tests.e2e.sessions import alive, configured_agent
from tests.e2e.test_server_death import upgrade_server
from tests.harness import AgentProcess, children, until, wait_for


@pytest.fixture
def sparing(tmp_path: Path) -> Iterator[AgentProcess]:
    with configured_agent(tmp_path, "spare_server = true\n") as agent:
        yield agent


async def processes(agent: AgentProcess, client: Agent) -> tuple[int, int]:
    """The pids of the server and of its spare, when there are both."""
    server = (await client.info())["server_pid"]
    found = wait_for(lambda: set(children(agent.keeper_pid, "guestagent.server")) - {server}, "a spare")
    assert len(found) == 1
    return server, found.pop()


async def contact(client: Agent, before: int) -> int:
    """The pid of the server that answers after `before` connections."""
    await until(lambda: client.connections > before, "contact with the next server")
    return int((await client.info())["server_pid"])


async def test_the_spare_takes_over_and_has_a_spare_in_turn(sparing: AgentProcess) -> None:
    async with connect(sparing.address) as client:
        session = await client.create(["sh", "-c", "stty raw -echo; printf ready; exec cat"])
        async with session.attach() as stream:
            reading = Reading(stream)
            await reading.until_text(b"ready")
            for number in range(3):
                server, spare = await processes(sparing, client)
                before, began = client.connections, time.monotonic()
                os.kill(server, signal.SIGKILL)
                assert await contact(client, before) == spare
                print(f"contact with the spare after {time.monotonic() - began:.3f} s")
                await session.send(b"<%d>" % number)
                await reading.until_text(b"<%d>" % number)
        assert (await client.info())["restarts"] == 3
    assert sparing.log().count("listening on") == 4


async def test_an_upgrade_starts_from_the_code_that_is_there_now(sparing: AgentProcess) -> None:
    """The spare has the old code."""
    async with connect(sparing.address) as client:
        server, spare = await processes(sparing, client)
        before = client.connections
        await upgrade_server(sparing)
        assert await contact(client, before) not in (server, spare)
        await until(lambda: not alive(spare), "the old spare to end")
        assert (await processes(sparing, client))[1] not in (server, spare)


async def test_without_its_spare_a_server_is_replaced_as_ever(sparing: AgentProcess) -> None:
    async with connect(sparing.address) as client:
        server, spare = await processes(sparing, client)
        os.kill(spare, signal.SIGKILL)
        await until(lambda: "the spare server died (signal 9)" in sparing.log(), "the keeper to say so")
        before = client.connections
        os.kill(server, signal.SIGKILL)
        assert await contact(client, before) not in (server, spare)
        await processes(sparing, client)


async def test_nothing_is_left_of_the_spare(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with configured_agent(tmp_path, "spare_server = true\n", start_new_session=True) as agent:
            async with connect(agent.address) as client:
                pids = await processes(agent, client)
            os.killpg(agent.process.pid, number)  # as ctrl-C does, and a service manager
            assert agent.process.wait() == 0
            assert not any(map(alive, pids))


async def test_the_spare_of_a_killed_keeper_ends(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("spare_server = true\n")
    first = AgentProcess(tmp_path, "--config", str(file))
    async with connect(first.address) as client:
        pids = await processes(first, client)
    first.process.kill()
    first.process.wait()
    await until(lambda: not any(map(alive, pids)), "both to end")
    assert "Traceback" not in first.log()
    with configured_agent(tmp_path, ""):
        pass  # the next agent cleans up
    first._log.close()


async def test_a_server_that_cannot_be_started_is_tried_again(agent: AgentProcess) -> None:
    """Whatever the keeper lacks for a while, here descriptors: it and the sessions stay."""
    async with connect(agent.address) as client:
        session = await client.create(["sh", "-c", "stty raw -echo; printf ready; exec cat"])
        async with session.attach() as stream:
            reading = Reading(stream)
            await reading.until_text(b"ready")
            limits = resource.prlimit(agent.keeper_pid, resource.RLIMIT_NOFILE)
            resource.prlimit(agent.keeper_pid, resource.RLIMIT_NOFILE, (3, limits[1]))
            before = client.connections
            agent.kill_server()
            await until(lambda: "cannot start the server: Too many open files" in agent.log(), "the keeper to say so")
            resource.prlimit(agent.keeper_pid, resource.RLIMIT_NOFILE, limits)
            await contact(client, before)
            await session.send(b"still here")
            await reading.until_text(b"still here")
