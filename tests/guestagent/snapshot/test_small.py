"""The small parts: uevents, files that are replaced, generators, which cgroups may be frozen, the log that waits."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import ssl
from pathlib import Path

import pytest
import trio

from guestagent import cgroups
from guestagent.snapshot import entropy, filesystems, freezer, identity
from guestagent.snapshot.detection import is_new_generation
from guestagent.snapshot.system import RealSystem, load
from guestagent.snapshot.urgency import urgent


@pytest.mark.parametrize(
    ("uevent", "told"),
    [
        (b"change@/devices/platform/vmgenid\0ACTION=change\0NEW_VMGENID=1\0SEQNUM=7\0", True),
        (b"change@/devices/platform/vmgenid\0ACTION=change\0SEQNUM=7\0", False),
        (b"add@/devices/x\0ACTION=add\0NEW_VMGENID=1\0", False),
        (b"change@/NEW_VMGENID=1\0ACTION=change\0", False),
        (b"libudev\0\xfe\xed\xca\xfe", False),
        (b"", False),
    ],
)
def test_uevents(uevent: bytes, told: bool) -> None:
    assert is_new_generation(uevent) is told


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "machine-id"
    path.write_text("old\n")
    path.chmod(0o444)
    link = tmp_path / "link"
    link.symlink_to(path)
    identity.replace_file(str(link), b"new\n")
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o444
    assert link.is_symlink()
    identity.replace_file(str(tmp_path / "fresh"), b"x", 0o600)
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["fresh", "link", "machine-id"]
    with pytest.raises(OSError, match="No such file"):
        identity.replace_file(str(tmp_path / "none" / "file"), b"")


def test_the_machine_id_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each file that has one, and once where two are the same."""
    one, other = tmp_path / "machine-id", tmp_path / "dbus-machine-id"
    one.write_text("old\n")
    other.symlink_to(one)
    monkeypatch.setattr(identity, "MACHINE_ID_FILES", (str(one), str(other), str(tmp_path / "none")))
    assert identity.set_machine_id("ab" * 16) == [str(one)]
    assert other.read_text() == "ab" * 16 + "\n"


def test_the_random_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = tmp_path / "random-seed"
    seed.write_bytes(b"old")
    monkeypatch.setattr(identity, "RANDOM_SEED_FILES", (str(seed), str(tmp_path / "none")))
    assert identity.renew_random_seed() == [str(seed)]
    first = seed.read_bytes()
    identity.renew_random_seed()
    assert len(first) == 512
    assert seed.read_bytes() != first


def test_the_generators_of_this_process() -> None:
    """Two processes that were one go on differently."""
    state = random.getstate()
    values = set()
    for _ in range(2):
        random.setstate(state)
        assert entropy.reseed_process() == ["random", "ssl"]
        values.add(random.random())
    assert len(values) == 2
    assert ssl.RAND_status()


@pytest.mark.parametrize(
    ("group", "own", "above"),
    [
        ("/a", "/a/b", True),
        ("/a/b", "/a/b", True),
        ("/", "/a", True),
        ("/a/b/c", "/a/b", False),
        ("/ab", "/a/b", False),
        ("/b", "/a", False),
    ],
)
def test_which_groups_are_ours(group: str, own: str, above: bool) -> None:
    assert freezer.is_above(group, own) is above


@pytest.mark.skipif(not cgroups.mount_points(), reason="no cgroup v2")
def test_extra_groups() -> None:
    mount = cgroups.mount_points()[0]
    assert freezer.extra_group("some.slice/x.service") == f"{mount}/some.slice/x.service"
    assert freezer.extra_group(f"{mount}/some.slice") == f"{mount}/some.slice"
    for name in ("/", cgroups.own_group(), f"{cgroups.own_group()}/below/..", "a/../.."):
        with pytest.raises(ValueError, match="cannot freeze"):
            freezer.extra_group(name)


async def test_freezing_nothing() -> None:
    await freezer.freeze([], 1)
    await freezer.freeze(["/no/such/group"], 1)
    assert freezer.thaw(["/no/such/group"]) == []
    assert freezer.stragglers(["/no/such/group"]) == []


def test_the_log_waits() -> None:
    """While a filesystem is frozen nothing is written; then all of it is, in order."""
    seen: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    root, handler = logging.getLogger(), Handler()
    before = root.handlers
    root.handlers = [handler]
    try:
        quiet = filesystems.QuietLog()
        quiet.speak()
        quiet.hush()
        quiet.hush()
        for number in range(filesystems.LOG_KEPT + 5):
            logging.getLogger("test").warning("line %d", number)
        assert seen == []
        quiet.speak()
        assert seen[0] == "line 5"
        assert len(seen) == filesystems.LOG_KEPT
        logging.getLogger("test").warning("now")
        assert seen[-1] == "now"
    finally:
        root.handlers = before


async def test_a_call_that_succeeds_after_everybody_gave_up() -> None:
    """It is undone, by the thread itself."""
    done: list[str] = []
    gate, undone = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def function() -> None:
        trio.from_thread.run(gate.wait, trio_token=token)
        done.append("done")

    def late() -> None:
        done.append("undone")
        token.run_sync_soon(undone.set)

    with trio.move_on_after(0.05) as scope:
        await filesystems.in_thread(function, late)
    assert scope.cancelled_caught
    gate.set()
    await undone.wait()
    assert done == ["done", "undone"]
    await filesystems.in_thread(function, late)
    assert done == ["done", "undone", "done"]


def test_urgent() -> None:
    """Real-time inside, and as before outside, whatever happens."""
    before = os.sched_getscheduler(0)
    with contextlib.suppress(RuntimeError), urgent():
        inside = os.sched_getscheduler(0)
        raise RuntimeError
    assert os.sched_getscheduler(0) == before
    if os.geteuid() == 0:
        assert inside & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO


def test_the_system_that_is_configured() -> None:
    assert isinstance(load(None), RealSystem)
    assert type(load("guestagent.snapshot.system:RealSystem")) is RealSystem
