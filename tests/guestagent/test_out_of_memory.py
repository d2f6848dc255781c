"""cgroups.py and spawn.py: sessions are not guarded from the out-of-memory killer, and who was killed by it is known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from guestagent import cgroups

EVENTS = "low 0\nhigh 0\nmax 3\noom 1\noom_kill {}\noom_group_kill 0\n"


@pytest.mark.parametrize(("text", "killed"), [(EVENTS.format(0), False), (EVENTS.format(2), True), ("", False)])
def test_who_was_killed(tmp_path: Path, text: str, killed: bool) -> None:
    (tmp_path / "memory.events").write_text(text)
    assert cgroups.oom_killed(str(tmp_path)) is killed


def test_nobody_counted(tmp_path: Path) -> None:
    assert not cgroups.oom_killed(str(tmp_path))
    assert not cgroups.oom_killed(str(tmp_path / "gone"))


def test_the_controller_is_asked_for_once(tmp_path: Path) -> None:
    root = tmp_path / "guestagent-1"
    root.mkdir()
    for folder in (tmp_path, root):
        (folder / "cgroup.subtree_control").write_text("")
    cgroups.count_memory(str(root))
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
    assert (root / "cgroup.subtree_control").read_text() == "+memory"
    assert not (tmp_path / "agent").exists()  # it was not delegated to us: nobody is moved


def test_without_the_controller_nothing_happens(tmp_path: Path) -> None:
    cgroups.count_memory(str(tmp_path / "guestagent-1"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("ours", "theirs"), [(-500, 0), (0, 0), (300, 300)])
def test_children_of_a_guarded_agent_are_not_guarded(ours: int, theirs: int) -> None:
    if ours < 0 and os.geteuid() != 0:
        pytest.skip("only root can guard a process")
    code = f"""
from guestagent.keeper.spawn import _unguard_from_oom
path = "/proc/self/oom_score_adj"
open(path, "w").write("{ours}")
_unguard_from_oom()
print(open(path).read())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == theirs
