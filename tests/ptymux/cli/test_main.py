"""main.py: options, and what an error looks like: one line on stderr, exit 2 for usage, 255 for lost contact, else 1."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import pytest

import ptymux
from ptymux.cli import attach, commands, execute
from ptymux.cli.main import complain, main, parser
from ptymux.errors import ConnectionLost, HandshakeRefused, ProtocolError, RequestFailed

NOWHERE = ["--to", "unix:/nonexistent/socket", "--wait", "0"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PTYMUX_TO", "PTYMUX_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str) -> int:
    """The exit status, however it comes."""
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def line(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """The one line on stderr; stdout must be empty."""

    def read() -> str:
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1, err
        assert err.endswith("\n")
        assert "Traceback" not in err
        assert err.startswith("ptymux")
        return err[:-1]

    return read


# --- usage ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["ls"], "no agent: give --to ADDRESS or set PTYMUX_TO"),
        (["--to", "nonsense", "ls"], "nonsense"),
        (["--to", "tcp:host:99999", "ls"], "99999"),
        ([*NOWHERE, "ls", "--nonsense"], "unrecognized arguments: --nonsense"),
        ([*NOWHERE, "ls", "more"], "unrecognized arguments: more"),
        ([*NOWHERE, "inspect"], "ID|NAME"),
        ([*NOWHERE, "resize", "x", "80"], "must be COLSxROWS, not '80'"),
        ([*NOWHERE, "resize", "x", "80xA"], "must be COLSxROWS, not '80xA'"),
        ([*NOWHERE, "new", "--size", "x24"], "must be COLSxROWS, not 'x24'"),
        ([*NOWHERE, "new", "--env", "novalue"], "must be KEY=VALUE, not 'novalue'"),
        ([*NOWHERE, "new", "--env", "=value"], "must be KEY=VALUE, not '=value'"),
        ([*NOWHERE, "new", "--history", "much"], "invalid int value: 'much'"),
        ([*NOWHERE, "new", "--policy", "nice"], "invalid choice: 'nice'"),
        ([*NOWHERE, "exec"], "exec needs a command"),
        ([*NOWHERE, "exec", "--"], "exec needs a command"),
        ([*NOWHERE, "read", "x", "--from", "start"], "must be a number of bytes, not 'start'"),
        ([*NOWHERE, "attach", "x", "--detach-key", "x"], "must be a control key such as C-], not 'x'"),
        (["--wait", "soon", "ls"], "invalid seconds value: 'soon'"),
        (["--wait", "nan", "ls"], "must be a number of seconds, not 'nan'"),
        (["--give-up", "-1", "ls"], "must be a number of seconds, not '-1'"),
        ([*NOWHERE, "read", "x", "--from", "-5"], "must be a number of bytes, not '-5'"),
        ([*NOWHERE, "non\x1b[31msense\n"], r"invalid choice: 'non\x1b[31msense\n'"),
        (["--token-file", "/nonexistent", *NOWHERE, "ls"], "cannot read the token file /nonexistent"),
        (["--ca-file", "/nonexistent", *NOWHERE, "ls"], "cannot read /nonexistent"),
    ],
)
def test_a_usage_error_is_one_line_and_2(arguments: list[str], said: str, line: Callable[[], str]) -> None:
    assert run(*arguments) == 2
    assert said in line()


def test_help_and_version_are_no_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"ptymux {ptymux.__version__}\n"
    assert run("--help") == 0
    out = capsys.readouterr().out
    for verb in (
        "new",
        "exec",
        "attach",
        "ls",
        "inspect",
        "send",
        "read",
        "resize",
        "signal",
        "kill",
        "rm",
        "info",
        "stats",
    ):
        assert f"    {verb} " in out
        assert run(verb, "--help") == 0
        assert f"usage: ptymux {verb}" in capsys.readouterr().out


def test_attach_needs_a_terminal(line: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: False)
    assert run(*NOWHERE, "attach", "x") == 2
    assert "needs a terminal" in line()


# --- errors ---------------------------------------------------------------------------------------
def failing(error: BaseException) -> Callable[[argparse.Namespace], Any]:
    async def fail(options: argparse.Namespace) -> int:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConnectionLost("contact was lost"), 255),
        (HandshakeRefused("unauthorized", "cannot connect: the token is wrong"), 255),
        (RequestFailed("not_found", "cannot inspect: no session"), 1),
        (ProtocolError("malformed Output"), 1),
        (OSError(5, "Input/output error"), 1),
        (commands.UsageError("cannot read from 9: the output ends at 3"), 2),
    ],
)
def test_an_error_is_one_line_and_its_status(
    error: Exception, status: int, line: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "ls", failing(error))
    assert run(*NOWHERE, "ls") == status
    assert line() == f"ptymux: {error}"


def test_nobody_there_is_lost_contact(line: Callable[[], str]) -> None:
    assert run(*NOWHERE, "ls") == 255
    assert line() == "ptymux: cannot dial unix:/nonexistent/socket: No such file or directory"


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(commands, "ls", failing(KeyboardInterrupt()))
    assert run(*NOWHERE, "ls") == 130
    assert capsys.readouterr() == ("", "")


def test_control_characters_are_not_let_through(line: Callable[[], str]) -> None:
    """They come from the guest, and this is the user's terminal."""
    complain("no session '\x1b]0;title\x07\x9b31m'", 1)
    assert line() == r"ptymux: no session '\x1b]0;title\x07\x9b31m'"


def test_a_text_of_several_lines_becomes_one(line: Callable[[], str]) -> None:
    """Whatever the operating system or the agent had to say."""
    assert complain("cannot spawn:\n  first\tsecond\r\n", 7) == 7
    assert line() == "ptymux: cannot spawn: first second"


# --- options --------------------------------------------------------------------------------------
def options_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> argparse.Namespace:
    """What the command of these arguments gets to see."""
    found: list[argparse.Namespace] = []

    async def take(options: argparse.Namespace) -> int:
        found.append(options)
        return 0

    for module, name in (
        *(
            (commands, name)
            for name in ("new", "ls", "inspect", "send", "read", "resize", "signal", "kill", "remove", "info", "stats")
        ),
        (execute, "run"),
        (attach, "run"),
    ):
        monkeypatch.setattr(module, name, take)
    assert run(*arguments) == 0
    return found[0]


def test_the_address_is_an_option_or_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTYMUX_TO", "unix:/from/environment")
    monkeypatch.setenv("PTYMUX_TOKEN_FILE", "/token")
    options = options_of(monkeypatch, "ls")
    assert (options.to, options.token_file) == ("unix:/from/environment", "/token")
    assert options_of(monkeypatch, "--to", "unix:/x", "ls").to == "unix:/x"


@pytest.mark.parametrize("verb", ["new", "exec"])
def test_a_command_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """Its options are not ours."""
    for command in (["ls", "-l", "--json"], ["sh", "-c", "echo $0", "--", "x"], ["--version"]):
        assert options_of(monkeypatch, *NOWHERE, verb, "--", *command).command == command
    options = options_of(
        monkeypatch, *NOWHERE, verb, "--name", "n", "--env", "A=b=c", "--env", "D=", "--size", "100X30", "ls", "--name"
    )
    assert (options.command, options.name, options.env, options.size) == (
        ["ls", "--name"], "n", [("A", "b=c"), ("D", "")], (100, 30)
    )  # fmt: skip


def test_text_to_send_may_stand_before_or_behind_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_of(monkeypatch, *NOWHERE, "send", "x", "two", "words", "--enter").text == ["two", "words"]
    assert options_of(monkeypatch, *NOWHERE, "send", "x", "--enter", "two", "words").text == ["two", "words"]
    assert options_of(monkeypatch, *NOWHERE, "send", "--enter", "x", "two").text == ["two"]
    assert options_of(monkeypatch, *NOWHERE, "send", "x", "--", "-l").text == ["-l"]
    assert options_of(monkeypatch, *NOWHERE, "send", "x").text == []


def test_the_detach_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_of(monkeypatch, *NOWHERE, "attach", "x").detach_key == b"\x1d"
    for text in ("C-a", "^A", "Ctrl-a"):
        assert options_of(monkeypatch, *NOWHERE, "attach", "x", "--detach-key", text).detach_key == b"\x01"


def test_every_command_but_the_long_ones_has_json() -> None:
    verbs = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)).choices
    without = {name for name, sub in verbs.items() if "--json" not in sub.format_help()}
    assert without == {"exec", "attach", "read"}
