"""Writes the golden frames of ``vectors/v1``.  `README.md` beside this file describes the format.

Run it as ``python protocol/vectors/generate.py``; with ``--check`` it only compares.  It has a msgpack packer of its own and imports
nothing of ptymux or of a msgpack library, so that the vectors are a second opinion and not an echo.  The output is the
same on every run; a change of it is a change of the protocol.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HOME = Path(__file__).parent / "v1"
TOP32, TOP64 = (1 << 32) - 1, (1 << 64) - 1
MAX_FRAME, MAX_GREETING = 1 << 20, 4096
SAFE = (1 << 53) - 1  # what a JavaScript number holds exactly


# --- bytes ----------------------------------------------------------------------------------------
class Times(NamedTuple):
    """`what` (bytes or text) so many times, written shortly in the files."""

    what: Any
    times: int

    @property
    def value(self) -> Any:
        return self.what * self.times


class Raw(NamedTuple):
    """Bytes that stand for a value as they are: another spelling than the shortest."""

    data: bytes


def pack(value: Any) -> bytes:
    """The shortest msgpack spelling."""
    match value:
        case Raw(data):
            return data
        case Times():
            return pack(value.value)
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return pack_int(value)
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case str():
            data = value.encode()
            return pack_size(len(data), (0xA0, 31), (0xD9, 0xDA, 0xDB)) + data
        case bytes():
            return pack_size(len(value), None, (0xC4, 0xC5, 0xC6)) + value
        case list():
            return pack_size(len(value), (0x90, 15), (None, 0xDC, 0xDD)) + b"".join(map(pack, value))
        case dict():
            head = pack_size(len(value), (0x80, 15), (None, 0xDE, 0xDF))
            return head + b"".join(pack(key) + pack(item) for key, item in value.items())
        case _:
            raise TypeError(type(value))


def pack_int(value: int) -> bytes:
    if value >= 0:
        if value < 0x80:
            return bytes([value])
        code, size = next(
            (code, size) for code, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)) if value >> 8 * size == 0
        )
        return bytes([code]) + value.to_bytes(size, "big")
    if value >= -32:
        return bytes([256 + value])
    code, size = next(
        (code, size) for code, size in ((0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)) if value >= -(1 << 8 * size - 1)
    )
    return bytes([code]) + value.to_bytes(size, "big", signed=True)


def pack_size(size: int, short: tuple[int, int] | None, codes: tuple[int | None, int, int]) -> bytes:
    if short is not None and size <= short[1]:
        return bytes([short[0] + size])
    for code, width in zip(codes, (1, 2, 4), strict=True):
        if code is not None and size >> 8 * width == 0:
            return bytes([code]) + size.to_bytes(width, "big")
    raise ValueError(size)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def array(*values: Any) -> bytes:
    """A frame: one array in its shortest spelling."""
    return frame(pack(list(values)))


def output(channel: int, offset: int, data: Any) -> bytes:
    """An OUTPUT frame with its header at a fixed width, as the agent writes it."""
    data = data.value if isinstance(data, Times) else data
    return frame(struct.pack(">BBBIBQBI", 0x94, 0x10, 0xCE, channel, 0xCF, offset, 0xC6, len(data)) + data)


# --- files ----------------------------------------------------------------------------------------
def as_json(value: Any) -> Any:
    """A msgpack value as JSON, without loss in any language."""
    match value:
        case Times(what=str()):
            return {"text": value.what, "times": value.times}
        case Times():
            return {"hex": value.what.hex(), "times": value.times}
        case bool() | None | str() | float():
            return value
        case int():
            return value if abs(value) <= SAFE else {"int": str(value)}
        case bytes():
            return {"hex": value.hex()}
        case list():
            return [as_json(item) for item in value]
        case dict():
            assert not value.keys() & {"hex", "int", "text", "times"}, "a map that reads like a value"
            return {key: as_json(item) for key, item in value.items()}
        case _:
            raise TypeError(type(value))


def parts(data: bytes) -> list[Any]:
    """Hex strings, and ``[hex, times]`` for what is repeated often (a byte, or a character of up to 4)."""
    found: list[Any] = []
    start = position = 0
    while position < len(data):
        unit, times = max(
            ((width, repeats(data, position, width)) for width in (1, 2, 3, 4)), key=lambda run: run[0] * run[1]
        )
        if unit * times >= 64:
            if start < position:
                found.append(data[start:position].hex())
            found.append([data[position : position + unit].hex(), times])
            start = position = position + unit * times
        else:
            position += 1
    if start < len(data):
        found.append(data[start:].hex())
    return found


def repeats(data: bytes, at: int, width: int) -> int:
    """How often the `width` bytes at `at` follow each other."""
    unit = data[at : at + width]
    end = at
    while data[end : end + width] == unit:
        end += width
    return (end - at) // width if width == len(unit) else 0


# --- the frame types ------------------------------------------------------------------------------
FIELDS = {
    "Hello": (0x01, ("magic", "versions", "client", "token", "nonce", "info")),
    "Welcome": (0x02, ("version", "agent", "generation", "lineage", "nonce", "role", "limits", "info")),
    "Error": (0x03, ("code", "message", "fatal", "details")),
    "Ping": (0x04, ("token",)),
    "Pong": (0x05, ("token",)),
    "Request": (0x06, ("id", "method", "params", "key")),
    "Response": (0x07, ("id", "result")),
    "Failure": (0x08, ("id", "code", "message", "details")),
    "Output": (0x10, ("channel", "offset", "data")),
    "Mark": (0x11, ("channel", "offset", "number", "kind", "data")),
    "Gap": (0x12, ("channel", "kind", "start", "to", "mark", "replay_to", "detail")),
    "Credit": (0x13, ("channel", "offset")),
    "Detached": (0x14, ("channel", "code", "message")),
    "Input": (0x15, ("session", "offset", "data")),
    "Ack": (0x16, ("session", "written", "uncertain")),
    "InputEnd": (0x17, ("session", "offset")),
    "Skip": (0x18, ("session", "start", "to")),
    "Refused": (0x19, ("session", "offset", "code", "message", "details")),
    "Notice": (0x1A, ("kind", "data")),
    "Snapshot": (0x1B, ("channel", "offset", "mark", "last", "data", "detail")),
}

MAGIC = b"ptymux"
ID = bytes(range(16))
ID2 = bytes(range(16, 32))
NONCE = bytes(range(32, 48))
S = "5f0c2a9be1d34c77"
GRIN, HAN = "\N{GRINNING FACE}", "\N{CJK UNIFIED IDEOGRAPH-6F22}"

VALID: list[dict[str, Any]] = []
MALFORMED: list[dict[str, Any]] = []
STREAMS: list[dict[str, Any]] = []


def message(name: str, values: tuple[Any, ...]) -> dict[str, Any]:
    _, fields = FIELDS[name]
    return {"type": name, "fields": {field: as_json(value) for field, value in zip(fields, values, strict=True)}}


def valid(label: str, sender: str, name: str, *values: Any, spelled: bytes | None = None) -> None:
    """A frame in its canonical spelling, or `spelled` otherwise."""
    if spelled is not None:
        data = spelled
    elif name == "Output":
        data = output(*values)
    else:
        data = array(FIELDS[name][0], *values)
    VALID.append(
        {
            "name": f"{name}: {label}",
            "sender": sender,
            "frame": parts(data),
            **message(name, values),
            "canonical": spelled is None,
        }
    )


def unknown(label: str, sender: str, number: int, data: bytes) -> None:
    VALID.append(
        {
            "name": f"unknown type: {label}",
            "sender": sender,
            "frame": parts(data),
            "type": "UnknownFrame",
            "fields": {"type": number},
            "canonical": False,
        }
    )


def malformed(label: str, sender: str, data: bytes, error: str, *, greeted: bool = True) -> None:
    MALFORMED.append({"name": label, "sender": sender, "greeted": greeted, "frame": parts(data), "error": error})


def stream(
    label: str,
    sender: str,
    data: bytes,
    cuts: list[list[int]],
    messages: list[tuple[str, tuple[Any, ...]]],
    *,
    error: str | None = None,
    left: int = 0,
    greeted: bool = True,
) -> None:
    for places in cuts:
        assert places == sorted(set(places))
        assert all(0 < place < len(data) for place in places)
    STREAMS.append(
        {
            "name": label,
            "sender": sender,
            "greeted": greeted,
            "bytes": parts(data),
            "cuts": cuts,
            "messages": [message(name, values) for name, values in messages],
            "error": error,
            "left": left,
        }
    )


# fmt: off
# --- what must be taken ---------------------------------------------------------------------------
def fill_valid() -> None:
    c, a = "client", "agent"
    valid("plain", c, "Hello", MAGIC, [1, 1], ID, None, NONCE, {})
    valid("everything at its least", c, "Hello", MAGIC, [0, 0], bytes(16), b"", bytes(8), {})
    valid("everything at its most", c, "Hello", MAGIC, [1, TOP32], b"\xff" * 16, Times(b"t", 1024), b"\xff" * 64,
          {"name": "ptymux", "version": "0.1.0"})
    valid("lowest version above the highest is the agent's to refuse", c, "Hello", MAGIC, [9, 2], ID, None, NONCE, {})
    valid("info left out", c, "Hello", MAGIC, [1, 1], ID, None, NONCE, {},
          spelled=array(1, MAGIC, [1, 1], ID, None, NONCE))
    valid("fields of a later revision", c, "Hello", MAGIC, [1, 1], ID, b"token", NONCE, {},
          spelled=array(1, MAGIC, [1, 1], ID, b"token", NONCE, {}, "more", {"and": ["more"]}, None))

    valid("plain", a, "Welcome", 1, ID, ID2, [], NONCE, "admin", {"max_frame": MAX_FRAME, "max_attaches": 1024}, {})
    valid("with a lineage and a limit that is no integer", a, "Welcome", TOP32, ID, ID2, [ID, bytes(16), b"\xff" * 16],
          bytes(8), "viewer", {"dead_after": 0.25}, {"agent": "guestagent", "deep": {"list": [1, None, True, b"\x00"]}})
    valid("longer than max_greeting, which binds only the agent", a, "Welcome", 0, ID, ID2, [ID] * 300, b"n" * 64,
          Times("r", 64), {}, {})
    valid("info left out", a, "Welcome", 1, ID, ID2, [], NONCE, "controller", {}, {},
          spelled=array(2, 1, ID, ID2, [], NONCE, "controller", {}))

    valid("from the agent", a, "Error", "limit", "cannot connect: max_connections", True,
          {"limit": "max_connections", "value": 256})
    valid("from the client", c, "Error", "malformed", "", False, {})
    valid("the longest text", a, "Error", Times("c", 64), Times(HAN, 8192), False, {})
    valid("details left out", a, "Error", "shutdown", "going down", True, {},
          spelled=array(3, "shutdown", "going down", True))

    for name in ("Ping", "Pong"):
        for token in (0, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, TOP32, TOP32 + 1, SAFE, SAFE + 1, TOP64):
            valid(str(token), c if name == "Ping" else a, name, token)
    valid("from the agent", a, "Ping", 7)
    valid("from the client", c, "Pong", 7)
    number = FIELDS["Ping"][0]
    for label, spelling in (
        ("uint8", b"\xcc\x07"), ("uint16", b"\xcd\x00\x07"), ("uint32", b"\xce\x00\x00\x00\x07"),
        ("uint64", b"\xcf" + bytes(7) + b"\x07"), ("int8", b"\xd0\x07"), ("int16", b"\xd1\x00\x07"),
        ("int32", b"\xd2\x00\x00\x00\x07"), ("int64", b"\xd3" + bytes(7) + b"\x07"),
    ):
        valid(f"7 as {label}", c, "Ping", 7, spelled=array(number, Raw(spelling)))
        valid(f"the type as {label}", c, "Ping", 7, spelled=array(Raw(spelling[:-1] + bytes([number])), 7))
    valid("the array as array16", c, "Ping", 7, spelled=frame(b"\xdc\x00\x02\x04\x07"))
    valid("the array as array32", c, "Ping", 7, spelled=frame(b"\xdd\x00\x00\x00\x02\x04\x07"))
    valid("an extension type in a field of a later revision", c, "Ping", 7, spelled=array(4, 7, Raw(b"\xd4\x05\x00")))

    valid("plain", c, "Request", 1, "create", {"argv": ["sh", "-l"], "env": {"A": "b"}, "size": [80, 24]}, ID)
    valid("without a key", c, "Request", TOP32, "info", {}, None)
    valid("key left out", c, "Request", 0, "list", {}, None, spelled=array(6, 0, "list", {}))
    valid("every kind of value in a map", c, "Request", 0, "create",
          {"": None, HAN: GRIN, "no": False, "yes": True, "low": -(1 << 63), "high": TOP64, "minus": -1, "half": -0.5,
           "bytes": b"\x00\xff", "list": [[], [[]], {}], "map": {"map": {"map": {}}}}, None)
    valid("a map of 16, and text and bytes of 256", c, "Request", 5, "create",
          {**{f"k{n}": n for n in range(16)}, "long": Times("x", 256), "bytes": Times(b"x", 256)}, ID)
    valid("text as str8, map as map16, list as array16, bytes as bin32", c, "Request", 1, "info",
          {"argv": ["x"], "b": b"y"}, ID,
          spelled=array(6, 1, Raw(b"\xd9\x04info"), Raw(b"\xde\x00\x02\xa4argv\xdc\x00\x01\xa1x\xda\x00\x01b\xc6\x00\x00\x00\x01y"),
                        Raw(b"\xc5\x00\x10" + ID)))

    valid("plain", a, "Response", 1, {"session": S})
    valid("empty", a, "Response", 0, {})
    valid("attach", a, "Response", TOP32, {"generation": ID, "offset": TOP64, "mark": 3, "replay_to": TOP64})
    valid("plain", a, "Failure", 1, "not_found", "cannot attach: no such session", {})
    valid("with details", a, "Failure", TOP32, "limit", "", {"limit": "max_sessions", "value": 1024})
    valid("details left out", a, "Failure", 0, "os", "cannot resize: I/O error", {},
          spelled=array(8, 0, "os", "cannot resize: I/O error"))

    valid("plain", a, "Output", 1, 5, b"abc")
    valid("everything at its least", a, "Output", 0, 0, b"\x00")
    valid("everything at its most", a, "Output", TOP32, TOP64, Times(b"\xff", 65536))
    valid("half a character", a, "Output", 1, 1, GRIN.encode()[:2])
    valid("a terminal query", a, "Output", 1, 1, b"\x1b[6n\x1b]11;?\x07")
    valid("compact header", a, "Output", 1, 5, b"abc", spelled=array(0x10, 1, 5, b"abc"))
    valid("uint32 offset", a, "Output", 1, 5, b"abc",
          spelled=frame(b"\x94\x10\xce\x00\x00\x00\x01\xce\x00\x00\x00\x05\xc4\x03abc"))
    valid("fixed header and a field of a later revision", a, "Output", 1, 5, b"abc",
          spelled=frame(b"\x95" + output(1, 5, b"abc")[5:] + b"\x01"))
    fixed = output(1, 5, b"abc")
    valid("fixed width, the channel as int32", a, "Output", 1, 5, b"abc", spelled=fixed[:6] + b"\xd2" + fixed[7:])
    valid("fixed width, the offset as int64", a, "Output", 1, 5, b"abc", spelled=fixed[:11] + b"\xd3" + fixed[12:])
    valid("the type as uint8", a, "Output", 1, 5, b"abc", spelled=frame(b"\x94\xcc\x10" + output(1, 5, b"abc")[6:]))

    valid("resize", a, "Mark", 1, 10, 2, "resize", {"columns": 80, "rows": 24})
    valid("exit", a, "Mark", 0, TOP64, TOP64, "exit", {"code": 0, "output_closed": True})
    valid("everything at its least", a, "Mark", 0, 0, 0, "x", {})
    valid("everything at its most", a, "Mark", TOP32, TOP64, TOP64, Times("k", 64), {"x": None})

    valid("gap", a, "Gap", 1, "gap", 10, 20, 3, 30, {"marks": [1, 3], "reason": "overwritten"})
    valid("rewound", a, "Gap", 1, "rewound", TOP64, 0, 0, TOP64, {})
    valid("foreign", a, "Gap", TOP32, "foreign", None, TOP64, TOP64, TOP64, {})
    valid("detail left out", a, "Gap", 0, "gap", 0, 0, 0, 0, {}, spelled=array(0x12, 0, "gap", 0, 0, 0, 0))

    valid("everything at its least", c, "Credit", 0, 0)
    valid("everything at its most", c, "Credit", TOP32, TOP64)
    valid("beyond 53 bits", c, "Credit", 1, SAFE + 2)
    valid("plain", a, "Detached", 0, "removed", "the session was removed")
    valid("everything at its most", a, "Detached", TOP32, Times("c", 64), Times("m", 8192))

    valid("plain", c, "Input", S, 0, b"ls\n")
    valid("probe", c, "Input", S, TOP64, b"")
    valid("everything at its most", c, "Input", Times("s", 64), TOP64, Times(b"\x03", 32768))
    valid("64 characters are counted, not UTF-16 units or bytes", c, "Input", Times(GRIN, 64), 1, HAN.encode())
    valid("plain", a, "Ack", S, 3, None)
    valid("everything at its most", a, "Ack", S, TOP64, [TOP64, TOP64])
    valid("uncertain", a, "Ack", S, 3, [0, 3])
    valid("uncertain left out", a, "Ack", S, 0, None, spelled=array(0x16, S, 0))
    valid("at the beginning", c, "InputEnd", S, 0)
    valid("everything at its most", c, "InputEnd", Times(HAN, 64), TOP64)
    valid("plain", c, "Skip", S, 3, 9)
    valid("nothing", c, "Skip", "s", 0, 0)
    valid("everything at its most", c, "Skip", S, TOP64, TOP64)
    valid("plain", a, "Refused", S, 3, "line_too_long", "cannot type: a line is longer than cooked_line (4095)",
          {"limit": "cooked_line"})
    valid("everything at its most", a, "Refused", Times("s", 64), TOP64, Times("c", 64), Times("m", 8192), {})
    valid("details left out", a, "Refused", S, 0, "exited", "", {}, spelled=array(0x19, S, 0, "exited", ""))
    valid("plain", a, "Notice", "demoted", {"session": S, "channel": 1, "lag": 300000})
    valid("empty", a, "Notice", "x", {})
    valid("a part", a, "Snapshot", 1, 20, 3, False, b"\x1b[2J", {})
    valid("the last part", a, "Snapshot", 1, 20, 3, True, b"$ ", {"columns": 80, "rows": 24, "approximate": False})
    valid("everything at its least", a, "Snapshot", 0, 0, 0, True, b"", {"columns": 2, "rows": 1})
    valid("everything at its most", a, "Snapshot", TOP32, TOP64, TOP64, False, Times(b"x", 65536), {})
    valid("detail left out", a, "Snapshot", 1, 20, 3, False, b"x", {}, spelled=array(0x1B, 1, 20, 3, False, b"x"))

    unknown("type 0", c, 0, array(0))
    unknown("type 9 with fields", c, 9, array(9, {"a": [1]}, None))
    unknown("type 28", a, 0x1C, array(0x1C, "x"))
    unknown("type 65535", a, 0xFFFF, array(0xFFFF))


# --- what must be refused -------------------------------------------------------------------------
def fill_malformed() -> None:
    c, a = "client", "agent"
    malformed("length 0", c, bytes(4), "length 0")
    malformed("a length beyond max_frame, refused at its header", c, (MAX_FRAME + 1).to_bytes(4, "big"), "exceeds max_frame")
    malformed("the largest length", a, b"\xff\xff\xff\xff", "exceeds max_frame")
    malformed("before the hello, a length beyond max_greeting", c, (MAX_GREETING + 1).to_bytes(4, "big"),
              "exceeds max_greeting", greeted=False)

    no_value = "malformed frame: not one msgpack value"
    malformed("a code that msgpack never uses", c, frame(b"\xc1"), no_value)
    malformed("an array cut short", c, frame(b"\x92\x04"), no_value)
    malformed("bytes behind the value", c, frame(b"\x92\x04\x07\x00"), no_value)
    malformed("two values", c, frame(b"\x92\x04\x07" * 2), no_value)
    malformed("a text that is longer than the frame", c, frame(b"\x93\x18\xd9\xff" + b"s"), no_value)
    malformed("an array that claims 4 billion items", c, frame(b"\xdd\xff\xff\xff\xff"), no_value)
    malformed("a map that claims 4 billion items", a, frame(b"\x92\x1a\xdf\xff\xff\xff\xff"), no_value)
    malformed("bytes that claim 4 GiB", a, frame(b"\x94\x10\x00\x00\xc6\xff\xff\xff\xff"), no_value)
    malformed("text that is not UTF-8", a, frame(b"\x93\x1a\xa2\xff\xfe\x80"), no_value)
    malformed("text with an encoded surrogate", a, frame(b"\x93\x1a\xa3\xed\xa0\x80\x80"), no_value)
    malformed("text with an overlong encoding", a, frame(b"\x93\x1a\xa2\xc0\x80\x80"), no_value)
    malformed("a map with a number as key", a, array(0x1A, "x", Raw(b"\x81\x01\x02")), no_value)
    malformed("deep inside, a map with a number as key", a, array(0x1A, "x", {"a": [Raw(b"\x81\x01\x02")]}), no_value)
    malformed("a map with nil as key", c, array(0x06, 1, "info", Raw(b"\x81\xc0\x02")), no_value)
    malformed("50,000 arrays in each other", c, frame(b"\x91" * 50_000 + b"\x01"), no_value)
    malformed("an OUTPUT with a fixed header that is one byte short", a, frame(output(1, 5, b"abc")[4:-1]), no_value)
    malformed("an OUTPUT with a fixed header and a byte too many", a, frame(output(1, 5, b"abc")[4:] + b"x"), no_value)
    malformed("an OUTPUT that ends in its header", a, frame(output(1, 5, b"abc")[4:12]), no_value)

    fixed = output(1, 5, b"abc")
    malformed("an OUTPUT of the fixed width with a negative int32 as channel", a,
              fixed[:6] + b"\xd2\xff" + fixed[8:], "malformed Output: channel must be")
    malformed("an OUTPUT of the fixed width with a float64 as offset", a,
              fixed[:11] + b"\xcb\x3f\xf8" + fixed[14:], "malformed Output: offset must be")
    malformed("an OUTPUT of the fixed width with a str32 as data", a,
              fixed[:20] + b"\xdb" + fixed[21:], "malformed Output: data must be")
    malformed("an OUTPUT of the fixed width without data", a, output(1, 5, b""), "malformed Output: data must be")
    malformed("an OUTPUT of the fixed width with 65537 bytes", a, output(1, 5, b"x" * 65537),
              "malformed Output: data must be")

    no_array = "malformed frame: not a non-empty array"
    malformed("an empty array", c, frame(b"\x90"), no_array)
    malformed("a number", c, frame(b"\x04"), no_array)
    malformed("nil", c, frame(b"\xc0"), no_array)
    malformed("a map", c, frame(b"\x81\xa1a\x01"), no_array)
    malformed("a text", c, frame(b"\xa4ping"), no_array)
    malformed("bytes", a, frame(b"\xc4\x02\x04\x07"), no_array)

    no_type = "malformed frame: the type is not an integer from 0 to 65535"
    malformed("a negative type", c, array(-1, 7), no_type)
    malformed("type 65536", c, array(65536, 7), no_type)
    malformed("the largest type", c, array(TOP64, 7), no_type)
    malformed("a text as type", c, array("Ping", 7), no_type)
    malformed("a fraction as type", c, array(4.5, 7), no_type)
    malformed("true as type", c, array(True, 7), no_type)
    malformed("nil as type", a, array(None), no_type)
    malformed("a list as type", c, array([4], 7), no_type)

    other = {c: a, a: c}
    for name, (sender, values) in SAMPLES.items():
        number, fields = FIELDS[name]
        if name not in ("Error", "Ping", "Pong"):
            wrong = other[sender]
            malformed(f"{name} from the {wrong}", wrong, array(number, *values),
                      f"unexpected {name}: not for the {wrong} to send")
        needed = len(fields) - OPTIONAL.get(name, 0)
        malformed(f"{name} without fields", sender, array(number), f"malformed {name}: 0 fields, {needed} needed")
        if needed > 1:
            malformed(f"{name} with a field too few", sender, array(number, *values[: needed - 1]),
                      f"malformed {name}: {needed - 1} fields, {needed} needed")
    for name, field, value, label in BAD_FIELDS:
        sender, values = SAMPLES[name]
        number, fields = FIELDS[name]
        exchanged = [value if known == field else old for known, old in zip(fields, values, strict=True)]
        malformed(f"{name}.{field}: {label}", sender, array(number, *exchanged), f"malformed {name}: {field} must be")


SAMPLES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "Hello": ("client", (MAGIC, [1, 1], ID, None, NONCE, {})),
    "Welcome": ("agent", (1, ID, ID2, [], NONCE, "admin", {}, {})),
    "Error": ("agent", ("limit", "text", True, {})),
    "Ping": ("client", (7,)),
    "Pong": ("client", (7,)),
    "Request": ("client", (1, "info", {}, None)),
    "Response": ("agent", (1, {})),
    "Failure": ("agent", (1, "os", "text", {})),
    "Output": ("agent", (1, 5, b"abc")),
    "Mark": ("agent", (1, 10, 2, "resize", {})),
    "Gap": ("agent", (1, "gap", 10, 20, 3, 30, {})),
    "Credit": ("client", (1, 10)),
    "Detached": ("agent", (1, "removed", "text")),
    "Input": ("client", (S, 0, b"ls\n")),
    "Ack": ("agent", (S, 3, None)),
    "InputEnd": ("client", (S, 3)),
    "Skip": ("client", (S, 3, 9)),
    "Refused": ("agent", (S, 3, "exited", "text", {})),
    "Notice": ("agent", ("demoted", {})),
    "Snapshot": ("agent", (1, 20, 3, True, b"x", {})),
}
OPTIONAL = dict.fromkeys(("Hello", "Welcome", "Error", "Request", "Failure", "Gap", "Ack", "Refused", "Snapshot"), 1)

BAD_FIELDS: list[tuple[str, str, Any, str]] = [
    ("Hello", "magic", b"ptymuX", "another protocol's"),
    ("Hello", "magic", "ptymux", "text"),
    ("Hello", "versions", 1, "a number"),
    ("Hello", "versions", [1], "one version"),
    ("Hello", "versions", [1, 1, 1], "three versions"),
    ("Hello", "versions", [1, TOP32 + 1], "beyond u32"),
    ("Hello", "client", ID[:15], "15 bytes"),
    ("Hello", "client", ID + b"x", "17 bytes"),
    ("Hello", "client", None, "nil"),
    ("Hello", "token", "secret", "text"),
    ("Hello", "token", Times(b"t", 1025), "1025 bytes"),
    ("Hello", "nonce", NONCE[:7], "7 bytes"),
    ("Hello", "nonce", Times(b"n", 65), "65 bytes"),
    ("Hello", "info", [], "a list"),
    ("Hello", "info", None, "nil"),
    ("Welcome", "version", -1, "negative"),
    ("Welcome", "agent", "x" * 16, "text"),
    ("Welcome", "generation", b"", "no bytes"),
    ("Welcome", "lineage", [ID[:15]], "an id of 15 bytes"),
    ("Welcome", "lineage", None, "nil"),
    ("Welcome", "role", "", "no text"),
    ("Welcome", "limits", [], "a list"),
    ("Welcome", "nonce", b"n" * 7, "7 bytes"),
    ("Welcome", "info", "x", "text"),
    ("Error", "code", Times("c", 65), "65 characters"),
    ("Error", "code", b"limit", "bytes"),
    ("Error", "message", Times("m", 8193), "8193 characters"),
    ("Error", "message", None, "nil"),
    ("Error", "fatal", 1, "a number"),
    ("Error", "fatal", None, "nil"),
    ("Error", "details", "x", "text"),
    ("Ping", "token", -1, "negative"),
    ("Ping", "token", 7.5, "a fraction"),
    ("Ping", "token", "7", "text"),
    ("Ping", "token", True, "true"),
    ("Ping", "token", None, "nil"),
    ("Ping", "token", Raw(b"\xd6\xff\x00\x00\x00\x07"), "a timestamp"),
    ("Ping", "token", Raw(b"\xd4\x05\x07"), "an extension type"),
    ("Pong", "token", -(1 << 63), "the least integer"),
    ("Pong", "token", [7], "a list"),
    ("Request", "id", TOP32 + 1, "beyond u32"),
    ("Request", "method", "", "no text"),
    ("Request", "method", Times("m", 65), "65 characters"),
    ("Request", "params", None, "nil"),
    ("Request", "key", ID[:15], "15 bytes"),
    ("Request", "key", "k" * 16, "text"),
    ("Request", "key", False, "false"),
    ("Response", "id", -1, "negative"),
    ("Response", "result", None, "nil"),
    ("Failure", "code", None, "nil"),
    ("Failure", "message", b"text", "bytes"),
    ("Failure", "id", None, "nil"),
    ("Failure", "details", [], "a list"),
    ("Output", "channel", TOP32 + 1, "beyond u32"),
    ("Output", "offset", -1, "negative"),
    ("Output", "data", b"", "no bytes"),
    ("Output", "data", "abc", "text"),
    ("Output", "data", Times(b"x", 65537), "65537 bytes"),
    ("Mark", "number", None, "nil"),
    ("Mark", "kind", "", "no text"),
    ("Mark", "data", [1], "a list"),
    ("Mark", "channel", "1", "text"),
    ("Mark", "offset", None, "nil"),
    ("Gap", "kind", "lost", "another word"),
    ("Gap", "kind", b"gap", "bytes"),
    ("Gap", "start", "10", "text"),
    ("Gap", "to", None, "nil"),
    ("Gap", "mark", -3, "negative"),
    ("Gap", "replay_to", 1.5, "a fraction"),
    ("Gap", "channel", TOP32 + 1, "beyond u32"),
    ("Gap", "detail", 1, "a number"),
    ("Credit", "channel", -1, "negative"),
    ("Credit", "offset", None, "nil"),
    ("Detached", "code", Times(GRIN, 65), "65 emoji"),
    ("Detached", "message", 1, "a number"),
    ("Detached", "channel", 0.5, "a fraction"),
    ("Input", "session", "", "no text"),
    ("Input", "session", Times(HAN, 65), "65 characters"),
    ("Input", "offset", -1, "negative"),
    ("Input", "data", None, "nil"),
    ("Input", "data", Times(b"x", 32769), "32769 bytes"),
    ("Ack", "written", True, "true"),
    ("Ack", "uncertain", [1], "one number"),
    ("Ack", "uncertain", [1, -1], "a negative number"),
    ("Ack", "uncertain", {}, "a map"),
    ("Ack", "session", b"s", "bytes"),
    ("InputEnd", "offset", "3", "text"),
    ("InputEnd", "session", None, "nil"),
    ("Skip", "start", None, "nil"),
    ("Skip", "to", -9, "negative"),
    ("Skip", "session", 1, "a number"),
    ("Refused", "code", "", "no text"),
    ("Refused", "details", None, "nil"),
    ("Refused", "session", Times("s", 65), "65 characters"),
    ("Refused", "offset", [], "a list"),
    ("Refused", "message", None, "nil"),
    ("Notice", "kind", 1, "a number"),
    ("Notice", "data", None, "nil"),
    ("Snapshot", "channel", -1, "negative"),
    ("Snapshot", "offset", None, "nil"),
    ("Snapshot", "mark", 1.5, "a fraction"),
    ("Snapshot", "last", 1, "a number"),
    ("Snapshot", "data", "x", "text"),
    ("Snapshot", "data", Times(b"x", 65537), "65537 bytes"),
    ("Snapshot", "detail", [], "a list"),
]


# --- what must be found in a stream, wherever it is cut -----------------------------------------------
def fill_streams() -> None:
    c, a = "client", "agent"
    ping, ping_message = array(4, 7), ("Ping", (7,))
    out, out_message = output(1, 5, b"abc"), ("Output", (1, 5, b"abc"))
    typed, typed_message = array(0x15, S, 0, HAN.encode()), ("Input", (S, 0, HAN.encode()))
    hello, hello_message = array(1, MAGIC, [1, 1], ID, None, NONCE, {}), ("Hello", (MAGIC, [1, 1], ID, None, NONCE, {}))

    stream("nothing", c, b"", [], [])
    stream("one frame", c, ping, [[1], [3], [4], [5], [6]], [ping_message])
    stream("three frames", a, out + array(5, 1) + out,
           [[len(out)], [2, len(out) + 2], [len(out) - 1, len(out) + 1], [4, 5, len(out) + 7 + 12]],
           [out_message, ("Pong", (1,)), out_message])
    stream("cut inside a character of a frame", c, typed * 2, [[len(typed) - 1], [len(typed) - 2, 2 * len(typed) - 1]],
           [typed_message, typed_message])
    stream("a frame that is not complete", c, ping + typed[:-1], [[7], [9], [12]], [ping_message], left=len(typed) - 1)
    stream("half a length", c, ping + b"\x00\x00", [[8]], [ping_message], left=2)
    stream("a length alone, of the largest frame", c, MAX_FRAME.to_bytes(4, "big"), [[1, 2, 3]], [], left=4)
    stream("unfinished before the hello, at the limit", c, MAX_GREETING.to_bytes(4, "big") + b"\x91", [[4]], [], left=5,
           greeted=False)
    stream("the largest output between two others", a, out + output(1, 8, Times(b"y", 65536)) + out,
           [[len(out) + 100], [len(out) + 65536, len(out) + 65558]],
           [out_message, ("Output", (1, 8, Times(b"y", 65536))), out_message])
    stream("good frames before a bad one, and after it", c, ping + typed + array(4, -1) + ping, [[7], [len(ping + typed) + 6]],
           [ping_message, typed_message], error="malformed Ping: token must be")
    stream("a bad length behind a good frame", c, ping + bytes(4), [[7], [9]], [ping_message], error="length 0")
    stream("a length that is too large behind half of it", a, out + b"\x00\x10\x00\x01", [[len(out) + 2]], [out_message],
           error="exceeds max_frame")
    stream("a frame of the other side's", a, out + array(0x13, 1, 1), [[len(out)]], [out_message],
           error="unexpected Credit: not for the agent to send")
    stream("a large frame behind the hello, if nobody accepts the hello", c, hello + (MAX_GREETING + 1).to_bytes(4, "big"),
           [[len(hello)], [len(hello) + 3]], [hello_message], error="exceeds max_greeting", greeted=False)
    stream("the same marks and output a real session has", a,
           array(7, 2, {"generation": ID, "offset": 0, "mark": 0, "replay_to": 0})
           + array(0x11, 0, 0, 0, "resize", {"columns": 80, "rows": 24})
           + output(0, 0, b"hi\r\n")
           + array(0x16, S, 3, None)
           + array(0x11, 0, 4, 1, "exit", {"code": 0, "output_closed": True}),
           [[10, 20, 30, 40, 50, 60, 70, 80, 90, 100], [61]],
           [("Response", (2, {"generation": ID, "offset": 0, "mark": 0, "replay_to": 0})),
            ("Mark", (0, 0, 0, "resize", {"columns": 80, "rows": 24})),
            ("Output", (0, 0, b"hi\r\n")),
            ("Ack", (S, 3, None)),
            ("Mark", (0, 4, 1, "exit", {"code": 0, "output_closed": True}))])


# fmt: on
def generate() -> Iterator[tuple[Path, str]]:
    """(file, its text) of every file."""
    for known, fill in ((VALID, fill_valid), (MALFORMED, fill_malformed), (STREAMS, fill_streams)):
        known.clear()
        fill()
        names = [vector["name"] for vector in known]
        assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]
    for name, vectors in (("valid", VALID), ("malformed", MALFORMED), ("streams", STREAMS)):
        lines = ",\n".join(json.dumps(vector) for vector in vectors)
        yield HOME / f"{name}.json", f"[\n{lines}\n]\n"


def main(arguments: list[str]) -> int:
    changed = [(path, text) for path, text in generate() if not path.exists() or path.read_text() != text]
    for path, text in changed:
        if "--check" not in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        print(path)
    return 1 if changed and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
