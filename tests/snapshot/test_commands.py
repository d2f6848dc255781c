"""`ptymux snapshot`, and asyncio programs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ptymux import aio
from ptymux.errors import RequestFailed
from tests.harness import ptymux, wait_for
from tests.snapshot.clone import Guest, Snapshot, guest
from tests.snapshot.programs import count, counter


def snapshot(agent: Guest, *arguments: str, status: int = 0) -> Any:
    done = ptymux(agent.address, *arguments[:0], "snapshot", *arguments, "--json")
    assert done.returncode == status, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def test_the_whole_life(tmp_path: Path) -> None:
    file = tmp_path / "count"
    with guest(tmp_path / "source") as source:
        session = ptymux(source.address, "new", "--", *counter(file)).stdout.decode().strip()
        wait_for(lambda: count(file), "the counter")
        assert snapshot(source, "status")["state"] == "running"
        report = snapshot(source, "prepare", "--budget", "5")
        ticket = report["ticket"]
        assert [row["id"] for row in report["sessions"]] == [session]
        assert {step["step"] for step in report["steps"]} >= {"freeze", "drain", "sync"}
        assert snapshot(source, "prepare", "--ticket", ticket) == report
        assert snapshot(source, "status")["ticket"] == ticket
        copy = Snapshot.take(source)
        answer = snapshot(source, "resume", "--ticket", ticket)
        assert answer["outcome"] == "resumed"
        assert snapshot(source, "resume", "--ticket", ticket)["outcome"] == "resumed"
        report = snapshot(source, "prepare", "--ticket", "my own")
        assert report["ticket"] == "my own"
        assert snapshot(source, "abort", "--ticket", "my own")["outcome"] == "aborted"
        snapshot(source, "prepare")
        assert snapshot(source, "abort")["outcome"] == "aborted"
        tokens = tmp_path / "tokens"
        tokens.write_text("n3w\n")
        with guest(tmp_path / "clone", snapshot=copy) as clone:
            restored = snapshot(
                clone, "restore", "--ticket", ticket, "--hostname", "branch-1", "--machine-id", "random", "--boot-id",
                "--random-seed", "--env", "BRANCH=1", "--generation", "ab" * 16, "--new-token-file", str(tokens),
            )  # fmt: skip
            assert (restored["outcome"], restored["generation"]) == ("restored", "ab" * 16)
            assert abs(restored["clock_jump"]) < 5
            assert restored["hostname"] == "branch-1"
            calls = {call[0] for call in clone.machine.calls()}
            assert calls >= {"reseed", "set_wall", "set_hostname", "set_machine_id", "set_boot_id", "renew_random_seed"}
            done = ptymux(clone.address, "ls")
            assert done.returncode != 0
            assert b"token" in done.stderr
            done = ptymux(clone.address, "--token-file", str(tokens), "exec", "--", "sh", "-c", "echo $BRANCH")
            assert done.stdout == b"1\r\n"


def test_text_and_errors(tmp_path: Path) -> None:
    with guest(tmp_path / "guest") as source:
        done = ptymux(source.address, "snapshot", "prepare", "--ticket", "t")
        assert done.returncode == 0
        assert b"freeze" in done.stdout
        assert b"quiesced" in done.stdout
        done = ptymux(source.address, "snapshot", "resume", "--ticket", "wrong")
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr == b"ptymux: cannot snapshot_resume: the agent is quiesced for another ticket\n"
        error = snapshot(source, "prepare", status=1)
        assert (error["error"], error["state"], error["ticket"]) == ("state", "quiesced", "t")
        done = ptymux(source.address, "new", "--", "true")
        assert done.returncode == 1
        assert b"the agent is quiesced" in done.stderr
        for wrong in (["resume"], [], ["restore", "--generation", "xy"], ["restore", "--env", "novalue"]):
            assert ptymux(source.address, "snapshot", *wrong).returncode == 2
        assert ptymux(source.address, "snapshot", "resume", "--ticket", "t").returncode == 0


def test_asyncio(tmp_path: Path) -> None:
    """The same calls; a cancelled block lets the guest go on, too."""
    file = tmp_path / "count"
    with guest(tmp_path / "guest") as source:

        async def main() -> None:
            async with aio.connect(source.address) as agent:
                await agent.create(counter(file))
                async with agent.quiesced() as report:
                    now = count(file)
                    await asyncio.sleep(0.1)
                    assert count(file) == now
                with pytest.raises(RequestFailed, match="was used: resumed"):
                    await agent.snapshot_prepare(ticket=report["ticket"])
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3), agent.quiesced():
                        await asyncio.sleep(60)
                assert (await agent.snapshot_status())["state"] == "running"
                answer = await agent.restore((await agent.snapshot_prepare())["ticket"])
                assert answer["outcome"] == "restored"
                assert (await agent.info())["generation"] == answer["generation"]

        asyncio.run(main())
