"""The server's end of the link to the keeper, for trio."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from guestagent import link
from ptymux.errors import RequestFailed


class KeeperGone(Exception):
    """The keeper died or closed the link: nothing can go on."""


class KeeperLink:
    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._outbox: deque[dict[str, Any]] = deque()
        self._room = trio.Event()
        self._waiting: dict[int, tuple[trio.Event, list[Any]]] = {}
        self._next = 0

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message; it is in the keeper's socket when this returns, unless the keeper is very busy."""
        self._outbox.append(message)
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

    async def receive(self) -> tuple[dict[str, Any], list[int]]:
        while True:
            try:
                return link.receive(self._sock)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock)
            except link.LinkClosed:
                raise KeeperGone from None

    async def run(self, on_message: Callable[[dict[str, Any]], None]) -> None:
        """Dispatch until cancelled; answers to :meth:`spawn` are taken out.  KeeperGone if the keeper dies."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flush_when_room)
            while True:
                message, fds = await self.receive()
                waiting = self._waiting.pop(message.get("n", -1), None)
                if waiting is not None:
                    event, answer = waiting
                    answer.extend([message, fds])
                    event.set()
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

    async def spawn(self, request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Have the keeper start a child: its record and descriptors by name.

        RequestFailed if it cannot.  Not to be cancelled: the child would be nobody's.
        """
        self._next += 1
        event, answer = trio.Event(), []
        self._waiting[self._next] = event, answer
        self.send({"op": "spawn", "n": self._next, **request})
        await event.wait()
        message, fds = answer
        if message["op"] == "failed":
            raise RequestFailed(message["code"], message["message"])
        record = message["record"]
        if message.get("truncated"):
            self.send({"op": "release", "id": record["id"], "all": True})
            raise RequestFailed("os", "cannot create session: too many open files in the server")
        return record, dict(zip(record["fds"], fds, strict=True))
