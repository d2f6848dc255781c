"""access.py: roles, and tokens from a file or a descriptor."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from guestagent.access import ROLES, Tokens, allows, lesser, read_source
from ptymux import limits


def test_roles_are_ordered() -> None:
    for role, needed in itertools.product(ROLES, ROLES):
        assert allows(role, needed) is (ROLES.index(role) >= ROLES.index(needed))
        assert lesser(role, needed) == ROLES[min(ROLES.index(role), ROLES.index(needed))]
    assert ROLES == ("viewer", "controller", "admin")


def test_a_file_of_tokens() -> None:
    tokens = Tokens("# comment\n\n  \nviewer look\n controller\ttype  \nadmin rule\nalone\r\n")
    assert bool(tokens)
    assert tokens.role_of(b"look") == "viewer"
    assert tokens.role_of(b"type") == "controller"
    assert tokens.role_of(b"rule") == "admin"
    assert tokens.role_of(b"alone") == "admin"


@pytest.mark.parametrize(
    "token", [b"", b"loo", b"look ", b"viewer look", b"viewer", b"# comment", b"x" * 5000, b"\xff"]
)
def test_anything_else_is_not_known(token: bytes) -> None:
    assert Tokens("# comment\nviewer look\n").role_of(token) is None


def test_tokens_need_not_be_ascii() -> None:
    assert Tokens("admin schl\u00fcssel").role_of("schl\u00fcssel".encode()) == "admin"


@pytest.mark.parametrize("line", ["owner s3cret", "viewer a b", "s3cret viewer", "Viewer s3cret"])
def test_a_line_that_is_neither_is_refused_by_number_without_the_secret(line: str) -> None:
    with pytest.raises(ValueError, match=r"^line 2 is neither TOKEN nor ROLE TOKEN$"):
        Tokens(f"admin good\n{line}\n")


def test_a_token_that_no_hello_can_carry_is_refused() -> None:
    longest = "x" * limits.MAX_TOKEN
    assert Tokens(longest).role_of(longest.encode()) == "admin"
    with pytest.raises(ValueError, match="max_token"):
        Tokens(longest + "x")
    with pytest.raises(ValueError, match="max_token"):
        Tokens("\u00fc" * (limits.MAX_TOKEN // 2 + 1))  # bytes count, not characters


def test_nobody_has_a_token() -> None:
    tokens = Tokens("# none yet\n")
    assert not tokens
    assert tokens.role_of(b"") is None


def test_sources(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("viewer look\n")
    assert read_source(str(file)) == "viewer look\n"
    source, target = os.pipe()
    os.write(target, b"admin rule\n")
    os.close(target)
    assert read_source(f"fd:{source}") == "admin rule\n"
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_source(f"fd:{source}")  # it was closed
    (tmp_path / "fd:x").write_text("a file, whatever its name\n")
    assert read_source(str(tmp_path / "fd:x")) == "a file, whatever its name\n"
    with pytest.raises(FileNotFoundError):
        read_source(str(tmp_path / "none"))
