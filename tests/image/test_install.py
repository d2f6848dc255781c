"""entries.py, folder.py, tarball.py, ext4.py, start.py and the command: into a folder, a tar and an ext4 image."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from image import ext4
from image.__main__ import main, open_root
from image.entries import Entry, Root, with_folders
from image.errors import ImageError
from image.ext4 import Ext4Root
from image.folder import FolderRoot
from image.start import DEFAULT_CONFIG
from image.tarball import TarRoot
from tests.vm.lab.rootfs import PACKAGES

AGENT = "/opt/guestagent/lib/guestagent/cli.py"
FILES = ["tar", "tar.gz", "ext4"]
KINDS = ["folder", *FILES]


@pytest.fixture(params=KINDS)
def rootfs_path(request: pytest.FixtureRequest, tiny: Path, tmp_path: Path) -> Path:
    """The tiny root file system, in each of the forms."""
    if request.param == "folder":
        return tiny
    path = tmp_path / f"root.{request.param}"
    if request.param == "ext4":
        ext4.make(tiny, path, 32 << 20)
    else:
        with tarfile.open(path, "w:gz" if request.param == "tar.gz" else "w") as archive:
            archive.add(tiny, ".")
    return path


def read(root: Root, path: str) -> str:
    return root.read(root.resolve(path)).decode()


def test_add(rootfs_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add", str(rootfs_path)]) == 0
    assert "guestagent for /usr/bin/python3.11" in capsys.readouterr().out
    root = open_root(rootfs_path)
    assert "def main(" in read(root, AGENT)
    assert read(root, "/opt/guestagent/init").startswith("#!/usr/bin/python3.11 -IS\n")
    assert root.readlink("/usr/sbin/init") == "/opt/guestagent/init"  # /sbin is a link and stays one
    assert root.readlink("/sbin") == "usr/sbin"
    assert root.resolve("/usr/local/bin/guestagent") == "/opt/guestagent/bin/guestagent"
    assert read(root, "/etc/guestagent/config.toml") == DEFAULT_CONFIG
    assert read(root, "/etc/kept") == "as it was\n"


def test_add_again_replaces_the_agent_and_keeps_the_configuration(rootfs_path: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[listen.unix]\n")
    assert main(["add", str(rootfs_path), "--config", str(config)]) == 0
    root = open_root(rootfs_path)
    root.install([Entry.file("/opt/guestagent/lib/of_an_older_one.py", "")])
    assert open_root(rootfs_path).exists("/opt/guestagent/lib/of_an_older_one.py")
    assert main(["add", str(rootfs_path)]) == 0
    root = open_root(rootfs_path)
    assert not root.exists("/opt/guestagent/lib/of_an_older_one.py")
    assert "def main(" in read(root, AGENT)
    assert read(root, "/etc/guestagent/config.toml") == "[listen.unix]\n"


def test_an_ext4_image_is_sound_and_grows_when_it_is_full(tiny: Path, tmp_path: Path) -> None:
    image = tmp_path / "root.ext4"
    (tiny / "etc/fifo").touch()
    ext4.make(tiny, image, 6 << 20)
    assert main(["add", str(image)]) == 0
    assert image.stat().st_size > 6 << 20
    done = subprocess.run(["e2fsck", "-fn", image], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    facts = ext4.run(["debugfs", "-R", "stat /opt/guestagent/bin/guestagent", str(image)], "look")
    assert "Mode:  0755" in facts
    assert "User:     0   Group:     0" in facts
    assert "mtime: 0x12cea600" in facts  # 1980
    facts = ext4.run(["debugfs", "-R", "stat /etc/kept", str(image)], "look")
    assert "Mode:  0640" in facts


@pytest.mark.parametrize("rootfs_path", FILES, indirect=True)  # test_agent.py compares folders
def test_into_the_same_image_twice_gives_the_same_bytes(rootfs_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / f"copy-{rootfs_path.name}"
    shutil.copyfile(rootfs_path, copy)
    for path in (rootfs_path, copy):
        assert main(["add", str(path)]) == 0
        time.sleep(1.1)  # time stamps count seconds
    assert rootfs_path.read_bytes() == copy.read_bytes()


def test_a_tar_keeps_what_was_in_it_and_ours_belongs_to_root(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "root.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(tiny, ".")
        device = tarfile.TarInfo("./dev/null")
        device.type, device.devmajor, device.devminor = tarfile.CHRTYPE, 1, 3
        archive.addfile(device)
        owned = tarfile.TarInfo("./etc/owned")
        owned.uid, owned.mode, owned.pax_headers = 1234, 0o4755, {"SCHILY.xattr.user.note": "kept"}
        archive.addfile(owned)
    assert main(["add", str(path)]) == 0
    with tarfile.open(path) as archive:
        members = {member.name: member for member in archive}
        assert len(members) == len(archive.getmembers())  # nothing is there twice
    assert members["dev/null"].ischr() if "dev/null" in members else members["./dev/null"].ischr()
    kept = members.get("./etc/owned") or members["etc/owned"]
    assert (kept.uid, kept.mode, kept.pax_headers["SCHILY.xattr.user.note"]) == (1234, 0o4755, "kept")
    ours = members[f".{AGENT}"]
    assert (ours.uid, ours.gid, ours.mode, ours.mtime) == (0, 0, 0o644, 315532800)


def test_systemd_is_found(tiny: Path) -> None:
    (tiny / "usr/lib/systemd").mkdir()
    (tiny / "usr/lib/systemd/systemd").touch()
    assert main(["add", str(tiny)]) == 0
    assert (tiny / "etc/systemd/system/guestagent.service").is_file()
    assert (tiny / "etc/systemd/system/guestagent.slice").is_file()
    wants = tiny / "etc/systemd/system/multi-user.target.wants/guestagent.service"
    assert wants.resolve() == tiny / "etc/systemd/system/guestagent.service"
    assert not (tiny / "sbin/init").exists()


def test_an_init_that_is_there_stays(tiny: Path) -> None:
    (tiny / "sbin/init").write_text("mine")
    assert main(["add", str(tiny)]) == 0
    assert (tiny / "sbin/init").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--start", "systemd"], "cannot start the agent by systemd"),
        ([], "cannot find a Python"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    tiny: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    if not arguments:
        (tiny / "usr/bin/python3").unlink()
    assert main(["add", str(tiny), *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"image: {complaint}")
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["root.ext4", "root.tar.gz", "root/"])
def test_from_nothing(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The base comes from the cache; as long as there is none, this takes a minute."""
    if os.geteuid() != 0:
        pytest.skip("only root can unpack a root file system")
    assert main(["build", f"{tmp_path}/{name}", "--size", "600M", "--include", PACKAGES]) == 0
    root = open_root(tmp_path / name)
    assert root.exists("/usr/bin/python3")
    assert root.readlink(root.resolve("/sbin") + "/init") == "/opt/guestagent/init"
    assert read(root, "/etc/hostname") == "guest\n"
    assert not root.exists("/etc/resolv.conf")
    if name == "root.ext4":
        assert (tmp_path / name).stat().st_size == 600 << 20
        assert subprocess.run(["e2fsck", "-fn", tmp_path / name], capture_output=True, check=False).returncode == 0
    if name == "root/":
        capsys.readouterr()
        assert main(["build", f"{tmp_path}/{name}", "--include", PACKAGES]) == 1
        assert capsys.readouterr().err.endswith("root: File exists\n")


@pytest.mark.slow
def test_a_kernel(tmp_path: Path) -> None:
    assert main(["kernel", str(tmp_path)]) == 0
    assert (tmp_path / "vmlinuz").read_bytes()[0x202:0x206] == b"HdrS"
    assert (tmp_path / "vmlinux").read_bytes()[:4] == b"\x7fELF"
    assert (tmp_path / "initrd").read_bytes()[:6] == b"070701"


def test_what_is_no_file_system_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "disk.img"
    path.write_bytes(bytes(1 << 20))
    with pytest.raises(ImageError, match="not an ext4 file system"):
        open_root(path)


def test_an_image_that_was_not_unmounted_is_refused(tiny: Path, tmp_path: Path) -> None:
    image = tmp_path / "root.ext4"
    ext4.make(tiny, image, 8 << 20)
    ext4.run(["debugfs", "-w", "-R", "feature needs_recovery", str(image)], "spoil it")
    with pytest.raises(ImageError, match="not unmounted cleanly"):
        open_root(image)


def test_links_are_followed_as_the_guest_would(tiny: Path) -> None:
    (tiny / "etc/absolute").symlink_to("/usr/lib")
    (tiny / "etc/relative").symlink_to("../usr/./lib")
    (tiny / "etc/loop").symlink_to("loop")
    (tiny / "etc/out").symlink_to("/../../etc/kept")
    root = FolderRoot(tiny)
    assert root.resolve("/etc/absolute/x") == "/usr/lib/x"
    assert root.resolve("/etc/relative/../bin") == "/usr/bin"
    assert root.resolve("/etc/out") == "/etc/kept"  # never beyond the root, on whatever machine this runs
    assert root.resolve("/") == "/"
    with pytest.raises(ImageError, match="too many symbolic links"):
        root.resolve("/etc/loop/x")


def test_folders_come_first_and_the_last_entry_wins() -> None:
    found = with_folders([Entry.file("/a/b/c", "old"), Entry.file("/a/b/c", "new"), Entry("/a/b", "dir", 0o700)])
    assert [(entry.path, entry.kind, entry.mode) for entry in found] == [
        ("/a", "dir", 0o755),
        ("/a/b", "dir", 0o700),
        ("/a/b/c", "file", 0o644),
    ]
    assert found[-1].data == b"new"


def test_an_ext4_name_that_debugfs_would_misread_is_refused(tiny: Path, tmp_path: Path) -> None:
    image = tmp_path / "root.ext4"
    ext4.make(tiny, image, 8 << 20)
    with pytest.raises(ImageError, match="cannot handle the name"):
        Ext4Root(image).install([Entry.file("/etc/a b\nrm /etc/kept", "")])


def test_the_unit_is_one(rootfs: Path) -> None:
    """systemd-analyze looks for the program too, so it is shown a root where that is."""
    units = rootfs / "etc/systemd/system"
    units.mkdir(parents=True, exist_ok=True)
    made = [units / name for name in ("guestagent.service", "guestagent.slice")]
    for path in made:
        path.write_bytes((rootfs / "opt/guestagent/share" / path.name).read_bytes())
    done = subprocess.run(
        ["systemd-analyze", "verify", f"--root={rootfs}", "--man=no", "guestagent.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    for path in made:
        path.unlink()
    ours = [line for line in done.stderr.splitlines() if "guestagent" in line and "not found" not in line]
    assert ours == []


def test_tar_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"x" * 2000)
    with pytest.raises(ImageError, match="cannot read"):
        TarRoot(tmp_path / "x.tar")
