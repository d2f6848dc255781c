"""What can go wrong in ways that the caller should read in one line."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any


class ImageError(Exception):
    """ "cannot X: cause"."""


def run(argv: Sequence[str], what: str, **more: Any) -> str:
    """Run a command to its end; its output, or ImageError with the end of what it complained about."""
    if "input" not in more:
        more["stdin"] = subprocess.DEVNULL
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            argv, check=False, capture_output=True, text=True, **more
        )
    except FileNotFoundError:
        raise ImageError(f"cannot {what}: there is no {argv[0]} (Debian has it in a package)") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()[-8:]
        raise ImageError(f"cannot {what}: {argv[0]} ended with {done.returncode}: " + " | ".join(lines))
    return done.stdout
