"""The vsock device with a guest that has nothing else: if this fails, no other VM test means anything."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.harness import wait_for
from tests.vm.lab.machine import VM, Snapshot, Spec, booted, restored
from tests.vm.vsock.table import FIRST_PORT

PORT = 5000
MIB = 1 << 20


@pytest.fixture
def vm(tiny_snapshot: Snapshot) -> Iterator[VM]:
    with restored(tiny_snapshot) as branch:
        retry(lambda: ask(branch, "count"))  # the first dial may meet the reset that comes with the restore
        yield branch


def retry(attempt: object, most: float = 20.0) -> object:
    """case C37: dial until something answers."""

    def tried() -> object:
        try:
            return attempt()  # type: ignore[operator]
        except OSError:
            return None

    return wait_for(tried, "an answer", most)


def ask(vm: VM, line: str) -> bytes:
    """One line, and everything that comes back."""
    with vm.dial(PORT) as there:
        there.sendall(line.encode() + b"\n")
        there.settimeout(20)
        return rest(there)


def rest(there: socket.socket) -> bytes:
    found = bytearray()
    while data := there.recv(1 << 18):
        found += data
    return bytes(found)


def pattern(size: int) -> bytes:
    """What the guest's `source` sends."""
    return b"".join(bytes((block ^ at) & 0xFF for at in range(256)) for block in range(256)) * (size // 65536 + 1)


def check_echo(vm: VM) -> None:
    with vm.dial(PORT) as there:
        there.sendall(b"echo\nthere and back")
        assert there.recv(100) == b"there and back"


@pytest.mark.parametrize("mode", ["ioctl", "user"])
def test_both_ways_of_speaking_to_qemu(tiny: Spec, mode: str) -> None:
    with booted(replace(tiny, mode=mode)) as vm:  # type: ignore[arg-type]
        vm.wait_console("tiny: ready")
        check_echo(vm)
        assert ask(vm, f"source {5 * MIB}") == pattern(5 * MIB)[: 5 * MIB]
        with vm.dial(PORT) as there:
            there.sendall(b"off\n")
        assert vm.wait() == 0


def test_data_passes_whole_in_both_directions(vm: VM) -> None:
    assert ask(vm, f"source {20 * MIB}") == pattern(20 * MIB)[: 20 * MIB]
    data = pattern(MIB)[:MIB]
    with vm.dial(PORT) as there:
        there.sendall(b"sink %d\n" % MIB + data)
        size, checksum = map(int, rest(there).split())
    expected = 0
    for byte in data:
        expected = (expected * 31 + byte) & 0xFFFFFFFFFFFFFFFF
    assert (size, checksum) == (MIB, expected)


def test_a_program_that_does_not_read_holds_up_no_other(vm: VM) -> None:
    """Credit: the guest stops sending to the one, and goes on with the others."""
    with vm.dial(PORT) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(b"source %d\n" % (20 * MIB))
        for _ in range(20):
            check_echo(vm)
        assert rest(deaf) == pattern(20 * MIB)[: 20 * MIB]


def test_the_guest_dials(vm: VM) -> None:
    """Port 7000 of the host is the unix socket PATH_7000; where none listens, the guest is refused."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{vm.vsock.path}_7000")
        listener.listen()
        listener.settimeout(10)
        with vm.dial(PORT) as there:
            there.sendall(b"dial 7000\nfrom the one")
            other, _ = listener.accept()
            with other:
                assert other.recv(100) == b"from the one"
                other.sendall(b"to the other")
                assert there.recv(100) == b"to the other"
                other.close()
                assert there.recv(100) == b""
    assert ask(vm, "dial 7001").strip() in (b"Connection reset by peer", b"Connection refused")


def test_a_port_that_nobody_has_is_refused_at_once(vm: VM) -> None:
    started = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        vm.dial(PORT + 1)
    assert time.monotonic() - started < 1.5


def test_fifty_dials_at_once(vm: VM) -> None:
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: retry(lambda: ask(vm, "count")), range(50)))
    assert len({int(answer) for answer in answers}) == 50  # type: ignore[call-overload]
    wait_for(lambda: vm.device()["connections"] == 0, "the last one to end")


def test_a_paused_guest_answers_nobody_for_a_bounded_time(vm: VM) -> None:
    vm.pause()
    with pytest.raises(ConnectionRefusedError):
        vm.dial(PORT)
    vm.resume()
    check_echo(vm)


# --- snapshots --------------------------------------------------------------------------------------
def test_a_connection_does_not_outlive_a_restore(tiny_snapshot: Snapshot, tiny: Spec, scratch: object) -> None:
    """Its far end in the guest is reset, its near end was closed when QEMU was killed."""
    with restored(tiny_snapshot) as source:
        retry(lambda: ask(source, "count"))
        with source.dial(PORT) as open_one:
            open_one.sendall(b"echo\nhello")
            assert open_one.recv(10) == b"hello"
            snapshot = source.save(source.folder / "second")
            source.kill()
            assert open_one.recv(10) == b""
        for _ in range(2):
            with restored(snapshot) as branch:
                retry(lambda branch=branch: ask(branch, "count"))
                check_echo(branch)


def test_two_branches_at_once(tiny_snapshot: Snapshot) -> None:
    with restored(tiny_snapshot) as one, restored(tiny_snapshot) as other:
        for _ in range(3):
            for branch in (one, other):
                retry(lambda branch=branch: ask(branch, "count"))
        assert ask(one, "count") == ask(other, "count")


def test_the_source_goes_on_with_its_connections_reset(vm: VM) -> None:
    """case C35: as on Firecracker, the guest's ends are reset although nothing was restored."""
    vm.save(vm.folder / "snapshot")
    vm.resume()
    check_echo(vm)
    with vm.dial(PORT) as open_one:
        open_one.sendall(b"echo\nhello")
        assert open_one.recv(10) == b"hello"
        vm.save(vm.folder / "snapshot")
        vm.resume()
        vm.device("reset-guest")
        open_one.settimeout(0.3)
        with pytest.raises(TimeoutError):  # case C36: nobody tells the host ...
            open_one.recv(10)
        open_one.settimeout(5)
        open_one.sendall(b"more")
        assert open_one.recv(10) == b""  # ... until it speaks
    check_echo(vm)


def test_ports_start_over_where_the_guest_still_holds_them(tiny_snapshot: Snapshot) -> None:
    """The first dial has the very pair of ports that the guest knows from before the snapshot."""
    with restored(tiny_snapshot) as source:
        held = [retry(lambda: dialled(source)) for _ in range(5)]
        snapshot = source.save(source.folder / "held")
        for there in held:
            there.close()  # type: ignore[attr-defined]
        source.kill()
        with restored(snapshot, first_port=FIRST_PORT) as branch:
            started = time.monotonic()
            for _ in range(5):
                retry(lambda: ask(branch, "count"))
            assert time.monotonic() - started < 10


def dialled(vm: VM) -> socket.socket:
    there = vm.dial(PORT)
    there.sendall(b"echo\nx")
    if there.recv(1) != b"x":
        raise ConnectionResetError
    return there
