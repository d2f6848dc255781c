"""The folder /opt/guestagent: everything of the agent but what starts it.

::

    /opt/guestagent/
        bin/guestagent  bin/ptymux    launchers: the guest's Python, isolated, with lib/ in front
        init                          for init= on the kernel's command line; runs `guestagent init`
        lib/                          our packages and their dependencies, precompiled
        share/                        the systemd units
        RECORD  sbom.json             what is inside

``-I`` keeps environment, current folder and the user's packages away, ``-S`` the distribution's site-packages and their .pth files:
nothing that is done to them is seen here.  What we share with the guest is the interpreter and its standard library.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from image import bom, lock, wheels
from image.entries import Entry
from image.errors import ImageError, run
from image.target import Target

BASE = "/opt/guestagent"
LIB = f"{BASE}/lib"
FILES = Path(__file__).parent / "files"

LAUNCHER = """\
#!{interpreter} -IS
import sys

sys.path.insert(0, {lib!r})
from {module} import {function} as main

sys.exit(main())
"""
# The kernel gives init= the words of its command line that it does not understand: they are nobody's options.
INIT = """\
#!{interpreter} -IS
import os, signal, sys, traceback

sys.path.insert(0, {lib!r})
try:
    from {module} import {function} as main

    status = main(["init"])
except Exception:
    if os.getpid() != 1:
        raise
    traceback.print_exc()
    print("guestagent: RESCUE: {base} is damaged, see above; init=/bin/sh gives a shell", file=sys.stderr, flush=True)
    while True:
        signal.pause()  # ending would be a kernel panic
sys.exit(status)
"""


def build(target: Target, *, pure: bool = False, precompile: bool = True) -> list[Entry]:
    """Every file of the folder.  The same inputs (sources, lock file, target, our Python) give the same bytes."""
    project = lock.read()
    used = wheels.fetch(project, target)
    entries = [*_libraries(used, pure=pure), *_ours(project.packages)]
    if precompile:
        entries += _compiled(entries, target)
    entries += _launchers(project, target)
    entries += [Entry.file(f"{BASE}/share/{path.name}", path.read_bytes()) for path in sorted(FILES.iterdir())]
    entries.append(Entry.file(f"{BASE}/sbom.json", bom.sbom(project, used)))
    entries.append(Entry.file(f"{BASE}/RECORD", bom.record(entries, BASE)))
    return sorted(entries, key=lambda entry: entry.path)


def _libraries(used: Iterable[Path], *, pure: bool) -> list[Entry]:
    found: dict[str, Entry] = {}
    for wheel in used:
        for name, data in wheels.files(wheel, pure=pure).items():
            if name in found:
                raise ImageError(f"cannot build the agent's folder: two packages have {name}")
            found[name] = Entry.file(f"{LIB}/{name}", data)
    return list(found.values())


def _ours(packages: Iterable[Path]) -> list[Entry]:
    return [
        Entry.file(f"{LIB}/{package.name}/{path.relative_to(package).as_posix()}", path.read_bytes())
        for package in packages
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]


def _launchers(project: lock.Project, target: Target) -> list[Entry]:
    found = []
    scripts = {f"bin/{name}": (LAUNCHER, where) for name, where in project.scripts.items()}
    scripts["init"] = (INIT, project.scripts["guestagent"])
    for path, (template, where) in scripts.items():
        module, _, function = where.partition(":")
        text = template.format(interpreter=target.interpreter, lib=LIB, base=BASE, module=module, function=function)
        found.append(Entry.file(f"{BASE}/{path}", text, 0o755))
    return found


# Run apart: what a compiler has seen before changes which constants it marks as shared.
COMPILE = """\
import py_compile, sys
for line in sys.stdin:
    source, shown, compiled = line.rstrip("\\n").split("\\t")
    py_compile.compile(source, compiled, shown, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
"""


def _compiled(sources: Iterable[Entry], target: Target) -> list[Entry]:
    """A .pyc beside each source.  Unchecked: neither a time stamp nor the source is looked at when it is imported."""
    if not target.is_like_ours:
        raise ImageError(
            f"cannot precompile for Python {target.python[0]}.{target.python[1]}: run this with the same Python, or give --no-precompile"
        )
    with tempfile.TemporaryDirectory() as scratch:
        jobs, results = [], []
        for number, entry in enumerate(source for source in sources if source.path.endswith(".py")):
            here, there = Path(scratch, f"{number}.py"), Path(scratch, f"{number}.pyc")
            here.write_bytes(entry.data)
            folder, _, name = entry.path.rpartition("/")
            path = f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-{target.tag.removeprefix('cp')}.pyc"
            jobs.append(f"{here}\t{entry.path}\t{there}\n")
            results.append((path, there))
        run(
            [sys.executable, "-S", "-s", "-c", COMPILE],
            "precompile",
            input="".join(jobs),
            env={"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        return [Entry.file(path, there.read_bytes()) for path, there in results]
