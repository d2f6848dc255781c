"""The server's side of the renderer: asks it for pictures of terminals, and has it follow what must not be missed.

The renderer is started when first needed, ended when nobody needed it for a while, and replaced when it dies or does not answer.  It
is on nobody's way: output is read and sent whether it lives or not, and without it a reader gets the history instead of a picture.

When a stream is followed is decided in following.py, who answers a program's query in queries.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from typing import Any, NamedTuple, Protocol

import msgpack
import trio

from guestagent import launch, link
from guestagent.history import History
from ptymux import limits
from ptymux.cursor import Position
from ptymux.errors import RequestFailed
from ptymux.output import Picture

log = logging.getLogger("guestagent.screens")

PATIENCE = 15.0  # seconds for an answer; the renderer takes a tenth of one here, and more in an emulated guest
START_PATIENCE = 30.0  # and until it is up: 0.2 s here, some seconds in an emulated guest
PICTURE_PATIENCE = 10.0  # how long an attach waits for its picture, all in all
GRACE = 1.0  # how long the answer to a question is left to an owner that has lost contact
IDLE = 300.0  # after so long without a request the renderer's memory is given back
AGAIN, AGAIN_MAX = 1.0, 60.0  # pauses after renderers that failed, for what nobody waits for
# A look costs the renderer and us some 0.1 ms each, and a flood gives a reason for one with every read.
PACE = 0.01  # seconds from one look at a stream to the next, for each stream that is being followed
PACE_MAX = 0.25  # which is as long as a program that floods may wait for the answer to a query
FASTEST = 200e6  # bytes a second: twice the fastest flood, so that none goes round its ring meanwhile


class ScreenLost(Exception):
    """The renderer died, did not answer, or could not."""


class Followed(Protocol):
    """A stream, as the renderer's side sees it."""

    history: History
    key: str
    followed_at: float  # when the renderer looked last, by trio's clock

    @property
    def gone(self) -> bool: ...  # the history is unmapped
    @property
    def session_id(self) -> str: ...
    @property
    def birth_size(self) -> tuple[int, int]: ...
    @property
    def prompt(self) -> bool: ...
    def answer(self, offset: int, data: bytes) -> None: ...
    def followed(self, offset: int | None, *, unfinished: int = 0) -> None: ...


class Keeper(Protocol):
    async def borrow(self, session: str) -> int: ...


class Screen(NamedTuple):
    """An answer of the renderer, with what came in its descriptor."""

    fields: dict[str, Any]
    blob: bytes


class Screens:
    """`start` runs a function in the server's nursery."""

    def __init__(self, keeper: Keeper, start: Any) -> None:
        self._keeper = keeper
        self._start = start
        self._process: _Process | None = None
        self._starting = trio.Lock()
        self._pause = AGAIN
        self._followed = 0  # streams that are being followed
        self.restarts = 0

    def follow(self, stream: Followed) -> None:
        """Have the renderer catch up with the stream some time soon; ``stream.followed`` says when it has."""

        async def catch_up() -> None:
            pace = min(PACE, stream.history.size / FASTEST) * self._followed
            try:
                await trio.sleep_until(stream.followed_at + min(pace, PACE_MAX))
                if stream.gone:
                    return
                offset, unfinished = await self._look(stream)
            finally:
                self._followed -= 1
            if not stream.gone:
                stream.followed_at = trio.current_time()
                stream.followed(offset, unfinished=unfinished)

        self._followed += 1
        self._start(catch_up)

    async def _look(self, stream: Followed) -> tuple[int | None, int]:
        """How far the renderer has looked, and how much of that is unfinished; None, after a pause, if it failed."""
        try:
            screen = await self._ask(stream, {"op": "follow"})
        except ScreenLost:
            if not stream.gone:  # else it is no wonder
                pause, self._pause = self._pause, min(2 * self._pause, AGAIN_MAX)
                await trio.sleep(pause)
            return None, 0
        self._pause = AGAIN
        return screen.fields["offset"], screen.fields["unfinished"]

    async def picture(self, stream: Followed) -> Picture | None:
        """The terminal now, as escape sequences; None if it cannot be had."""
        try:
            with trio.fail_after(PICTURE_PATIENCE):
                fields, data = await self._ask(stream, {"op": "picture", "reset": stream.prompt})
        except (ScreenLost, trio.TooSlowError) as error:
            log.warning("no picture of session %s: %s", stream.session_id, error or "the renderer is slow")
            return None
        if stream.gone:
            return None
        # Marks at the same offset are told again: they are events, and the picture is only of what they changed.
        position = Position(fields["offset"], stream.history.first_mark_from(fields["offset"]))
        return Picture(position, data, fields["columns"], fields["rows"], fields["approximate"])

    async def screen(self, stream: Followed, start: int, count: int) -> dict[str, Any]:
        """The terminal now, as data (see ``renderer/terminal.py``)."""
        try:
            fields, data = await self._ask(
                stream, {"op": "screen", "reset": stream.prompt, "start": start, "count": count}
            )
        except ScreenLost as error:
            raise RequestFailed("no_screen", f"the renderer failed: {error}") from None
        return {**msgpack.unpackb(data), "offset": fields["offset"], "approximate": fields["approximate"]}

    def forget(self, stream: Followed) -> None:
        """The stream is gone."""
        if self._process is not None:
            self._process.close_stream(stream.key)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def _ask(self, stream: Followed, message: dict[str, Any]) -> Screen:
        """ScreenLost after a second failure: the first may be a renderer that was just killed."""
        for last in (False, True):
            try:
                process = await self._running()
                with trio.fail_after(PATIENCE):
                    await self._open(process, stream)
                    screen = await process.ask({**message, "id": stream.key})
            except trio.TooSlowError:
                process.kill()
                raise ScreenLost(f"no answer within {PATIENCE:g} s") from None
            except (ScreenLost, OSError, RequestFailed) as error:
                if last or not isinstance(error, ScreenLost) or isinstance(error, _CannotDraw):
                    raise ScreenLost(str(error)) from None
                continue
            self._take(stream, screen.fields)
            return screen
        raise AssertionError

    def _take(self, stream: Followed, fields: dict[str, Any]) -> None:
        if stream.gone:
            return
        if fields["checkpoint"] is not None:
            stream.history.save_checkpoint(fields["checkpoint"])
        for offset, data in fields["answers"]:
            stream.answer(offset, data)

    async def _open(self, process: _Process, stream: Followed) -> None:
        if stream.key in process.opened:
            return
        fd = await self._keeper.borrow(stream.session_id)
        try:
            reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(fd)
        try:
            if stream.key not in process.opened:
                columns, rows = stream.birth_size
                await process.send({"op": "open", "id": stream.key, "columns": columns, "rows": rows}, [reader])
                process.opened.add(stream.key)
        finally:
            os.close(reader)

    async def _running(self) -> _Process:
        async with self._starting:
            if self._process is None or self._process.dead:
                self.restarts += self._process is not None and not self._process.retired
                self._process = _Process()
                self._start(self._process.run)
        process = self._process
        with trio.move_on_after(START_PATIENCE):
            await process.ready.wait()
        if process.dead or not process.ready.is_set():
            process.kill()
            raise ScreenLost("the renderer does not start")
        return process


class _CannotDraw(ScreenLost):
    """The renderer lives, and this terminal is beyond it."""


class _Process:
    """One renderer process, from its start to its end."""

    def __init__(self) -> None:
        ours, theirs = link.pair()
        self._sock = ours
        ours.setblocking(False)
        with theirs:
            self.pid = os.posix_spawn(
                sys.executable,
                launch.module_argv("guestagent.renderer.__main__"),
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)],
                setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
            )
        self.ready = trio.Event()  # it is up, or dead
        self.dead = False
        self.retired = False
        self._reaped = False
        self.opened: set[str] = set()
        self._waiting: dict[int, _Question] = {}
        self._next = 0
        self._room = trio.Lock()
        self._used = trio.current_time()

    async def run(self) -> None:
        """Take its answers until it ends."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._retire)
                await self._receive()
                nursery.cancel_scope.cancel()
        finally:
            self.dead = True
            self.ready.set()
            self._sock.close()
            self.kill()
            for question in self._waiting.values():
                question.done.set()
            self._reap()

    async def _receive(self) -> None:
        while True:
            try:
                message, fds = link.receive(self._sock)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock)
                continue
            except (link.LinkClosed, OSError):
                return
            if message.get("op") == "ready":
                self.ready.set()
                continue
            question = self._waiting.pop(message.get("n", -1), None)
            blob = b"".join(map(_contents, fds))
            if question is not None:
                question.screen = Screen(message, blob)
                question.done.set()

    async def _retire(self) -> None:
        """End it when nobody has needed it for a while."""
        while True:
            await trio.sleep_until(self._used + IDLE)
            now = trio.current_time()
            if self._waiting:
                self._used = now
            elif now >= self._used + IDLE:
                break
        self.retired = True
        self.kill()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)  # killed: it ends at once
        self._reaped = True

    def kill(self) -> None:
        if not self._reaped:
            os.kill(self.pid, signal.SIGKILL)

    def close_stream(self, key: str) -> None:
        if key in self.opened:
            self.opened.discard(key)
            with contextlib.suppress(OSError, link.LinkClosed):
                link.send(self._sock, link.encode({"op": "close", "id": key}))

    async def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        body = link.encode(message)
        async with self._room:
            while True:
                if self.dead:
                    raise ScreenLost("the renderer died")
                try:
                    link.send(self._sock, body, fds)
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._sock)
                except link.LinkClosed:
                    self.dead = True  # before whoever reads from it notices: the next request is for another one
                    raise ScreenLost("the renderer died") from None
                else:
                    return

    async def ask(self, message: dict[str, Any]) -> Screen:
        self._next += 1
        number = self._next
        question = self._waiting[number] = _Question()
        self._used = trio.current_time()
        try:
            await self.send({**message, "n": number})
            await question.done.wait()
        finally:
            self._waiting.pop(number, None)
        if question.screen is None:
            raise ScreenLost("the renderer died")
        if "error" in question.screen.fields:
            raise _CannotDraw(question.screen.fields["error"])
        return question.screen


class _Question:
    def __init__(self) -> None:
        self.done = trio.Event()
        self.screen: Screen | None = None


def _contents(fd: int) -> bytes:
    with open(fd, "rb") as file:
        file.seek(0)
        return file.read(2 * limits.MAX_SNAPSHOT)
