"""The tools of these tests: streams, mixes that stay the same, and the shrinking of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.terminal import corpus
from tests.terminal.minimise import minimal
from tests.terminal.mixes import mix, mixes
from tests.terminal.stream import Stream
from tests.terminal.xterm import BOLD, RGB, Xterm, XtermError


def _output(stream: Stream) -> bytes:
    return b"".join(chunk for chunk in stream.chunks if isinstance(chunk, bytes))


STREAM = Stream("s", 10, 3, (b"abc", (5, 3), b"defg", (7, 3)))


def test_cut() -> None:
    assert STREAM.cut(0).chunks == ()
    assert STREAM.cut(2).chunks == (b"ab",)
    assert STREAM.cut(3).chunks == (b"abc", (5, 3))
    assert STREAM.cut(4).chunks == (b"abc", (5, 3), b"d")
    assert STREAM.cut(7) == STREAM


def test_pieces() -> None:
    assert STREAM.in_pieces(2).chunks == (b"ab", b"c", (5, 3), b"de", b"fg", (7, 3))


def test_mixes_stay_the_same() -> None:
    """DIFFERENCES.md names seeds: it must be written anew when this changes."""
    digest = hashlib.sha256(repr([tuple(mix) for mix in mixes(200)]).encode()).hexdigest()
    assert digest[:16] == "35ddbbd348ce4e39"


def test_corpus_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    stream = Stream("all-bytes", 10, 3, (bytes(range(256)), (5, 3), b"x"))
    corpus.save(stream, "by hand")
    assert corpus.load() == [stream]


def test_minimal() -> None:
    def differ(candidates: Sequence[Stream]) -> list[bool]:
        return [
            b"\x1b[3J" in _output(one) and "漢".encode() in _output(one) and (5, 3) in one.chunks for one in candidates
        ]

    stream = mix(1)._replace(chunks=(*mix(1).chunks, b"x\x1b[3Jy", (5, 3), "a漢b".encode()))
    assert minimal(stream, differ).chunks == (b"\x1b[3J", (5, 3), "漢".encode())


def test_normal_form(xterm: Xterm) -> None:
    (state,) = xterm.render([Stream("s", 5, 2, (b"\x1b[1;31m\xe6\xbc\xa2\x1b[0;48;2;1;2;3m\x1b[K\x1b[6n\x1b[?25l",))])
    assert state == {
        "columns": 5,
        "rows": 2,
        "cursor": {"x": 2, "y": 0, "pending_wrap": False, "visible": False},
        "alternate": False,
        "screen": [
            {
                "wrapped": False,
                "cells": [["漢", 2, 1, -1, BOLD], ["", 0, 1, -1, BOLD], *[[" ", 1, -1, RGB | 0x010203, 0]] * 3],
            },
            {"wrapped": False, "cells": []},
        ],
        "main": None,
        "scrollback": [],
        "modes": {
            "app_cursor": False,
            "app_keypad": False,
            "bracketed_paste": False,
            "insert": False,
            "origin": False,
            "wraparound": True,
            "reverse_wraparound": False,
            "focus": False,
            "mouse": "none",
        },
        "title": "",
        "answers": [b"\x1b[1;3R"],
    }


def test_xterm_that_raises(xterm: Xterm) -> None:
    """It is reported, and the next stream is not harmed."""
    with pytest.raises(XtermError, match="mix-924"):  # a fault of its line feed
        xterm.render([mix(924)])
    (state,) = xterm.render([Stream("s", 5, 2, (b"ok",))])
    assert state["cursor"]["x"] == 2
