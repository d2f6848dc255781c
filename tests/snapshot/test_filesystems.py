"""The real freezer and a real filesystem: a small ext4 image of the test's own, mounted through a loop device."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from guestagent import cgroups
from guestagent.snapshot import filesystems
from ptymux.errors import RequestFailed
from tests.e2e.sessions import configured_agent, following
from tests.harness import until
from tests.snapshot.clone import frozen, guest, host
from tests.snapshot.programs import count, counter


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted filesystem that belongs to nobody else."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount an image here: {error}")
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            filesystems.thaw(str(folder))
        subprocess.run(["umount", folder], check=True)


def is_frozen(folder: Path) -> bool:
    """Without writing: a second freeze is refused."""
    try:
        filesystems.freeze(str(folder))
    except OSError:
        return True
    filesystems.thaw(str(folder))
    return False


def test_freeze_thaw_and_sync(disk: Path) -> None:
    filesystems.sync(str(disk))
    filesystems.freeze(str(disk))
    with pytest.raises(OSError, match="busy"):
        filesystems.freeze(str(disk))
    filesystems.thaw(str(disk))
    with pytest.raises(OSError, match="Invalid"):
        filesystems.thaw(str(disk))
    assert not is_frozen(disk)
    with pytest.raises(OSError, match="not supported"):
        filesystems.freeze("/dev/shm")


def test_mounts(disk: Path) -> None:
    found = {mount.path: mount for mount in filesystems.mounts([os.getpid()])}
    assert found[str(disk)].kind == "ext4"
    assert not [mount for mount in found.values() if mount.kind in ("proc", "tmpfs", "cgroup2", "sysfs")]


async def test_quiesced_with_its_log_on_the_frozen_filesystem(disk: Path, tmp_path: Path) -> None:
    """The agent's own log is there.  Nothing waits for that: not its server, not the next one after a kill, not the keeper; what was to
    be said is said after the thaw."""
    (tmp_path / "agent.log").symlink_to(disk / "agent.log")
    with configured_agent(tmp_path, f'[snapshot]\nfreeze_filesystems = ["{disk}"]\nsync_paths = ["{disk}"]') as agent:
        async with host(agent) as client:  # type: ignore[arg-type]
            session = await client.create(["sh", "-c", f"n=0; while :; do n=$((n+1)); echo $n >{disk}/file; done"])
            await until(lambda: (disk / "file").exists(), "the program")
            for kill in (False, True, False):
                report = await client.snapshot_prepare()
                assert report["frozen_filesystems"] == report["synced"] == [str(disk)]
                assert is_frozen(disk)
                assert frozen((await session.inspect())["cgroup"])
                if kill:
                    agent.kill_server()
                    assert (await client.snapshot_status())["state"] == "quiesced"
                    assert is_frozen(disk)
                await client.snapshot_resume(report["ticket"])
                assert not is_frozen(disk)
        log = agent.log()
        assert log.count("thawed in") == 3
        assert "taking over from a server that was quiesced" in log
    assert not is_frozen(disk)


async def test_the_agent_ends_while_a_filesystem_is_frozen(disk: Path, tmp_path: Path) -> None:
    with configured_agent(tmp_path, f'[snapshot]\nfreeze_filesystems = ["{disk}"]\nsync = false') as agent:
        async with host(agent) as client:  # type: ignore[arg-type]
            await client.create(["sh", "-c", f"n=0; while :; do n=$((n+1)); echo $n >{disk}/file; done"])
            await client.snapshot_prepare()
            assert is_frozen(disk)
    assert not is_frozen(disk)


async def test_its_own_socket_is_not_frozen(disk: Path) -> None:
    """The next server would sleep in the kernel when it makes the socket anew, and nobody would thaw anything."""
    with configured_agent(disk, f'[snapshot]\nfreeze_filesystems = ["{disk}"]\nsync = false') as agent:
        async with host(agent) as client:  # type: ignore[arg-type]
            with pytest.raises(RequestFailed, match="the agent's own socket is on it"):
                await client.snapshot_prepare()
            assert (await client.snapshot_status())["state"] == "running"
    assert not is_frozen(disk)


async def test_a_straggler(disk: Path, tmp_path: Path) -> None:
    """A process that sleeps in the kernel where the freezer does not reach it: it is named, and everything is undone."""
    file = tmp_path / "count"
    with guest(tmp_path / "guest") as source:
        async with host(source) as agent:
            await agent.create(counter(file))
            filesystems.freeze(str(disk))
            try:
                stuck = await agent.create(["sh", "-c", f"echo stuck; exec dd if=/dev/zero of={disk}/file count=1"])
                async with following(stuck) as stream:
                    await stream.until(b"stuck")
                pid = (await stuck.inspect())["pid"]
                await until(
                    lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D", "it to be stuck"
                )
                with pytest.raises(RequestFailed) as caught:
                    await agent.snapshot_prepare(budget=0.5)
                assert caught.value.code == "not_quiesced"
                assert [one["pid"] for one in caught.value.details["stragglers"]] == [pid]
                assert "dd" in str(caught.value)
                now = count(file)
                await until(lambda: count(file) > now, "the others to go on")
            finally:
                filesystems.thaw(str(disk))
            async with following(stuck) as stream:
                await stream.to_exit()
            async with agent.quiesced():
                pass


async def test_extra_groups(tmp_path: Path) -> None:
    """Further cgroups are frozen and thawed as well; one that is not there is no trouble, the agent's own never may be one."""
    mounts = cgroups.mount_points()
    if not mounts:
        pytest.skip("no cgroup v2")
    name = f"guestagent-test-{os.getpid()}"
    group = Path(mounts[0]) / name
    group.mkdir()
    file = tmp_path / "count"
    process = subprocess.Popen(counter(file))  # noqa: ASYNC220 - it need not be waited for
    try:
        (group / "cgroup.procs").write_text(str(process.pid))
        await until(lambda: count(file), "the counter")
        with guest(tmp_path / "guest", f'extra_groups = ["{name}", "/no-such-group"]') as source:
            async with host(source) as agent:
                async with agent.quiesced() as report:
                    assert report["extra_groups"] == [name]
                    now = count(file)
                    await trio.sleep(0.1)
                    assert count(file) == now
                await until(lambda: count(file) > now, "it to go on")
                source.kill_server()
                await agent.snapshot_prepare()
            # The agent ends while it is frozen.
        for own in ("/", cgroups.own_group() or "/"):
            configuration = tmp_path / "wrong.toml"
            configuration.write_text(f'[snapshot]\nextra_groups = ["{own}"]\n')
            options = ["--unix", str(tmp_path / "wrong.sock"), "--config", str(configuration)]
            done = await trio.run_process(
                [sys.executable, "-m", "guestagent.cli", "serve", *options], capture_stderr=True, check=False
            )
            assert done.returncode == 2
            assert b"the agent itself is in it" in done.stderr
        now = count(file)
        await until(lambda: count(file) > now, "it to go on after the agent's end")
    finally:
        process.kill()
        process.wait()
        await until(lambda: cgroups.remove_tree(str(group)) or not group.exists(), "the group to be removed")
