"""`ptymux attach`: a session on the local terminal.

Raw mode; the window's size follows; a status line while contact is lost; the terminal as it was afterwards, whatever happens.
The detach key is Ctrl-] unless --detach-key says otherwise; pressed twice, quickly, it types itself once.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import trio

from ptymux.cli import stdio, terminal
from ptymux.cli.commands import UsageError, discontinuity, open_agent
from ptymux.client import Attach, Session
from ptymux.errors import InputRefused, PtymuxError, RequestFailed
from ptymux.events import Exit, Foreign, Gap, InputDropped, InputUncertain, Output, Rewound, Snapshot
from ptymux.queries import QueryFilter

DETACH_TEXT = "Ctrl-]"
STATUS_AFTER = 0.3  # a cut that is over sooner is not worth a flicker
REACT_WITHIN = 0.3  # seconds for the program to begin to paint after its terminal changed
SETTLE = 0.05  # and from then until it listens again
TWICE_WITHIN = 0.4  # seconds for the second press of the detach key
LAST_KEYS = 1.0  # seconds that leaving waits for what was typed just before


def key(text: str) -> bytes:
    """A control key as ``C-x``, ``^x`` or ``Ctrl-x``."""
    letter = text.removeprefix("Ctrl-").removeprefix("C-").removeprefix("^")
    code = ord(letter.upper()) - 64 if len(letter) == 1 and letter != text else -1
    if not 0 < code < 32:
        raise argparse.ArgumentTypeError(f"must be a control key such as C-], not {text!r}")
    return bytes([code])


async def run(options: argparse.Namespace) -> int:
    if not os.isatty(0) or not os.isatty(1):
        raise UsageError("attach needs a terminal on stdin and stdout; see `ptymux read` and `ptymux send`")
    view = _View(options.view, options.detach_key)
    async with open_agent(options, view.contact_changed) as agent:
        session = await agent.find(options.session)
        with terminal.raw(0):
            try:
                await view.run(session)
            finally:
                with contextlib.suppress(OSError):  # hung up
                    os.write(1, view.farewell())
    print(f"\n[ptymux: {view.ending}]" if view.ending else "", file=sys.stderr)
    return view.status


class _View:
    def __init__(self, view: bool, detach: bytes) -> None:
        self.status = 0
        self.ending = ""  # what to tell the user
        self._view = view
        self._detach = detach
        self._writer = stdio.Writer(1)
        self._filter = QueryFilter()
        self._modes = terminal.ModeTracker()
        self._failure: PtymuxError | OSError | None = None
        self._scope = trio.CancelScope()
        self._up = True
        self._contact = trio.Event()
        self._painted = trio.Event()  # something was shown
        self._armed = False  # the detach key was pressed, and nothing after it
        self._status_shown = False

    def contact_changed(self, state: str) -> None:
        self._up = state == "up"
        self._contact.set()

    def farewell(self) -> bytes:
        """What leaves the terminal as a shell expects it."""
        line = _line("") if self._status_shown else b""
        return line + self._modes.reset() + (b"\r\n" if self._failure else b"")

    async def run(self, session: Session) -> None:
        """Until detached, ended or lost; raises why it cannot go on."""
        size = terminal.size(0)
        async with session.attach(view=self._view, size=size, begin="snapshot", answers=not self._view) as attach:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for part in (self._output, self._input, self._sizes, self._status, self._hangups):
                        nursery.start_soon(self._guard, part, session, attach)
        if self._failure is not None:
            raise self._failure

    def _end(self, text: str, status: int = 0) -> None:
        self.ending, self.status = text, status
        self._scope.cancel()

    async def _guard(
        self, part: Callable[[Session, Attach], Awaitable[None]], session: Session, attach: Attach
    ) -> None:
        """The first part that cannot go on ends the others."""
        try:
            await part(session, attach)
        except (PtymuxError, OSError) as error:  # OSError: our terminal was hung up
            self._failure = self._failure or error
            self._scope.cancel()

    async def _output(self, session: Session, attach: Attach) -> None:
        async for event in attach:
            match event:
                case Output(_, data, answer=answer):
                    await self._show(self._filter.finish() + data if answer else self._filter.feed(data))
                case Snapshot(_, data):
                    self._filter = QueryFilter()
                    rows = (terminal.size(0) or (80, 24))[1]
                    await self._show(self._modes.reset() + terminal.cleared(rows) + data.removeprefix(terminal.RESET))
                case Gap() | Rewound() | Foreign():
                    await self._show(f"\r\n\x1b[0;7m[ptymux: {discontinuity(event)}]\x1b[0m\r\n".encode())
                case InputDropped(start, to, "stale"):
                    await self._show(f"\x1b[0;7m[ptymux: {to - start} old keystrokes were not typed]\x1b[0m".encode())
                case InputUncertain(start, to):
                    await self._show(
                        f"\x1b[0;7m[ptymux: {to - start} keystrokes may not have been typed]\x1b[0m".encode()
                    )
                case Exit():
                    how = f"status {event.code}" if event.code is not None else f"signal {event.signal}"
                    self._end(f"session {session.id} ended with {how}", event.status)
                    return
                case _:
                    pass

    async def _show(self, data: bytes) -> None:
        if self._status_shown:
            self._status_shown = False
            data = _line("") + data
        self._modes.feed(data)
        if data:
            await self._writer.write(data)
            self._painted.set()

    async def _input(self, session: Session, attach: Attach) -> None:
        detached = False
        while not detached:
            data = None
            with trio.move_on_after(TWICE_WITHIN if self._armed else math.inf):
                data = await stdio.read_some(0)
            if data is None:
                break
            if not data:  # our terminal was hung up
                self._end("")
                return
            typed, detached = self._split(data)
            if typed and not self._view:
                with contextlib.suppress(InputRefused):  # the stream tells
                    await session.send(typed, wait=False)
        if not self._view:
            with trio.move_on_after(LAST_KEYS), contextlib.suppress(InputRefused):
                await session.flush_input()
        self._end(f"detached from {session.id}")

    def _split(self, data: bytes) -> tuple[bytes, bool]:
        """What is to be typed of `data`, and whether another key came after the detach key."""
        typed = bytearray()
        for byte in data:
            if bytes([byte]) != self._detach:
                if self._armed:
                    return bytes(typed), True
                typed.append(byte)
            elif self._armed:
                self._armed = False
                typed.append(byte)
            else:
                self._armed = True
        return bytes(typed), False

    async def _sizes(self, session: Session, attach: Attach) -> None:
        with trio.open_signal_receiver(signal.SIGWINCH) as signals:
            async for _ in signals:
                size = terminal.size(0)
                if size is not None and not self._view:
                    attach.set_size(size)
                    with contextlib.suppress(RequestFailed):
                        await session.resize(*size)

    async def _status(self, session: Session, attach: Attach) -> None:
        """A line at the bottom while contact is lost."""
        covered = False  # what the line was written over is to be painted again
        while True:
            await self._contact.wait()
            self._contact = trio.Event()
            if self._up:
                await self._show(b"")
                if covered:
                    covered = False
                    await self._repaint(session)
                continue
            with trio.move_on_after(STATUS_AFTER):
                await self._contact.wait()
            if not self._up:
                self._status_shown = covered = True
                await self._writer.write(_line(" ptymux: contact lost, reconnecting; the detach key leaves "))

    async def _repaint(self, session: Session) -> None:
        """Only the program knows what was there, and it paints everything when its terminal changes.

        One change at a time: less, for one, forgets a signal that finds it between its painting and its reading.
        """
        size = terminal.size(0)
        if size is not None and not self._view:
            columns, rows = size
            with contextlib.suppress(RequestFailed):  # it has ended meanwhile
                self._painted = trio.Event()
                await session.resize(columns, rows + 1 if rows == 1 else rows - 1)
                with trio.move_on_after(REACT_WITHIN):
                    await self._painted.wait()
                await trio.sleep(SETTLE)
                await session.resize(*(terminal.size(0) or size))  # as it is by now

    async def _hangups(self, session: Session, attach: Attach) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                self._end(f"stopped by {signal.Signals(number).name}", 128 + number)
                return


def _line(text: str) -> bytes:
    """A reverse-video text on the last row, the cursor left where it was."""
    shown = f"\x1b[7m{text}\x1b[0m" if text else ""
    return f"\x1b7\x1b[999;1H\x1b[2K{shown}\x1b8".encode()
