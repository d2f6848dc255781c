"""What takes long to make, kept between runs in a folder named after a hash of what it was made from."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def root() -> Path:
    """GUESTAGENT_CACHE, or a folder in the user's cache."""
    chosen = os.environ.get("GUESTAGENT_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "guestagent"


def kept(name: str, inputs: bytes, make: Callable[[Path], None]) -> Path:
    """The folder that `make` filled for these inputs, now or earlier.

    `inputs` are everything that the outcome depends on.  Two that want the same wait for one another; what fails or is killed leaves
    nothing that is taken for whole.  Older folders of the same name are removed.
    """
    folder = root()
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / f"{name}-{hashlib.sha256(inputs).hexdigest()[:16]}"
    if whole.is_dir():
        return whole
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if whole.is_dir():
            return whole
        part = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
        try:
            make(part)
            part.chmod(0o755)
            part.rename(whole)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        for other in folder.glob(f"{name}-" + "?" * 16):
            if other != whole:
                shutil.rmtree(other, ignore_errors=True)
    return whole
