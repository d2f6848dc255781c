"""Streams and their credit, with no rings and no sockets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vm.unit.rings import CID, packet
from tests.vm.vsock.connection import BUFFER, Connection, Key, State
from tests.vm.vsock.packet import HEADER_SIZE, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, WRAP, Header, Op
from tests.vm.vsock.table import FIRST_PORT, MAX_CONNECTIONS, MAX_QUEUED, PORTS, Full, Table


def feed(table: Table, data: bytes) -> None:
    header = Header.unpack(data)
    table.handle(header, data[HEADER_SIZE:])


def queue(table: Table) -> list[Header]:
    found = []
    while table.queued():
        found.append(table.pop())
    return found


def ops(table: Table) -> list[int]:
    return [header.op for header in queue(table)]


def opened(table: Table, **more: int) -> Connection:
    """Dialled by the host, and taken by the guest."""
    connection = table.dial(5000)
    assert ops(table) == [Op.REQUEST]
    feed(table, packet(Op.RESPONSE, b"", host_port=connection.key.host_port, **more))
    assert connection.state is State.OPEN
    return connection


def test_a_header_survives_packing() -> None:
    header = Header(3, 2, 5000, 1 << 30, 7, 1, Op.RW, 0, 65536, 12345)
    assert Header.unpack(header.pack()) == header
    assert len(header.pack()) == HEADER_SIZE == 44


# --- how connections begin and end ----------------------------------------------------------------------
def test_the_guest_dials() -> None:
    table = Table(CID)
    feed(table, packet(Op.REQUEST))
    (connection,) = table.changed
    assert (connection.key, connection.by_guest) == (Key(7000, 5000), True)
    table.accept(connection)
    assert ops(table) == [Op.RESPONSE]


@pytest.mark.parametrize("op", [op for op in Op if op not in (Op.RST, Op.REQUEST)] + [0, 8, 0xFFFF])
def test_what_belongs_to_no_connection_is_reset(op: int) -> None:
    table = Table(CID)
    feed(table, packet(op))
    assert ops(table) == [Op.RST]
    assert table.connections == {}


def test_a_reset_of_nothing_is_not_answered() -> None:
    table = Table(CID)
    feed(table, packet(Op.RST))
    assert ops(table) == []


@pytest.mark.parametrize("wrong", [{"type": 2}, {"target_cid": 5}, {"source_cid": 4}])
def test_what_is_not_for_us_or_not_from_the_guest_is_reset(wrong: dict[str, int]) -> None:
    table = Table(CID)
    feed(table, packet(Op.REQUEST, b"", **wrong))
    assert ops(table) == [Op.RST]
    assert table.connections == {}


@pytest.mark.parametrize("op", [Op.REQUEST, Op.RESPONSE, 0, 9])
def test_nonsense_on_an_open_connection_resets_it_alone(op: int) -> None:
    table = Table(CID)
    one, other = opened(table), opened(table)
    feed(table, packet(op, host_port=one.key.host_port))
    assert ops(table) == [Op.RST]
    assert (one.state, other.state) == (State.CLOSED, State.OPEN)
    assert table.violations == 1


def test_data_before_the_answer() -> None:
    table = Table(CID)
    connection = table.dial(5000)
    feed(table, packet(Op.RW, b"early", host_port=connection.key.host_port))
    assert ops(table) == [Op.REQUEST, Op.RST]
    assert connection.state is State.CLOSED


def test_shutdown_adds_up() -> None:
    table = Table(CID)
    connection = opened(table)
    port = connection.key.host_port
    feed(table, packet(Op.RW, b"last", host_port=port))
    feed(table, packet(Op.SHUTDOWN, host_port=port, flags=SHUTDOWN_SEND))
    assert (connection.guest_sends, connection.readable) == (False, True)
    feed(table, packet(Op.SHUTDOWN, host_port=port, flags=SHUTDOWN_RECEIVE))
    assert (connection.readable, connection.finished) == (False, False)  # the host has not got the last bytes
    table.taken(connection, 4)
    assert connection.finished


def test_data_after_the_end() -> None:
    table = Table(CID)
    connection = opened(table)
    feed(table, packet(Op.SHUTDOWN, host_port=connection.key.host_port, flags=SHUTDOWN_SEND))
    feed(table, packet(Op.RW, b"more", host_port=connection.key.host_port))
    assert ops(table) == [Op.RST]


def test_the_host_ends_for_both_directions_once() -> None:
    table = Table(CID)
    connection = opened(table)
    table.end(connection)
    table.end(connection)
    (header,) = queue(table)
    assert (header.op, header.flags) == (Op.SHUTDOWN, SHUTDOWN_SEND | SHUTDOWN_RECEIVE)
    assert not connection.readable


# --- credit ---------------------------------------------------------------------------------------------
def test_the_guest_is_told_what_the_host_took() -> None:
    table = Table(CID)
    connection = opened(table)
    port = connection.key.host_port
    half = BUFFER // 2
    feed(table, packet(Op.RW, bytes(half), host_port=port))
    table.taken(connection, half - 1)
    assert queue(table) == []  # not for every byte
    table.taken(connection, 1)
    (header,) = queue(table)
    assert (header.op, header.buffer, header.forwarded) == (Op.CREDIT_UPDATE, BUFFER, half)
    feed(table, packet(Op.CREDIT_REQUEST, host_port=port))
    feed(table, packet(Op.CREDIT_REQUEST, host_port=port))
    assert ops(table) == [Op.CREDIT_UPDATE]  # one answer is enough for both


def test_a_guest_that_sends_more_than_its_credit_is_reset() -> None:
    table = Table(CID)
    connection = opened(table)
    feed(table, packet(Op.RW, bytes(BUFFER), host_port=connection.key.host_port))
    assert connection.state is State.OPEN
    feed(table, packet(Op.RW, b"x", host_port=connection.key.host_port))
    assert ops(table) == [Op.RST]
    assert table.violations == 1


@given(st.integers(0, WRAP - 1), st.integers(1, 1 << 18), st.lists(st.integers(1, 5000), max_size=30))
def test_the_host_never_sends_more_than_the_guest_has_room_for(before: int, room: int, taken: list[int]) -> None:
    """Also where the counters wrap."""
    table = Table(CID)
    connection = opened(table, buffer=room, forwarded=0)
    connection.sent(before)  # as if so much had been sent and taken before
    feed(table, packet(Op.CREDIT_UPDATE, host_port=connection.key.host_port, buffer=room, forwarded=before))
    held, forwarded = 0, before
    for count in taken:
        while connection.credit > 0:
            header = table.data(connection, min(connection.credit, 4096))
            held += header.length
            assert held <= room
        assert held == room
        count = min(count, held)
        held -= count
        forwarded = (forwarded + count) % WRAP
        feed(table, packet(Op.CREDIT_UPDATE, host_port=connection.key.host_port, buffer=room, forwarded=forwarded))
        assert connection.credit == count


def test_a_guest_without_room_is_not_read_for() -> None:
    table = Table(CID)
    connection = opened(table, buffer=0)
    assert not connection.readable
    feed(table, packet(Op.CREDIT_UPDATE, host_port=connection.key.host_port, buffer=10))
    assert connection.readable


# --- limits ---------------------------------------------------------------------------------------------
def test_connections_are_limited_on_both_sides() -> None:
    table = Table(CID)
    for number in range(MAX_CONNECTIONS):
        feed(table, packet(Op.REQUEST, guest_port=number))
    feed(table, packet(Op.REQUEST, guest_port=MAX_CONNECTIONS))
    assert ops(table) == [Op.RST]
    with pytest.raises(Full):
        table.dial(5000)


def test_a_guest_that_takes_no_answers_is_not_listened_to() -> None:
    table = Table(CID)
    for _ in range(MAX_QUEUED):
        assert not table.congested
        feed(table, packet(Op.CREDIT_REQUEST))
    assert table.congested
    table.pop()
    assert not table.congested


def test_ports_begin_as_on_firecracker_and_wrap() -> None:
    table = Table(CID)
    assert [table.dial(1).key.host_port for _ in range(3)] == [FIRST_PORT, FIRST_PORT + 1, FIRST_PORT + 2]
    table = Table(CID, FIRST_PORT + PORTS - 1)
    assert [table.dial(1).key.host_port for _ in range(2)] == [FIRST_PORT + PORTS - 1, FIRST_PORT]


def test_a_port_in_use_is_passed_over() -> None:
    table = Table(CID)
    feed(table, packet(Op.REQUEST, host_port=FIRST_PORT, guest_port=5000))
    assert table.dial(5000).key.host_port == FIRST_PORT + 1


# --- resets ---------------------------------------------------------------------------------------------
def test_a_reset_of_the_guest_only() -> None:
    """Its answers are not heard until the host speaks; then the next reset ends the connection."""
    table = Table(CID)
    connection = opened(table)
    table.reset_guest()
    assert ops(table) == [Op.RST]
    feed(table, packet(Op.RST, host_port=connection.key.host_port))
    assert connection.key in table.connections
    table.data(connection, 5)
    feed(table, packet(Op.RST, host_port=connection.key.host_port))
    assert connection.key not in table.connections


def test_drop_all_forgets_what_was_to_be_said() -> None:
    table = Table(CID)
    connection = opened(table)
    table.end(connection)
    table.drop_all()
    assert queue(table) == []
    assert connection.state is State.CLOSED


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 100), st.integers(0, 3)), max_size=60))
def test_any_sequence_of_packets(packets: list[tuple[int, int, int, int]]) -> None:
    """Nothing is raised, and what a connection holds stays within its credit."""
    table = Table(CID)
    for _ in range(2):
        table.dial(5000)
    for op, port, size, flags in packets:
        feed(table, packet(op, bytes(size), host_port=FIRST_PORT + port, flags=flags))
        for connection in table.connections.values():
            assert len(connection.to_host) <= BUFFER
    queue(table)
