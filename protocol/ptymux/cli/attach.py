"""`ptymux attach`: a session on the local terminal.

Raw mode; the window's size follows; a status line while contact is lost; the terminal as it was afterwards, whatever happens.
The detach key is Ctrl-] unless --detach-key says otherwise; pressed twice it types itself once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys

import trio

from ptymux.cli import stdio, terminal
from ptymux.cli.commands import UsageError, discontinuity, open_agent
from ptymux.client import Agent, Attach, Session
from ptymux.errors import AttachEnded, InputRefused, RequestFailed
from ptymux.events import Exit, Foreign, Gap, InputDropped, InputUncertain, Output, ReplayEnd, Rewound
from ptymux.queries import QueryFilter

DETACH_TEXT = "Ctrl-]"
STATUS_AFTER = 0.3  # a cut that is over sooner is not worth a flicker


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
                ending = await view.run(agent, session)
            finally:
                os.write(1, view.modes.reset())
    print(f"\n[ptymux: {ending}]" if ending else "", file=sys.stderr)
    return 0 if view.exit is None else view.exit.status


class _View:
    def __init__(self, view: bool, detach: bytes) -> None:
        self.modes = terminal.ModeTracker()
        self.exit: Exit | None = None
        self._view = view
        self._detach = detach
        self._writer = stdio.Writer(1)
        self._filter = QueryFilter()
        self._ending = ""
        self._contact = trio.Event()
        self._armed = False  # the detach key was pressed, and nothing after it
        self._status_shown = False

    def contact_changed(self, state: str) -> None:
        self._up = state == "up"
        self._contact.set()

    _up = True

    async def run(self, agent: Agent, session: Session) -> str:
        """Until detached, ended or lost; what to tell the user."""
        async with session.attach(view=self._view, size=terminal.size(0)) as attach, trio.open_nursery() as nursery:
            for part in (self._input, self._sizes, self._status, self._hangups):
                nursery.start_soon(part, session, attach, nursery.cancel_scope)
            await self._output(session, attach)
            nursery.cancel_scope.cancel()
        return self._ending

    def _end(self, text: str, scope: trio.CancelScope) -> None:
        self._ending = text
        scope.cancel()

    async def _output(self, session: Session, attach: Attach) -> None:
        try:
            async for event in attach:
                match event:
                    case Output(_, data, replayed):
                        await self._show(self._filter.feed(data) if replayed else data)
                    case ReplayEnd():
                        await self._show(self._filter.finish())
                    case Gap() | Rewound() | Foreign():
                        await self._show(f"\r\n\x1b[0;7m[ptymux: {discontinuity(event)}]\x1b[0m\r\n".encode())
                    case InputDropped(start, to, "stale"):
                        await self._show(
                            f"\x1b[0;7m[ptymux: {to - start} old keystrokes were not typed]\x1b[0m".encode()
                        )
                    case InputUncertain(start, to):
                        await self._show(
                            f"\x1b[0;7m[ptymux: {to - start} keystrokes may not have been typed]\x1b[0m".encode()
                        )
                    case Exit():
                        self.exit = event
                        how = f"status {event.code}" if event.code is not None else f"signal {event.signal}"
                        self._ending = f"session {session.id} ended with {how}"
                        return
                    case _:
                        pass
        except AttachEnded as error:
            self._ending = str(error)

    async def _show(self, data: bytes) -> None:
        if self._status_shown:
            self._status_shown = False
            data = _line("") + data
        self.modes.feed(data)
        if data:
            await self._writer.write(data)

    async def _input(self, session: Session, attach: Attach, scope: trio.CancelScope) -> None:
        while data := await stdio.read_some(0):
            typed, detached = self._split(data)
            if typed and not self._view:
                with contextlib.suppress(InputRefused):  # the stream tells
                    await session.send(typed, wait=False)
            if detached:
                self._end(f"detached from {session.id}", scope)
                return
        self._end("", scope)

    def _split(self, data: bytes) -> tuple[bytes, bool]:
        """What is to be typed of `data`, and whether the detach key was pressed (and not twice)."""
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
        return bytes(typed), self._armed and len(data) == 1

    async def _sizes(self, session: Session, attach: Attach, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGWINCH) as signals:
            async for _ in signals:
                size = terminal.size(0)
                if size is not None and not self._view:
                    attach.set_size(size)
                    with contextlib.suppress(RequestFailed):
                        await session.resize(*size)

    async def _status(self, session: Session, attach: Attach, scope: trio.CancelScope) -> None:
        """A line at the bottom while contact is lost."""
        while True:
            await self._contact.wait()
            self._contact = trio.Event()
            if self._up:
                await self._show(b"")
                continue
            with trio.move_on_after(STATUS_AFTER):
                await self._contact.wait()
            if not self._up:
                await self._writer.write(_line(f" ptymux: contact lost, reconnecting; {DETACH_TEXT} leaves "))
                self._status_shown = True

    async def _hangups(self, session: Session, attach: Attach, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                self._end(f"signal {number}", scope)
                return


def _line(text: str) -> bytes:
    """A reverse-video text on the last row, the cursor left where it was."""
    shown = f"\x1b[7m{text}\x1b[0m" if text else ""
    return f"\x1b7\x1b[999;1H\x1b[2K{shown}\x1b8".encode()
