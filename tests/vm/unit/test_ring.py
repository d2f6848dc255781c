"""Virtqueues whose other side does what it likes: every malformed one is Malformed, in bounded time, and nothing else."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vm.unit.rings import GUEST, SIZE, USER, Descriptor, Driver, guest_memory
from tests.vm.vsock.memory import MAX_REGIONS, Malformed, Memory, Region
from tests.vm.vsock.ring import INDIRECT, MAX_CHAIN_BYTES, MAX_SIZE, NEXT, WRITE, Addresses, Ring


def started(*, event_index: bool = True) -> tuple[Ring, Driver]:
    memory, view = guest_memory()
    ring = Ring("test")
    driver = Driver(ring, view, 0)
    ring.start(memory, event_index=event_index)
    return ring, driver


def test_chains_are_read_and_given_back_in_order() -> None:
    ring, driver = started()
    for number in range(20):  # more than there are descriptors: it wraps
        index = number % driver.entries
        driver.give(index, b"packet %d" % number)
        chain = ring.next()
        assert chain is not None
        assert (chain.head, chain.read()) == (index, b"packet %d" % number)
        ring.push(chain, number)
        assert ring.next() is None
        assert [head for head, _ in driver.taken()] == [index]


def test_the_indices_wrap() -> None:
    memory, view = guest_memory()
    ring = Ring("test")
    driver = Driver(ring, view, 0)
    ring.base = 0xFFFE
    driver.set_available_index(0xFFFE)
    ring.start(memory, event_index=True)
    for number in range(4):
        driver.give(number, b"%d" % number)
        chain = ring.next()
        assert chain is not None
        assert chain.read() == b"%d" % number
    assert ring.stop() == 2


def test_a_chain_of_several_buffers() -> None:
    ring, driver = started()
    driver.describe(3, Descriptor(driver.buffer(0), 10, NEXT, 5))
    driver.describe(5, Descriptor(driver.buffer(1), 20, NEXT | WRITE, 1))
    driver.describe(1, Descriptor(driver.buffer(2), 30, WRITE))
    driver.offer(3)
    chain = ring.next()
    assert chain is not None
    assert ([len(view) for view in chain.readable], [len(view) for view in chain.writable]) == ([10], [20, 30])
    chain.write(b"x" * 45)
    assert bytes(chain.writable[1]) == b"x" * 25 + bytes(5)
    with pytest.raises(Malformed):
        chain.write(b"x" * 51)


def test_an_indirect_chain() -> None:
    ring, driver = started()
    table = driver.buffers
    driver.describe(0, Descriptor(driver.buffer(1), 10, NEXT, 1), table)
    driver.describe(1, Descriptor(driver.buffer(2), 20, WRITE), table)
    driver.describe(0, Descriptor(GUEST + table, 32, INDIRECT))
    driver.offer(0)
    chain = ring.next()
    assert chain is not None
    assert (len(chain.readable[0]), chain.room()) == (10, 20)


def test_a_chain_can_be_put_back() -> None:
    ring, driver = started()
    driver.give(2, b"hello")
    first = ring.next()
    ring.put_back()
    second = ring.next()
    assert first is not None
    assert second is not None
    assert first.head == second.head


def test_a_stopped_ring_has_nothing() -> None:
    ring, driver = started()
    driver.give(0, b"hello")
    assert ring.stop() == 0
    assert ring.next() is None


def test_the_guest_is_asked_to_notify_from_where_we_are() -> None:
    ring, driver = started()
    driver.give(0, b"hello")
    assert ring.next() is not None
    assert ring.next() is None
    assert struct.unpack_from("<H", driver.memory, driver.used + 4 + 8 * driver.entries) == (1,)


# --- malformed ------------------------------------------------------------------------------------------
OUTSIDE = GUEST + SIZE
CHAINS = {
    "a head that is no descriptor": (8, {}),
    "the largest head": (0xFFFF, {}),
    "a next that is no descriptor": (0, {0: Descriptor(GUEST, 1, NEXT, 8)}),
    "a descriptor that is its own next": (0, {0: Descriptor(GUEST, 1, NEXT, 0)}),
    "a circle": (0, {0: Descriptor(GUEST, 1, NEXT, 1), 1: Descriptor(GUEST, 1, NEXT, 0)}),
    "a buffer outside of memory": (0, {0: Descriptor(OUTSIDE, 1)}),
    "a buffer that ends outside of memory": (0, {0: Descriptor(OUTSIDE - 10, 11)}),
    "a buffer before memory": (0, {0: Descriptor(GUEST - 1, 1)}),
    "an address that overflows": (0, {0: Descriptor(0xFFFF_FFFF_FFFF_FFFF, 0xFFFF_FFFF)}),
    "an indirect table outside of memory": (0, {0: Descriptor(OUTSIDE, 16, INDIRECT)}),
    "an indirect table of half a descriptor": (0, {0: Descriptor(GUEST, 24, INDIRECT)}),
    "an empty indirect table": (0, {0: Descriptor(GUEST, 0, INDIRECT)}),
    "an indirect table that is too long": (0, {0: Descriptor(GUEST, 16 * (MAX_SIZE + 1), INDIRECT)}),
    "an indirect table with a next": (0, {0: Descriptor(GUEST, 16, INDIRECT | NEXT, 1)}),
    "readable after writable": (0, {0: Descriptor(GUEST, 1, WRITE | NEXT, 1), 1: Descriptor(GUEST, 1)}),
    "more bytes than a chain may have": (
        0,
        {0: Descriptor(GUEST, SIZE, NEXT, 1), 1: Descriptor(GUEST, MAX_CHAIN_BYTES - SIZE + 1)},
    ),
}


@pytest.mark.parametrize("what", CHAINS)
def test_a_malformed_chain(what: str) -> None:
    ring, driver = started()
    head, descriptors = CHAINS[what]
    for index, descriptor in descriptors.items():
        driver.describe(index, descriptor)
    driver.offer(head)
    with pytest.raises(Malformed):
        ring.next()


def test_an_indirect_table_in_an_indirect_table() -> None:
    ring, driver = started()
    driver.describe(0, Descriptor(GUEST + driver.buffers, 16, INDIRECT), driver.buffers)
    driver.describe(0, Descriptor(GUEST + driver.buffers, 16, INDIRECT))
    driver.offer(0)
    with pytest.raises(Malformed):
        ring.next()


@pytest.mark.parametrize("ahead", [9, 100, 0x7FFF, 0xFFFF])
def test_more_chains_than_descriptors(ahead: int) -> None:
    ring, driver = started()
    driver.set_available_index(ahead)
    with pytest.raises(Malformed):
        ring.next()


@pytest.mark.parametrize("size", [0, 3, 7, MAX_SIZE * 2, 0xFFFF_FFFF])
def test_a_size_that_no_ring_has(size: int) -> None:
    memory, view = guest_memory()
    ring = Ring("test")
    Driver(ring, view, 0)
    ring.size = size
    with pytest.raises(Malformed):
        ring.start(memory, event_index=True)


@pytest.mark.parametrize("part", ["descriptors", "used", "available"])
@pytest.mark.parametrize("address", [0, USER - 1, USER + SIZE - 1, 0xFFFF_FFFF_FFFF_FFFF])
def test_a_part_outside_of_memory(part: str, address: int) -> None:
    memory, _ = guest_memory()
    ring = Ring("test")
    ring.size = 8
    addresses = {"descriptors": USER, "used": USER + 4096, "available": USER + 8192, part: address}
    ring.addresses = Addresses(**addresses)
    with pytest.raises(Malformed):
        ring.start(memory, event_index=True)


def test_a_ring_without_addresses() -> None:
    memory, _ = guest_memory()
    ring = Ring("test")
    ring.size = 8
    with pytest.raises(Malformed):
        ring.start(memory, event_index=True)


@settings(max_examples=200)
@given(st.binary(min_size=128, max_size=128), st.binary(min_size=20, max_size=20), st.integers(0, 8))
def test_garbage(descriptors: bytes, available: bytes, ahead: int) -> None:
    """Whatever is in the ring: a chain within memory, nothing, or Malformed."""
    ring, driver = started()
    driver.memory[driver.descriptors : driver.descriptors + 128] = descriptors
    driver.memory[driver.available : driver.available + 20] = available
    driver.set_available_index(ahead)
    try:
        while (chain := ring.next()) is not None:
            assert len(chain.readable) + len(chain.writable) <= MAX_SIZE
            ring.push(chain, 0)
    except Malformed:
        pass


# --- memory ---------------------------------------------------------------------------------------------
def test_a_file_that_is_shorter_than_it_says(tmp_path: object) -> None:
    """To touch what is missing would be a SIGBUS."""
    import os

    fd = os.memfd_create("short")
    try:
        os.ftruncate(fd, 4096)
        with pytest.raises(Malformed):
            Region(GUEST, 8192, USER, fd, 0)
        with pytest.raises(Malformed):
            Region(GUEST, 4096, USER, fd, 4096)
        with pytest.raises(Malformed):
            Region(GUEST, 0, USER, fd, 0)
        region = Region(GUEST, 4096, USER, fd, 0)
    finally:
        os.close(fd)
    with pytest.raises(Malformed):
        Memory([region] * (MAX_REGIONS + 1))
