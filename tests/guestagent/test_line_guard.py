"""line_guard.py against real terminals: it admits exactly the lines that the kernel keeps whole."""

from __future__ import annotations

import contextlib
import os
import termios
import tty
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from guestagent.line_guard import CC, IFLAG, LFLAG, LineGuard
from ptymux import limits

Change = Callable[[list[Any]], None]


class Terminal:
    """A PTY without echo.  What its program reads is read in step, so the kernel's buffer never fills with whole lines."""

    def __init__(self, change: Change | None = None) -> None:
        self.master, self.slave = os.openpty()
        attributes = termios.tcgetattr(self.slave)
        attributes[LFLAG] &= ~termios.ECHO
        if change is not None:
            change(attributes)
        termios.tcsetattr(self.slave, termios.TCSANOW, attributes)

    @property
    def attributes(self) -> list[Any]:
        """As the session sees them: from the master."""
        return termios.tcgetattr(self.master)

    def write(self, data: bytes) -> None:
        assert os.write(self.master, data) == len(data)

    def read_line(self) -> bytes:
        """What the program gets from one read: a line, or what EOF pushed."""
        return os.read(self.slave, 65536)

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


@contextlib.contextmanager
def terminal(change: Change | None = None) -> Iterator[Terminal]:
    found = Terminal(change)
    try:
        yield found
    finally:
        found.close()


KEPT = limits.COOKED_LINE


def admitted(data: bytes, change: Change | None = None) -> int:
    with terminal(change) as found:
        return LineGuard().admit(data, found.attributes)


# --- what the kernel does, which everything else here rests on ------------------------------------------
@pytest.mark.parametrize("size", [1, 4094, 4095, 4096, 4097, 5000, 10_000])
@pytest.mark.parametrize("end", [b"\n", b"\r", b"\x04"], ids=["newline", "return", "eof"])
def test_the_guard_refuses_exactly_what_the_kernel_would_cut(size: int, end: bytes) -> None:
    with terminal() as found:
        line = b"x" * size + end
        whole = LineGuard().admit(line, found.attributes) == len(line)
        found.write(line)  # the kernel says that it took it all
        wanted = b"x" * size + end.replace(b"\r", b"\n").replace(b"\x04", b"")
        assert (found.read_line() == wanted) is whole
        assert whole is (size <= KEPT)


@pytest.mark.parametrize("parts", [(4000, 95), (4000, 96), (1, 4094), (2048, 2048), (1365, 1365, 1365), (0, 4096)])
def test_a_line_written_in_pieces(parts: tuple[int, ...]) -> None:
    """The guard knows what is already in the line."""
    guard = LineGuard()
    with terminal() as found:
        admitted_all = True
        for size in parts:
            data = b"y" * size
            if guard.admit(data, found.attributes) < len(data):
                admitted_all = False
                break
            found.write(data)
            guard.wrote(data, found.attributes)
        assert admitted_all is (sum(parts) <= KEPT)
        if admitted_all:
            assert guard.in_line
            found.write(b"\n")
            guard.wrote(b"\n", found.attributes)
            assert found.read_line() == b"y" * sum(parts) + b"\n"
            assert not guard.in_line


def test_several_lines_in_one_write() -> None:
    """Each may be as long as it likes to the limit; what comes before the one that is too long is written."""
    good = b"a" * KEPT + b"\n" + b"\n" + b"b" * 4000 + b"\n"
    assert admitted(good) == len(good)
    assert admitted(good + b"c" * KEPT) == len(good) + KEPT
    assert admitted(good + b"c" * (KEPT + 1)) == len(good)
    assert admitted(good + b"c" * (KEPT + 1) + b"\nshort\n") == len(good)
    assert admitted(b"c" * (KEPT + 1) + b"\n" + good) == 0


def test_the_rest_of_a_long_write_counts_from_its_last_line_end() -> None:
    guard = LineGuard()
    with terminal() as found:
        attributes = found.attributes
        guard.wrote(b"one\ntwo\n" + b"x" * 4000, attributes)
        assert guard.admit(b"y" * 95, attributes) == 95
        assert guard.admit(b"y" * 96, attributes) == 0
        assert guard.admit(b"y" * 95 + b"\n" + b"z" * KEPT, attributes) == 96 + KEPT


def test_the_next_server_knows_the_line_too() -> None:
    """It outlives this one: a line is as long as it is, whoever counted its beginning."""
    with terminal() as found:
        guard = LineGuard()
        guard.wrote(b"done\n" + b"x" * 4000, found.attributes)
        again = LineGuard(guard.line)
        assert again.in_line
        assert again.admit(b"y" * 96, found.attributes) == 0
        assert again.admit(b"y" * 95, found.attributes) == 95


# --- raw mode -------------------------------------------------------------------------------------------
def test_in_raw_mode_everything_passes() -> None:
    data = os.urandom(100_000)
    with terminal() as found:
        tty.setraw(found.slave)
        guard = LineGuard()
        assert guard.admit(data, found.attributes) == len(data)
        guard.wrote(data, found.attributes)
        assert not guard.in_line


def test_back_from_raw_mode_the_line_is_empty() -> None:
    guard = LineGuard()
    with terminal() as found:
        guard.wrote(b"x" * 4000, found.attributes)
        tty.setraw(found.slave)
        guard.wrote(b"y", found.attributes)
    with terminal() as cooked:
        assert guard.admit(b"z" * KEPT + b"\n", cooked.attributes) == KEPT + 1


# --- what ends a line -------------------------------------------------------------------------------------
def off(flag: int, index: int = LFLAG) -> Change:
    def change(attributes: list[Any]) -> None:
        attributes[index] &= ~flag

    return change


def on(flag: int, index: int = LFLAG) -> Change:
    def change(attributes: list[Any]) -> None:
        attributes[index] |= flag

    return change


def control(index: int, value: bytes) -> Change:
    def change(attributes: list[Any]) -> None:
        attributes[CC][index] = value

    return change


def both(*changes: Change) -> Change:
    def change(attributes: list[Any]) -> None:
        for each in changes:
            each(attributes)

    return change


@pytest.mark.parametrize(
    ("character", "change", "ends"),
    [
        (b"\x15", None, True),  # VKILL erases it
        (b"\x03", None, True),  # VINTR flushes it
        (b"\x1c", None, True),  # VQUIT
        (b"\x1a", None, True),  # VSUSP
        (b"\x03", off(termios.ISIG), False),
        (b"\x03", on(termios.NOFLSH), False),
        (b"\r", None, True),
        (b"\r", off(termios.ICRNL, IFLAG), False),
        (b"\r", on(termios.IGNCR, IFLAG), False),
        (b"\n", on(termios.INLCR, IFLAG), False),
        (b";", None, False),
        (b";", control(termios.VEOL, b";"), True),
        (b";", control(termios.VEOL2, b";"), True),
        (b";", both(control(termios.VEOL2, b";"), off(termios.IEXTEN)), False),
        (b"]", control(termios.VEOL, b"]"), True),  # a character that means something in a pattern
        (b"^", control(termios.VKILL, b"^"), True),
        (b"\0", None, False),  # disabled ones are NUL
    ],
)
def test_what_ends_or_erases_a_line(character: bytes, change: Change | None, ends: bool) -> None:
    """Against the kernel: does the tail of a line of 2 x 3000 bytes with the character in between arrive whole?"""
    line = b"x" * 3000 + character + b"y" * 3000
    with terminal(change) as found:
        guard = LineGuard()
        assert (guard.admit(line, found.attributes) == len(line)) is ends
        found.write(b"x" * 3000 + character)
        if ends and character in b"\r;]":
            assert len(found.read_line()) == 3001
        found.write(b"y" * 3000 + b"\x04")
        assert (found.read_line().count(b"y") == 3000) is ends


def test_nothing_ends_a_line() -> None:
    def change(attributes: list[Any]) -> None:
        attributes[IFLAG] = termios.INLCR
        attributes[LFLAG] = termios.ICANON
        attributes[CC] = [b"\0"] * len(attributes[CC])

    assert admitted(b"\n" * KEPT, change) == KEPT
    assert admitted(b"\n" * (KEPT + 1), change) == 0
