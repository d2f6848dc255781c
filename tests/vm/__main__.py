"""`make vm`: boots the test image and gives a shell in it; without a terminal on stdin, measures and goes.

Everything is removed at the end, the disk's changes too.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from image import kernel as kernels
from tests.e2e.sessions import following
from tests.harness import clean_environment, ptymux_argv
from tests.vm.agents import connected
from tests.vm.lab.machine import VM, Snapshot, Spec, booted, restored
from tests.vm.lab.rootfs import ADMIN, READY, rootfs

ROUNDS = 5
ECHOES = 200


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that everything is cleaned up
    began = time.monotonic()
    kernel = kernels.build()
    image = rootfs()
    say("image", f"{time.monotonic() - began:.1f} s, {image.stat().st_blocks * 512 / 1e6:.0f} MB at {image}")
    with booted(Spec(kernel / "vmlinuz", kernel / "initrd", image)) as vm:
        say("agent", f"ready after {vm.wait_console(READY):.1f} s at {vm.address()}")
        if os.isatty(0) and os.isatty(1):
            return interactive(vm)
        answered = trio.run(first_answer, vm)
        say("answer", f"the first one after {answered - vm.started:.1f} s")
        trio.run(echo, vm)
        with tempfile.TemporaryDirectory(prefix="vms-") as folder:
            saved = time.monotonic()
            snapshot = vm.save(Path(folder))
            say("save", f"{time.monotonic() - saved:.2f} s, {snapshot.memory.stat().st_size / 1e6:.0f} MB of memory")
            vm.kill()
            times = [restore(snapshot) for _ in range(ROUNDS)]
            say("restore", f"to the first answer {statistics.median(times):.2f} s (median of {ROUNDS})")
    return 0


def interactive(vm: VM) -> int:
    """A login shell in the guest, on this terminal."""
    with tempfile.NamedTemporaryFile("w", prefix="token-") as token:
        token.write(ADMIN)
        token.flush()
        to = ("--token-file", token.name, "--wait", "30")
        print("A shell in a virtual machine. Ctrl-] detaches, and the machine ends. From another terminal:")
        print(f"  ptymux --to {vm.address()} --token-file {token.name} ls", flush=True)
        made = subprocess.run(
            ptymux_argv(vm.address(), *to, "new"), stdout=subprocess.PIPE, text=True, env=clean_environment()
        )
        if made.returncode != 0:
            return made.returncode
        process = subprocess.Popen(
            ptymux_argv(vm.address(), *to, "attach", made.stdout.strip()), env=clean_environment()
        )
        try:
            return process.wait()
        finally:
            if process.poll() is None:  # it gives the terminal back
                process.terminate()
                process.wait()


def restore(snapshot: Snapshot) -> float:
    with restored(snapshot) as branch:
        return trio.run(first_answer, branch) - branch.started


async def first_answer(vm: VM) -> float:
    """When there was one, on the monotonic clock."""
    async with connected(vm) as agent:
        await agent.info()
    return time.monotonic()


async def echo(vm: VM) -> None:
    async with connected(vm) as agent:
        session = await agent.create(["sh", "-c", "stty raw -echo; printf .; exec cat"])
        times = []
        async with following(session) as stream:
            await stream.until(b".")
            for number in range(ECHOES):
                began = time.monotonic()
                await session.send(b"x", wait=False)
                await stream.until(b"x", number + 1)
                times.append(1000 * (time.monotonic() - began))
        await session.remove(force=True)
    times.sort()
    say("echo", f"{times[ECHOES // 2]:.1f} ms (median), {times[int(0.99 * ECHOES)]:.1f} ms (99 %), through a `cat`")


def say(what: str, text: str) -> None:
    print(f"{what:<9}{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
