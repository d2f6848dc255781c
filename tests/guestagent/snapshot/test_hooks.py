"""hooks.py: which run, in which order, and what is told of them.  (More with a real agent in tests/snapshot/test_faults.py.)"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from guestagent.snapshot import hooks
from guestagent.snapshot.hooks import POST_RESUME, PRE_SNAPSHOT, HookFailed
from tests.harness import until


def install(folder: Path, name: str, script: str, mode: int = 0o755) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)


async def run(folder: Path, event: str, seconds: float = 5, **environment: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    await hooks.run_all(str(folder), event, environment, seconds, results)
    return results


async def test_no_folder(tmp_path: Path) -> None:
    assert await run(tmp_path / "none", PRE_SNAPSHOT) == []


async def test_order(tmp_path: Path) -> None:
    for event in (PRE_SNAPSHOT, POST_RESUME):
        for name in ("20-b", "10-a", "30-c"):
            install(tmp_path, f"{event}/{name}", "exit 0")
        install(tmp_path, f"{event}/.hidden", "exit 1")
        install(tmp_path, f"{event}/15-text", "exit 1", 0o644)
        (tmp_path / event / "40-folder").mkdir()
    before = [result["hook"] for result in await run(tmp_path, PRE_SNAPSHOT)]
    after = [result["hook"] for result in await run(tmp_path, POST_RESUME)]
    assert before == [f"{PRE_SNAPSHOT}/{name}" for name in ("30-c", "20-b", "10-a")]
    assert after == [f"{POST_RESUME}/{name}" for name in ("10-a", "20-b", "30-c")]


async def test_environment_output_and_status(tmp_path: Path) -> None:
    install(tmp_path, f"{POST_RESUME}/10-a", 'echo "$GUESTAGENT_EVENT $MORE"; echo error >&2; cat; pwd; exit 4')
    [result] = await run(tmp_path, POST_RESUME, MORE="yes")
    assert (result["status"], result["output"]) == (4, "post-resume yes\nerror\n/\n")
    assert result["seconds"] > 0


async def test_the_first_failure_before_a_snapshot_ends_it(tmp_path: Path) -> None:
    install(tmp_path, f"{PRE_SNAPSHOT}/20-b", "echo no; exit 2")
    install(tmp_path, f"{PRE_SNAPSHOT}/10-a", "exit 0")
    results: list[dict[str, Any]] = []
    with pytest.raises(HookFailed, match="20-b failed: status 2: no"):
        await hooks.run_all(str(tmp_path), PRE_SNAPSHOT, {}, 5, results)
    assert [result["hook"] for result in results] == [f"{PRE_SNAPSHOT}/20-b"]


async def test_one_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    install(tmp_path, f"{POST_RESUME}/10-a", f"sleep 100 & echo $! >{tmp_path}/pid; echo begun; wait")
    [result] = await run(tmp_path, POST_RESUME, seconds=0.2)
    assert (result["status"], result["error"], result["output"]) == (None, "killed after 0.2 s", "begun\n")
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: not os.path.exists(f"/proc/{pid}") or "Z" in Path(f"/proc/{pid}/stat").read_text(), "its child")


async def test_cancelled(tmp_path: Path) -> None:
    install(tmp_path, f"{POST_RESUME}/10-a", "sleep 100")
    with trio.move_on_after(0.2) as scope:
        await run(tmp_path, POST_RESUME)
    assert scope.cancelled_caught


async def test_a_daemon_that_keeps_its_output_open(tmp_path: Path) -> None:
    install(tmp_path, f"{POST_RESUME}/10-a", f"sleep 3 & echo $! >{tmp_path}/pid; echo done")
    began = time.monotonic()
    [result] = await run(tmp_path, POST_RESUME)
    assert time.monotonic() - began < 2
    assert (result["status"], result["output"]) == (0, "done\n")
    os.kill(int((tmp_path / "pid").read_text()), 9)


async def test_what_it_prints_is_bounded(tmp_path: Path) -> None:
    install(tmp_path, f"{POST_RESUME}/10-a", "seq 1 1000000")
    [result] = await run(tmp_path, POST_RESUME)
    output = result["output"]
    assert len(output) < hooks.OUTPUT_SHOWN + 100
    assert output.startswith("1\n2\n")
    assert output.endswith("\n1000000\n")
