"""attach.py without a terminal: the detach key, and what is left on the screen.  (tests/e2e/test_fullscreen.py has the terminal.)"""

from __future__ import annotations

import argparse

import pytest

from ptymux.cli.attach import _line, _View, key

DETACH = b"\x1d"


@pytest.mark.parametrize(
    ("text", "byte"),
    [("C-]", b"\x1d"), ("^]", b"\x1d"), ("Ctrl-]", b"\x1d"), ("C-a", b"\x01"), ("C-A", b"\x01"), ("^_", b"\x1f"), ("C-\\", b"\x1c")],
)  # fmt: skip
def test_control_keys(text: str, byte: bytes) -> None:
    assert key(text) == byte


@pytest.mark.parametrize("text", ["", "a", "]", "C-", "C-ab", "C-1", "F1", "C-é", "M-a", "^@"])
def test_everything_else_is_no_control_key(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a control key"):
        key(text)


@pytest.fixture
def view() -> _View:
    return _View(False, DETACH)


@pytest.mark.parametrize(
    ("read", "typed", "leaves", "armed"),
    [
        ([b"abc"], b"abc", False, False),
        ([DETACH], b"", False, True),
        ([b"abc" + DETACH], b"abc", False, True),
        ([DETACH, b"x"], b"", True, True),
        ([DETACH + b"x"], b"", True, True),
        ([b"abc" + DETACH + b"def"], b"abc", True, True),
        ([DETACH + DETACH], DETACH, False, False),
        ([DETACH, DETACH], DETACH, False, False),
        ([b"a" + DETACH, DETACH + b"b"], b"a" + DETACH + b"b", False, False),
        ([DETACH * 3], DETACH, False, True),
        ([DETACH * 4], DETACH * 2, False, False),
        ([b""], b"", False, False),
    ],
)
def test_the_detach_key_leaves_and_twice_types_itself(
    view: _View, read: list[bytes], typed: bytes, leaves: bool, armed: bool
) -> None:
    """`armed`: a second press is waited for; the caller leaves when it does not come."""
    parts = [view._split(data) for data in read]
    assert b"".join(part for part, _ in parts) == typed
    assert parts[-1][1] == leaves
    assert view._armed == armed


def test_the_screen_is_left_as_a_shell_expects_it(view: _View) -> None:
    view._modes.feed(b"\x1b[?1049h\x1b[?2004h\x1b[?25l")
    assert view.farewell() == b"\x1b[?1049l\x1b[?2004l\x1b[?25h\x1b[0m\x1b>"


def test_a_status_line_does_not_stay(view: _View) -> None:
    view._status_shown = True
    assert view.farewell().startswith(_line(""))


def test_the_status_line_leaves_the_cursor_where_it_was() -> None:
    assert _line("lost") == b"\x1b7\x1b[999;1H\x1b[2K\x1b[7mlost\x1b[0m\x1b8"
    assert _line("") == b"\x1b7\x1b[999;1H\x1b[2K\x1b8"
