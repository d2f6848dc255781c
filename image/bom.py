"""What is inside: RECORD (every file with its hash, in the format of a wheel's) and an SBOM (CycloneDX)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from image import lock, wheels
from image.entries import Entry


def record(entries: Iterable[Entry], base: str) -> str:
    """One line a file, ``path,sha256=...,size``, paths below `base`; links have their target hashed."""
    lines = []
    for entry in entries:
        data = entry.target.encode() if entry.kind == "link" else entry.data
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{entry.path.removeprefix(base + '/')},sha256={digest},{len(data)}\n")
    return "".join(sorted(lines))


def sbom(project: lock.Project, used: Iterable[Path]) -> str:
    """Without serial number and time stamp: the same inputs give the same file."""
    components = []
    for wheel in used:
        about = wheels.metadata(wheel)
        name, version = about["Name"], about["Version"]
        component = {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
            "properties": [{"name": "wheel", "value": wheel.name}],
        }
        license_text = about["License-Expression"] or about["License"]
        if license_text and "\n" not in license_text:
            component["licenses"] = [{"license": {"name": license_text}}]
        components.append(component)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "guestagent",
                "version": project.version,
                "licenses": [{"license": {"id": project.license}}],
            }
        },
        "components": components,
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"
