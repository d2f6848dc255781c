"""`guestagent init`, in a PID namespace on a real root file system: issue 5, what must be shown, 7."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.harness import children, ptymux, ptymux_json, running_agent, wait_for
from tests.image.guest import CONFIG, Guest, running_guest

ZOMBIES = 10_000
# A process that leaves all its children unreaped, and then leaves them to process 1.
MAKE_ZOMBIES = f"""
import os
for _ in range({ZOMBIES}):
    if os.fork() == 0:
        os._exit(0)
print("made")
"""
COUNT_ZOMBIES = r"""
import os
def state(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
print("zombies", sum(state(pid) == "Z" for pid in os.listdir("/proc") if pid.isdigit()))
"""


def ready(guest: Guest) -> Guest:
    guest.until("listening on")
    return guest


def output(guest: Guest, *command: str) -> str:
    done = ptymux(guest.address, "exec", "--no-tty", "--", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_a_bare_kernel_becomes_a_system(rootfs: Path, tmp_path: Path) -> None:
    (rootfs / "etc/hostname").write_text("baked\n")
    with running_guest(rootfs, tmp_path) as guest:
        ready(guest)
        mounted = {line.split()[1] for line in output(guest, "cat", "/proc/mounts").splitlines()}
        assert {"/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/run"} <= mounted
        assert output(guest, "bash", "-c", "cat <(hostname)") == "baked\n"  # /dev/fd is there too
        assert "UP" in output(guest, "ip", "-o", "link", "show", "lo").split("<")[1].split(">")[0].split(",")
        assert "guestagent: cannot" not in guest.console()
        # A terminal works, and what runs in it is not guarded from the out-of-memory killer.
        done = ptymux(
            guest.address, "exec", "--", "sh", "-c", "tty; cat /proc/self/oom_score_adj /proc/1/oom_score_adj"
        )
        assert done.stdout.splitlines()[0].startswith(b"/dev/pts/")
        session, init = (int(line) for line in done.stdout.splitlines()[1:])
        assert session == 0
        assert init <= 0


def listens(guest: Guest) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as there:
            there.connect(str(guest.socket))
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_all_orphans_are_reaped(rootfs: Path, tmp_path: Path) -> None:
    with running_guest(rootfs, tmp_path) as guest:
        ready(guest)
        began = time.monotonic()
        assert output(guest, "python3", "-c", MAKE_ZOMBIES) == "made\n"
        wait_for(lambda: output(guest, "python3", "-c", COUNT_ZOMBIES) == "zombies 0\n", "no zombies")
        assert time.monotonic() - began < 60


def test_a_killed_server_is_back_within_a_second_with_its_sessions(rootfs: Path, tmp_path: Path) -> None:
    with running_guest(rootfs, tmp_path) as guest:
        ready(guest)
        assert (
            ptymux(guest.address, "new", "--name", "work", "sh", "-c", "echo before; exec sleep 1000").returncode == 0
        )
        pid = guest.server_pid()
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        wait_for(lambda: pid not in children(guest.init_pid, "guestagent.server"), "its death")
        wait_for(lambda: listens(guest), "the next server")
        back = time.monotonic() - began
        print(f"a killed server listens again after {back:.2f} s")
        assert back < 1
        assert [row["name"] for row in ptymux_json(guest.address, "ls")] == ["work"]
        assert guest.server_pid() != pid
        assert ptymux(guest.address, "read", "work").stdout == b"before\r\n"


@pytest.mark.parametrize(
    ("number", "how"),
    [(signal.SIGTERM, "poweroff"), (signal.SIGPWR, "poweroff"), (signal.SIGINT, "reboot")],
)
def test_signals_end_the_machine(rootfs: Path, tmp_path: Path, number: signal.Signals, how: str) -> None:
    with running_guest(rootfs, tmp_path) as guest:
        ready(guest)
        os.kill(guest.init_pid, number)
        assert guest.end() == (-signal.SIGHUP if how == "reboot" else -signal.SIGINT)
        assert f"guestagent: going down: {how}" in guest.console()


def test_poweroff_hangs_sessions_up_and_ends_the_machine(rootfs: Path, tmp_path: Path) -> None:
    script = "trap 'trap \"\" HUP; echo hung up >>/shared/said; exit' HUP; echo set >/shared/set; while :; do sleep 0.05; done"
    with running_guest(rootfs, tmp_path) as guest:
        ready(guest)
        assert ptymux(guest.address, "new", "sh", "-c", script).returncode == 0
        wait_for((guest.root / "shared/set").exists, "the trap")
        done = ptymux(guest.address, "poweroff")
        assert done.returncode == 0, done.stderr
        assert guest.end() == -signal.SIGINT
        assert "guestagent: going down: poweroff" in guest.console()
        assert (guest.root / "shared/said").read_text() == "hung up\n"
        assert not guest.socket.exists()


def test_a_missing_piece_is_said_on_the_console_and_the_machine_stays(rootfs: Path, tmp_path: Path) -> None:
    with running_guest(rootfs, tmp_path, CONFIG + "[limits]\nmax_sesions = 5\n") as guest:
        guest.until("RESCUE: the agent cannot start (status 2")
        assert "unknown key limits.max_sesions" in guest.console()
        assert guest.process.poll() is None
        os.kill(guest.init_pid, signal.SIGTERM)
        assert guest.end() == -signal.SIGINT


def test_a_damaged_agent_is_said_on_the_console_and_is_no_kernel_panic(rootfs: Path, tmp_path: Path) -> None:
    lost = rootfs / "opt/guestagent/lib/guestagent/keeper"
    lost.rename(lost.with_name("lost"))
    try:
        with running_guest(rootfs, tmp_path) as guest:
            guest.until("RESCUE: /opt/guestagent is damaged")
            assert "No module named 'guestagent.keeper'" in guest.console()
            assert guest.process.poll() is None
    finally:
        lost.with_name("lost").rename(lost)


def test_only_process_1_powers_off_and_only_for_admins(rootfs: Path, tmp_path: Path) -> None:
    with running_agent(tmp_path) as agent:
        done = ptymux(agent.address, "poweroff")
        assert done.returncode == 1
        assert done.stderr.startswith(b"ptymux: cannot poweroff: the agent is not this machine's init")
    (rootfs / "etc/guestagent/tokens").write_text("controller some\n")
    (tmp_path / "token").write_text("some\n")
    with running_guest(rootfs, tmp_path, CONFIG + '[access]\ntoken_file = "/etc/guestagent/tokens"\n') as guest:
        ready(guest)
        done = ptymux(guest.address, "--token-file", str(tmp_path / "token"), "poweroff")
        assert done.returncode == 1
        assert b"the role is controller, admin is needed" in done.stderr
        assert guest.process.poll() is None


def test_what_was_missing_can_be_mended(rootfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = rootfs / "opt/guestagent/lib/guestagent/init/main.py"
    before = main.read_text()
    compiled = next(main.parent.glob("__pycache__/main.*.pyc"))
    data = compiled.read_bytes()
    compiled.unlink()
    main.write_text(before.replace("RETRY = 10.0", "RETRY = 0.2"))
    try:
        with running_guest(rootfs, tmp_path, "nonsense") as guest:
            guest.until("RESCUE")
            (rootfs / "etc/guestagent/config.toml").write_text(CONFIG)
            ready(guest)
            assert output(guest, "echo", "well") == "well\n"
    finally:
        main.write_text(before)
        compiled.write_bytes(data)


def test_init_is_process_1_or_nothing(rootfs: Path) -> None:
    done = subprocess.run(["chroot", rootfs, "/opt/guestagent/init"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "guestagent: cannot be init: this is not process 1\n"
