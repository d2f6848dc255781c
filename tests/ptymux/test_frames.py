"""frames.py: from a byte stream to messages, whatever the cuts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptymux import limits
from ptymux import messages as m
from ptymux.errors import ProtocolError
from ptymux.frames import Decoder
from tests.ptymux.samples import FIELDS, PLAIN, framed, messages_of, packed

SENDERS = st.sampled_from(["client", "agent"])
CUTS = st.lists(st.integers(0, 1 << 20), max_size=12)  # where a stream is cut into reads, modulo its length


def new_decoder(sender: str, *, greeted: bool = True) -> Decoder:
    decoder = Decoder(sender)
    if greeted:
        decoder.greeted()
    return decoder


def held(decoder: Decoder) -> int:
    """Bytes that the decoder keeps between two reads."""
    return len(decoder._buffer)


def run(decoder: Decoder, chunks: Iterable[bytes]) -> tuple[list[Any], str | None]:
    """All messages, and the text of the error that ended them.  Anything but a ProtocolError fails the test."""
    got: list[Any] = []
    try:
        for chunk in chunks:
            for message in decoder.feed(chunk):
                got.append(message)  # one by one: those before the error count
            assert held(decoder) <= limits.MAX_FRAME + 4
    except ProtocolError as error:
        return got, str(error)
    return got, None


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(stream) + 1) for cut in cuts})
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


def byte_by_byte(stream: bytes) -> list[bytes]:
    return [stream[i : i + 1] for i in range(len(stream))]


@st.composite
def streams(draw: st.DrawFn) -> tuple[str, list[Any]]:
    sender = draw(SENDERS)
    return sender, draw(st.lists(messages_of(sender), max_size=6))


@given(stream=streams(), cuts=CUTS)
def test_any_chunking_gives_the_same_messages(stream: tuple[str, list[Any]], cuts: list[int]) -> None:
    sender, sent = stream
    data = b"".join(map(m.encode, sent))
    for chunks in ([data], split(data, cuts), byte_by_byte(data)):
        decoder = new_decoder(sender)
        assert run(decoder, chunks) == (sent, None)
        assert held(decoder) == 0


def truncate(data: bytearray, draw: Callable[[int], int]) -> None:
    del data[draw(len(data)) :]


def flip(data: bytearray, draw: Callable[[int], int]) -> None:
    data[draw(len(data) - 1)] ^= 1 << draw(7)


def insert(data: bytearray, draw: Callable[[int], int]) -> None:
    at = draw(len(data))
    data[at:at] = bytes([draw(255)])


def remove(data: bytearray, draw: Callable[[int], int]) -> None:
    del data[draw(len(data) - 1)]


def repeat(data: bytearray, draw: Callable[[int], int]) -> None:
    start = draw(len(data) - 1)
    data[start:start] = data[start : start + 1 + draw(20)]


def set_length(data: bytearray, draw: Callable[[int], int]) -> None:
    data[0:4] = draw(0xFFFFFFFF).to_bytes(4, "big")


MUTATIONS = st.lists(st.sampled_from([truncate, flip, insert, remove, repeat, set_length]), min_size=1, max_size=4)


@given(stream=streams(), mutations=MUTATIONS, cuts=CUTS, greeted=st.booleans(), data=st.data())
def test_a_damaged_stream_ends_the_same_way_however_it_is_cut(
    stream: tuple[str, list[Any]], mutations: list[Any], cuts: list[int], greeted: bool, data: st.DataObject
) -> None:
    """Nothing but ProtocolError; the same good messages before it, the same text, the same bytes left over."""
    check_damaged(stream, mutations, cuts, greeted, data)


@pytest.mark.slow
@settings(max_examples=5000)
@given(stream=streams(), mutations=MUTATIONS, cuts=CUTS, greeted=st.booleans(), data=st.data())
def test_many_damaged_streams_end_the_same_way_however_they_are_cut(
    stream: tuple[str, list[Any]], mutations: list[Any], cuts: list[int], greeted: bool, data: st.DataObject
) -> None:
    check_damaged(stream, mutations, cuts, greeted, data)


def check_damaged(
    stream: tuple[str, list[Any]], mutations: list[Any], cuts: list[int], greeted: bool, data: st.DataObject
) -> None:
    sender, sent = stream
    damaged = bytearray(b"".join(map(m.encode, sent)))
    for mutate in mutations:
        if damaged:
            mutate(damaged, lambda top: data.draw(st.integers(0, top)))
    check_all_chunkings(sender, bytes(damaged), cuts, greeted)


@given(sender=SENDERS, garbage=st.binary(max_size=200), cuts=CUTS)
def test_garbage_ends_the_same_way_however_it_is_cut(sender: str, garbage: bytes, cuts: list[int]) -> None:
    check_all_chunkings(sender, garbage, cuts, greeted=True)


@given(
    sender=SENDERS,
    bodies=st.lists(st.binary(min_size=1, max_size=20), max_size=5),
    cuts=CUTS,
)
def test_garbage_in_good_frames_ends_the_same_way_however_it_is_cut(
    sender: str, bodies: list[bytes], cuts: list[int]
) -> None:
    check_all_chunkings(sender, b"".join(map(framed, bodies)), cuts, greeted=True)


def check_all_chunkings(sender: str, stream: bytes, cuts: list[int], greeted: bool) -> None:
    whole = new_decoder(sender, greeted=greeted)
    expected = run(whole, [stream])
    for chunks in (split(stream, cuts), byte_by_byte(stream)):
        decoder = new_decoder(sender, greeted=greeted)
        got = run(decoder, chunks)
        # repr, because a mutation may have made a NaN, which does not equal itself
        assert repr(got) == repr(expected)
        if expected[1] is None:
            assert held(decoder) == held(whole)


# --- limits ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("greeted", "limit", "name"), [(False, 4096, "max_greeting"), (True, 1 << 20, "max_frame")])
def test_a_frame_of_the_limit_is_taken_and_one_byte_more_is_refused_at_its_header(
    greeted: bool, limit: int, name: str
) -> None:
    """The length alone is enough to refuse it: nothing of the body is waited for or kept."""
    body = packed(0x04, 7, b"x" * (limit - (8 if limit > 65536 else 6)))
    assert len(body) == limit
    assert run(new_decoder("client", greeted=greeted), [framed(body)]) == ([m.Ping(7)], None)

    error = f"malformed frame: length {limit + 1} exceeds {name} ({limit})"
    decoder = new_decoder("client", greeted=greeted)
    assert run(decoder, [(limit + 1).to_bytes(4, "big")]) == ([], error)
    assert held(decoder) <= 4


@pytest.mark.parametrize("chunk", [1, 3, 4096, 65536, 1 << 20])
def test_an_unfinished_frame_is_all_that_is_kept(chunk: int) -> None:
    """Memory stays below the limit and 4 bytes, and a header alone reserves nothing."""
    decoder = new_decoder("client")
    assert run(decoder, [limits.MAX_FRAME.to_bytes(4, "big")]) == ([], None)
    assert sys.getsizeof(decoder._buffer) < 200
    total = 0
    while total + chunk < min(limits.MAX_FRAME, chunk * 5000):
        assert list(decoder.feed(b"\x00" * chunk)) == []
        total += chunk
        assert held(decoder) == total + 4
    assert sys.getsizeof(decoder._buffer) <= (total + 4) * 9 // 8 + 200  # bytearray's own growth included


@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=30), chunk=st.integers(1, 5000))
def test_what_is_kept_is_less_than_the_frame_it_belongs_to(sizes: list[int], chunk: int) -> None:
    """Frames that are complete leave nothing behind."""
    stream = b"".join(framed(packed(0x04, 7, b"x" * size)) for size in sizes)
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + len(framed(packed(0x04, 7, b"x" * size))))
    decoder = new_decoder("client")
    for start in range(0, len(stream), chunk):
        list(decoder.feed(stream[start : start + chunk]))
        position = min(start + chunk, len(stream))
        assert held(decoder) == position - max(end for end in ends if end <= position)


def test_length_zero_is_malformed_at_once() -> None:
    assert run(new_decoder("client"), [bytes(4)]) == ([], "malformed frame: length 0")
    good = m.encode(m.Ping(1))
    assert run(new_decoder("client"), [good + bytes(4) + good]) == ([m.Ping(1)], "malformed frame: length 0")


# --- greeting -------------------------------------------------------------------------------------
def test_the_limit_is_raised_between_two_frames_of_one_read() -> None:
    """A client may send its hello and a large frame in one piece: the second is judged after the first was handled."""
    hello = PLAIN["Hello"]
    request = m.Request(1, "create", {"env": "x" * 10000}, None)
    decoder = Decoder("client")
    got = []
    for message in decoder.feed(m.encode(hello) + m.encode(request)):
        got.append(message)
        decoder.greeted()
    assert got == [hello, request]


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 5, 100])
def test_the_limit_is_raised_for_a_frame_whose_header_came_after_the_greeting(cut: int) -> None:
    """Wherever a read ended, the frame that follows the hello is judged by the limit of its time."""
    request = m.encode(m.Request(1, "create", {"env": "x" * 10000}, None))
    decoder = Decoder("client")
    got: list[Any] = []
    for chunk in (m.encode(PLAIN["Hello"]) + request[:cut], request[cut:]):
        for message in decoder.feed(chunk):
            got.append(message)
            decoder.greeted()
    assert [type(message).__name__ for message in got] == ["Hello", "Request"]


def test_without_a_greeting_a_large_frame_is_refused_whoever_sends_it() -> None:
    """A stranger cannot make us buffer a megabyte."""
    request = m.encode(m.Request(1, "create", {"env": "x" * 10000}, None))
    got, error = run(Decoder("client"), [m.encode(PLAIN["Hello"]) + request])
    assert got == [PLAIN["Hello"]]
    assert error is not None
    assert "exceeds max_greeting (4096)" in error


# --- kinds of buffers -----------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("sender", ["client", "agent"])
def test_messages_do_not_alias_the_callers_buffer(kind: type, sender: str) -> None:
    """A read buffer may be used again at once."""
    sent = [PLAIN[name] for name, (who, _, _) in FIELDS.items() if who in (sender, "both")]
    stream = bytearray(b"".join(map(m.encode, sent)))
    decoder = new_decoder(sender)
    half = len(stream) // 2
    got = list(decoder.feed(kind(stream[:half])))
    buffer = bytearray(stream[half:])
    got += list(decoder.feed(memoryview(buffer) if kind is memoryview else kind(buffer)))
    buffer[:] = bytes(len(buffer))
    assert got == sent
    assert all(type(getattr(message, "data", b"")) in (bytes, dict) for message in got)


def test_an_empty_read_changes_nothing() -> None:
    frame = m.encode(m.Ping(5))
    assert run(new_decoder("client"), [b"", frame[:3], b"", frame[3:6], b"", frame[6:], b""]) == ([m.Ping(5)], None)


def test_a_large_frame_in_small_reads_costs_linear_time() -> None:
    """Byte by byte, one frame of nearly 1 MiB costs about as much as 256 of 4 KiB: it is copied once, and not once a read.

    A ratio of CPU times in one process, best of three: about 1; quadratic, it is above 10.
    """

    def cost(count: int, size: int) -> float:
        chunks = byte_by_byte(framed(packed(0x06, 1, "create", {"x": b"y" * size})) * count)
        started = time.process_time()
        got, error = run(new_decoder("client"), chunks)
        assert error is None
        assert len(got) == count
        return time.process_time() - started

    assert min(cost(1, 1000 << 10) for _ in range(3)) < 5 * min(cost(250, 1 << 12) for _ in range(3))
