"""The corpus: terminal streams recorded here, one file each.

A file is lines of JSON: a header `{"columns", "rows", "how"}`, then `["o", text]` for output and `["r", columns, rows]` for a
resize.  Output is in Latin-1, one character a byte, since a stream need not be UTF-8.  Each chunk of output is what a program wrote
between two keys.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.terminal.stream import Chunk, Stream

FOLDER = Path(__file__).parent / "corpus"
SUFFIX = ".jsonl"


def load() -> list[Stream]:
    """All of it, in the order of names."""
    return [read(path) for path in sorted(FOLDER.glob(f"*{SUFFIX}"))]


def read(path: Path) -> Stream:
    header, *records = [json.loads(line) for line in path.read_text(encoding="latin-1").splitlines()]
    return Stream(path.stem, header["columns"], header["rows"], tuple(_chunk(record) for record in records))


def _chunk(record: list[str | int]) -> Chunk:
    match record:
        case ["o", str() as text]:
            return text.encode("latin-1")
        case ["r", int() as columns, int() as rows]:
            return (columns, rows)
    raise ValueError(f"cannot read a record of the corpus: {record}")


def save(stream: Stream, how: str) -> Path:
    FOLDER.mkdir(exist_ok=True)
    lines = [json.dumps({"columns": stream.columns, "rows": stream.rows, "how": how})]
    for chunk in stream.chunks:
        record = ["o", chunk.decode("latin-1")] if isinstance(chunk, bytes) else ["r", *chunk]
        lines.append(json.dumps(record))
    path = FOLDER / f"{stream.name}{SUFFIX}"
    path.write_text("\n".join(lines) + "\n")
    return path
