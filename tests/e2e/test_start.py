"""Starting and stopping the agent: what is wrong is one line and a status, what is right leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestagent import cgroups
from ptymux import __version__, connect
from tests.e2e.sessions import WITHOUT_CGROUPS, alive, children_of, configured_agent, descendants, ended, following
from tests.harness import PATIENCE, AgentProcess, clean_environment, ptymux, running_agent, until, wait_for

GUESTAGENT = [sys.executable, "-m", "guestagent.cli"]


def guestagent(*arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run it to its end; no cgroup of it may be left."""
    with subprocess.Popen(
        [*before, *GUESTAGENT, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    ) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.pid not in agents_with_cgroups()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def agents_with_cgroups() -> list[int]:
    """Pids of agents, alive or dead, that have cgroups below ours."""
    return [
        int(name.removeprefix(cgroups.PREFIX))
        for mount in cgroups.mount_points()
        for name in os.listdir(mount + cgroups.own_group().rstrip("/"))
        if name.startswith(cgroups.PREFIX)
    ]


# --- starts that fail ---------------------------------------------------------------------------------------
@pytest.fixture
def taken(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Addresses that somebody has, and files that are of no use."""
    with socket.socket() as listening, socket.socket(socket.AF_UNIX) as unix:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        unix.bind(str(tmp_path / "taken.sock"))
        unix.listen()
        (tmp_path / "tokens").write_text("admin secret\n")
        (tmp_path / "none").write_text("# none yet\n")
        (tmp_path / "wrong").write_text("owner secret\n")
        (tmp_path / "file").write_text("not a socket\n")
        (tmp_path / "unknown.toml").write_text("[listen.unix]\nmdoe = 0o600\n")
        (tmp_path / "kind.toml").write_text("[limits]\nretention = 'an hour'\n")
        (tmp_path / "broken.toml").write_text("[limits\n")
        (tmp_path / "never.toml").write_text("[limits]\nping_after = 100\n")
        yield {"PORT": str(listening.getsockname()[1]), "DIR": str(tmp_path), "LONG": "x" * 200}


FAILURES = {
    "--websocket 127.0.0.1:0": "cannot listen on TCP or WebSocket without tokens: give --token-file or access.token_file",
    "--config DIR/missing.toml": "cannot read configuration DIR/missing.toml: No such file or directory",
    "--config DIR/unknown.toml": "cannot read configuration: unknown key listen.unix.mdoe",
    "--config DIR/kind.toml": "cannot read configuration: limits.retention must be a number above 0",
    "--config DIR/broken.toml": "cannot read configuration: Expected ']' at the end of a table declaration",
    "--config DIR/never.toml": "cannot use configuration: limits.ping_after must be less than limits.dead_after",
    "--token-file DIR/missing": "cannot read tokens from DIR/missing: No such file or directory",
    "--token-file DIR/none": "cannot read tokens from DIR/none: there are none",
    "--token-file DIR/wrong": "cannot read tokens from DIR/wrong: line 1 is neither TOKEN nor ROLE TOKEN",
    "--token-file fd:17": "cannot read tokens from fd:17: Bad file descriptor",
    "--token-file fd:3": "cannot read tokens from fd:3: the agent uses that descriptor itself, pass another one",
    "--unix DIR/taken.sock": "cannot listen on unix:DIR/taken.sock: another process listens there",
    "--unix DIR/file": "cannot listen on unix:DIR/file: the path exists and is not a socket",
    "--unix DIR/none/such/a.sock": "cannot listen on unix:DIR/none/such/a.sock: Not a directory",
    "--unix DIR/LONG": "cannot listen on unix:DIR/LONG: AF_UNIX path too long",
    "--token-file DIR/tokens --websocket 127.0.0.1:PORT": "cannot listen on ws://127.0.0.1:PORT/: Address already in use",
    "--token-file DIR/tokens --websocket 192.0.2.1:9": "cannot listen on ws://192.0.2.1:9/: Cannot assign requested address",
    "--token-file DIR/tokens --websocket nonsense": "",
    "--token-file DIR/tokens --websocket 127.0.0.1:99999": "",
}


@pytest.mark.parametrize("options", list(FAILURES))
def test_a_start_that_fails_is_one_line_and_status_2(taken: dict[str, str], tmp_path: Path, options: str) -> None:
    """It is the server that fails; the keeper ends with its status and says nothing of its own."""
    text = FAILURES[options]
    for word, value in taken.items():
        options, text = options.replace(word, value), text.replace(word, value)
    if "--unix" not in options:
        options = f"--unix {tmp_path}/agent.sock {options}"
    done = guestagent("serve", *options.split())
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"guestagent: {text or 'cannot '}")
    assert not (tmp_path / "agent.sock").exists()
    assert (tmp_path / "file").read_text() == "not a socket\n"
    assert (tmp_path / "taken.sock").is_socket()


def test_options_that_there_are_not() -> None:
    done = guestagent("serve", "--loud")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "guestagent serve: error: unrecognized arguments: --loud"
    done = guestagent("serve", "--vsock", "many")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


# --- other commands --------------------------------------------------------------------------------------------
def test_version_and_help() -> None:
    done = guestagent("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"guestagent {__version__}\n", "")
    for word in ("-h", "--help", "help"):
        done = guestagent(word)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("usage: guestagent serve")
    done = guestagent()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: guestagent serve")
    done = guestagent("sevre")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("guestagent: unknown command 'sevre'\nusage: ")
    assert guestagent("serve", "--help").returncode == 0


def test_check() -> None:
    """What the tests need of this machine is there."""
    done = guestagent("check")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"guestagent {__version__}, Python 3.")
    assert [line.split()[1] for line in lines[1:]] == ["terminals", "memfd", "cgroups", "vsock", "files", "user"]
    assert all(line.split()[0] in ("ok", "-") for line in lines[1:])
    done = guestagent("check", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    assert rows["version"] == __version__
    assert rows["terminals"] == {"ok": True, "needed": True, "text": "PTYs can be opened"}
    assert all(rows[line.split()[1]]["ok"] is (line.split()[0] == "ok") for line in lines[1:])
    assert guestagent("check", "--everything").returncode == 2


def test_check_says_what_is_missing() -> None:
    done = guestagent("check", "--json", before=("sh", "-c", 'ulimit -n 40 && exec "$@"', "sh"))
    rows = json.loads(done.stdout)
    assert done.returncode == 1
    assert (rows["files"]["ok"], rows["files"]["needed"]) == (False, True)
    assert rows["files"]["text"].startswith("40 open files")


def test_check_without_cgroups() -> None:
    done = guestagent("check", before=WITHOUT_CGROUPS)
    assert done.returncode == 0
    assert "-   cgroups    sessions are process groups only: cgroup v2 is not mounted" in done.stdout.splitlines()


# --- the service manager ------------------------------------------------------------------------------------------
def test_the_service_manager_hears_of_start_restart_and_end(tmp_path: Path) -> None:
    """It is told by the keeper, whose pid it knows, and only once clients can connect; no session learns of its socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        environment = clean_environment(NOTIFY_SOCKET=str(tmp_path / "notify"))
        with running_agent(tmp_path, environment=environment) as agent:
            assert manager.recv(1000).decode() == f"READY=1\nSTATUS=listening on {agent.address}"
            assert ptymux(agent.address, "ls").returncode == 0
            assert b"NOTIFY_SOCKET" not in ptymux(agent.address, "exec", "--", "env").stdout
            assert b"NOTIFY_SOCKET" not in Path(f"/proc/{agent.server_pid()}/environ").read_bytes()
            agent.kill_server()
            assert manager.recv(1000).startswith(b"READY=1\n")
        assert manager.recv(1000) == b"STOPPING=1"


# --- the end --------------------------------------------------------------------------------------------------------
STUBBORN = "trap '' HUP TERM INT QUIT; echo up; while :; do sleep 0.1; done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_end_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    """Status 0, and nothing left: polite sessions, stubborn ones, ended ones, their processes, cgroups, the socket."""
    agent = AgentProcess(tmp_path)
    async with connect(agent.address) as client:
        for script in ("echo up; sleep 1000", STUBBORN, "trap 'echo bye; exit' HUP; echo up; cat", "echo up"):
            session = await client.create(["sh", "-c", script])
            async with following(session) as stream:
                await stream.until(b"up\r\n")
        await client.create(["sh", "-c", STUBBORN], tty=False)
        await ended(session)
    tree = descendants(agent.keeper_pid)
    assert len(tree) >= 7
    agent.process.send_signal(number)
    assert agent.process.wait(PATIENCE) == 0
    wait_for(lambda: not any(map(alive, tree)), "everything to end")
    agent.stop()  # which looks for the rest


async def test_a_session_hears_the_hang_up_before_it_is_killed(tmp_path: Path) -> None:
    """A shell can still save its history."""
    saved = tmp_path / "saved"
    agent = AgentProcess(tmp_path)
    async with connect(agent.address) as client:
        session = await client.create(
            ["sh", "-c", f"trap 'echo saved >{saved}; exit' HUP; echo up; while :; do sleep 0.01; done"]
        )
        async with following(session) as stream:
            await stream.until(b"up\r\n")
    assert agent.stop() == 0
    assert saved.read_text() == "saved\n"


async def test_a_stopped_session_hears_it_too(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    agent = AgentProcess(tmp_path)
    async with connect(agent.address) as client:
        session = await client.create(
            ["sh", "-c", f"trap 'echo saved >{saved}; exit' HUP; echo up; while :; do sleep 0.01; done"]
        )
        async with following(session) as stream:
            await stream.until(b"up\r\n")
        await session.signal("STOP", everyone=True)
    assert agent.stop() == 0
    assert saved.read_text() == "saved\n"


def test_the_end_before_the_beginning_is_over(tmp_path: Path) -> None:
    """SIGTERM while the first server is still starting."""
    process = subprocess.Popen(
        [*GUESTAGENT, "serve", "--unix", str(tmp_path / "agent.sock")],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    assert process.stderr is not None
    wait_for(lambda: children_of(process.pid), "the server process")
    server = next(iter(children_of(process.pid)))
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert not alive(server)
    assert not (tmp_path / "agent.sock").exists()


def test_a_client_is_told(agent: AgentProcess) -> None:
    """One that waits for output does not hang: it gives up as it was told to, and says why."""
    session = ptymux(agent.address, "new", "--", "cat").stdout.decode().strip()
    reader = subprocess.Popen(
        [sys.executable, "-m", "ptymux.cli", "--to", agent.address, "--give-up", "0.5", "read", "--follow", session],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    assert ptymux(agent.address, "send", "--enter", session, "x").returncode == 0
    assert reader.stdout is not None
    assert os.read(reader.stdout.fileno(), 100).startswith(b"x\r\n")
    agent.process.terminate()
    agent.process.wait(PATIENCE)
    _, err = reader.communicate(timeout=PATIENCE)
    assert reader.returncode == 255
    assert err.startswith(f"ptymux: contact with {agent.address} was lost".encode())
    assert err.count(b"\n") == 1


# --- what others left --------------------------------------------------------------------------------------------------
def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "agent.sock"))
    stale.close()
    with running_agent(tmp_path) as agent:
        assert ptymux(agent.address, "ls").returncode == 0
        second = guestagent("serve", "--unix", agent.path)
        assert (second.returncode, second.stderr.count("\n")) == (2, 1)
        assert ptymux(agent.address, "ls").returncode == 0  # the first one has its socket still


async def test_after_a_killed_keeper(tmp_path: Path) -> None:
    """Its server ends by itself, its sessions are hung up, and the next agent takes its place and cleans up."""
    first = AgentProcess(tmp_path)
    async with connect(first.address) as client:
        session = await client.create(["sleep", "1000"])
        row = await session.inspect()
    server = first.server_pid()
    first.process.kill()
    first.process.wait()
    await until(lambda: not alive(server) and not alive(row["pid"]), "both to end")
    with configured_agent(tmp_path, "") as second:
        assert first.keeper_pid not in agents_with_cgroups()
        async with connect(second.address) as client:
            assert await client.sessions() == []
    first._log.close()


def test_a_server_that_dies_later_is_replaced(agent: AgentProcess) -> None:
    for _ in range(3):
        old = agent.kill_server()
        assert ptymux(agent.address, "--wait", "10", "ls").returncode == 0
        assert agent.server_pid() != old
    assert agent.process.poll() is None
