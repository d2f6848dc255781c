"""commands.py: what is printed, and the token file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from ptymux.cli import commands
from ptymux.cli.commands import UsageError, _token, creation, discontinuity, pairs, printable, show
from ptymux.events import Foreign, Gap, Rewound


# --- the token file -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("secret\n", "secret"),
        ("secret", "secret"),
        ("# a comment\n\n  \nadmin secret\nviewer other\n", "secret"),
        ("  admin   secret  \n", "secret"),
    ],
)
def test_the_first_token_of_the_file_is_taken(tmp_path: Path, text: str, token: str) -> None:
    """The agent's own token file can be used as it is."""
    path = tmp_path / "token"
    path.write_text(text)
    assert _token(str(path)) == token


@pytest.mark.parametrize("content", [b"", b"# only a comment\n", b"\xff\xfe\n"])
def test_a_file_without_a_token_is_said_to_be_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="cannot read the token file"):
        _token(str(path))


def test_no_file_is_no_token() -> None:
    assert _token(None) is None
    assert _token("") is None


# --- printing -------------------------------------------------------------------------------------
def options(*, json: bool) -> argparse.Namespace:
    return argparse.Namespace(json=json)


def test_json_or_text(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"id": "x", "generation": b"\x01\xff", "list": [1, None]}
    assert show(options(json=True), value, "text") == 0
    assert json.loads(capsys.readouterr().out) == {"id": "x", "generation": "01ff", "list": [1, None]}
    assert show(options(json=False), value, "text") == 0
    assert capsys.readouterr().out == "text\n"


def test_what_has_no_json_is_a_bug_and_not_hidden() -> None:
    with pytest.raises(TypeError, match="no JSON for object"):
        show(options(json=True), object(), "")


def test_pairs_are_aligned_and_nested() -> None:
    values = {"id": "x", "exit": None, "limits": {"max": 3, "longer": [1, 2]}, "empty": {}, "last": "y"}
    assert pairs(values).splitlines() == [
        "id      x",
        "exit    -",
        "limits:",
        "  max     3",
        "  longer  [1, 2]",
        "empty:",
        "last    y",
    ]


def test_control_characters_are_shown_and_not_obeyed() -> None:
    """A name, a label or a command is whatever somebody in the guest made it."""
    assert printable("wörld 世界 \N{GRINNING FACE}") == "wörld 世界 \N{GRINNING FACE}"
    assert printable("a\nb\t\x1b[31m\x9b\u202e") == r"a\nb\t\x1b[31m\x9b\u202e"
    assert pairs({"na\x1bme": "a\nb"}) == r"na\x1bme  a\nb"


def test_nothing_is_an_empty_text() -> None:
    assert pairs({}) == ""


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Gap(10, 30, 20), "20 bytes are missing, from offset 10 to 30"),
        (Gap(10, 10, None), "an unknown number of bytes may be missing at offset 10"),
        (Rewound(30, 10), "this is a branch of the VM: what was shown from offset 10 to 30 did not happen here"),
        (Foreign(7), "this is another VM: its output begins at offset 7"),
    ],
)
def test_a_discontinuity_is_told_with_its_offsets(event: Gap | Rewound | Foreign, text: str) -> None:
    assert text in discontinuity(event)


def test_new_and_exec_create_alike() -> None:
    given = argparse.Namespace(
        name="n",
        label="l",
        cwd="/",
        env=[("A", "1"), ("A", "2")],
        user="u",
        term="t",
        history=5,
        size=(1, 2),
        policy="hold",
    )
    assert creation(given) == {
        "name": "n",
        "label": "l",
        "cwd": "/",
        "env": {"A": "2"},
        "user": "u",
        "term": "t",
        "history": 5,
    }


def test_each_command_takes_the_options_and_gives_a_status() -> None:
    """So that main can run any of them."""
    import inspect

    for name in ("new", "ls", "inspect", "send", "read", "resize", "signal", "kill", "remove", "info", "stats"):
        signature = inspect.signature(getattr(commands, name))
        assert list(signature.parameters) == ["options"]
        assert signature.return_annotation == "int"
