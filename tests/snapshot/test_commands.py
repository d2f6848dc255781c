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
        for wrong in (
            ["resume"],
            [],
            ["restore", "--generation", "xy"],
            ["restore", "--env", "novalue"],
            ["restore", "--ticket", ""],
            ["restore", "--time", "now"],
            ["prepare", "--budget", "-1"],
            ["prepare", "--budget", "nan"],
            ["restore", "--new-token-file", str(tmp_path / "none")],
        ):
            done = ptymux(source.address, "snapshot", *wrong)
            assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1), done.stderr
        done = ptymux(source.address, "snapshot", "restore")
        assert done.stderr == (
            b"ptymux: cannot snapshot_restore: the agent is quiesced, and only its ticket leads out of that\n"
        )
        error = snapshot(source, "restore", "--ticket", "wrong", status=1)
        assert (error["error"], error["state"], error["ticket"]) == ("state", "quiesced", "t")
        assert ptymux(source.address, "snapshot", "resume", "--ticket", "t").returncode == 0


def test_what_people_read(tmp_path: Path) -> None:
    """One line an item, no Python in it; what failed without stopping anything is on stderr."""
    with guest(tmp_path / "guest") as source:
        ptymux(source.address, "new", "--name", "shell", "--", "cat")
        source.hook("post-resume/10-thing", "echo no; exit 4")
        source.hook("post-restore/20-other", "exit 5")
        done = ptymux(source.address, "snapshot", "prepare", "--ticket", "t")
        assert (done.returncode, done.stderr) == (0, b"")
        lines = done.stdout.decode().splitlines()
        assert "method  cgroups" in lines
        assert "hooks  -" in lines
        (shown,) = [line for line in lines if "name shell" in line]
        assert shown.endswith("streams.stdout.offset 0  streams.stdout.mark 0  streams.stdout.drained yes")
        done = ptymux(source.address, "snapshot", "resume", "--ticket", "t")
        assert (done.returncode, done.stderr) == (0, b"ptymux: hook post-resume/10-thing: status 4\n")
        for wrong, text in (
            (["resume", "--ticket", "unknown"], b"the ticket is not known, and the agent is running"),
            (["abort"], b"the agent is running"),
            (["restore", "--ticket", "t"], b"the ticket was used: resumed"),
        ):
            done = ptymux(source.address, "snapshot", *wrong)
            assert (done.returncode, done.stderr) == (
                1,
                b"ptymux: cannot snapshot_%s: %s\n" % (wrong[0].encode(), text),
            )
        ptymux(source.address, "snapshot", "prepare", "--ticket", "u")
        done = ptymux(source.address, "snapshot", "restore", "--ticket", "u")
        assert (done.returncode, done.stderr) == (0, b"ptymux: hook post-restore/20-other: status 5\n")
        lines = ptymux(source.address, "snapshot", "status").stdout.decode().splitlines()
        assert not [line for line in lines if "{" in line or "[" in line]
        assert "  outcome  restored" in lines


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
