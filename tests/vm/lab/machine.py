"""One VM: stock QEMU in software emulation, with our vsock device beside it.

Everything here blocks, for bounded times; in trio, call it in a thread, except what starts processes: QEMU is told to die with the
*thread* that started it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.vm.lab.monitor import Monitor, MonitorError
from tests.vm.lab.vsock import Mode, Vsock, shim
from tests.vm.vsock.table import FIRST_PORT

PATIENCE: Final = 60.0  # seconds for a boot on a busy machine
POLL: Final = 0.01


@dataclass(frozen=True)
class Spec:
    """What a VM is made of.  A snapshot can only be restored into the same."""

    kernel: Path
    initrd: Path
    disk: Path | None = None  # a raw image or a qcow2 overlay; never written to
    append: str = ""
    memory: int = 256  # MiB
    mode: Mode = "ioctl"
    cid: int = 3


@dataclass(frozen=True)
class Snapshot:
    """A stopped VM's memory and disk, in files that nobody writes to any more."""

    spec: Spec  # its disk is the one of the moment
    memory: Path


class VM:
    """A running QEMU.  :meth:`close` ends it and removes every file of it."""

    def __init__(self, spec: Spec, snapshot: Snapshot | None = None, *, first_port: int = FIRST_PORT) -> None:
        self.spec = spec
        self.folder = Path(tempfile.mkdtemp(prefix="vm-"))  # short: a unix socket's path has 107 bytes
        self.started = time.monotonic()
        self._disk: Path | None = None
        self._saved = 0
        self._vsock: Vsock | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._monitor: Monitor | None = None
        try:
            self._vsock = Vsock(self.folder, spec.mode, cid=spec.cid, first_port=first_port)
            if spec.disk is not None:
                self._disk = overlay(spec.disk, self.folder / "disk")
            self._start(snapshot)
        except BaseException:
            self.close()
            raise

    # --- its life -----------------------------------------------------------------------------------
    def _start(self, snapshot: Snapshot | None) -> None:
        environment = dict(os.environ)
        command = ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", *self._options()]
        with contextlib.ExitStack() as stack:
            descriptors = []
            if self.spec.mode == "ioctl":
                null = stack.enter_context(open("/dev/null", "r+b", buffering=0))
                descriptors.append(null.fileno())
                command += ["-device", f"vhost-vsock-pci,guest-cid={self.spec.cid},vhostfd={null.fileno()},addr=0x10"]
                environment |= {"LD_PRELOAD": str(shim()), "VSOCK_SHIM": str(self.vsock.socket)}
            else:
                command += ["-chardev", f"socket,id=vsock,path={self.vsock.socket}"]
                command += ["-device", "vhost-user-vsock-pci,chardev=vsock,id=vsock0,addr=0x10"]
            if snapshot is not None:
                command += ["-incoming", f"exec:cat {shlex.quote(str(snapshot.memory))}"]
            log = stack.enter_context((self.folder / "qemu.log").open("wb"))
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=descriptors,
            )
        self._monitor = self._find_monitor()
        if snapshot is not None:
            self.monitor.loaded()
            self.monitor.command("cont")

    def _options(self) -> list[str]:
        spec = self.spec
        options = [
            *("-machine", "pc,memory-backend=mem", "-accel", "tcg", "-m", f"{spec.memory}M", "-display", "none"),
            # Shared, so that our device's process can map it.
            *("-object", f"memory-backend-memfd,id=mem,size={spec.memory}M,share=on"),
            *("-nodefaults", "-no-user-config", "-no-reboot"),
            *("-serial", f"file:{self.folder / 'console'}"),
            *("-qmp", f"unix:{self.folder / 'qmp.sock'},server=on,wait=off"),
            *("-kernel", str(spec.kernel), "-initrd", str(spec.initrd)),
            *("-append", f"console=ttyS0 quiet panic=-1 {spec.append}"),
        ]
        if self._disk is not None:
            # Lost with the host, not with QEMU, which is all that is killed here.
            options += ["-drive", f"if=none,id=disk,format=qcow2,cache=unsafe,file={self._disk}"]
            options += ["-device", "virtio-blk-pci,drive=disk,addr=0x11"]
        return options

    def _find_monitor(self) -> Monitor:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return Monitor(self.folder / "qmp.sock")
            except (OSError, MonitorError):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"QEMU did not start: {self._qemu_log()}") from None
            time.sleep(POLL)

    def pause(self) -> None:
        self.monitor.command("stop")

    def resume(self) -> None:
        """Go on, as the same VM."""
        self.monitor.command("cont")

    def save(self, folder: Path) -> Snapshot:
        """Pause, and write memory and disk to `folder`.  :meth:`resume` or :meth:`kill` comes next."""
        self.pause()
        folder.mkdir(parents=True, exist_ok=True)
        memory = folder / "memory"
        self.monitor.save(f"exec:cat > {shlex.quote(str(memory))}")
        spec = self.spec
        if self._disk is not None:
            spec = replace(spec, disk=folder / "disk")
            subprocess.run(["cp", "--sparse=always", "--reflink=auto", self._disk, folder / "disk"], check=True)
        return Snapshot(spec, memory)

    def kill(self) -> None:
        """SIGKILL to QEMU, as a host that dies does it.  The device's process sees the end and drops the connections."""
        self.process.kill()
        self.process.wait()

    def wait(self, patience: float = PATIENCE) -> int:
        """Until the guest has powered off; QEMU's status."""
        return self.process.wait(patience)

    def close(self) -> None:
        """End everything, from wherever it is.  Idempotent."""
        if self._monitor is not None:
            self._monitor.close()
        if self._process is not None:
            self.kill()
        if self._vsock is not None:
            self._vsock.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- its parts ----------------------------------------------------------------------------------
    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def monitor(self) -> Monitor:
        assert self._monitor is not None
        return self._monitor

    @property
    def vsock(self) -> Vsock:
        assert self._vsock is not None
        return self._vsock

    def address(self, port: int = 5252) -> str:
        """What `ptymux --to` takes."""
        return f"firecracker:{self.vsock.path}:{port}"

    def dial(self, port: int, timeout: float = 10.0) -> socket.socket:
        """A connection to a port of the guest; ConnectionError if nobody takes it."""
        there = socket.socket(socket.AF_UNIX)
        there.settimeout(timeout)
        try:
            there.connect(str(self.vsock.path))
            there.sendall(b"CONNECT %d\n" % port)
            line = bytearray()
            while not line.endswith(b"\n"):
                byte = there.recv(1)
                if not byte:
                    raise ConnectionRefusedError(f"nobody takes port {port} in the guest")
                line += byte
            return there
        except BaseException:
            there.close()
            raise

    def device(self, word: str = "status") -> dict[str, Any]:
        """Ask the vsock device, see tests/vm/vsock/__main__.py."""
        return self.vsock.command(word)

    # --- what it says -------------------------------------------------------------------------------
    def console(self) -> str:
        try:
            return (self.folder / "console").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def wait_console(self, text: str, patience: float = PATIENCE) -> float:
        """Until the console shows `text`; seconds since the start."""
        deadline = time.monotonic() + patience
        while text not in self.console():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"the console never showed {text!r}:\n{self.console()}\n{self._qemu_log()}")
            time.sleep(POLL)
        return time.monotonic() - self.started

    def _qemu_log(self) -> str:
        return (self.folder / "qemu.log").read_text(errors="replace")


def overlay(below: Path, file: Path) -> Path:
    """A disk that begins as `below`, which is not written to."""
    with below.open("rb") as opened:
        kind = "qcow2" if opened.read(4) == b"QFI\xfb" else "raw"
    command: list[str | Path] = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", below.resolve(), "-F", kind, file]
    subprocess.run(command, check=True)
    return file


@contextlib.contextmanager
def booted(spec: Spec, **more: Any) -> Iterator[VM]:
    vm = VM(spec, **more)
    try:
        yield vm
    finally:
        vm.close()


@contextlib.contextmanager
def restored(snapshot: Snapshot, **more: Any) -> Iterator[VM]:
    """A branch: a VM of its own that goes on from the snapshot."""
    vm = VM(snapshot.spec, snapshot, **more)
    try:
        yield vm
    finally:
        vm.close()
