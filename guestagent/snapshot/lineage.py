"""The agent's earlier generations in the keeper's store: where each stream forked off.

One blob an ancestor, under ``fork/<generation>``, each a message of its own to later servers, since with a thousand sessions one is
32 KiB; the order is in ``identity``, whose replacement is the one instant at which a new generation begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgpack

from ptymux.cursor import Ancestor, Position

DEPTH = 256  # ancestors that are known; cursors of elder ones are foreign
PREFIX = "fork/"

Store = Callable[[str, "bytes | None"], None]


def key(generation: bytes) -> str:
    return PREFIX + generation.hex()


def pack(forks: Mapping[str, Position]) -> bytes:
    body: bytes = msgpack.packb({stream: list(position) for stream, position in forks.items()})
    return body


def unpack(body: bytes) -> dict[str, Position]:
    return {stream: Position(*position) for stream, position in msgpack.unpackb(body).items()}


def load(store: Mapping[str, bytes], generations: Sequence[bytes]) -> list[Ancestor]:
    """The ancestors of these generations, the eldest first."""
    return [Ancestor(one, unpack(store[key(one)])) for one in generations if key(one) in store]


def extended(
    lineage: Sequence[Ancestor], generation: bytes, forks: Mapping[str, Position], streams: Collection[str]
) -> list[Ancestor]:
    """The lineage once `generation` has ended at `forks`, without streams that are gone."""
    elder = [
        Ancestor(one.generation, {name: place for name, place in one.forks.items() if name in streams})
        for one in lineage
    ]
    return [*elder, Ancestor(generation, dict(forks))][-DEPTH:]


def save(store: Store, before: Sequence[Ancestor], now: Sequence[Ancestor], identity: dict[str, Any]) -> None:
    """Store the new generation: first what it needs, then itself, then forget what nothing needs."""
    known = {one.generation: one for one in before}
    for one in now:
        old = known.get(one.generation)
        if old is None or old.forks != one.forks:
            store(key(one.generation), pack(one.forks))
    store("identity", msgpack.packb({**identity, "lineage": [one.generation for one in now]}))
    kept = {one.generation for one in now}
    for one in before:
        if one.generation not in kept:
            store(key(one.generation), None)
