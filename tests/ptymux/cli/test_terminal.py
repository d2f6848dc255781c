"""terminal.py: the local terminal is as it was afterwards."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptymux.cli import terminal


@pytest.fixture
def tty() -> Iterator[int]:
    master, slave = pty.openpty()
    yield slave
    os.close(master)
    os.close(slave)


def set_size(fd: int, columns: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


# --- size -----------------------------------------------------------------------------------------
def test_the_size_is_columns_and_rows(tty: int) -> None:
    set_size(tty, 132, 43)
    assert terminal.size(tty) == (132, 43)


@pytest.mark.parametrize(("columns", "rows"), [(0, 0), (1, 24), (80, 0)])
def test_a_terminal_without_a_size_has_none(tty: int, columns: int, rows: int) -> None:
    """case C46: serial lines and some containers say 0x0, which the agent refuses."""
    set_size(tty, columns, rows)
    assert terminal.size(tty) is None


def test_what_is_no_terminal_has_no_size() -> None:
    with open(os.devnull) as file:
        assert terminal.size(file.fileno()) is None


# --- raw mode -------------------------------------------------------------------------------------
def test_raw_mode_is_left_as_it_was(tty: int) -> None:
    before = termios.tcgetattr(tty)
    with terminal.raw(tty):
        assert not termios.tcgetattr(tty)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)
    assert termios.tcgetattr(tty) == before


def test_raw_mode_is_left_by_an_exception_too(tty: int) -> None:
    before = termios.tcgetattr(tty)
    with pytest.raises(ZeroDivisionError), terminal.raw(tty):
        raise ZeroDivisionError
    assert termios.tcgetattr(tty) == before


def test_modes_that_were_odd_before_are_so_again(tty: int) -> None:
    """What is restored is what was there, not what is usual."""
    odd = termios.tcgetattr(tty)
    odd[3] &= ~termios.ECHO
    odd[6][termios.VINTR] = b"\x1d"
    termios.tcsetattr(tty, termios.TCSANOW, odd)
    before = termios.tcgetattr(tty)
    with terminal.raw(tty):
        pass
    assert termios.tcgetattr(tty) == before


def test_a_process_that_ends_inside_the_block_leaves_it(tty: int) -> None:
    before = termios.tcgetattr(tty)
    program = "import sys; from ptymux.cli import terminal; terminal.raw(0).__enter__(); sys.exit(3)"
    done = subprocess.run([sys.executable, "-c", program], stdin=tty, check=False)
    assert done.returncode == 3
    assert termios.tcgetattr(tty) == before


def test_a_terminal_that_is_gone_meanwhile_is_no_error() -> None:
    master, slave = pty.openpty()
    with terminal.raw(slave):
        os.close(master)
    os.close(slave)


# --- modes ----------------------------------------------------------------------------------------
ALWAYS = b"\x1b[0m\x1b>"
SWITCHES = [b"1049", b"1047", b"47", b"1", b"1000", b"1002", b"1003", b"1004", b"1006", b"2004"]


def reset_after(*pieces: bytes) -> bytes:
    tracker = terminal.ModeTracker()
    for piece in pieces:
        tracker.feed(piece)
    reset = tracker.reset()
    assert reset.endswith(ALWAYS)
    return reset.removesuffix(ALWAYS)


@pytest.mark.parametrize("mode", SWITCHES)
def test_a_mode_that_is_on_is_switched_off(mode: bytes) -> None:
    """case C16: the shell that comes after a program that died must not get its mouse reports."""
    on, off = b"\x1b[?" + mode + b"h", b"\x1b[?" + mode + b"l"
    assert reset_after(on) == off
    assert reset_after(on, b"text", off) == b""
    assert reset_after(on, off, on) == off
    assert reset_after(off) == b""


def test_what_is_on_by_default_is_switched_on_again() -> None:
    assert reset_after(b"\x1b[?25l") == b"\x1b[?25h"
    assert reset_after(b"\x1b[?25l\x1b[?25h") == b""
    assert reset_after(b"\x1b[?7l") == b"\x1b[?7h"


def test_several_modes_in_one_sequence() -> None:
    assert reset_after(b"\x1b[?1002;1006h\x1b[?1002l") == b"\x1b[?1006l"


def test_nothing_is_reset_that_was_not_touched() -> None:
    assert reset_after(b"plain \x1b[31mred\x1b[0m text\r\n\x1b[2J\x1b[4h") == b""


@given(
    st.lists(
        st.one_of(
            st.builds(lambda mode, switch: b"\x1b[?" + mode + switch, st.sampled_from([*SWITCHES, b"25", b"7", b"12"]), st.sampled_from([b"h", b"l"])),
            st.sampled_from([b"text", b"\x1b[1m", b"\x1b", b"\x1b[", b"\x1b[?"]),
        )
    ),
    st.data(),
)  # fmt: skip
def test_it_does_not_matter_where_the_output_is_cut(parts: list[bytes], data: st.DataObject) -> None:
    text = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert reset_after(*pieces) == reset_after(text)
