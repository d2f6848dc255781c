"""The golden frames of protocol/vectors: they are what their generator writes, and Python passes all of them."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ptymux
from ptymux import messages as m
from ptymux.errors import ProtocolError
from ptymux.frames import Decoder

HOME = Path(ptymux.__file__).parents[1] / "vectors"


def load(name: str) -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads((HOME / "v1" / f"{name}.json").read_text())
    return vectors


VALID, MALFORMED, STREAMS = load("valid"), load("malformed"), load("streams")


def named(vectors: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(vector, id=re.sub(r"[^\w.-]+", "-", vector["name"])) for vector in vectors]


def joined(parts: list[Any]) -> bytes:
    return b"".join(bytes.fromhex(part) if type(part) is str else bytes.fromhex(part[0]) * part[1] for part in parts)


def value_of(value: Any) -> Any:
    """A value of the JSON files as README.md describes it."""
    match value:
        case {"hex": data, **more} if more.keys() <= {"times"}:
            return bytes.fromhex(data) * more.get("times", 1)
        case {"text": text, "times": times}:
            return text * times
        case {"int": number}:
            return int(number)
        case dict():
            return {key: value_of(item) for key, item in value.items()}
        case list():
            return [value_of(item) for item in value]
    return value


def message_of(vector: dict[str, Any]) -> Any:
    fields = {name: value_of(value) for name, value in vector["fields"].items()}
    return getattr(m, vector["type"])(**fields)


def run(sender: str, chunks: list[bytes], *, greeted: bool = True) -> tuple[list[Any], str | None, int]:
    decoder = Decoder(sender)
    if greeted:
        decoder.greeted()
    got: list[Any] = []
    try:
        for chunk in chunks:
            for message in decoder.feed(chunk):
                got.append(message)  # one by one: those before the error count
    except ProtocolError as error:
        return got, str(error), 0
    return got, None, len(decoder._buffer)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def same(got: Any, expected: Any) -> bool:
    """Equal, with the same types all the way down (True is no 1, a list no tuple)."""
    return bool(got == expected) and repr(got) == repr(expected)


# --- the files ------------------------------------------------------------------------------------
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", HOME / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_generator_writes() -> None:
    """Twice, because it must not depend on what it did before.  If this fails, run it, and think about the protocol's version."""
    generate = generator()
    for _ in range(2):
        for path, text in generate.generate():
            assert path.read_text() == text, f"run {HOME / 'generate.py'}"
    assert {path.name for path, _ in generate.generate()} == {path.name for path in (HOME / "v1").iterdir()}


def test_the_generator_is_a_second_opinion() -> None:
    """It imports neither ptymux nor a msgpack library."""
    source = (HOME / "generate.py").read_text()
    assert not re.search(r"^\s*(from|import) (ptymux|msgpack|umsgpack)", source, re.MULTILINE)


def test_every_frame_type_has_vectors_of_every_kind() -> None:
    """At least two valid ones, one of them canonical, and two malformed ones."""
    valid = Counter(vector["type"] for vector in VALID)
    canonical = Counter(vector["type"] for vector in VALID if vector["canonical"])
    malformed = Counter(re.split(r"[ .]", vector["name"])[0] for vector in MALFORMED)
    for row in m.TABLE.values():
        name = row.cls.__name__
        assert valid[name] >= 2, name
        assert canonical[name] >= 1, name
        assert malformed[name] >= 2, name
    assert len(MALFORMED) >= 60


def test_every_field_is_once_malformed() -> None:
    """No field of the table is unchecked anywhere."""
    have = {vector["name"].split(":")[0] for vector in MALFORMED if "." in vector["name"]}
    optional_maps = {f"{row.cls.__name__}.{field}" for row in m.TABLE.values() for field in row.cls._field_defaults}
    fields = {f"{row.cls.__name__}.{field}" for row in m.TABLE.values() for field in row.cls._fields}
    assert fields - optional_maps - have == set()
    assert have <= fields


def test_the_edges_are_there() -> None:
    """0, 2**32 - 1 and 2**64 - 1, for each type that has such fields."""
    edges: dict[str, set[int]] = {}
    for vector in VALID:
        if vector["type"] != "UnknownFrame":
            numbers = [value for value in message_of(vector) if type(value) is int]
            edges.setdefault(vector["type"], set()).update(numbers)
    for row in m.TABLE.values():
        name = row.cls.__name__
        for check, top in ((m.U32, (1 << 32) - 1), (m.U64, (1 << 64) - 1)):
            if check in row.fields:
                assert {0, top} <= edges[name], name


def test_names_are_unique() -> None:
    for vectors in (VALID, MALFORMED, STREAMS):
        names = [vector["name"] for vector in vectors]
        assert len(set(names)) == len(names)


# --- Python passes --------------------------------------------------------------------------------
@pytest.mark.parametrize("vector", named(VALID))
def test_a_valid_frame_is_understood(vector: dict[str, Any]) -> None:
    frame, expected = joined(vector["frame"]), message_of(vector)
    assert list(vector["fields"]) == list(expected._fields)
    for chunks in ([frame], [frame[:4], frame[4:]], [frame[:1], frame[1:-1], frame[-1:]], list(map(bytes, zip(frame)))):
        got, error, left = run(vector["sender"], chunks)
        assert error is None
        assert left == 0
        assert len(got) == 1
        assert same(got[0], expected)


@pytest.mark.parametrize("vector", named([vector for vector in VALID if vector["canonical"]]))
def test_a_canonical_frame_is_what_we_send(vector: dict[str, Any]) -> None:
    assert m.encode(message_of(vector)) == joined(vector["frame"])


@pytest.mark.parametrize("vector", named([vector for vector in VALID if not vector["canonical"]]))
def test_another_spelling_is_not_what_we_send(vector: dict[str, Any]) -> None:
    """Or it should be called canonical.  What it means is sent in the canonical spelling and understood the same."""
    if vector["type"] == "UnknownFrame":
        return
    expected = message_of(vector)
    frame = m.encode(expected)
    assert frame != joined(vector["frame"])
    assert run(vector["sender"], [frame]) == ([expected], None, 0)


@pytest.mark.parametrize("vector", named(MALFORMED))
def test_a_malformed_frame_is_one_protocol_error(vector: dict[str, Any]) -> None:
    frame = joined(vector["frame"])
    ends = [run(vector["sender"], chunks, greeted=vector["greeted"])
            for chunks in ([frame], [frame[:3], frame[3:]], list(map(bytes, zip(frame))))]  # fmt: skip
    assert ends[0][0] == []
    assert ends[0][1] is not None
    assert vector["error"] in ends[0][1]
    assert ends[1] == ends[2] == ends[0]


@pytest.mark.parametrize("vector", named(STREAMS))
def test_a_stream_gives_the_same_however_it_is_cut(vector: dict[str, Any]) -> None:
    data = joined(vector["bytes"])
    expected = [message_of(message) for message in vector["messages"]]
    for places in [[], *vector["cuts"], list(range(1, len(data)))]:
        got, error, left = run(vector["sender"], cut(data, places), greeted=vector["greeted"])
        assert same(got, expected)
        if vector["error"] is None:
            assert error is None
            assert left == vector["left"]
        else:
            assert error is not None
            assert vector["error"] in error
