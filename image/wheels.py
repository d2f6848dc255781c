"""The wheels of the pinned runtime dependencies, for the guest's Python and not for ours.

Which ones is found from pyproject.toml on, by what each wheel says that it needs there: the lock file is a universal one and
has the tools of the developers in it too.  pip fetches, and refuses whatever does not have one of the pinned hashes.
"""

from __future__ import annotations

import email.parser
import sys
import tempfile
import zipfile
from email.message import Message
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name

from image import cache, lock
from image.errors import ImageError, run
from image.target import Target

# Left out: what no program of ours imports.  trio's tests alone are a third of everything.
UNUSED_FOLDERS = ("_tests", "tests", "_tools")
UNUSED_SUFFIXES = (".pyi", ".pyx", ".pxd", ".c", ".cpp", ".h")
# What each known terminal program draws otherwise, 3.3 MB: wcwidth reads one when it is asked about that program, which the renderer
# never does, and goes on without if it is not there.
UNUSED_FILES = ("wcwidth/table_grapheme_overrides/_known_",)


def fetch(project: lock.Project, target: Target) -> list[Path]:
    """The wheels that the agent needs on `target`, dependencies of dependencies included, sorted by name."""
    found: dict[str, Path] = {}
    wanted = list(project.dependencies)
    while wanted:
        pins = {pin.name: pin for text in wanted if (pin := lock.pinned(text, project.pins, target.markers))}
        new = [pin for name, pin in sorted(pins.items()) if name not in found]
        found.update(_wheels(new, target))
        wanted = [text for pin in new for text in metadata(found[pin.name]).get_all("Requires-Dist") or []]
    return [found[name] for name in sorted(found)]


def _wheels(pins: list[lock.Pin], target: Target) -> dict[str, Path]:
    """By name of the package; from the cache where the same were wanted before."""

    def download(folder: Path) -> None:
        lines = [f"{pin.name}=={pin.version} {' '.join(f'--hash={one}' for one in pin.hashes)}\n" for pin in pins]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
            requirements.writelines(lines)
            requirements.flush()
            run(
                [
                    *(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"),
                    *("--only-binary=:all:", "--require-hashes", "-r", requirements.name, "-d", str(folder)),
                    *("--implementation", "cp", "--python-version", f"{target.python[0]}.{target.python[1]}"),
                    *(word for abi in (target.tag, "abi3", "none") for word in ("--abi", abi)),
                    *(word for tag in target.platforms for word in ("--platform", tag)),
                ],
                f"fetch {', '.join(pin.name for pin in pins)} for {target.tag} on {target.machine} ({target.libc})",
            )

    if not pins:
        return {}
    folder = cache.keep(f"wheels/{cache.key(pins, target.tag, target.platforms)}", download)
    return {canonicalize_name(wheel.name.split("-")[0]): wheel for wheel in folder.glob("*.whl")}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [item for item in archive.namelist() if item.endswith(".dist-info/METADATA") and item.count("/") == 1]
        return email.parser.BytesParser().parsebytes(archive.read(name))


def files(wheel: Path, *, pure: bool) -> dict[str, bytes]:
    """What of a wheel goes into the image, by path below the library folder.

    `pure`: without compiled modules, for a Python that we know nothing of; msgpack then uses its slower Python code.
    """
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            path = PurePosixPath(item.filename)
            if path.parts[0].endswith(".data"):
                raise ImageError(f"cannot use {wheel.name}: it installs files outside of its packages")
            if item.is_dir() or path.suffix in UNUSED_SUFFIXES or set(UNUSED_FOLDERS) & set(path.parts[:-1]):
                continue
            if item.filename.startswith(UNUSED_FILES) or (pure and path.suffix == ".so"):
                continue
            found[item.filename] = archive.read(item)
    return found
