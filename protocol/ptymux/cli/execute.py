"""`ptymux exec -- CMD`: run a command in the guest as if it ran here.

Its output is copied byte for byte, stdin is forwarded and its end is end-of-file there, the exit status is the command's (128 + n
for a signal).  Cuts of the connection are not seen.  A stream without an exit mark is never success: 255 and a message.

Over a restore from a snapshot it goes on, if all that it printed was before the snapshot.  If not, what it printed is not what happened
in this branch: 255, and the command, which is the branch's, is left alone.

The session has policy `block`, held by us, so nothing is overwritten before it has arrived; it is removed when we are done.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import trio

from ptymux.cli import stdio, terminal
from ptymux.cli.commands import creation, discontinuity, open_agent
from ptymux.client import Attach, Session
from ptymux.errors import ConnectionLost, InputRefused, PtymuxError, RequestFailed
from ptymux.events import Exit, Foreign, Gap, InputDropped, InputUncertain, Output, Rewound

INTERRUPT_AGAIN = 2.0  # a second Ctrl-C within so many seconds kills the command
CLEAN_UP = 3.0  # seconds for the goodbye; the agent's retention does it otherwise


class _Ended(Exception):
    """We are to stop with this status, and the command with us."""

    def __init__(self, status: int, text: str | None = None, *, leave: bool = False) -> None:
        self.status = status
        self.text = text
        self.leave = leave  # alone: the command is not, or not only, ours


async def run(options: argparse.Namespace) -> int:
    interactive = options.tty and os.isatty(0)
    size = options.size or terminal.size(1) or terminal.size(0) or (80, 24)
    arguments = creation(options)
    if arguments["term"] is None and interactive:
        arguments["term"] = os.environ.get("TERM")
    async with open_agent(options) as agent:
        session = await agent.create(options.command, size=size, policy="block", tty=options.tty, **arguments)
        with trio.open_signal_receiver(*_heeded()) as signals:
            kill = True  # unless the command ends by itself: then what it left in the background is its own business
            with terminal.raw(0) if interactive else contextlib.nullcontext():
                try:
                    status = await _Execution(session, options.tty, signals).run()
                    kill = False
                except _Ended as ended:
                    status = ended.status
                    if ended.leave:
                        print(f"ptymux: session {session.id} is left as it is", file=sys.stderr)
                        return status
                    if ended.text:
                        print(f"ptymux: {ended.text}", file=sys.stderr)
            await _goodbye(session, kill, signals)
    return status


def _heeded() -> list[signal.Signals]:
    """The signals that we act on: all but those that whoever started us has us ignore (nohup, or a script's background)."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


async def _goodbye(session: Session, kill: bool, signals: AsyncIterator[int]) -> None:
    """Remove the session, and do not be hurried: who presses Ctrl-C once more wants the command gone, too."""
    with trio.move_on_after(CLEAN_UP):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ignore, signals)
            with contextlib.suppress(PtymuxError):
                await session.remove(force=kill)
            nursery.cancel_scope.cancel()


async def _ignore(signals: AsyncIterator[int]) -> None:
    async for _ in signals:
        pass


class _Execution:
    def __init__(self, session: Session, tty: bool, signals: AsyncIterator[int]) -> None:
        self._session = session
        self._tty = tty
        self._signals = signals
        self._exit: Exit | None = None
        self._end: _Ended | None = None

    async def run(self) -> int:
        async with trio.open_nursery() as nursery:
            scope = nursery.cancel_scope
            nursery.start_soon(self._guard, scope, self._heed, nursery)
            nursery.start_soon(self._guard, scope, self._input)
            async with trio.open_nursery() as outputs:
                outputs.start_soon(self._guard, scope, self._output, "stdout", 1)
                if not self._tty:
                    outputs.start_soon(self._guard, scope, self._output, "stderr", 2)
            scope.cancel()
        if self._end is not None:
            raise self._end
        if self._exit is None:
            raise ConnectionLost("the output ended without an exit status")
        if self._exit.data.get("oom"):
            print(
                "ptymux: the guest ran out of memory, and the kernel killed a process of this command", file=sys.stderr
            )
        return self._exit.status

    async def _guard(self, scope: trio.CancelScope, function: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """The first part that cannot go on ends the others."""
        try:
            await function(*arguments)
        except _Ended as ended:
            self._end = self._end or ended
            scope.cancel()
        except PtymuxError as error:
            self._end = self._end or _Ended(255, str(error))
            scope.cancel()

    async def _output(self, stream: str, fd: int) -> None:
        writer = stdio.Writer(fd)
        async with self._session.attach(stream=stream, repair="bytes") as attach:
            async for event in _until_exit(attach):
                match event:
                    case Output(_, data):
                        try:
                            await writer.write(data)
                        except BrokenPipeError:
                            raise _Ended(128 + signal.SIGPIPE) from None
                    case Gap(_, _, None):
                        print(f"ptymux: {discontinuity(event)}", file=sys.stderr)
                    case Rewound() | Foreign():
                        # What we printed is of another branch, whose command is the one that was asked for.
                        print(f"ptymux: output is incomplete: {discontinuity(event)}", file=sys.stderr)
                        raise _Ended(255, leave=True)
                    case Gap():
                        raise _Ended(255, f"output is incomplete: {discontinuity(event)}")
                    case InputUncertain(start, to):
                        print(
                            f"ptymux: input bytes {start} to {to} may not have been typed: the agent's server was killed",
                            file=sys.stderr,
                        )
                    case InputDropped() | _:
                        pass
            self._exit = attach.exit

    async def _input(self) -> None:
        session = self._session
        session.keep_input(None)  # data, not keystrokes: it does not go stale
        try:
            while data := await stdio.read_some(0):
                await session.send(data, wait=False)
            session.end_input()
            await session.flush_input()
        except InputRefused as error:
            if error.code not in ("exited", "closed", "not_found"):  # those the exit status explains
                raise _Ended(1, f"{error} (at input offset {error.details.get('offset')})") from None

    async def _heed(self, nursery: trio.Nursery) -> None:
        """Never waits for the agent: who has lost contact must still be able to end us."""
        last = float("-inf")
        async for number in self._signals:
            if number == signal.SIGWINCH:
                nursery.start_soon(self._guard, nursery.cancel_scope, self._resize)
            elif number == signal.SIGINT and trio.current_time() - last > INTERRUPT_AGAIN:
                last = trio.current_time()
                nursery.start_soon(self._guard, nursery.cancel_scope, self._interrupt)
            else:
                raise _Ended(128 + number)

    async def _resize(self) -> None:
        size = terminal.size(1) or terminal.size(0)
        if size is not None and self._tty:
            with contextlib.suppress(RequestFailed):
                await self._session.resize(*size)

    async def _interrupt(self) -> None:
        with contextlib.suppress(RequestFailed):
            await self._session.signal("INT")


async def _until_exit(attach: Attach) -> AsyncIterator[object]:
    async for event in attach:
        yield event
        if isinstance(event, Exit):
            return
