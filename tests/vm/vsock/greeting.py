"""Programs of the host that dial: they connect, say ``CONNECT port\\n``, and then are a connection."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tests.vm.vsock.loop import READ, Loop

BACKLOG: Final = 128  # dials of the host that wait for us
MAX_LINE: Final = 19  # "CONNECT 4294967295\n"
MAX_GREETINGS: Final = 256  # programs that have not said where they want to go
TIMEOUT: Final = 2.0  # seconds for the line

Dialled = Callable[[socket.socket, int], None]  # with the port; owns the socket


class Greeter:
    """Listens on a unix socket until closed."""

    def __init__(self, path: str, loop: Loop, dialled: Dialled) -> None:
        self._path = path
        self._loop = loop
        self._dialled = dialled
        self._greetings: set[_Greeting] = set()
        with suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        loop.watch(self._listener, READ, self._accept)
        loop.every_tick(self._expire)

    def close(self) -> None:
        self._loop.watch(self._listener, 0, self._accept)
        self._listener.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        for greeting in list(self._greetings):
            greeting.refuse()

    def _accept(self, events: int) -> None:
        try:
            socket, _ = self._listener.accept()
        except OSError:  # gone again, or we are out of descriptors: the next round tries again
            return
        if len(self._greetings) >= MAX_GREETINGS:
            socket.close()
            return
        socket.setblocking(False)
        self._greetings.add(_Greeting(socket, self._loop, self._dialled, self._greetings))

    def _expire(self, now: float) -> None:
        for greeting in [each for each in self._greetings if each.deadline < now]:
            greeting.refuse()


class _Greeting:
    def __init__(self, socket: socket.socket, loop: Loop, dialled: Dialled, all: set[_Greeting]) -> None:
        self.deadline = loop.now() + TIMEOUT
        self._socket = socket
        self._loop = loop
        self._dialled = dialled
        self._all = all
        self._line = bytearray()
        loop.watch(socket, READ, self._ready)

    def refuse(self) -> None:
        self._leave()
        self._socket.close()

    def _leave(self) -> None:
        self._all.discard(self)
        self._loop.watch(self._socket, 0, self._ready)

    def _ready(self, events: int) -> None:
        while not self._line.endswith(b"\n"):
            try:
                byte = self._socket.recv(1)  # not a byte of what follows the line
            except BlockingIOError:
                return
            except OSError:
                byte = b""
            self._line += byte
            if not byte or len(self._line) > MAX_LINE:
                self.refuse()
                return
        found = re.fullmatch(rb"CONNECT ([0-9]{1,10})\n", self._line)
        if found is None or int(found[1]) > 0xFFFFFFFF:
            self.refuse()
            return
        self._leave()
        self._dialled(self._socket, int(found[1]))
