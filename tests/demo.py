"""`make demo`: a shell in an agent for whoever sits at a terminal, else a proof that needs nobody.

The proof runs a program that prints random bytes, through a proxy that cuts the connection again and again in the middle of
whatever is passing, and compares what was written with what arrived.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from tests.harness import (
    PATIENCE,
    AgentProcess,
    clean_environment,
    cutting_proxy,
    ptymux_argv,
    ptymux_json,
    running_agent,
    spread_budgets,
)

SIZE = 64_000_000
CUTS = 64
STATUS = 7  # of the program


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that everything is cleaned up
    with tempfile.TemporaryDirectory(prefix="ptymux-demo-") as name:
        folder = Path(name)
        with running_agent(folder) as agent:
            if os.isatty(0) and os.isatty(1):
                return interactive(agent)
            return trio.run(proof, agent, folder)


def interactive(agent: AgentProcess) -> int:
    """A login shell in a session of its own, on this terminal."""
    session = ptymux_json(agent.address, "new")["id"]
    print(f"A shell in an agent at {agent.address}. Ctrl-] detaches, and this demo ends.")
    print(f"Try `kill -9 {agent.server_pid()}`, the agent's server: the shell and this screen go on.", flush=True)
    process = subprocess.Popen(ptymux_argv(agent.address, "attach", session), env=clean_environment())
    try:
        return process.wait()
    finally:
        if process.poll() is None:  # it gives the terminal back
            process.terminate()
            process.wait()


async def proof(agent: AgentProcess, folder: Path) -> int:
    """`ptymux exec` through the proxy; 0 if all is as it must be."""
    file = folder / "data"
    written = os.urandom(SIZE)
    file.write_bytes(written)
    command = ["sh", "-c", f"stty raw; cat {file}; exit {STATUS}"]
    arrived, size = hashlib.sha256(), 0
    say("agent", f"at {agent.address}; keeper {agent.keeper_pid}, server {agent.server_pid()}")
    say("program", f"{' '.join(command[2:])}  (on a terminal of its own)")
    budgets = spread_budgets(CUTS, SIZE, seed=time.time_ns())
    started = time.monotonic()
    async with cutting_proxy(agent.path, folder, budgets) as proxy:
        process = await trio.lowlevel.open_process(
            ptymux_argv(proxy.address, "--wait", str(PATIENCE), "exec", "--", *command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=clean_environment(),
        )
        assert process.stdout is not None
        async for data in process.stdout:
            arrived.update(data)
            size += len(data)
        status = await process.wait()
    say("proxy", f"cut the connection {proxy.cuts} times, each time in the middle of whatever was passing")
    say("written", f"{len(written):>12,} bytes, SHA-256 {hashlib.sha256(written).hexdigest()}")
    say("arrived", f"{size:>12,} bytes, SHA-256 {arrived.hexdigest()}")
    say("status", f"{status}, the program's {'own' if status == STATUS else f'was {STATUS}'}")
    good = arrived.digest() == hashlib.sha256(written).digest() and status == STATUS and proxy.cuts == CUTS
    verdict = "every byte arrived once and in order" if good else "NOT what must be"
    say("verdict", f"{verdict}; {time.monotonic() - started:.1f} s")
    return 0 if good else 1


def say(what: str, text: str) -> None:
    print(f"{what:<9}{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
