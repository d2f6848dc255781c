"""cgroups.py: finding a place for the sessions' groups, and what can be done with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestagent import cgroups
from tests.harness import wait_for

MOUNTS = """\
24 30 0:22 / /proc rw,nosuid shared:13 - proc proc rw
31 30 0:27 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
32 31 0:28 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
33 31 0:29 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,name=systemd
40 30 0:28 / /mnt/two\\040words\\134x rw - cgroup2 none rw
41 30 0:28 / /mnt/gr\u00fcn rw - cgroup2 none rw
"""


def test_mount_points(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTS)
    assert cgroups.mount_points(str(file)) == ["/sys/fs/cgroup/unified", "/mnt/two words\\x", "/mnt/gr\u00fcn"]


def test_own_group(tmp_path: Path) -> None:
    file = tmp_path / "cgroup"
    file.write_text("4:devices:/x\n1:name=systemd:/user\n0::/a.slice/b c.service\n")
    assert cgroups.own_group(str(file)) == "/a.slice/b c.service"
    file.write_text("4:devices:/x\n")
    assert cgroups.own_group(str(file)) == "/"


def test_without_cgroup_v2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "mount_points", list)
    assert cgroups.find_root(os.getpid()) == (None, "cgroup v2 is not mounted")


def test_where_no_group_can_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroups, "mount_points", lambda: [str(tmp_path / "none")])
    monkeypatch.setattr(cgroups, "own_group", lambda: "/")
    root, why = cgroups.find_root(os.getpid())
    assert root is None
    assert why == f"cannot make a cgroup below {tmp_path}/none: No such file or directory"


def test_only_groups_of_dead_keepers_are_swept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroups, "mount_points", lambda: [str(tmp_path)])
    monkeypatch.setattr(cgroups, "own_group", lambda: "/")
    dead = subprocess.Popen(["true"])
    dead.wait()
    for name in (f"guestagent-{dead.pid}/session", "guestagent-1/session", "guestagent-x", "other"):
        (tmp_path / name).mkdir(parents=True)
    root, why = cgroups.find_root(os.getpid())
    assert (root, why) == (f"{tmp_path}/guestagent-{os.getpid()}", "")
    assert sorted(os.listdir(tmp_path)) == sorted(
        [f"guestagent-{os.getpid()}", "guestagent-1", "guestagent-x", "other"]
    )


# --- on a real cgroup v2 -----------------------------------------------------------------------------
@pytest.fixture
def group() -> Iterator[str]:
    root, why = cgroups.find_root(os.getpid())
    if root is None:
        pytest.skip(why)
    yield root
    cgroups.kill(root)
    cgroups.remove_tree(root)
    assert not os.path.exists(root)


def join(group: str, *argv: str) -> subprocess.Popen[bytes]:
    """Start a process in a group; it says "up" when it is there."""
    code = f"import os; open({group + '/cgroup.procs'!r}, 'w').write('0'); print('up', flush=True); "
    child = subprocess.Popen([sys.executable, "-c", code + "\n".join(argv)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    return child


def test_processes_of_a_group_and_those_below_it(group: str) -> None:
    below = f"{group}/below"
    os.mkdir(below)
    first = join(group, "import time; time.sleep(1000)")
    second = join(below, "import time; time.sleep(1000)")
    assert sorted(cgroups.processes(group)) == sorted([first.pid, second.pid])
    assert cgroups.processes(below) == [second.pid]
    cgroups.remove_tree(group)  # not as long as somebody is in it
    assert cgroups.processes(group) != []
    assert cgroups.kill(group)
    for child in (first, second):
        assert child.wait() == -signal.SIGKILL
        assert child.stdout is not None
        child.stdout.close()
    wait_for(lambda: not cgroups.processes(group), "the kernel to take them out of the group")


def test_kill_takes_everything_that_was_started_there(group: str) -> None:
    """Sessions of their own, double forks and ignored signals do not help (case C9)."""
    child = join(
        group,
        "import os, signal, time",
        "for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT): signal.signal(number, signal.SIG_IGN)",
        "for i in range(3):",
        "    if os.fork() == 0:",
        "        os.setsid()",
        "        if os.fork() == 0: time.sleep(1000)",
        "        os._exit(0)",
        "    os.wait()",
        "print('forked', flush=True); time.sleep(1000)",
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"forked\n"
    assert len(cgroups.processes(group)) == 4
    assert cgroups.kill(group)
    child.wait()
    assert child.stdout.read() == b""  # its end: nobody has the pipe any more, so all four are gone
    child.stdout.close()
    wait_for(lambda: not cgroups.processes(group), "the kernel to take them out of the group")


def test_a_group_that_is_gone() -> None:
    assert cgroups.processes("/sys/fs/cgroup/unified/none") == []
    assert cgroups.kill("/sys/fs/cgroup/unified/none")  # nothing is left there
    cgroups.remove_tree("/sys/fs/cgroup/unified/none")


def test_a_kernel_without_cgroup_kill(tmp_path: Path) -> None:
    """Then it is done process by process."""
    (tmp_path / "cgroup.kill").mkdir()  # a file that cannot be written
    assert not cgroups.kill(str(tmp_path))
