"""errors.py: the tree, and the words for programs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ptymux
from ptymux import errors
from ptymux.messages import TEXT, WORD

ROOT = Path(ptymux.__file__).parents[2]
# Where the code stands among the arguments of what carries one.
CARRIERS = {
    "Error": 0,
    "Failure": 1,
    "Refused": 2,
    "Detached": 1,
    "HandshakeRefused": 0,
    "RequestFailed": 0,
    "InputRefused": 0,
    "AttachEnded": 0,
}


def codes_in_sources() -> Iterator[tuple[str, str]]:
    """(place, code) of every literal code in the agent and the client."""
    for folder in ("protocol/ptymux", "guestagent"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call):
                    continue
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name not in CARRIERS:
                    continue
                named = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
                given = named or node.args[CARRIERS[name] : CARRIERS[name] + 1]
                for value in given:
                    if isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", value.value


def test_every_code_fits_its_field() -> None:
    for code, meaning in errors.CODES.items():
        assert WORD.test(code)
        assert re.fullmatch(r"[a-z][a-z_]*", code)
        assert TEXT.test(meaning)
    assert errors.ProtocolError.code in errors.CODES


def test_every_code_in_the_sources_is_listed() -> None:
    """Programs decide by these words; one that CODES does not explain is a typing error or undocumented."""
    found = list(codes_in_sources())
    assert found, "the scan has gone blind"
    assert [(place, code) for place, code in found if code not in errors.CODES or not WORD.test(code)] == []


def test_the_tree_in_the_documentation_is_the_tree() -> None:
    """Indentation is inheritance, and every public class is in it."""
    drawn: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([│├└─ ]*)(\w+(?:Error|Lost|Refused|Failed|Ended))\b", line)
        if match is None:
            continue
        depth = len(match[1])
        path = [(d, name) for d, name in path if d < depth]
        drawn[match[2]] = path[-1][1] if path else "Exception"
        path.append((depth, match[2]))
    classes = {
        name: cls
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, Exception) and not name.startswith("_")
    }
    assert set(drawn) == set(classes)
    for name, parent in drawn.items():
        # Private bases may stand between a class and the parent that is drawn.
        public = [base.__name__ for base in classes[name].__mro__[1:] if not base.__name__.startswith("_")]
        assert public[0] == parent, name


def test_address_errors_are_value_errors_too() -> None:
    with pytest.raises(ValueError, match="cannot parse"):
        raise errors.AddressError("cannot parse")


@pytest.mark.parametrize("cls", [errors.RequestFailed, errors.InputRefused, errors.AttachEnded])
def test_coded_errors_carry_code_message_and_details(cls: type[errors._Coded]) -> None:
    error = cls("limit", "cannot create: max_sessions", {"limit": "max_sessions"})
    assert (error.code, error.message, str(error)) == ("limit", "cannot create: max_sessions", error.message)
    assert error.details == {"limit": "max_sessions"}
    assert cls("limit", "text").details == {}


def test_refused_input_says_from_which_offset() -> None:
    assert errors.InputRefused("line_too_long", "text", {"offset": 17}).offset == 17


def test_a_refused_handshake_is_a_lost_connection_with_a_code() -> None:
    error = errors.HandshakeRefused("unauthorized", "cannot connect: wrong token")
    assert isinstance(error, errors.ConnectionLost)
    assert (error.code, str(error)) == ("unauthorized", "cannot connect: wrong token")
