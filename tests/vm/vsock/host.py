"""The host's side, with Firecracker's convention.

A program that wants a port of the guest connects to the unix socket PATH, says ``CONNECT port\\n`` and reads ``OK n\\n``; a program
that wants to be dialled by the guest listens on ``PATH_port``.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tests.vm.vsock.connection import Connection, State
from tests.vm.vsock.greeting import Greeter
from tests.vm.vsock.loop import READ, WRITE, Loop
from tests.vm.vsock.table import Full, Table

log = logging.getLogger("vsock")

TIMEOUT: Final = 2.0  # seconds for a guest's answer to a dial, and for its last word: as on Firecracker


class HostSide:
    """The sockets of all connections.

    `pump` is called when the table has something for the guest, `readable` when a connection has: then :meth:`receive` it.
    """

    def __init__(
        self, path: str, table: Table, loop: Loop, *, pump: Callable[[], None], readable: Callable[[Connection], None]
    ) -> None:
        self._path = path
        self._table = table
        self._loop = loop
        self._pump = pump
        self._readable = readable
        self._links: dict[Connection, _Link] = {}
        self.starved = False  # the guest's ring has no room: nobody need be read
        self._greeter = Greeter(path, loop, self._dialled)
        loop.every_tick(self._expire)

    def close(self) -> None:
        self._greeter.close()
        self._table.drop_all()
        self.settle()

    def receive(self, connection: Connection, most: int) -> bytes | None:
        """What the host's program sent, None if nothing now, empty if it is done or gone."""
        try:
            return self._links[connection].socket.recv(most)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def ended(self, connection: Connection) -> None:
        """The host's program is done; the guest has TIMEOUT for its last word."""
        connection.deadline = self._loop.now() + TIMEOUT
        self._table.end(connection)
        self._table.changed.add(connection)

    def refilled(self) -> None:
        """The guest's ring has room again."""
        if self.starved:
            self.starved = False
            self._table.changed.update(self._table.connections.values())

    def settle(self) -> None:
        """Look at every connection that changed."""
        changed = self._table.changed
        while changed:
            connection = changed.pop()
            link = self._links.get(connection)
            if link is None and connection.by_guest and connection.state is State.REQUESTED:
                link = self._dial(connection)
            if link is not None:
                self._settle(connection, link)

    def _settle(self, connection: Connection, link: _Link) -> None:
        table = self._table
        if connection.state is State.OPEN and not link.greeted:
            link.greeted = True
            connection.deadline = None
            if not link.send_whole(b"OK %d\n" % connection.key.host_port):
                table.reset(connection)
        if connection.state is State.OPEN and connection.to_host:
            taken, alive = link.send(connection.to_host)
            table.taken(connection, taken)
            if not alive:
                table.reset(connection)
        if connection.state is State.OPEN and not connection.to_host:
            if connection.finished:
                table.reset(connection)
            elif not connection.guest_sends:
                link.end()
        events = 0
        if connection.state is State.OPEN:
            events = (READ if connection.readable and not self.starved else 0) | (WRITE if connection.to_host else 0)
        self._loop.watch(link.socket, events, link.ready)
        if connection.state is State.CLOSED:
            del self._links[connection]
            link.socket.close()

    # --- how connections begin --------------------------------------------------------------------
    def _dialled(self, there: socket.socket, port: int) -> None:
        """A program of the host wants a port of the guest."""
        try:
            connection = self._table.dial(port)
        except Full:
            there.close()
            return
        connection.deadline = self._loop.now() + TIMEOUT
        self._links[connection] = _Link(there, connection, self._ready, greeted=False)
        self._pump()

    def _dial(self, connection: Connection) -> _Link | None:
        """The guest wants a program of the host."""
        there = socket.socket(socket.AF_UNIX)
        there.setblocking(False)
        try:
            there.connect(f"{self._path}_{connection.key.host_port}")
        except OSError as error:
            log.info("nobody takes port %d: %s", connection.key.host_port, error)
            there.close()
            self._table.reset(connection)
            return None
        self._table.accept(connection)
        link = self._links[connection] = _Link(there, connection, self._ready, greeted=True)
        return link

    def _ready(self, connection: Connection, events: int) -> None:
        if events & READ and connection.readable:
            self._readable(connection)
        self._table.changed.add(connection)
        self._pump()

    def _expire(self, now: float) -> None:
        late = [each for each in self._table.connections.values() if each.deadline is not None and each.deadline < now]
        for connection in late:
            log.info("%s: %s for too long", connection.key, connection.state.value)
            self._table.reset(connection)
        if late:
            self._pump()


class _Link:
    """The host's socket of a connection."""

    def __init__(
        self,
        there: socket.socket,
        connection: Connection,
        ready: Callable[[Connection, int], None],
        *,
        greeted: bool,
    ) -> None:
        self.socket = there
        self.greeted = greeted
        self._connection = connection
        self._ready = ready
        self._ended = False

    def ready(self, events: int) -> None:
        self._ready(self._connection, events)

    def send(self, data: bytearray) -> tuple[int, bool]:
        """How much of it the host's program took, and whether it is still there."""
        done = 0
        with memoryview(data) as view:
            while done < len(view):
                try:
                    done += self.socket.send(view[done:], socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    break
                except OSError:
                    return done, False
        return done, True

    def send_whole(self, data: bytes) -> bool:
        """For a few bytes, which a fresh socket takes whole."""
        taken, alive = self.send(bytearray(data))
        return alive and taken == len(data)

    def end(self) -> None:
        """The guest sends no more."""
        if not self._ended:
            self._ended = True
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
