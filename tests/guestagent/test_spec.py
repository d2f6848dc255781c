"""SPEC.md's table of methods is the agent's."""

from __future__ import annotations

from types import SimpleNamespace

from guestagent.methods import Methods
from tests.ptymux.test_spec import rows


def test_methods() -> None:
    table = Methods(SimpleNamespace()).table  # type: ignore[arg-type]
    expected = [[f"`{name}`", method.role, "key" if method.keyed else ""] for name, method in table.items()]
    assert [row[:3] for row in rows("methods")] == expected
