"""`make demo`, both ways."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import PATIENCE, clean_environment, wait_for

DEMO = [sys.executable, "-m", "tests.demo"]


def test_the_proof(tmp_path: Path) -> None:
    done = subprocess.run(
        DEMO,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        text=True,
        check=False,
        env=clean_environment(TMPDIR=str(tmp_path)),
    )
    assert (done.returncode, done.stderr) == (0, "")
    sums = re.findall(r"([\d,]+) bytes, SHA-256 ([0-9a-f]{64})", done.stdout)
    assert len(sums) == 2
    assert sums[0] == sums[1]
    assert int(sums[0][0].replace(",", "")) >= 50_000_000
    cuts = re.search(r"cut the connection (\d+) times", done.stdout)
    assert cuts is not None
    assert int(cuts[1]) >= 50
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("end", ["detach", "exit", "hangup"])
def test_the_shell(tmp_path: Path, end: str) -> None:
    """Two lines, then a shell; whichever way one leaves it, nothing is left behind."""
    master, slave = pty.openpty()
    demo = subprocess.Popen(
        DEMO,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env=clean_environment(TMPDIR=str(tmp_path), SHELL="/bin/sh"),
    )
    os.close(slave)
    os.set_blocking(master, False)
    shown = bytearray()

    def shows(text: bytes) -> bool:
        with contextlib.suppress(OSError):
            shown.extend(os.read(master, 65536))
        return text in shown

    try:
        wait_for(lambda: shows(b"Ctrl-] detaches"), "the greeting")
        wait_for(lambda: shows(b"this screen go on."), "the second line")
        os.write(master, b"echo in-$((6*7))\r")  # perhaps ahead of the shell, which gets it all the same
        wait_for(lambda: shows(b"in-42\r\n"), "the shell")
        server = int(re.findall(rb"kill -9 (\d+)", shown)[0])
        os.kill(server, signal.SIGKILL)
        os.write(master, b"echo still-$((6*7))\r")
        wait_for(lambda: shows(b"still-42\r\n"), "the shell under the next server")
        if end == "detach":
            os.write(master, b"\x1d")
        elif end == "exit":
            os.write(master, b"exit 5\r")
        else:
            demo.send_signal(signal.SIGHUP)
        status = wait_for(lambda: shows(b"\0") or (demo.poll() is not None and [demo.returncode]), "the end")
        assert status == [{"detach": 0, "exit": 5, "hangup": 128 + signal.SIGHUP}[end]]
        assert os.listdir(tmp_path) == []
    finally:
        if demo.poll() is None:
            demo.terminate()
            demo.wait(PATIENCE)
        os.close(master)
