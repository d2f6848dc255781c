"""What the short commands print, with which status they end, and what they do."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptymux import limits
from tests.dying import dying_agent
from tests.e2e.programs import python
from tests.harness import (
    PATIENCE,
    AgentProcess,
    clean_environment,
    ptymux,
    ptymux_argv,
    ptymux_json,
    running_agent,
    wait_for,
)

ID = re.compile(r"[0-9a-f]{16}")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with running_agent(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


def run(agent: AgentProcess, *arguments: str, input: bytes | None = None) -> str:
    """What a command prints that must succeed and complain of nothing."""
    done = ptymux(agent.address, *arguments, input=input)
    assert (done.returncode, done.stderr) == (0, b""), arguments
    return done.stdout.decode()


def fails(agent: AgentProcess, *arguments: str, status: int = 1, input: bytes | None = None) -> str:
    """The one line that a command complains with that must fail."""
    done = ptymux(agent.address, *arguments, input=input)
    error = done.stderr.decode()
    assert done.returncode == status, error
    assert done.stdout == b""
    assert error.count("\n") == 1, error
    assert error.startswith("ptymux"), error
    return error.rstrip("\n").partition(": ")[2]


def new(agent: AgentProcess, *arguments: str) -> str:
    return run(agent, "new", *arguments).strip()


def output(agent: AgentProcess, session: str, size: int) -> None:
    """Wait until a session has written so much."""
    wait_for(lambda: ptymux_json(agent.address, "inspect", session)["offset"] >= size, f"{size} bytes of output")


def ended(agent: AgentProcess, session: str) -> dict[str, object]:
    def end() -> dict[str, object] | None:
        row: dict[str, object] = ptymux_json(agent.address, "inspect", session)
        return row if row["state"] == "exited" else None

    return wait_for(end, "the program's end") or {}


# --- new, ls, inspect -----------------------------------------------------------------------------
def test_new_prints_the_id_alone(agent: AgentProcess) -> None:
    text = run(agent, "new", "--", "sleep", "1000")
    assert ID.fullmatch(text.removesuffix("\n"))
    found = ptymux_json(agent.address, "new")
    assert list(found) == ["id"]
    assert ptymux_json(agent.address, "inspect", found["id"])["command"] == "(login shell)"


def test_new_passes_on_what_it_is_given(agent: AgentProcess, tmp_path: Path) -> None:
    session = new(
        agent, "--name", "given", "--label", "a label", "--cwd", str(tmp_path), "--env", "A=b c", "--size", "100x30",
        "--term", "vt100", "--history", str(limits.MIN_HISTORY), "--policy", "overwrite",
        "sh", "-c", 'echo "$PWD $A $TERM"; stty size; sleep 1000',
    )  # fmt: skip
    row = ptymux_json(agent.address, "inspect", "given")
    assert (row["id"], row["label"], row["size"], row["policy"]) == (session, "a label", [100, 30], "overwrite")
    assert row["streams"]["stdout"]["size"] == limits.MIN_HISTORY
    expected = f"{tmp_path} b c vt100\r\n30 100\r\n"
    output(agent, session, len(expected))
    assert ptymux(agent.address, "read", session).stdout.decode() == expected


def test_what_cannot_be_started_is_said_in_one_line(agent: AgentProcess) -> None:
    assert fails(agent, "new", "/no/such/program") == (
        "cannot create: cannot start /no/such/program: No such file or directory"
    )
    new(agent, "--name", "taken", "sleep", "1000")
    assert fails(agent, "new", "--name", "taken") == "cannot create: there is a session 'taken'"
    assert "history" in fails(agent, "new", "--history", "1")
    for size in ("0x0", "1x24", "80x1001"):
        assert re.match(r"cannot create: (columns|rows) must be from \d+ to 1000", fails(agent, "new", "--size", size))


def test_ls_is_a_table_or_a_list(agent: AgentProcess) -> None:
    running = new(agent, "--name", "runs", "--size", "100x30", "--", "sh", "-c", "echo hello; sleep 1000")
    output(agent, running, 7)
    over = new(agent, "sh", "-c", "exit 3")
    ended(agent, over)
    killed = new(agent, "--name", "killed", "sleep", "1000")
    run(agent, "kill", killed)
    ended(agent, killed)
    lines = run(agent, "ls").splitlines()
    assert lines[0].split() == ["ID", "NAME", "STATE", "SIZE", "OUTPUT", "STARTED", "COMMAND"]
    table = {line.split()[0]: line for line in lines[1:]}
    assert re.match(
        rf"{running}  runs +running +100x30 +7 +\d\d-\d\d \d\d:\d\d  sh -c echo hello; sleep 1000", table[running]
    )
    assert re.match(rf"{over}  - +exit 3 +80x24 ", table[over])
    assert re.match(rf"{killed}  killed +signal 9 ", table[killed])
    columns = {line.index("  sh -c") for line in (table[running], table[over])}
    assert len(columns) == 1, "the columns are aligned"
    rows = ptymux_json(agent.address, "ls")
    assert isinstance(rows, list)
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    by_id = {row["id"]: row for row in rows}
    assert (by_id[running]["state"], by_id[running]["offset"], by_id[running]["name"]) == ("running", 7, "runs")
    assert by_id[over]["exit"]["code"] == 3
    assert by_id[killed]["exit"]["signal"] == 9


def test_a_command_with_control_characters_stays_in_its_line(agent: AgentProcess) -> None:
    session = new(agent, "sh", "-c", "# \x1b]0;title\x07\nsleep 1000")
    (line,) = [line for line in run(agent, "ls").split("\n") if line.startswith(session)]
    assert line.endswith(r"sh -c # \x1b]0;title\x07\nsleep 1000")
    assert "\x1b" not in run(agent, "inspect", session)


def test_inspect_by_id_and_by_name(agent: AgentProcess) -> None:
    session = new(agent, "--name", "looked-at", "--label", "a label", "sleep", "1000")
    text = run(agent, "inspect", "looked-at")
    assert re.search(rf"^id +{session}$", text, re.MULTILINE)
    assert re.search(r"^label +a label$", text, re.MULTILINE)
    assert re.search(r"^  stdout:$", text, re.MULTILINE)
    assert ptymux_json(agent.address, "inspect", session) == ptymux_json(agent.address, "inspect", "looked-at")


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "nobody"], ["send", "nobody", "x"], ["read", "nobody"], ["resize", "nobody", "80x24"],
        ["signal", "nobody", "INT"], ["kill", "nobody"], ["rm", "nobody"], ["rm", "--force", "nobody"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_session_that_does_not_exist(agent: AgentProcess, arguments: list[str]) -> None:
    assert fails(agent, *arguments) == "cannot inspect: no session 'nobody'"


# --- send, read -----------------------------------------------------------------------------------
CAT = ["sh", "-c", "stty raw -echo; echo ready; exec cat -A"]


def cat(agent: AgentProcess) -> str:
    session = new(agent, *CAT)
    output(agent, session, 6)
    return session


def typed(agent: AgentProcess, session: str) -> str:
    """What the program got."""
    return run(agent, "read", session).removeprefix("ready\n")


def test_send_types_its_arguments(agent: AgentProcess) -> None:
    session = cat(agent)
    assert run(agent, "send", session, "two", "wörds") == ""
    assert run(agent, "send", "--enter", session, "line") == ""
    assert run(agent, "send", session, "--", "-l") == ""
    assert ptymux_json(agent.address, "send", session, "x") == {"written": 1}
    expected = "two wM-CM-6rdsline^M-lx"
    output(agent, session, 6 + len(expected))
    assert typed(agent, session) == expected


def test_send_types_its_stdin(agent: AgentProcess) -> None:
    session = cat(agent)
    data = bytes(range(256)) * 400
    assert run(agent, "send", session, input=data) == ""
    expected = subprocess.run(["cat", "-A"], input=data, capture_output=True, check=True).stdout
    output(agent, session, 6 + len(expected))
    assert ptymux(agent.address, "read", session).stdout == b"ready\n" + expected
    assert run(agent, "send", "--enter", session, input=b"") == ""
    output(agent, session, 6 + len(expected) + 2)
    assert run(agent, "read", session).endswith("^M")


def test_send_says_what_was_not_typed(agent: AgentProcess) -> None:
    over = new(agent, "true")
    ended(agent, over)
    assert fails(agent, "send", over, "x") == "cannot type: the program has ended"
    cooked = new(agent, "sh", "-c", "echo ready; read x")
    output(agent, cooked, 7)
    assert "cooked_line (4095)" in fails(agent, "send", cooked, input=b"x" * 5000)


def test_read_prints_what_is_there(agent: AgentProcess) -> None:
    session = new(agent, "sh", "-c", "printf 0123456789; sleep 1000")
    output(agent, session, 10)
    assert run(agent, "read", session) == "0123456789"
    assert run(agent, "read", "--from", "4", session) == "456789"
    assert run(agent, "read", session, "--from", "0") == "0123456789"
    assert run(agent, "read", "--from", "10", session) == ""
    assert fails(agent, "read", "--from", "11", session, status=2) == "cannot read from 11: the output ends at 10"


def test_read_of_both_streams(agent: AgentProcess) -> None:
    done = ptymux(agent.address, "exec", "--no-tty", "--name", "both", "--", "sh", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    assert "stream must be one of stdout" in fails(agent, "read", "--stream", "stderr", new(agent, "sleep", "1000"))


def test_read_tells_what_is_missing(agent: AgentProcess) -> None:
    """The oldest byte there is, and how many are not."""
    size = 3 * limits.MIN_HISTORY
    session = new(agent, "--history", str(limits.MIN_HISTORY), "sh", "-c", f"stty raw; head -c {size} /dev/zero")
    ended(agent, session)
    oldest = ptymux_json(agent.address, "inspect", session)["streams"]["stdout"]["oldest"]
    assert oldest >= 2 * limits.MIN_HISTORY
    for start in (0, 5):
        done = ptymux(agent.address, "read", "--from", str(start), session)
        assert done.returncode == 0
        assert len(done.stdout) == size - oldest
        assert done.stderr.decode() == f"ptymux: {oldest - start} bytes are missing, from offset {start} to {oldest}\n"


def test_read_follows_to_the_end(agent: AgentProcess) -> None:
    session = new(agent, "sh", "-c", "echo one; read x; echo two; exit 5")
    command = [*ptymux_argv(agent.address, "read", "--follow", session)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=clean_environment()) as reader:
        assert reader.stdout is not None
        assert os.read(reader.stdout.fileno(), 100) == b"one\r\n"
        run(agent, "send", "--enter", session)
        assert reader.stdout.read() == b"\r\ntwo\r\n"
        assert reader.wait(PATIENCE) == 0


def test_a_reader_that_has_enough_is_no_error(agent: AgentProcess) -> None:
    """`ptymux read ... | head`: no traceback, and no complaint."""
    session = new(agent, "sh", "-c", "yes | head -c 1000000")
    ended(agent, session)
    for arguments in (["read", session], ["ls"]):
        command = [*ptymux_argv(agent.address, *arguments)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment()
        ) as reader:
            assert reader.stdout is not None
            assert reader.stderr is not None
            reader.stdout.close()
            assert reader.stderr.read() == b""
            assert reader.wait(PATIENCE) == 128 + signal.SIGPIPE


# --- resize, signal, kill, rm ---------------------------------------------------------------------
def test_resize_sets_the_size(agent: AgentProcess) -> None:
    session = new(agent, "sh", "-c", "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done")
    output(agent, session, 7)
    assert run(agent, "resize", session, "132x43") == ""
    ended(agent, session)
    assert run(agent, "read", session) == "ready\r\n43 132\r\n"
    other = new(agent, "sleep", "1000")
    assert ptymux_json(agent.address, "resize", other, "90X20") == {"size": [90, 20]}
    for size in ("0x24", "1x24", "80x0", "1001x24", "80x1001"):
        assert fails(agent, "resize", other, size).startswith("cannot resize: ")
    assert ptymux_json(agent.address, "inspect", other)["size"] == [90, 20]
    assert fails(agent, "resize", session, "80x24") == "cannot resize: the program has ended"


@pytest.mark.parametrize(("name", "number"), [("INT", 2), ("SIGTERM", 15), ("9", 9), ("hup", 1)])
def test_signal_by_name_and_by_number(agent: AgentProcess, name: str, number: int) -> None:
    session = new(agent, "sleep", "1000")
    assert run(agent, "signal", session, name) == ""
    assert ended(agent, session)["exit"]["signal"] == number  # type: ignore[index]
    assert fails(agent, "signal", session, name) == "cannot signal: there is no process to take it"


# Two processes that say what they got: one on the terminal, one in a session of its own.
_PAIR = """
import os, signal
name = b"near\\n"
signal.signal(signal.SIGTERM, lambda *_: os.write(1, name))
if os.fork() == 0:
    os.setsid()
    name = b"far\\n"
    os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


def test_signal_to_all(agent: AgentProcess) -> None:
    """Also to who has left the terminal; the foreground alone is the default."""
    session = new(agent, *python(_PAIR))
    output(agent, session, len("ready\r\n"))
    run(agent, "signal", session, "TERM")
    output(agent, session, len("ready\r\nnear\r\n"))
    assert ptymux_json(agent.address, "signal", "--all", session, "TERM") == {"signal": "TERM"}
    output(agent, session, len("ready\r\nnear\r\nnear\r\nfar\r\n"))
    assert sorted(run(agent, "read", session).split()) == ["far", "near", "near", "ready"]
    assert "is not known" in fails(agent, "signal", session, "NONSENSE")


def test_kill_and_rm(agent: AgentProcess) -> None:
    session = new(agent, "sleep", "1000")
    assert fails(agent, "rm", session) == "cannot remove: the program is still running; kill it, or force"
    assert run(agent, "kill", session) == ""
    assert ended(agent, session)["exit"]["signal"] == 9  # type: ignore[index]
    assert run(agent, "rm", session) == ""
    assert "no session" in fails(agent, "inspect", session)
    other = new(agent, "sleep", "1000")
    assert ptymux_json(agent.address, "kill", other) == {"killed": other}
    assert ptymux_json(agent.address, "rm", "--force", other) == {"removed": other}


# --- info, stats ----------------------------------------------------------------------------------
def test_info(agent: AgentProcess) -> None:
    info = ptymux_json(agent.address, "info")
    assert re.fullmatch(r"[0-9a-f]{32}", info["agent"])
    assert re.fullmatch(r"[0-9a-f]{32}", info["generation"])
    assert info["lineage"] == []
    assert info["keeper_pid"] == agent.keeper_pid
    assert info["server_pid"] == agent.server_pid()
    assert info["protocol"] == [1, 1]
    assert info["limits"]["max_frame"] == limits.MAX_FRAME
    assert set(limits.REPORTED) <= set(info["limits"])
    text = run(agent, "info")
    assert re.search(rf"^generation +{info['generation']}$", text, re.MULTILINE)
    assert re.search(rf"^  max_frame +{limits.MAX_FRAME}$", text, re.MULTILINE)


def test_stats(agent: AgentProcess) -> None:
    stats = ptymux_json(agent.address, "stats")
    assert stats["connections"] == 1
    assert stats["sessions"] >= stats["sessions_running"]
    text = run(agent, "stats")
    assert re.search(r"^connections_total +\d+$", text, re.MULTILINE)
    assert "[" not in text, "lists are for --json"
    metrics = run(agent, "stats", "--prometheus")
    assert "# TYPE guestagent_sessions gauge\nguestagent_sessions " in metrics
    assert all(line.startswith(("#", "guestagent_")) for line in metrics.splitlines())


# --- no agent -------------------------------------------------------------------------------------
def test_nobody_there_is_255_and_one_line(tmp_path: Path) -> None:
    done = ptymux(f"unix:{tmp_path}/nobody", "--wait", "0.1", "ls")
    assert done.returncode == 255
    assert done.stderr.decode() == f"ptymux: cannot dial unix:{tmp_path}/nobody: No such file or directory\n"
    assert done.stdout == b""


def test_a_usage_error_is_2_and_one_line(agent: AgentProcess) -> None:
    assert "invalid choice" in fails(agent, "nonsense", status=2)
    assert "unrecognized arguments" in fails(agent, "ls", "--nonsense", status=2)


def test_an_agent_that_goes_away_meanwhile_is_255(tmp_path: Path) -> None:
    with dying_agent(tmp_path) as agent:
        session = new(agent, "sh", "-c", "echo ready; exec sleep 1000")
        command = ptymux_argv(agent.address, "--give-up", "0.3", "read", "--follow", session)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment()
        ) as reader:
            assert reader.stdout is not None
            assert reader.stderr is not None
            assert os.read(reader.stdout.fileno(), 100) == b"ready\r\n"
            agent.die()
            error = reader.stderr.read().decode()
            assert reader.wait(PATIENCE) == 255
        assert error.startswith(f"ptymux: contact with {agent.address} was lost: ")
        assert error.count("\n") == 1


def test_the_address_and_the_token_come_from_the_environment_too(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("viewer look-only\nadmin all-of-it\n")
    with running_agent(tmp_path, "--token-file", str(tokens)) as agent:
        environment = clean_environment(PTYMUX_TO=agent.address)
        command = [*ptymux_argv(agent.address, "info", "--json")]
        del command[command.index("--to") : command.index("--to") + 2]
        nobody = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=PATIENCE)
        assert nobody.returncode == 255
        assert nobody.stderr == b"ptymux: cannot connect: the token is missing or wrong\n"
        environment["PTYMUX_TOKEN_FILE"] = str(tokens)
        viewer = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=PATIENCE)
        assert json.loads(viewer.stdout)["role"] == "viewer"
        wrong = tmp_path / "wrong"
        wrong.write_text("nonsense\n")
        assert fails(agent, "--token-file", str(wrong), "ls", status=255) == (
            "cannot connect: the token is missing or wrong"
        )


# --- screen -----------------------------------------------------------------------------------------
def test_screen_as_text_data_and_picture(agent: AgentProcess, tmp_path: Path) -> None:
    session = new(agent, "--size", "40x5", "sh", "-c", "seq 20; printf '\\033[31m世界\\033[0m|\\033]2;title\\007'; exec sleep 1000")
    wait_for(lambda: "世界|" in run(agent, "screen", session), "the end of the output")
    assert run(agent, "screen", session).split("\n") == ["17", "18", "19", "20", "世界|", ""]
    assert run(agent, "screen", "--scrollback", "3", session).split("\n")[:4] == ["14", "15", "16", "17"]
    shown = ptymux_json(agent.address, "screen", session, "--scrollback", "2")
    assert (shown["columns"], shown["rows"], shown["title"], shown["approximate"]) == (40, 5, "title", False)
    assert (shown["cursor"]["x"], shown["cursor"]["y"]) == (5, 4)
    assert shown["scrollback"]["text"] == ["15", "16"]
    text, width, style = shown["cells"][4][0]
    assert (text, width, shown["styles"][style]["fg"]) == ("世界", 4, 1)
    file = tmp_path / "screen.svg"
    assert run(agent, "screen", "--svg", str(file), session) == ""
    assert "<title>title</title>" in file.read_text()
    assert "世界" in file.read_text()
    assert fails(agent, "screen", "--svg", str(tmp_path / "no" / "folder"), session, status=2).startswith("cannot write")
    assert "no session" in fails(agent, "screen", "nobody")
