"""What is pinned: the runtime dependencies of pyproject.toml, with the versions and hashes of requirements.lock."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from image.errors import ImageError

PROJECT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Pin:
    name: str
    version: str
    hashes: tuple[str, ...]  # "sha256:..."


@dataclass(frozen=True, slots=True)
class Project:
    version: str
    license: str
    dependencies: tuple[str, ...]  # runtime only, as in pyproject.toml
    packages: tuple[Path, ...]  # folders of ours that go into the wheel, and so into the image
    scripts: dict[str, str]  # command -> module:function
    pins: dict[str, Pin]


def read(project: Path = PROJECT) -> Project:
    table = tomllib.loads((project / "pyproject.toml").read_text())
    metadata, hatch = table["project"], table["tool"]["hatch"]
    version = re.search(r'^__version__ = "(.+)"$', (project / hatch["version"]["path"]).read_text(), re.M)
    if version is None:
        raise ImageError(f"cannot find the version in {hatch['version']['path']}")
    return Project(
        version[1],
        metadata["license"],
        tuple(metadata["dependencies"]),
        tuple(project / package for package in hatch["build"]["targets"]["wheel"]["packages"]),
        dict(metadata["scripts"]),
        parse((project / "requirements.lock").read_text()),
    )


def parse(text: str) -> dict[str, Pin]:
    """Pins by canonical name.  The markers of a universal lock file are not looked at: see wheels.py."""
    pins: dict[str, Pin] = {}
    for block in re.findall(r"^[A-Za-z0-9].*", text.replace("\\\n", " "), re.M):
        found = re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", block)
        hashes = re.findall(r"--hash=(sha256:[0-9a-f]{64})", block)
        if found is None or not hashes:
            raise ImageError(f"cannot use the lock file: {block[:100]} has no version or no hash")
        name = canonicalize_name(found[1])
        pins[name] = Pin(name, found[2], tuple(hashes))
    return pins


def pinned(requirement: str, pins: dict[str, Pin], environment: dict[str, Any]) -> Pin | None:
    """The pin that satisfies a requirement there; None if its marker says that it is not needed there."""
    wanted = Requirement(requirement)
    if wanted.marker is not None and not wanted.marker.evaluate(environment):
        return None
    pin = pins.get(canonicalize_name(wanted.name))
    if pin is None or not wanted.specifier.contains(pin.version, prereleases=True):
        raise ImageError(f"cannot satisfy {requirement}: the lock file is older than pyproject.toml (make lock)")
    return pin
