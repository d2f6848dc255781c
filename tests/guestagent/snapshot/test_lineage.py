"""lineage.py: how generations are stored, and how much of them."""

from __future__ import annotations

import os

import msgpack

from guestagent.link import MESSAGE_MAX
from guestagent.snapshot import lineage
from ptymux import limits
from ptymux.cursor import Ancestor, Position


def stored() -> tuple[dict[str, bytes], lineage.Store]:
    store: dict[str, bytes] = {}

    def put(key: str, value: bytes | None) -> None:
        if value is None:
            del store[key]
        else:
            store[key] = value

    return store, put


def test_round_trip() -> None:
    store, put = stored()
    now: list[Ancestor] = []
    for number in range(5):
        before = now
        now = lineage.extended(before, bytes([number]) * 16, {"a": Position(number, 1)}, {"a"})
        lineage.save(put, before, now, {"agent": b"x", "generation": b"new"})
    identity = msgpack.unpackb(store["identity"])
    assert identity["generation"] == b"new"
    assert lineage.load(store, identity["lineage"]) == now
    assert [one.generation[0] for one in now] == [0, 1, 2, 3, 4]


def test_streams_that_are_gone_are_forgotten() -> None:
    store, put = stored()
    old = lineage.extended([], b"0" * 16, {"a": Position(1, 0), "b": Position(2, 0)}, {"a", "b"})
    lineage.save(put, [], old, {})
    now = lineage.extended(old, b"1" * 16, {"b": Position(3, 0)}, {"b"})
    lineage.save(put, old, now, {})
    assert lineage.load(store, [b"0" * 16, b"1" * 16]) == [
        Ancestor(b"0" * 16, {"b": Position(2, 0)}),
        Ancestor(b"1" * 16, {"b": Position(3, 0)}),
    ]


def test_the_eldest_are_dropped() -> None:
    store, put = stored()
    now: list[Ancestor] = []
    for number in range(lineage.DEPTH + 10):
        before = now
        now = lineage.extended(before, number.to_bytes(16, "big"), {}, ())
        lineage.save(put, before, now, {})
    assert len(now) == lineage.DEPTH
    assert now[0].generation == (10).to_bytes(16, "big")
    assert len(store) == lineage.DEPTH + 1


def test_an_unprepared_restore_forgets_all() -> None:
    store, put = stored()
    now = lineage.extended([], b"0" * 16, {"a": Position(1, 0)}, {"a"})
    lineage.save(put, [], now, {})
    lineage.save(put, now, [], {})
    assert set(store) == {"identity"}


def test_the_largest_fits_a_message() -> None:
    """Every session on pipes, at offsets that take the most bytes."""
    forks = {}
    for _ in range(limits.MAX_SESSIONS):
        name = os.urandom(8).hex()
        forks[name] = forks[f"{name}/stderr"] = Position(1 << 63, 1 << 31)
    body = lineage.pack(forks)
    assert lineage.unpack(body) == forks
    assert len(body) < MESSAGE_MAX / 2
