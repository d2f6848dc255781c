"""What can go wrong in ways that the caller should read in one line."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import IO, Any


class ImageError(Exception):
    """ "cannot X: cause"."""


def run(argv: Sequence[str], what: str, **more: Any) -> str:
    """Run a command to its end; its output, or ImageError with the end of what it complained about."""
    if "input" in more:
        more["input"] = more["input"].encode()
    else:
        more["stdin"] = subprocess.DEVNULL
    return _run(argv, what, **more).decode("utf-8", "replace")


def run_binary(argv: Sequence[str], what: str, stdin: IO[bytes]) -> bytes:
    """As :func:`run`, with bytes."""
    return _run(argv, what, stdin=stdin)


def _run(argv: Sequence[str], what: str, **more: Any) -> bytes:
    try:
        done: subprocess.CompletedProcess[bytes] = subprocess.run(argv, check=False, capture_output=True, **more)
    except FileNotFoundError:
        raise ImageError(f"cannot {what}: there is no {argv[0]} (Debian has it in a package)") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()[-8:]
        raise ImageError(f"cannot {what}: {argv[0]} ended with {done.returncode}: " + " | ".join(lines))
    return done.stdout
