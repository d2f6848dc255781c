"""The frame types: one table from type number to fields, checked on receipt.

A frame body is one msgpack array ``[type, field, ...]``.  Fields beyond those listed are ignored (they may come with a later
minor revision), missing ones with a default take it, everything else that differs is a :class:`~ptymux.errors.ProtocolError`
that names the frame and the field.  `SPEC.md` section 3 is the prose of this table; a test keeps the two equal.

No I/O, no state.  `frames.py` splits the byte stream and calls :func:`decode`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeGuard

import msgpack

from ptymux import limits
from ptymux.errors import LocalProtocolError, ProtocolError

MAGIC: Final = b"ptymux"
VERSIONS: Final = (1, 1)  # lowest and highest version that this side speaks

CLIENT: Final = "client"
AGENT: Final = "agent"


class Hello(NamedTuple):
    """First frame of a client."""

    magic: bytes
    versions: list[int]  # [lowest, highest]
    client: bytes  # random id that the client keeps across its connections
    token: bytes | None
    nonce: bytes
    info: dict[str, Any] = {}


class Welcome(NamedTuple):
    """The agent's answer to an accepted hello."""

    version: int
    agent: bytes
    generation: bytes
    lineage: list[bytes]  # earlier generations, the eldest first
    nonce: bytes  # the hello's, so that a stale answer cannot be taken for this one
    role: str
    limits: dict[str, Any]
    info: dict[str, Any] = {}


class Error(NamedTuple):
    """Something was wrong with the connection; if `fatal`, it is closed after this frame."""

    code: str
    message: str
    fatal: bool
    details: dict[str, Any] = {}


class Ping(NamedTuple):
    token: int


class Pong(NamedTuple):
    token: int


class Request(NamedTuple):
    id: int  # of this connection
    method: str
    params: dict[str, Any]
    key: bytes | None = None  # idempotency key: the same request keeps it across connections


class Response(NamedTuple):
    id: int
    result: dict[str, Any]


class Failure(NamedTuple):
    id: int
    code: str
    message: str
    details: dict[str, Any] = {}


class Output(NamedTuple):
    """Bytes of a session's stream; `offset` is that of the first one."""

    channel: int
    offset: int
    data: bytes


class Mark(NamedTuple):
    """An ordered event pinned to `offset`: after the byte before it, before the byte at it."""

    channel: int
    offset: int
    number: int
    kind: str
    data: dict[str, Any]


class Gap(NamedTuple):
    """The stream does not go on where the client was: `kind` is gap, rewound or foreign."""

    channel: int
    kind: str
    start: int | None  # the client's offset; None where it means nothing here (foreign)
    to: int  # the stream goes on at this offset
    mark: int  # and at this mark number
    replay_to: int  # bytes below this offset were on screen before; do not answer queries in them
    detail: dict[str, Any] = {}


class Snapshot(NamedTuple):
    """A part of a picture of the terminal, as escape sequences that replace a terminal's state; no byte of the stream is in it.

    With the last part the stream goes on at `offset` and `mark`.
    """

    channel: int
    offset: int
    mark: int
    last: bool
    data: bytes
    detail: dict[str, Any] = {}


class Credit(NamedTuple):
    """The agent may send up to `offset`; all bytes up to `offset` minus the window are acknowledged."""

    channel: int
    offset: int


class Detached(NamedTuple):
    """The agent ended an attach."""

    channel: int
    code: str
    message: str


class Input(NamedTuple):
    """Typed bytes.  Empty data is the probe after a reconnect: the agent forgets what it has not written, and answers `Ack`."""

    session: str
    offset: int
    data: bytes


class Ack(NamedTuple):
    """All input of this client below `written` was written to the terminal.

    `uncertain` is [from, to): the server was killed in the middle of writing these, and they will not be written again.
    """

    session: str
    written: int
    uncertain: list[int] | None = None


class InputEnd(NamedTuple):
    """The client's input ends at `offset`: end-of-file for the program."""

    session: str
    offset: int


class Skip(NamedTuple):
    """The client gives up its input from `start` to `to`; what follows begins at `to`."""

    session: str
    start: int
    to: int


class Refused(NamedTuple):
    """Input from `offset` on was not written and will not be, until the client skips."""

    session: str
    offset: int
    code: str
    message: str
    details: dict[str, Any] = {}


class Notice(NamedTuple):
    """Something that concerns the client and is no answer: `demoted`, `promoted`, `size_owner`."""

    kind: str
    data: dict[str, Any]


Message = (
    Hello | Welcome | Error | Ping | Pong | Request | Response | Failure | Output | Mark | Gap | Snapshot | Credit
    | Detached | Input | Ack | InputEnd | Skip | Refused | Notice
)  # fmt: skip


# --- field checks ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Check:
    text: str  # completes "FIELD must be ..."
    test: Callable[[Any], bool]


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return type(value) is list


def is_map(value: Any) -> TypeGuard[dict[Any, Any]]:
    return type(value) is dict


def _uint(bits: int) -> Check:
    top = 1 << bits
    return Check(f"an unsigned {bits}-bit integer", lambda v: type(v) is int and 0 <= v < top)


def _text(most: int) -> Check:
    return Check(f"text of 1 to {most} characters", lambda v: type(v) is str and 0 < len(v) <= most)


def _bytes(least: int, most: int) -> Check:
    size = f"{least}" if least == most else f"{least} to {most}"
    return Check(f"{size} bytes", lambda v: type(v) is bytes and least <= len(v) <= most)


def _maybe(check: Check) -> Check:
    return Check(f"{check.text} or nil", lambda v: v is None or check.test(v))


def _list(of: Check, most: int, least: int = 0) -> Check:
    def test(v: Any) -> bool:
        return is_list(v) and least <= len(v) <= most and all(of.test(item) for item in v)

    return Check(f"a list of {least} to {most} items, each {of.text}", test)


U32: Final = _uint(32)
U64: Final = _uint(64)
WORD: Final = _text(64)
TEXT: Final = Check("text of at most 8192 characters", lambda v: type(v) is str and len(v) <= 8192)
BOOL: Final = Check("true or false", lambda v: type(v) is bool)
MAP: Final = Check("a map with text keys", lambda v: is_map(v) and all(type(key) is str for key in v))
ID: Final = _bytes(16, 16)


class Row(NamedTuple):
    cls: type[Any]
    sender: frozenset[str]
    fields: tuple[Check, ...]


_BOTH = frozenset({CLIENT, AGENT})
_CLIENT = frozenset({CLIENT})
_AGENT = frozenset({AGENT})

TABLE: Final[dict[int, Row]] = {
    0x01: Row(Hello, _CLIENT, (Check('"ptymux"', lambda v: v == MAGIC), _list(U32, 2, 2), ID,
                               _maybe(_bytes(0, limits.MAX_TOKEN)), _bytes(8, 64), MAP)),
    0x02: Row(Welcome, _AGENT, (U32, ID, ID, _list(ID, 4096), _bytes(8, 64), WORD, MAP, MAP)),
    0x03: Row(Error, _BOTH, (WORD, TEXT, BOOL, MAP)),
    0x04: Row(Ping, _BOTH, (U64,)),
    0x05: Row(Pong, _BOTH, (U64,)),
    0x06: Row(Request, _CLIENT, (U32, WORD, MAP, _maybe(_bytes(limits.KEY_SIZE, limits.KEY_SIZE)))),
    0x07: Row(Response, _AGENT, (U32, MAP)),
    0x08: Row(Failure, _AGENT, (U32, WORD, TEXT, MAP)),
    0x10: Row(Output, _AGENT, (U32, U64, _bytes(1, limits.MAX_OUTPUT_DATA))),
    0x11: Row(Mark, _AGENT, (U32, U64, U64, WORD, MAP)),
    0x12: Row(Gap, _AGENT, (U32, Check("gap, rewound or foreign", lambda v: v in ("gap", "rewound", "foreign")),
                            _maybe(U64), U64, U64, U64, MAP)),
    0x13: Row(Credit, _CLIENT, (U32, U64)),
    0x14: Row(Detached, _AGENT, (U32, WORD, TEXT)),
    0x15: Row(Input, _CLIENT, (WORD, U64, _bytes(0, limits.MAX_INPUT_DATA))),
    0x16: Row(Ack, _AGENT, (WORD, U64, _maybe(_list(U64, 2, 2)))),
    0x17: Row(InputEnd, _CLIENT, (WORD, U64)),
    0x18: Row(Skip, _CLIENT, (WORD, U64, U64)),
    0x19: Row(Refused, _AGENT, (WORD, U64, WORD, TEXT, MAP)),
    0x1A: Row(Notice, _AGENT, (WORD, MAP)),
    0x1B: Row(Snapshot, _AGENT, (U32, U64, U64, BOOL, _bytes(0, limits.MAX_OUTPUT_DATA), MAP)),
}  # fmt: skip

TYPE_OF: Final[dict[type[Any], int]] = {row.cls: number for number, row in TABLE.items()}
_REQUIRED: Final = {number: len(row.fields) - len(row.cls._field_defaults) for number, row in TABLE.items()}


class UnknownFrame(NamedTuple):
    """A frame type that is not in the table: to be answered with a non-fatal `Error`."""

    type: int


# --- encoding -------------------------------------------------------------------------------------
LENGTH: Final = struct.Struct(">I")

# OUTPUT frames are nearly all of the traffic, so their header has a fixed width and is written without a packer
# (10 % of the user CPU).  It is still plain msgpack: array of 4, 0x10, uint32, uint64, bin32.
_OUTPUT: Final = struct.Struct(">IBBBIBQBI")
OUTPUT_HEADER_SIZE: Final = _OUTPUT.size
_OUTPUT_BODY: Final = struct.Struct(">BBBIBQBI")


def output_header(channel: int, offset: int, size: int) -> bytes:
    """Length prefix and header of an OUTPUT frame; the `size` data bytes follow."""
    return _OUTPUT.pack(_OUTPUT_BODY.size + size, 0x94, 0x10, 0xCE, channel, 0xCF, offset, 0xC6, size)


def encode(message: Message) -> bytes:
    """One frame, length prefix included.  A message that does not fit the table is a LocalProtocolError."""
    number = TYPE_OF[type(message)]
    for name, check, value in zip(message._fields, TABLE[number].fields, message, strict=True):
        if not check.test(value):
            raise LocalProtocolError(f"cannot encode {type(message).__name__}: {name} must be {check.text}")
    if isinstance(message, Output):
        return output_header(message.channel, message.offset, len(message.data)) + message.data
    try:
        body = msgpack.packb((number, *message))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"cannot encode {type(message).__name__}: {error}") from None
    if not _keys_are_text(message):
        raise LocalProtocolError(f"cannot encode {type(message).__name__}: a map has a key that is not text")
    # The agent takes nothing larger before it has accepted the hello.
    most, name = (limits.MAX_GREETING, "max_greeting") if type(message) is Hello else (limits.MAX_FRAME, "max_frame")
    if len(body) > most:
        raise LocalProtocolError(f"cannot encode {type(message).__name__}: {len(body)} bytes exceed {name}")
    return LENGTH.pack(len(body)) + body


def _packs_as_map(value: Any) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def _packs_as_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def _keys_are_text(value: Any) -> bool:
    """Whether every map in `value`, at any depth, is one that the other side's decoder takes."""
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if _packs_as_map(item):
            if not all(type(key) is str for key in item):
                return False
            todo.extend(item.values())
        elif _packs_as_list(item):
            todo.extend(item)
    return True


# --- decoding -------------------------------------------------------------------------------------
def decode(body: memoryview, sender: str) -> Message | UnknownFrame:
    """The message in one frame body that `sender` (CLIENT or AGENT) sent.

    Raises ProtocolError, and nothing else, for whatever is not a message of the table.
    """
    if len(body) > _OUTPUT_BODY.size and body[0] == 0x94 and body[1] == 0x10 and sender == AGENT:
        _, _, a, channel, b, offset, c, size = _OUTPUT_BODY.unpack_from(body)
        if (
            a == 0xCE
            and b == 0xCF
            and c == 0xC6
            and size == len(body) - _OUTPUT_BODY.size
            and size <= limits.MAX_OUTPUT_DATA
        ):
            return Output(channel, offset, bytes(body[_OUTPUT_BODY.size :]))
    try:
        items = msgpack.unpackb(body, raw=False, strict_map_key=True, use_list=True)
    except Exception as error:  # noqa: BLE001 - msgpack raises half a dozen unrelated types
        raise ProtocolError(f"malformed frame: not one msgpack value ({type(error).__name__})") from None
    if not is_list(items) or not items:
        raise ProtocolError("malformed frame: not a non-empty array")
    number = items[0]
    if type(number) is not int or not 0 <= number <= 0xFFFF:
        raise ProtocolError("malformed frame: the type is not an integer from 0 to 65535")
    row = TABLE.get(number)
    if row is None:
        return UnknownFrame(number)
    name = row.cls.__name__
    if sender not in row.sender:
        raise ProtocolError(f"unexpected {name}: not for the {sender} to send")
    values = items[1 : 1 + len(row.fields)]
    if len(values) < _REQUIRED[number]:
        raise ProtocolError(f"malformed {name}: {len(values)} fields, {_REQUIRED[number]} needed")
    for field, check, value in zip(row.cls._fields, row.fields, values, strict=False):
        if not check.test(value):
            raise ProtocolError(f"malformed {name}: {field} must be {check.text}")
    message: Message = row.cls(*values)
    return message
