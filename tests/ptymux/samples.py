"""Messages of every type: Hypothesis strategies and what may not be in their fields.

Written by hand from the protocol's prose and not derived from the table in messages.py, which it is there to test.
"""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import strategies as st

from ptymux import messages as m

TOP32, TOP64 = (1 << 32) - 1, (1 << 64) - 1


def packed(*values: Any) -> bytes:
    """A frame body as another implementation could have written it."""
    body: bytes = msgpack.packb(values)
    return body


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


# The kind of every field, and the sender of every frame.
FIELDS: dict[str, tuple[str, int, dict[str, str]]] = {
    "Hello": ("client", 0x01, {"magic": "magic", "versions": "versions", "client": "id", "token": "token?",
                               "nonce": "nonce", "info": "map"}),
    "Welcome": ("agent", 0x02, {"version": "u32", "agent": "id", "generation": "id", "lineage": "ids", "nonce": "nonce",
                                "role": "word", "limits": "map", "info": "map"}),
    "Error": ("both", 0x03, {"code": "word", "message": "text", "fatal": "bool", "details": "map"}),
    "Ping": ("both", 0x04, {"token": "u64"}),
    "Pong": ("both", 0x05, {"token": "u64"}),
    "Request": ("client", 0x06, {"id": "u32", "method": "word", "params": "map", "key": "id?"}),
    "Response": ("agent", 0x07, {"id": "u32", "result": "map"}),
    "Failure": ("agent", 0x08, {"id": "u32", "code": "word", "message": "text", "details": "map"}),
    "Output": ("agent", 0x10, {"channel": "u32", "offset": "u64", "data": "output"}),
    "Mark": ("agent", 0x11, {"channel": "u32", "offset": "u64", "number": "u64", "kind": "word", "data": "map"}),
    "Gap": ("agent", 0x12, {"channel": "u32", "kind": "gap", "start": "u64?", "to": "u64", "mark": "u64",
                            "replay_to": "u64", "detail": "map"}),
    "Credit": ("client", 0x13, {"channel": "u32", "offset": "u64"}),
    "Detached": ("agent", 0x14, {"channel": "u32", "code": "word", "message": "text"}),
    "Input": ("client", 0x15, {"session": "word", "offset": "u64", "data": "input"}),
    "Ack": ("agent", 0x16, {"session": "word", "written": "u64", "uncertain": "range?"}),
    "InputEnd": ("client", 0x17, {"session": "word", "offset": "u64"}),
    "Skip": ("client", 0x18, {"session": "word", "start": "u64", "to": "u64"}),
    "Refused": ("agent", 0x19, {"session": "word", "offset": "u64", "code": "word", "message": "text", "details": "map"}),
    "Notice": ("agent", 0x1A, {"kind": "word", "data": "map"}),
    "Snapshot": ("agent", 0x1B, {"channel": "u32", "offset": "u64", "mark": "u64", "last": "bool", "data": "part",
                                 "detail": "map"}),
}  # fmt: skip

OPTIONAL = {
    "Hello": {"info": {}},
    "Welcome": {"info": {}},
    "Error": {"details": {}},
    "Request": {"key": None},
    "Failure": {"details": {}},
    "Gap": {"detail": {}},
    "Ack": {"uncertain": None},
    "Refused": {"details": {}},
    "Snapshot": {"detail": {}},
}

_u32 = st.integers(0, TOP32) | st.sampled_from([0, TOP32])
_u64 = st.integers(0, TOP64) | st.sampled_from([0, TOP32 + 1, TOP64])
_id = st.binary(min_size=16, max_size=16)
_plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), TOP64)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "magic": st.just(b"ptymux"),
    "versions": st.lists(_u32, min_size=2, max_size=2),
    "id": _id,
    "id?": st.none() | _id,
    "ids": st.lists(_id, max_size=3),
    "token?": st.none() | st.binary(max_size=40),
    "nonce": st.binary(min_size=8, max_size=64),
    "map": st.dictionaries(st.text(max_size=5), _plain, max_size=3),
    "u32": _u32,
    "u64": _u64,
    "u64?": st.none() | _u64,
    "range?": st.none() | st.lists(_u64, min_size=2, max_size=2),
    "word": st.text(min_size=1, max_size=64),
    "text": st.text(max_size=40),
    "bool": st.booleans(),
    "gap": st.sampled_from(["gap", "rewound", "foreign"]),
    "output": st.binary(min_size=1, max_size=200),
    "input": st.binary(max_size=200),
    "part": st.binary(max_size=200),
}

_NO_INTEGER = [None, True, -1, 1.0, "1", b"1", [], {}]
_NO_BYTES = ["x" * 16, 1, [], {}, False]
_NO_TEXT = [b"x", 1, None, [], {}, True]
BAD: dict[str, list[Any]] = {
    "magic": [b"ptymuX", b"", "ptymux", None, 1, [b"ptymux"]],
    "versions": [None, 1, [1], [1, 1, 1], [1, "1"], [-1, 1], [1, TOP32 + 1], {}],
    "id": [*_NO_BYTES, None, b"", b"x" * 15, b"x" * 17],
    "id?": [*_NO_BYTES, b"", b"x" * 15, b"x" * 17],
    "ids": [None, b"x" * 16, [b"x"], [None], [[b"x" * 16]], {}, [b"x" * 16] * 4097],
    "token?": [*_NO_BYTES, b"x" * 1025],
    "nonce": [*_NO_BYTES, None, b"", b"x" * 7, b"x" * 65],
    "map": [None, [], 1, "x", b"x"],
    "u32": [*_NO_INTEGER, TOP32 + 1],
    "u64": _NO_INTEGER,
    "u64?": _NO_INTEGER[1:],
    "range?": [1, [1], [1, 2, 3], [1, None], [-1, 2], {}, "x"],
    "word": [*_NO_TEXT, "", "x" * 65],
    "text": [*_NO_TEXT, "x" * 8193],
    "bool": [None, 0, 1, "true", [], b""],
    "gap": ["", "Gap", "lost", b"gap", None, 1, ["gap"], {}],
    "output": [*_NO_BYTES, None, b"", b"x" * 65537],
    "input": [*_NO_BYTES, None, b"x" * 32769],
    "part": [*_NO_BYTES, None, b"x" * 65537],
}


def cls(name: str) -> type[Any]:
    found: type[Any] = getattr(m, name)
    return found


def message(name: str) -> st.SearchStrategy[Any]:
    """Any message of one type."""
    return st.builds(cls(name), **{field: GOOD[kind] for field, kind in FIELDS[name][2].items()})


def messages_of(sender: str) -> st.SearchStrategy[Any]:
    """Any message that `sender` may send."""
    return st.one_of([message(name) for name, (who, _, _) in FIELDS.items() if who in (sender, "both")])


def sender_of(name: str) -> str:
    who = FIELDS[name][0]
    return "client" if who == "both" else who


# One plain, valid message of each type.
PLAIN: dict[str, Any] = {
    "Hello": m.Hello(b"ptymux", [1, 1], b"c" * 16, b"secret", b"n" * 16, {"name": "test"}),
    "Welcome": m.Welcome(1, b"a" * 16, b"g" * 16, [b"h" * 16], b"n" * 16, "admin", {"max_frame": 1048576}, {}),
    "Error": m.Error("limit", "cannot connect: max_connections", True, {"limit": "max_connections"}),
    "Ping": m.Ping(7),
    "Pong": m.Pong(7),
    "Request": m.Request(1, "create", {"argv": ["sh"]}, b"k" * 16),
    "Response": m.Response(1, {"session": "s"}),
    "Failure": m.Failure(1, "spawn", "cannot create: no such file", {}),
    "Output": m.Output(1, 10, b"hello"),
    "Mark": m.Mark(1, 15, 2, "resize", {"columns": 80, "rows": 24}),
    "Gap": m.Gap(1, "gap", 10, 20, 3, 30, {"reason": "overwritten"}),
    "Credit": m.Credit(1, 1000),
    "Detached": m.Detached(1, "removed", "the session was removed"),
    "Input": m.Input("s", 0, b"ls\n"),
    "Ack": m.Ack("s", 3, [1, 2]),
    "InputEnd": m.InputEnd("s", 3),
    "Skip": m.Skip("s", 3, 9),
    "Refused": m.Refused("s", 3, "exited", "cannot type: the program has ended", {}),
    "Notice": m.Notice("demoted", {"lag": 5}),
    "Snapshot": m.Snapshot(1, 20, 3, True, b"\x1bc$ ", {"columns": 80, "rows": 24}),
}
