"""Things that are expensive to make, kept by a key of everything that went into them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def folder() -> Path:
    """``GUESTAGENT_CACHE``, else the usual place of a user's caches."""
    explicit = os.environ.get("GUESTAGENT_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "guestagent"


def key(*inputs: object) -> str:
    return hashlib.sha256(repr(inputs).encode()).hexdigest()[:20]


def keep(name: str, make: Callable[[Path], None]) -> Path:
    """The file or folder `name` in the cache; `make(path)` makes it if it is not there.

    It appears whole or not at all, so two builders at once do the work twice and both are right.
    """
    final = folder() / name
    if final.exists():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=".making-") as scratch:
        made = Path(scratch) / final.name
        make(made)
        with contextlib.suppress(OSError):  # another builder was faster; a folder cannot replace a full one
            made.rename(final)
        if made.is_dir():
            shutil.rmtree(made)
    return final
