"""The disk of the test guests: what ``python -m image build`` makes, with our present sources, programs to run and tokens."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Final

from image import cache
from image.__main__ import main, open_root
from image.entries import Entry

PROJECT: Final = Path(__file__).parent.parent.parent.parent
SOURCES: Final = ("guestagent", "protocol/ptymux", "image")
FILES: Final = ("pyproject.toml", "requirements.lock")
PACKAGES: Final = "vim-tiny"

ADMIN: Final = "the-admin-token-of-the-test-image"
VIEWER: Final = "the-viewer-token-of-the-test-image"
TOKENS: Final = f"{ADMIN}\nviewer {VIEWER}\n"
PORT: Final = 5252  # of vsock, and of WebSocket on the guest's loopback interface
READY: Final = "guestagent.server: listening on"  # on the console
CONFIG: Final = f"""\
[listen.vsock]
port = {PORT}

[listen.unix]
path = "/run/guestagent.sock"

[listen.websocket]
address = "127.0.0.1:{PORT}"

[access]
token_file = "/etc/guestagent/tokens"
"""
# For a test of what the guest does when its host never comes back.
IMPATIENT: Final = "/etc/guestagent/impatient.toml"
THAW_AFTER: Final = 3.0


def rootfs() -> Path:
    """A raw ext4 image, from the cache if the sources are those of then.  Not to be written to."""
    key = _key()
    folder = cache.folder() / "vm"

    def make(file: Path) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
            config.write(CONFIG)
            config.flush()
            if main(["build", str(file), "--include", PACKAGES, "--start", "init", "--config", config.name]) != 0:
                raise RuntimeError("cannot build the test image: the reason is above")
        tokens = Entry.file("/etc/guestagent/tokens", TOKENS, 0o600)
        impatient = Entry.file(IMPATIENT, f"{CONFIG}\n[snapshot]\nthaw_after = {THAW_AFTER}\n")
        open_root(file).install([tokens, impatient], replace=[])

    image = cache.keep(f"vm/{key}.ext4", make)
    for other in folder.glob("*.ext4"):  # a few hundred megabytes for each edit
        if other != image:
            other.unlink(missing_ok=True)
    return image


def _key() -> str:
    """Of everything that goes into the image and is ours."""
    sum = hashlib.sha256(repr((CONFIG, TOKENS, PACKAGES, THAW_AFTER)).encode())
    files = [PROJECT / name for name in FILES]
    files += [path for name in SOURCES for path in (PROJECT / name).rglob("*") if path.is_file()]
    for path in sorted(files):
        if "__pycache__" not in path.parts and path.suffix != ".md":
            sum.update(f"{path.relative_to(PROJECT)}\0".encode() + path.read_bytes() + b"\0")
    return sum.hexdigest()[:20]
