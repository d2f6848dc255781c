"""`python -m tests.terminal.record [NAME ...]`: record the corpus anew, or some of its streams.

Programs run on a PTY in namespaces of their own, as a guest called `guest` whose only process is the shell that started them, so
that a recording tells nothing of the machine it was made on.  Needs root, and the programs of :mod:`tests.terminal.scenarios`:
nothing but a recording needs them.
"""

from __future__ import annotations

import os
import select
import shlex
import sys
import tempfile
import time
from pathlib import Path

from ptyprocess import PtyProcess

from tests.terminal import corpus
from tests.terminal.scenarios import FILES, SCENARIOS, Scenario
from tests.terminal.stream import Chunk, Stream

SHOW = Path(__file__).parent / "show.py"

QUIET = 0.35  # seconds without output after which a program waits for a key
MOST = 6.0  # seconds after which the next key is typed even so
LIMIT = 60_000  # bytes of a recording: more of the same shows nothing new

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/usr/games",
    "HOME": "/home/guest",
    "USER": "guest",
    "SHELL": "/bin/bash",
    "TERM": "xterm-256color",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PS1": r"guest:\w\$ ",
    "LESS": "",
    "GIT_CONFIG_GLOBAL": "/home/guest/.gitconfig",
}

# Runs in the namespaces, before the program and without output.
PREPARE = """
hostname guest
mount -t tmpfs tmpfs /home
cp -r {files} /home/guest
cd /home/guest
mount -t tmpfs tmpfs /tmp
mkdir src docs empty
mv fox.py main.c src
mv readme.md docs
for number in $(seq 200); do echo "line $number: the quick brown fox jumps over the lazy dog"; done > long.txt
for number in $(seq 40); do echo "$number $(seq -s ' ' 1 $number)"; done > wide.txt
ln -s src/main.c link; ln -s nowhere broken; mkfifo pipe; touch run.sh 'a file'; chmod +x run.sh
"""


def main(names: list[str]) -> int:
    wanted = [scenario for scenario in SCENARIOS if not names or scenario.name in names]
    for scenario in wanted:
        started = time.monotonic()
        stream = record(scenario)
        path = corpus.save(stream, scenario.how)
        print(
            f"{scenario.name:<28}{stream.size:>8} bytes{path.stat().st_size:>8} in the file  {time.monotonic() - started:.1f} s",
            flush=True,
        )
    return 0


def record(scenario: Scenario) -> Stream:
    """Run a scenario; its output up to each key is one chunk."""
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        files = Path(folder) / "files"
        files.mkdir()
        for name, text in {**FILES, "show.py": SHOW.read_text()}.items():
            (files / name).write_text(text)
        prepare = Path(folder) / "prepare"
        prepare.write_text(PREPARE.format(files=shlex.quote(str(files))) + scenario.setup)
        script = f"{{ set -e; . {shlex.quote(str(prepare))}; }} >/dev/null 2>&1 </dev/null; exec sh -c {shlex.quote(scenario.command)}"
        process = PtyProcess.spawn(
            [
                "unshare",
                "--mount",
                "--uts",
                "--ipc",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "sh",
                "-c",
                script,
            ],
            env={**ENVIRONMENT, **scenario.environment},
            dimensions=(scenario.rows, scenario.columns),
        )
        try:
            chunks = _play(process, scenario)
        finally:
            process.close(force=True)
    return Stream(scenario.name, scenario.columns, scenario.rows, tuple(chunks))


def _play(process: PtyProcess, scenario: Scenario) -> list[Chunk]:
    chunks: list[Chunk] = []
    left = LIMIT
    for step in (None, *scenario.steps):
        least = 0.0
        match step:
            case str():
                process.write(step.encode())
            case (columns, rows):
                process.setwinsize(rows, columns)
                chunks.append((columns, rows))
            case float():
                least = step
        data = _output(process, least)[:left]
        left -= len(data)
        if data:
            chunks.append(data)
        if not left or not process.isalive():
            break
    return chunks


def _output(process: PtyProcess, least: float) -> bytes:
    """What the program writes until it is quiet, or for `least` seconds."""
    data = bytearray()
    started = time.monotonic()
    first = True
    while True:
        patience = max(started + least - time.monotonic(), 1.2 if first else QUIET)
        if least:
            patience = started + least - time.monotonic()
        if patience <= 0 or time.monotonic() - started > max(MOST, least) or len(data) > LIMIT:
            return bytes(data)
        if not select.select([process.fd], [], [], patience)[0]:
            return bytes(data)
        try:
            piece = os.read(process.fd, 65536)
        except OSError:  # the program ended
            return bytes(data)
        first = False
        if not piece:
            return bytes(data)
        data += piece


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
