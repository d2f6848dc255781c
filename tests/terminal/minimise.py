"""Shrinking a stream to the shortest one that still shows a fault: delta debugging over its sequences and characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tests.terminal.stream import Chunk, Stream, joined

TOKEN = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    rb"|\x1b[\]PX^_][^\x07\x18\x1a\x1b]*(?:\x07|\x1b\\|\x18|\x1a)?"  # strings
    rb"|\x1b[ -/]*[0-~]"
    rb"|[\xc0-\xff][\x80-\xbf]+"
    rb"|.",
    re.DOTALL,
)

Differ = Callable[[Sequence[Stream]], list[bool]]  # which of the candidates still show it


def minimal(stream: Stream, differ: Differ) -> Stream:
    """No token of the result can be left out; where writes are cut is kept only if it matters."""
    tokens = _tokens(stream)
    build = _joined if differ([_joined(stream, tokens)])[0] else _torn
    if build is _torn:
        tokens = list(stream.chunks)
    parts = 2
    while len(tokens) >= 2:
        size = max(1, -(-len(tokens) // parts))
        starts = range(0, len(tokens), size)
        candidates = [tokens[:start] + tokens[start + size :] for start in starts]
        smaller = _first(candidates, lambda some: differ([build(stream, tokens) for tokens in some]))
        if smaller is not None:
            tokens = smaller
            parts = max(2, min(parts, len(tokens)) - 1)
        elif size == 1:
            break
        else:
            parts = min(len(tokens), parts * 2)
    return build(stream, tokens)


def _first(
    candidates: list[list[Chunk]], differ: Callable[[list[list[Chunk]]], list[bool]], batch: int = 16
) -> list[Chunk] | None:
    for start in range(0, len(candidates), batch):
        some = candidates[start : start + batch]
        for candidate, wrong in zip(some, differ(some), strict=True):
            if wrong:
                return candidate
    return None


def _tokens(stream: Stream) -> list[Chunk]:
    tokens: list[Chunk] = []
    pending = b""
    for chunk in (*stream.chunks, None):
        if isinstance(chunk, bytes):
            pending += chunk
            continue
        tokens += TOKEN.findall(pending)
        pending = b""
        if chunk is not None:
            tokens.append(chunk)
    return tokens


def _torn(stream: Stream, tokens: Sequence[Chunk]) -> Stream:
    return stream._replace(chunks=tuple(tokens))


def _joined(stream: Stream, tokens: Sequence[Chunk]) -> Stream:
    return stream._replace(chunks=joined(tokens))
