"""agent.py, wheels.py, bom.py: what is in /opt/guestagent, and that the same inputs give the same bytes."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import marshal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from image import agent, lock
from image.entries import Entry
from image.errors import ImageError
from image.target import Target
from tests.harness import clean_environment

MAGIC = importlib.util.MAGIC_NUMBER


def test_built_twice_it_is_the_same(tmp_path: Path) -> None:
    """In two processes, from two folders, with different hash seeds: every byte, mode and time stamp."""
    folders = []
    for seed in ("1", "2"):
        there = tmp_path / seed
        there.mkdir()
        folders.append(there / "agent")
        subprocess.run(
            [sys.executable, "-m", "image", "agent", str(there / "agent")],
            check=True,
            stdout=subprocess.DEVNULL,
            env=clean_environment(PYTHONHASHSEED=seed, TMPDIR=str(there)),
            umask=0o022 if seed == "1" else 0o077,
        )
    one, other = (described(folder) for folder in folders)
    assert one == other
    assert len(one) > 300


def described(folder: Path) -> dict[str, tuple[int, int, str]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(facts.st_mode) else b""
        found[str(path.relative_to(folder))] = (
            facts.st_mode,
            int(facts.st_mtime) if path.parent != folder else 0,
            hashlib.sha256(data).hexdigest(),
        )
    return found


def test_the_record_names_every_file(entries: list[Entry]) -> None:
    files = {entry.path.removeprefix(f"{agent.BASE}/"): entry.data for entry in entries}
    record = files.pop("RECORD").decode()
    listed = {}
    for line in record.splitlines():
        path, digest, size = line.rsplit(",", 2)
        listed[path] = (digest, int(size))
    assert listed == {
        path: ("sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), len(data))
        for path, data in files.items()
    }


def test_only_runtime_dependencies_are_inside_with_their_pinned_versions(entries: list[Entry]) -> None:
    project = lock.read()
    sbom = json.loads(next(entry.data for entry in entries if entry.path.endswith("/sbom.json")))
    inside = {component["name"].replace("_", "-"): component["version"] for component in sbom["components"]}
    direct = {lock.Requirement(text).name for text in project.dependencies}
    assert direct <= inside.keys()
    assert not {"pytest", "mypy", "hypothesis", "uv", "trustme", "cryptography", "cffi", "hatchling"} & inside.keys()
    assert inside == {name: project.pins[name].version for name in inside}
    for component in sbom["components"]:
        (digest,) = component["hashes"]
        assert f"sha256:{digest['content']}" in project.pins[component["name"].replace("_", "-")].hashes


def test_every_source_is_precompiled_and_says_where_it_will_be(entries: list[Entry]) -> None:
    files = {entry.path: entry.data for entry in entries}
    sources = [path for path in files if path.endswith(".py")]
    assert len(sources) > 100
    for path in sources:
        folder, _, name = path.rpartition("/")
        data = files[f"{folder}/__pycache__/{name[:-3]}.cpython-311.pyc"]
        assert data[:4] == MAGIC
        assert struct.unpack_from("<I", data, 4) == (1,)  # by hash of the source, which is not looked at
        assert {code.co_filename for code in codes(marshal.loads(data[16:]))} == {path}


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def test_pure_has_no_compiled_module_and_fits_other_machines() -> None:
    there = agent.build(Target("/usr/bin/python3.13", (3, 13), "aarch64", "musl"), pure=False, precompile=False)
    assert any(entry.path.endswith("-aarch64-linux-musl.so") for entry in there)
    pure = agent.build(Target(), pure=True, precompile=False)
    assert not any(entry.path.endswith((".so", ".pyc")) for entry in pure)
    assert any(entry.path.endswith("/msgpack/fallback.py") for entry in pure)


def test_another_python_cannot_be_precompiled_for() -> None:
    with pytest.raises(ImageError, match=r"cannot precompile for Python 3\.13: .*--no-precompile"):
        agent.build(Target("/usr/bin/python3.13", (3, 13)))


# --- isolation, in a real Debian ---------------------------------------------------------------------
HOSTILE = "raise SystemExit('the guest came in')\n"


@pytest.fixture
def broken(rootfs: Path) -> Iterator[Path]:
    """The root file system with its Python packages broken in every way that we know."""
    folders = ("usr/lib/python3/dist-packages", "usr/local/lib/python3.11/dist-packages", "root/evil")
    names = ("sitecustomize", "usercustomize", "msgpack", "trio", "guestagent", "ptymux", "ptyprocess", "attr")
    made = []
    for folder in folders:
        (rootfs / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            made.append(rootfs / folder / f"{name}.py")
            made[-1].write_text(HOSTILE)
        made.append(rootfs / folder / "evil.pth")
        made[-1].write_text("import os; os._exit(77)\n")
    yield rootfs
    for path in made:
        path.unlink()


def chrooted(root: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["chroot", root, *command],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **environment},
    )


def test_the_launchers_work_whatever_the_guest_does_to_its_python_packages(broken: Path) -> None:
    assert chrooted(broken, "python3", "-c", "pass").returncode == 77  # it is really broken
    evil = {"PYTHONPATH": "/root/evil", "PYTHONHOME": "/nowhere", "PYTHONSTARTUP": "/root/evil/trio.py"}
    for command in ("/usr/local/bin/guestagent", "/usr/local/bin/ptymux"):
        done = chrooted(broken, "sh", "-c", f"cd /root/evil && {command} --version", **evil)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith(f" {lock.read().version}\n")


def test_the_server_is_as_isolated_as_the_keeper(broken: Path, tmp_path: Path) -> None:
    from tests.harness import ptymux
    from tests.image.guest import running_guest

    with running_guest(broken, tmp_path) as guest:
        guest.until("listening on")
        line = Path(f"/proc/{guest.server_pid()}/cmdline").read_bytes().split(b"\0")
        assert line[:3] == [b"/usr/bin/python3.11", b"-IS", b"-c"]
        done = ptymux(guest.address, "exec", "--no-tty", "--", "echo", "well")
        assert (done.returncode, done.stdout) == (0, b"well\n")
        # What runs in a session is the guest's own business, and has nothing of ours.
        done = ptymux(guest.address, "exec", "--no-tty", "--", "env")
        assert b"PYTHON" not in done.stdout
        assert b"/opt/guestagent" not in done.stdout


def test_what_is_left_out_of_wcwidth_is_not_missed(rootfs: Path, entries: list[Entry]) -> None:
    assert not [entry.path for entry in entries if "/_known_" in entry.path]
    code = "import sys; sys.path.insert(0, '/opt/guestagent/lib'); from guestagent.renderer.cells import WIDTHS"
    code += "; print(WIDTHS['a'], WIDTHS['\u5b57'], WIDTHS['\U0001f469'], WIDTHS['\u0301'])"
    done = chrooted(rootfs, "/usr/bin/python3.11", "-IS", "-c", code)
    assert (done.returncode, done.stdout) == (0, "1 2 2 0\n"), done.stderr


def test_nothing_is_written_beside_the_code(rootfs: Path, entries: list[Entry]) -> None:
    """A root file system that is read-only, or is compared with its RECORD, stays as it was built."""
    for command in ("guestagent", "ptymux"):
        assert chrooted(rootfs, f"/usr/local/bin/{command}", "--version").returncode == 0
    base = rootfs / agent.BASE.lstrip("/")
    there = {f"{agent.BASE}/{path.relative_to(base)}" for path in base.rglob("*") if not path.is_dir()}
    assert there == {entry.path for entry in entries}


def test_the_python_that_is_named_is_the_guests(entries: list[Entry]) -> None:
    first = next(entry.data for entry in entries if entry.path == f"{agent.BASE}/bin/guestagent").splitlines()[0]
    assert first == b"#!/usr/bin/python3.11 -IS"
