"""The whole device with a driver of the test's own: real rings in a memfd, real unix sockets, no VM."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

from tests.vm.unit.rings import CID, Descriptor, Driver, guest_memory, ops, packet, payload
from tests.vm.vsock import greeting, host
from tests.vm.vsock.connection import BUFFER
from tests.vm.vsock.device import EVENT_INDEX, RECEIVE, TRANSMIT, Device
from tests.vm.vsock.loop import READ, Loop
from tests.vm.vsock.memory import Malformed
from tests.vm.vsock.packet import SHUTDOWN_SEND, Header, Op
from tests.vm.vsock.table import FIRST_PORT

PATIENCE = 5.0

T = TypeVar("T")


class Guest:
    """A started device, and the driver of its two rings."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        self.path = str(folder / "v.sock")
        self.device = Device(CID, self.path, self.loop)
        self.device.memory, view = guest_memory()
        self.device.features = EVENT_INDEX
        self.receive = Driver(self.device.ring(RECEIVE), view, 0x00000)
        self.transmit = Driver(self.device.ring(TRANSMIT), view, 0x20000)
        self._kicks = []
        for index in (RECEIVE, TRANSMIT):
            fd = os.eventfd(0)
            self._kicks.append(os.dup(fd))
            self.device.set_kick(index, fd)
            self.device.start(index)
        self._asked: list[Callable[[], None]] = []
        self._bell = os.eventfd(0)
        self.loop.watch(self._bell, READ, self._answer)
        self.thread = threading.Thread(target=self.loop.run, daemon=True)
        self.thread.start()
        self._sent = 0
        self._received: list[bytes] = []

    def close(self) -> None:
        self.loop.running = False
        self.kick(TRANSMIT)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        self.device.close()
        self.loop.close()
        for fd in (*self._kicks, self._bell):
            os.close(fd)

    def within(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises in the loop's thread: the device is that thread's alone."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except Exception as error:
                answer.set_exception(error)

        self._asked.append(run)
        os.eventfd_write(self._bell, 1)
        return answer.result(PATIENCE)

    def _answer(self, _events: int) -> None:
        os.eventfd_read(self._bell)
        while self._asked:
            self._asked.pop(0)()

    def kick(self, index: int) -> None:
        os.eventfd_write(self._kicks[index], 1)

    def send(self, data: bytes) -> None:
        """A packet, once there is a free buffer."""
        self.transmit.give(self._sent % self.transmit.entries, data)
        self._sent += 1
        self.kick(TRANSMIT)
        deadline = time.monotonic() + PATIENCE
        while not self.transmit.taken():
            assert time.monotonic() < deadline
            assert self.device.broken is None

    def want(self, *indexes: int) -> None:
        self.receive.want(*indexes)
        self.kick(RECEIVE)

    def next(self) -> bytes:
        """The next packet for the guest; its buffer is offered again."""
        deadline = time.monotonic() + PATIENCE
        while not self._received:
            for head, data in self.receive.taken():
                self._received.append(data)
                self.want(head)
            assert time.monotonic() < deadline, "no packet came"
            assert self.device.broken is None
        return self._received.pop(0)

    def dial(self, port: int = 5000) -> socket.socket:
        there = socket.socket(socket.AF_UNIX)
        there.settimeout(PATIENCE)
        there.connect(self.path)
        there.sendall(b"CONNECT %d\n" % port)
        return there


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Guest]:
    running = Guest(tmp_path)
    yield running
    running.close()


def opened(guest: Guest) -> tuple[socket.socket, int]:
    """A connection that the host dialled, and its host port."""
    guest.want(*range(8))
    there = guest.dial()
    request = Header.unpack(guest.next())
    assert (request.op, request.target_port) == (Op.REQUEST, 5000)
    guest.send(packet(Op.RESPONSE, host_port=request.source_port))
    assert there.recv(100) == b"OK %d\n" % request.source_port
    return there, request.source_port


def test_a_conversation(guest: Guest) -> None:
    there, port = opened(guest)
    assert port == FIRST_PORT
    with there:
        there.sendall(b"to the guest")
        assert payload(guest.next()) == b"to the guest"
        guest.send(packet(Op.RW, b"to the host", host_port=port))
        assert there.recv(100) == b"to the host"
        guest.send(packet(Op.SHUTDOWN, host_port=port, flags=SHUTDOWN_SEND))
        assert there.recv(100) == b""
    assert ops([guest.next()]) == [Op.SHUTDOWN]
    guest.send(packet(Op.RST, host_port=port))


def test_what_is_sent_with_the_greeting_is_not_lost(guest: Guest) -> None:
    guest.want(*range(8))
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(guest.path)
        there.sendall(b"CONNECT 5000\nand at once what follows")
        port = Header.unpack(guest.next()).source_port
        guest.send(packet(Op.RESPONSE, host_port=port))
        assert payload(guest.next()) == b"and at once what follows"


@pytest.mark.parametrize(
    "line", [b"CONNECT\n", b"CONNECT x\n", b"CONNECT 4294967296\n", b"HELLO 5\n", b"\n", b"C" * 64]
)
def test_a_greeting_that_makes_no_sense(guest: Guest, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as there:
        there.settimeout(PATIENCE)
        there.connect(guest.path)
        there.sendall(line)
        assert ended(there)


def ended(there: socket.socket) -> bool:
    try:
        return there.recv(100) == b""
    except ConnectionResetError:
        return True


def test_a_greeting_that_never_ends(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "TIMEOUT", 0.1)
    with socket.socket(socket.AF_UNIX) as there:
        there.settimeout(PATIENCE)
        there.connect(guest.path)
        there.sendall(b"CONN")
        assert ended(there)


def test_a_guest_that_does_not_answer(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "TIMEOUT", 0.1)
    guest.want(*range(8))
    with guest.dial() as there:
        assert ops([guest.next()]) == [Op.REQUEST]
        assert ended(there)
    assert ops([guest.next()]) == [Op.RST]


def test_the_guest_dials_a_port_that_nobody_has(guest: Guest) -> None:
    guest.want(*range(8))
    guest.send(packet(Op.REQUEST, host_port=7000))
    assert ops([guest.next()]) == [Op.RST]


def test_the_guest_has_no_buffers_for_a_while(guest: Guest) -> None:
    """Nothing is lost, and nothing spins: it goes on when the buffers come."""
    there, _ = opened(guest)
    data = os.urandom(60_000)
    with there:
        there.sendall(data)
        got = b""
        while len(got) < len(data):
            got += payload(guest.next())
        assert got == data


def test_a_host_that_does_not_read(guest: Guest) -> None:
    """What the guest may send is bounded by its credit, and all of it arrives in the end."""
    there, port = opened(guest)
    there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    data = os.urandom(3000)
    with there:
        room, sent = BUFFER, 0
        while room >= len(data) and sent < 200:
            guest.send(packet(Op.RW, data, host_port=port))
            room, sent = room - len(data), sent + 1
            while select_update(guest):
                room = BUFFER - (sent * len(data) - Header.unpack(guest.next()).forwarded)
        got = b""
        while len(got) < sent * len(data):
            got += there.recv(65536)
        assert got == data * sent


def select_update(guest: Guest) -> bool:
    for head, data in guest.receive.taken():
        guest._received.append(data)
        guest.want(head)
    return bool(guest._received)


# --- broken -----------------------------------------------------------------------------------------------
BROKEN = {
    "a circle": Descriptor(0x1000_0000, 1, 1, 0),
    "outside of memory": Descriptor(0, 100),
    "less than a header": Descriptor(0x1000_0000, 10),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_malformed_ring_breaks_the_device_and_nothing_else(guest: Guest, what: str) -> None:
    there, _ = opened(guest)
    with there:
        guest.transmit.describe(7, BROKEN[what])
        guest.transmit.offer(7)
        guest.kick(TRANSMIT)
        assert ended(there)  # its connections end ...
    assert guest.device.broken is not None
    with pytest.raises(Malformed):  # ... it does not start again ...
        guest.within(lambda: guest.device.start(TRANSMIT))
    with guest.dial() as there:  # ... and its process goes on, and is quiet.
        assert not select.select([there], [], [], 0.1)[0]
    guest.within(guest.device.disconnected)
    assert guest.device.broken is None


def test_a_payload_longer_than_its_packet(guest: Guest) -> None:
    guest.transmit.give(0, packet(Op.RW, b"short", length=500))
    guest.kick(TRANSMIT)
    deadline = time.monotonic() + PATIENCE
    while guest.device.broken is None:
        assert time.monotonic() < deadline


def test_a_buffer_without_room_for_a_header(guest: Guest) -> None:
    guest.receive.describe(0, Descriptor(guest.receive.buffer(0), 43, 2))
    guest.receive.offer(0)
    guest.transmit.give(0, packet(Op.CREDIT_REQUEST))
    guest.kick(TRANSMIT)
    deadline = time.monotonic() + PATIENCE
    while guest.device.broken is None:
        assert time.monotonic() < deadline


def pause(device: Device) -> None:
    for index in (RECEIVE, TRANSMIT):
        device.ring(index).base = device.stop(index)


def resume(device: Device) -> None:
    for index in (RECEIVE, TRANSMIT):
        device.start(index)


def test_a_pause_is_no_reset(guest: Guest) -> None:
    there, _ = opened(guest)
    with there:
        there.sendall(b"before")
        assert payload(guest.next()) == b"before"
        guest.within(lambda: pause(guest.device))
        there.sendall(b"meanwhile")
        guest.within(lambda: resume(guest.device))
        assert payload(guest.next()) == b"meanwhile"


def test_qemu_goes_away(guest: Guest) -> None:
    there, _ = opened(guest)
    with there:
        guest.within(guest.device.disconnected)
        assert ended(there)
