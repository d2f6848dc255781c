"""messages.py: the table of frames, and one frame body at a time."""

from __future__ import annotations

import math
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptymux import limits
from ptymux import messages as m
from ptymux.errors import LocalProtocolError, ProtocolError
from tests.ptymux.samples import (
    BAD,
    FIELDS,
    OPTIONAL,
    PLAIN,
    TOP32,
    TOP64,
    cls,
    framed,
    message,
    packed,
    sender_of,
)

NAMES = list(FIELDS)
FIELD_CASES = [(name, field) for name in NAMES for field in FIELDS[name][2]]
BAD_CASES = [
    pytest.param(name, field, value, id=f"{name}.{field}-{index}")
    for name in NAMES
    for field, kind in FIELDS[name][2].items()
    for index, value in enumerate(BAD[kind])
]


def body_with(name: str, field: str, value: Any) -> bytes:
    """The plain message of this type as msgpack, with one field exchanged, past all checks."""
    values = [value if known == field else old for known, old in PLAIN[name]._asdict().items()]
    return packed(FIELDS[name][1], *values)


def decoded(body: bytes, sender: str) -> Any:
    return m.decode(memoryview(body), sender)


# --- the table ------------------------------------------------------------------------------------
def test_each_rows_fields_match_its_class() -> None:
    """One check for each field of the class, and a default of the class passes its own check."""
    for number, row in m.TABLE.items():
        assert len(row.fields) == len(row.cls._fields), hex(number)
        for field, value in row.cls._field_defaults.items():
            check = row.fields[row.cls._fields.index(field)]
            assert check.test(value), (row.cls.__name__, field)


def test_the_table_is_what_the_samples_say() -> None:
    """Numbers, names, order of fields, senders and optional fields, compared with a copy written by hand."""
    both = {"both": {"client", "agent"}, "client": {"client"}, "agent": {"agent"}}
    table = {
        row.cls.__name__: (set(row.sender), number, list(row.cls._fields), row.cls._field_defaults)
        for number, row in m.TABLE.items()
    }
    assert table == {
        name: (both[who], number, list(fields), OPTIONAL.get(name, {}))
        for name, (who, number, fields) in FIELDS.items()
    }


def test_every_message_class_is_in_the_table_once() -> None:
    classes = [row.cls for row in m.TABLE.values()]
    assert len(classes) == len(set(classes))
    assert set(classes) == set(get_args(m.Message))
    assert {c: n for n, c in ((n, row.cls) for n, row in m.TABLE.items())} == m.TYPE_OF


# --- round trips ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_round_trip(name: str, data: st.DataObject) -> None:
    """What is encoded decodes to an equal message of the same class, with a correct length prefix."""
    sent = data.draw(message(name))
    frame = m.encode(sent)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    got = decoded(frame[4:], sender_of(name))
    assert type(got) is cls(name)
    assert got == sent


@pytest.mark.parametrize("name", NAMES)
def test_encoding_is_plain_msgpack(name: str) -> None:
    """Any msgpack library reads the frames: [type, field, ...]."""
    sent = PLAIN[name]
    assert msgpack.unpackb(m.encode(sent)[4:]) == [FIELDS[name][1], *sent]


@pytest.mark.parametrize(("channel", "offset"), [(0, 0), (TOP32, TOP64), (1, 1 << 32)])
@pytest.mark.parametrize("size", [1, 255, 65536])
def test_output_header_has_a_fixed_width_and_is_plain_msgpack(channel: int, offset: int, size: int) -> None:
    header = m.output_header(channel, offset, size)
    assert len(header) == m.OUTPUT_HEADER_SIZE
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    assert m.encode(m.Output(channel, offset, data)) == header + data
    assert msgpack.unpackb((header + data)[4:]) == [0x10, channel, offset, data]
    assert decoded((header + data)[4:], "agent") == m.Output(channel, offset, data)


@pytest.mark.parametrize("size", [1, 31, 300, 65536])
def test_output_with_a_compact_header_is_the_same_message(size: int) -> None:
    """The fixed width is our habit, not a rule: another peer may use the shortest spelling."""
    assert decoded(packed(0x10, 1, 2, b"x" * size), "agent") == m.Output(1, 2, b"x" * size)


@pytest.mark.parametrize("cut", range(1, m.OUTPUT_HEADER_SIZE - 4 + 3))
def test_output_cut_short_inside_its_frame_is_malformed(cut: int) -> None:
    """The quick path for fixed-width headers reads nothing behind the body's end."""
    body = m.encode(m.Output(1, 2, b"abc"))[4:]
    with pytest.raises(ProtocolError, match=r"^malformed frame: not one msgpack value"):
        decoded(body[:-cut], "agent")


@pytest.mark.parametrize("extra", [b"", b"x", b"\x00" * 20])
def test_output_whose_size_is_not_the_bodys_is_malformed(extra: bytes) -> None:
    body = bytearray(m.encode(m.Output(1, 2, b"abc"))[4:])
    body[m.OUTPUT_HEADER_SIZE - 5] += 1 if not extra else 0
    with pytest.raises(ProtocolError, match=r"^malformed frame: not one msgpack value"):
        decoded(bytes(body) + extra, "agent")


@pytest.mark.parametrize(
    ("at", "code", "error"),
    [
        (2, 0xD2, None),  # the channel as int32, which is positive
        (2, 0xCA, "channel"),  # ... as float32
        (7, 0xD3, None),  # the offset as int64
        (7, 0xCB, "offset"),  # ... as float64
        (16, 0xDB, "data"),  # the data as str32
    ],
)
def test_output_of_the_fixed_width_with_other_codes_means_what_msgpack_says(
    at: int, code: int, error: str | None
) -> None:
    """The quick path takes only the codes that it knows."""
    body = bytearray(m.encode(m.Output(1, 2, b"abc"))[4:])
    body[at] = code
    if error is None:
        assert decoded(bytes(body), "agent") == m.Output(1, 2, b"abc")
        body[at + 1] = 0xFF  # and now it is negative
        error = {2: "channel", 7: "offset"}[at]
    with pytest.raises(ProtocolError, match=rf"^malformed Output: {error} must be "):
        decoded(bytes(body), "agent")


def test_output_of_the_fixed_width_with_too_much_data_is_malformed() -> None:
    body = m.output_header(1, 2, 65537)[4:] + b"x" * 65537
    with pytest.raises(ProtocolError, match=r"^malformed Output: data must be 1 to 65536 bytes$"):
        decoded(body, "agent")
    with pytest.raises(ProtocolError, match=r"^malformed Output: data must be 1 to 65536 bytes$"):
        decoded(m.output_header(1, 2, 0)[4:], "agent")


# --- leniency -------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("extra", [[None], [1, "two", {"three": [3]}], [b"x" * 100], [msgpack.ExtType(5, b"later")]])
def test_unknown_extra_fields_are_ignored(name: str, extra: list[Any]) -> None:
    body = packed(FIELDS[name][1], *PLAIN[name], *extra)
    assert decoded(body, sender_of(name)) == PLAIN[name]


@pytest.mark.parametrize("name", NAMES)
def test_missing_optional_fields_take_their_defaults_and_missing_needed_ones_are_malformed(name: str) -> None:
    values = list(PLAIN[name])
    needed = len(values) - len(OPTIONAL.get(name, {}))
    for count in range(len(values) + 1):
        body = packed(FIELDS[name][1], *values[:count])
        if count >= needed:
            got = decoded(body, sender_of(name))
            assert got[:count] == PLAIN[name][:count]
            for field in got._fields[count:]:
                assert getattr(got, field) == OPTIONAL[name][field]
        else:
            with pytest.raises(ProtocolError, match=rf"^malformed {name}: {count} fields, {needed} needed$"):
                decoded(body, sender_of(name))


@pytest.mark.parametrize("number", [0, 0x09, 0x0F, 0x1C, 0xFF, 0x100, 0xFFFF])
def test_an_unknown_type_is_reported_as_such(number: int) -> None:
    """To be answered with an error, not to end the connection, whatever its fields are."""
    assert decoded(packed(number), "client") == m.UnknownFrame(number)
    assert decoded(packed(number, {"a": [1]}, None), "agent") == m.UnknownFrame(number)


@pytest.mark.parametrize("name", NAMES)
def test_any_legal_msgpack_spelling_of_an_integer_is_taken(name: str) -> None:
    """The type number as int8, uint16, int64 and so on is the same number."""
    rest = packed(*PLAIN[name])[1:]
    number = FIELDS[name][1]
    head = bytes([0x90 + 1 + len(PLAIN[name])])
    for spelled in (b"\xcc" + bytes([number]), b"\xd0" + bytes([number]), b"\xcd\x00" + bytes([number]),
                    b"\xd3" + number.to_bytes(8, "big"), b"\xcf" + number.to_bytes(8, "big")):  # fmt: skip
        assert decoded(head + spelled + rest, sender_of(name)) == PLAIN[name]


def test_characters_are_counted_and_neither_bytes_nor_utf16_units() -> None:
    """Case C25: one unit everywhere.  64 emoji are 256 bytes and 128 UTF-16 units, and fit a field of 64 characters."""
    word = "\N{GRINNING FACE}" * 64
    assert decoded(m.encode(m.Notice(word, {}))[4:], "agent").kind == word
    with pytest.raises(LocalProtocolError):
        m.encode(m.Notice(word + "x", {}))
    text = "\N{CJK UNIFIED IDEOGRAPH-6F22}" * 8192
    assert decoded(m.encode(m.Detached(1, "removed", text))[4:], "agent").message == text


# --- malformed ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "field", "value"), BAD_CASES)
def test_a_bad_field_is_a_protocol_error_that_names_frame_and_field(name: str, field: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match=rf"^malformed {name}: {field} must be ") as caught:
        decoded(body_with(name, field, value), sender_of(name))
    assert len(str(caught.value)) < 200  # it never quotes the peer's bytes


@pytest.mark.parametrize(("name", "field", "value"), BAD_CASES)
def test_encoding_a_bad_field_is_our_own_bug(name: str, field: str, value: Any) -> None:
    with pytest.raises(LocalProtocolError, match=rf"^cannot encode {name}: {field} must be "):
        m.encode(PLAIN[name]._replace(**{field: value}))


@pytest.mark.parametrize("name", [name for name in NAMES if FIELDS[name][0] != "both"])
def test_a_frame_from_the_wrong_side_is_unexpected(name: str) -> None:
    wrong = "client" if FIELDS[name][0] == "agent" else "agent"
    with pytest.raises(ProtocolError, match=rf"^unexpected {name}: not for the {wrong} to send$"):
        decoded(m.encode(PLAIN[name])[4:], wrong)


@pytest.mark.parametrize("name", ["Error", "Ping", "Pong"])
@pytest.mark.parametrize("sender", ["client", "agent"])
def test_frames_that_both_sides_send_are_taken_from_both(name: str, sender: str) -> None:
    assert decoded(m.encode(PLAIN[name])[4:], sender) == PLAIN[name]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "not one msgpack value"),
        (b"\xc1", "not one msgpack value"),
        (b"\x92\x04", "not one msgpack value"),
        (b"\x92\x04\x01\x00", "not one msgpack value"),
        (b"\x91" * 5000 + b"\x01", "not one msgpack value"),
        (b"\xdd\xff\xff\xff\xff", "not one msgpack value"),
        (b"\xdf\xff\xff\xff\xff", "not one msgpack value"),
        (b"\xc6\xff\xff\xff\xff", "not one msgpack value"),
        (packed(0x1A, "kind")[:-4] + b"\xff\xfe\xfd\xfc" + b"\x80", "not one msgpack value"),
        (packed(0x1A, "kind", {"a": {1: 2}}), "not one msgpack value"),
        (b"\x90", "not a non-empty array"),
        (b"\x04", "not a non-empty array"),
        (b"\xc0", "not a non-empty array"),
        (b"\x80", "not a non-empty array"),
        (b"\xa4ping", "not a non-empty array"),
        (packed(-1, 1), "the type is not an integer from 0 to 65535"),
        (packed(65536, 1), "the type is not an integer from 0 to 65535"),
        (packed(True, 1), "the type is not an integer from 0 to 65535"),
        (packed(4.0, 1), "the type is not an integer from 0 to 65535"),
        (packed("4", 1), "the type is not an integer from 0 to 65535"),
        (packed([4], 1), "the type is not an integer from 0 to 65535"),
        (packed({}, 1), "the type is not an integer from 0 to 65535"),
        (packed(None), "the type is not an integer from 0 to 65535"),
    ],
)
def test_what_is_no_frame_at_all(body: bytes, error: str) -> None:
    for sender in ("client", "agent"):
        with pytest.raises(ProtocolError, match=f"^malformed frame: {error}"):
            decoded(body, sender)


@given(body=st.binary(max_size=64), sender=st.sampled_from(["client", "agent"]))
def test_random_bytes_are_a_message_or_a_protocol_error(body: bytes, sender: str) -> None:
    try:
        got = decoded(body, sender)
    except ProtocolError:
        return
    assert isinstance(got, (m.UnknownFrame, *m.TYPE_OF))


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), TOP64) | st.floats() | st.text(max_size=70) | st.binary(max_size=70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=2),
    max_leaves=5,
)  # fmt: skip


@given(number=st.sampled_from(list(m.TABLE)), fields=st.lists(_values, max_size=9))
def test_random_fields_are_a_message_that_can_be_sent_again_or_a_protocol_error(number: int, fields: list[Any]) -> None:
    """What decode lets through, encode lets through: both ends apply the same checks."""
    sender = sender_of(m.TABLE[number].cls.__name__)
    try:
        got: Any = decoded(packed(number, *fields), sender)
    except ProtocolError:
        return
    assert repr(decoded(m.encode(got)[4:], sender)) == repr(got)  # repr, because NaN != NaN


# --- our own bugs ---------------------------------------------------------------------------------
class Odd:
    """A thing that msgpack knows nothing of."""


def _ring_of_maps() -> dict[str, Any]:
    ring: dict[str, Any] = {}
    ring["x"] = ring
    return ring


@pytest.mark.parametrize(
    "value",
    [
        {"x": Odd()},
        {"x": 1 << 64},
        {"x": -(1 << 63) - 1},
        {"x": "\ud800"},
        {"x": {1: 2}},
        {"x": [{b"k": 1}]},
        {"x": ({None: 1},)},
        _ring_of_maps(),
        {"x": b"x" * limits.MAX_FRAME},
    ],
    ids=["object", "too large", "too small", "surrogate", "int key", "bytes key", "nil key", "endless", "too long"],
)
def test_what_the_other_side_would_refuse_is_refused_at_home(value: Any) -> None:
    """Whatever is in a map: a LocalProtocolError here instead of a connection that the peer drops."""
    with pytest.raises(LocalProtocolError, match=r"^cannot encode Notice: "):
        m.encode(m.Notice("kind", value))


def test_the_largest_frame_fits_exactly() -> None:
    """A body of max_frame bytes is encoded, one byte more is not."""
    spare = limits.MAX_FRAME - len(m.encode(m.Response(1, {"x": b"x" * 70000}))) + 4
    assert len(m.encode(m.Response(1, {"x": b"x" * (70000 + spare)}))) == limits.MAX_FRAME + 4
    with pytest.raises(LocalProtocolError, match=r"max_frame$"):
        m.encode(m.Response(1, {"x": b"x" * (70001 + spare)}))


def test_a_hello_that_the_agent_would_not_read_is_refused_at_home() -> None:
    """Before the hello is accepted the agent takes max_greeting bytes; the largest token fits that."""
    token, nonce = b"t" * limits.MAX_TOKEN, b"n" * 64
    assert len(m.encode(m.Hello(m.MAGIC, [1, 1], b"c" * 16, token, nonce))) < limits.MAX_GREETING
    with pytest.raises(LocalProtocolError, match=r"max_greeting$"):
        m.encode(m.Hello(m.MAGIC, [1, 1], b"c" * 16, token, nonce, {"x": "y" * limits.MAX_GREETING}))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.5, -0.0])
def test_floats_in_maps_survive(value: float) -> None:
    got = decoded(m.encode(m.Notice("k", {"x": value}))[4:], "agent")
    assert msgpack.packb(got.data["x"]) == msgpack.packb(value)


def test_framed_helper_agrees_with_the_length_prefix() -> None:
    """The tests' own framing is the protocol's."""
    assert framed(packed(0x04, 7)) == m.encode(m.Ping(7))
