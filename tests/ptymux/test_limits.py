"""limits.py: every number has a name, a reason, and fits the others."""

from __future__ import annotations

import ast
from pathlib import Path

from ptymux import limits

SOURCE = Path(limits.__file__).read_text()
NOT_LIMITS = {"KIB", "MIB", "CONFIGURABLE", "REPORTED"}


def assignments() -> dict[str, ast.Assign]:
    return {
        node.targets[0].id: node
        for node in ast.parse(SOURCE).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def test_every_limit_has_a_reason() -> None:
    """A comment on the same lines as the number."""
    lines = SOURCE.splitlines()
    for name, node in assignments().items():
        if name not in NOT_LIMITS:
            text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            assert "# " in text, name
            assert len(text.split("# ", 1)[1]) > 10, name


def test_every_limit_is_a_positive_number() -> None:
    for name in assignments():
        if name not in NOT_LIMITS:
            value = getattr(limits, name)
            assert type(value) in (int, float), name
            assert value > 0, name


def test_reported_limits_have_their_public_names() -> None:
    assert set(limits.CONFIGURABLE) <= set(limits.REPORTED)
    assert len(set(limits.REPORTED)) == len(limits.REPORTED)
    got = limits.defaults()
    assert list(got) == list(limits.REPORTED)
    assert all(value == getattr(limits, name.upper()) for name, value in got.items())


def test_frames_fit_their_limits() -> None:
    """The largest data with its header is a legal frame; a hello with the largest token is a legal greeting."""
    assert limits.MAX_OUTPUT_DATA + 64 < limits.MAX_FRAME
    assert limits.MAX_INPUT_DATA + 64 * 4 + 64 < limits.MAX_FRAME
    assert limits.MAX_MARK + 64 < limits.MAX_FRAME
    assert limits.MAX_TOKEN + 200 < limits.MAX_GREETING < limits.MAX_FRAME
    assert limits.MAX_BATCH <= limits.MAX_FRAME  # one WebSocket message


def test_windows_fit_each_other() -> None:
    assert limits.MAX_INPUT_DATA <= limits.INPUT_WINDOW
    assert limits.HOLD_WINDOW < limits.DEFAULT_WINDOW <= limits.MAX_WINDOW
    # Credit comes in steps of 64 KiB or a quarter of the window: a holder that keeps up must never look stalled.
    assert min(limits.DEFAULT_WINDOW // 4, limits.MAX_OUTPUT_DATA) < limits.HOLD_WINDOW
    assert limits.MIN_HISTORY <= limits.DEFAULT_HISTORY <= limits.MAX_HISTORY
    assert limits.MAX_MARK < limits.MARK_AREA


def test_times_fit_each_other() -> None:
    """Case C32: a quiet link is pinged well before a proxy cuts it at 60 s, and twice before it is given up."""
    assert limits.PING_AFTER < 60 / 2
    assert limits.DEAD_AFTER >= 3 * limits.PING_AFTER
    assert limits.BACKOFF_FIRST < limits.BACKOFF_MAX < limits.GIVE_UP_AFTER


def test_counts_fit_each_other() -> None:
    assert limits.MAX_ATTACHES >= limits.MAX_SESSIONS
    assert limits.MAX_INPUT_CLIENTS >= 2 * limits.MAX_CONNECTIONS
    assert limits.MIN_COLUMNS < limits.MAX_COLUMNS
