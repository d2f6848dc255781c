"""The server's end of the link to the keeper, for trio."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from guestagent import link
from ptymux.errors import RequestFailed

FILES_KEPT = 16  # descriptors that sessions may not use up: without one, no client could come in and remove a session

Adopt = Callable[[dict[str, Any], list[int]], object]


class KeeperGone(Exception):
    """The keeper died or closed the link: nothing can go on."""


class KeeperLink:
    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._outbox: deque[bytes] = deque()
        self._room = trio.Event()
        self._emptied = trio.Event()  # the outbox was
        self._questions: dict[int, _Spawn | _Loan] = {}
        self._next = 0

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message; it is in the keeper's socket when this returns, unless the keeper is very busy."""
        self._outbox.append(link.encode(message))
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                link.send(self._sock, self._outbox[0])
                self._outbox.popleft()
        except BlockingIOError:
            self._room.set()
        except link.LinkClosed:
            self._outbox.clear()  # `run` finds out
        if not self._outbox:
            self._emptied.set()
            self._emptied = trio.Event()

    async def settled(self) -> None:
        """Until the keeper's socket has everything that was sent, and every child that was asked for was answered for."""
        while self._outbox:
            await self._emptied.wait()
        for question in list(self._questions.values()):
            await question.done.wait()
        await trio.lowlevel.checkpoint()

    async def receive(self) -> tuple[dict[str, Any], list[int]]:
        while True:
            try:
                return link.receive(self._sock)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock)
            except link.LinkClosed:
                raise KeeperGone from None

    async def run(self, on_message: Callable[[dict[str, Any]], None]) -> None:
        """Dispatch until cancelled; answers to our questions are taken out.  KeeperGone if the keeper dies."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flush_when_room)
            while True:
                message, fds = await self.receive()
                question = self._questions.pop(message.get("n", -1), None)
                if question is not None:
                    question.answered(message, fds)
                else:
                    for fd in fds:
                        os.close(fd)
                    on_message(message)

    async def _flush_when_room(self) -> None:
        while True:
            await self._room.wait()
            self._room = trio.Event()
            await trio.lowlevel.wait_writable(self._sock)
            self._flush()

    async def spawn(self, request: dict[str, Any], adopt: Adopt) -> None:
        """Have the keeper start a child; `adopt(record, fds)` is called as soon as it answers, before any later message.

        RequestFailed if it cannot.  Not to be cancelled: the child would be nobody's.
        """
        self._next += 1
        spawn = self._questions[self._next] = _Spawn(adopt)
        self.send({"op": "spawn", "n": self._next, **request})
        await spawn.done.wait()
        if spawn.lost is not None:
            self.send({"op": "release", "id": spawn.lost, "all": True, "kill": True})
        if spawn.failure is not None:
            raise spawn.failure

    async def borrow(self, session: str) -> int:
        """A descriptor of the history of a session's terminal, the caller's to close.  RequestFailed if there is none."""
        self._next += 1
        loan = self._questions[self._next] = _Loan()
        self.send({"op": "lend", "n": self._next, "id": session})
        try:
            await loan.done.wait()
        except trio.Cancelled:
            loan.unwanted = True
            if loan.fd is not None:
                os.close(loan.fd)
            raise
        if loan.fd is None:
            raise RequestFailed("os", "cannot have the history mapped: it is gone, or there are too many open files")
        return loan.fd


class _Loan:
    """A history that the keeper was asked for."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.fd: int | None = None
        self.unwanted = False  # nobody waits any more

    def answered(self, message: dict[str, Any], fds: list[int]) -> None:
        self.done.set()
        if self.unwanted:
            for fd in fds:
                os.close(fd)
        elif fds:
            self.fd = fds[0]


class _Spawn:
    """A child that the keeper was asked for."""

    def __init__(self, adopt: Adopt) -> None:
        self.done = trio.Event()
        self.failure: RequestFailed | None = None
        self.lost: str | None = None  # a session whose descriptors did not fit into our table
        self._adopt = adopt

    def answered(self, message: dict[str, Any], fds: list[int]) -> None:
        # The session must be known before the next message is read: that may already say how it ended.
        self.done.set()
        if message["op"] == "failed":
            self.failure = RequestFailed(message["code"], message["message"])
        elif message.get("truncated") or max(fds) >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_KEPT:
            self._lose(message, fds, "too many open files in the server")
        else:
            try:
                self._adopt(message["record"], fds)
            except OSError as error:
                self._lose(message, fds, f"cannot take the session over: {error.strerror}")

    def _lose(self, message: dict[str, Any], fds: list[int], cause: str) -> None:
        self.failure = RequestFailed("os", cause)
        self.lost = message["record"]["id"]
        for fd in fds:
            with contextlib.suppress(OSError):  # closed after mapping
                os.close(fd)
