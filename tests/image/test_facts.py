"""lock.py, target.py, kernel.py, cpio.py, cache.py: small things that the rest stands on."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from image import cache, cpio, kernel, lock
from image.entries import Entry
from image.errors import ImageError, run
from image.folder import FolderRoot
from image.target import Target, detect
from tests.image.conftest import fake_python

HASH = "--hash=sha256:" + "0" * 64
LOCK = f"""\
# a comment
one==1.0 \\
    {HASH} \\
    {HASH}
    # via two
two-x==2.0 ; sys_platform == 'win32' \\
    {HASH}
"""
LINUX = Target().markers


def test_the_lock_file() -> None:
    pins = lock.parse(LOCK)
    assert {name: pin.version for name, pin in pins.items()} == {"one": "1.0", "two-x": "2.0"}
    assert len(pins["one"].hashes) == 2
    with pytest.raises(ImageError, match="has no version or no hash"):
        lock.parse("one==1.0\n")


def test_a_requirement_is_pinned_or_not_needed() -> None:
    pins = lock.parse(LOCK)
    assert lock.pinned("Two_X>=1.5", pins, LINUX) == pins["two-x"]
    assert lock.pinned("three; sys_platform == 'win32'", pins, LINUX) is None
    assert lock.pinned("three; python_version < '3.11'", pins, LINUX) is None
    assert lock.pinned("three; extra == 'more'", pins, LINUX) is None
    for text in ("three", "one>=2"):
        with pytest.raises(ImageError, match="the lock file is older"):
            lock.pinned(text, pins, LINUX)


def test_our_own_lock_file_is_complete() -> None:
    project = lock.read()
    for text in project.dependencies:
        assert lock.pinned(text, project.pins, LINUX) is not None
    assert {path.name for path in project.packages} == {"guestagent", "ptymux"}


def test_the_guests_python_is_found_by_its_files(tiny: Path) -> None:
    assert detect(FolderRoot(tiny)) == Target("/usr/bin/python3.11", (3, 11), "x86_64", "glibc")
    (tiny / "usr/bin/python3.12").write_bytes(fake_python(183))
    (tiny / "usr/bin/python3").unlink()
    (tiny / "usr/bin/python3").symlink_to("/usr/bin/python3.12")
    (tiny / "usr/lib/ld-musl-aarch64.so.1").touch()
    found = detect(FolderRoot(tiny))
    assert found == Target("/usr/bin/python3.12", (3, 12), "aarch64", "musl")
    assert not found.is_like_ours
    assert found.platforms[0] == "musllinux_1_2_aarch64"


@pytest.mark.parametrize(
    ("version", "data", "complaint"),
    [
        ("3.10", fake_python(), r"Python 3\.11 or newer is needed"),
        ("3.11", b"#!/bin/sh\n", "it is not a program"),
        ("3.11", fake_python(8), "machine 8 is not known"),
    ],
)
def test_a_python_that_will_not_do(tiny: Path, version: str, data: bytes, complaint: str) -> None:
    (tiny / "usr/bin/python3.11").unlink()
    (tiny / f"usr/bin/python{version}").write_bytes(data)
    (tiny / "usr/bin/python3").unlink()
    (tiny / "usr/bin/python3").symlink_to(f"python{version}")
    with pytest.raises(ImageError, match=complaint):
        detect(FolderRoot(tiny))


def test_modules_are_loaded_after_what_they_need() -> None:
    dependencies = """\
kernel/net/vmw_vsock/vmw_vsock_virtio_transport.ko: kernel/net/common.ko kernel/virtio.ko kernel/virtio_ring.ko
kernel/net/common.ko: kernel/vsock.ko
kernel/vsock.ko:
kernel/virtio.ko:
kernel/virtio_ring.ko: kernel/virtio.ko
kernel/unrelated.ko:
"""
    order = [Path(path).stem for path in kernel._in_order(dependencies)]
    assert sorted(order) == ["common", "virtio", "virtio_ring", "vmw_vsock_virtio_transport", "vsock"]
    assert order.index("virtio") < order.index("virtio_ring") < order.index("vmw_vsock_virtio_transport")
    assert order.index("vsock") < order.index("common") < order.index("vmw_vsock_virtio_transport")


@pytest.mark.parametrize("pack", [["xz", "-c"], ["zstd", "-c"], ["lz4", "-l", "-c"]], ids=lambda pack: pack[0])
def test_a_kernel_is_unpacked(pack: list[str]) -> None:
    packed = subprocess.run(pack, input=b"\x7fELF", capture_output=True, check=True).stdout
    image = bytearray(1024 + 16)  # two sectors before the payload's part, sixteen bytes of it before the payload
    image[0x1F1] = 1
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", image, 0x248, 16, len(packed) + 4)
    assert kernel.unpack(bytes(image) + packed + b"size") == b"\x7fELF"


def test_what_cannot_be_unpacked() -> None:
    image = bytearray(1024 + 16)
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<I", image, 0x248, 16)
    with pytest.raises(ImageError, match="its compression is not known"):
        kernel.unpack(bytes(image) + b"x" * 100)
    with pytest.raises(ImageError, match="it is no bzImage"):
        kernel.unpack(b"\x7fELF" + bytes(2000))


def test_cpio_as_the_tool_reads_it(tmp_path: Path) -> None:
    entries = [Entry.file("/a/b", b"data!", 0o755), Entry.link("/c", "a/b"), Entry("/d", "dir", 0o700)]
    packed = cpio.pack(entries)
    assert packed == cpio.pack(entries)
    (tmp_path / "archive").write_bytes(packed)
    with (tmp_path / "archive").open("rb") as archive:
        done = subprocess.run(["cpio", "-itv", "--quiet"], stdin=archive, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = {line.partition(" 1970 ")[2].split()[0]: line.split()[0] for line in done.stdout.splitlines()}
    assert lines == {
        "a": "drwxr-xr-x",
        "a/b": "-rwxr-xr-x",
        "c": "lrwxrwxrwx",
        "d": "drwx------",
        "dev": "drwxr-xr-x",
        "dev/console": "crw-------",
    }


def test_the_cache_keeps_what_was_made_and_nothing_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUESTAGENT_CACHE", str(tmp_path))
    made = []

    def make(path: Path) -> None:
        made.append(path)
        path.mkdir()
        (path / "file").write_text("x")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError

    for _ in range(2):
        assert (cache.keep("kind/thing", make) / "file").read_text() == "x"
    assert len(made) == 1
    with pytest.raises(RuntimeError):
        cache.keep("kind/other", fail)
    assert sorted(path.name for path in (tmp_path / "kind").iterdir()) == ["thing"]


def test_a_tool_that_fails_or_is_not_there_is_one_line() -> None:
    with pytest.raises(ImageError, match=r"cannot do it: there is no no-such-tool"):
        run(["no-such-tool"], "do it")
    with pytest.raises(ImageError, match=r"cannot do it: sh ended with 3: why \| not"):
        run(["sh", "-c", "echo why >&2; echo not >&2; exit 3"], "do it")
