"""Process 1, from the kernel's exec to the end of the machine.

::

    mounts, console, modules, name -> keeper -+- told to stop -> sessions end -> everybody else ends -> power off or reboot
                                       ^      +- cannot start the server -> rescue message on the console, then again
                                       +-----------------------------------------------------'

SIGTERM, SIGPWR (an emptying battery) and the method `poweroff` end the machine as `guestagent.off` says; SIGINT, which is what
ctrl-alt-del becomes, reboots it.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence

from guestagent import launch
from guestagent.init import mounts, options, power, system
from guestagent.keeper.loop import Keeper

RETRY = 10.0  # seconds between attempts to start an agent that cannot: time to read the message, and to mend the cause
ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGPWR}


def main(argv: Sequence[str]) -> int:
    """Never returns as process 1.  The arguments are ignored: the kernel passes what it did not understand."""
    if os.getpid() != 1:
        print("guestagent: cannot be init: this is not process 1", file=sys.stderr)
        return 2
    problems = mounts.mount_all()
    system.open_console()
    system.set_environment()
    chosen = options.parse(_cmdline(), has_config=os.path.exists(options.CONFIG))
    problems += chosen.problems + system.loopback_up() + system.set_hostname(chosen.hostname)
    system.load_vsock()
    system.guard_from_oom()
    power.catch_ctrl_alt_del()
    for problem in problems:
        system.say(problem)
    how = _run(chosen)
    system.say(f"going down: {how}")
    power.end(how)
    system.say(f"cannot {how}: the kernel refuses; halted")
    while True:  # ending would be a kernel panic
        signal.pause()


def _cmdline() -> str:
    try:
        with open("/proc/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _run(chosen: options.Options) -> str:
    """The agent, until it is to end; how."""
    while True:
        keeper = Keeper([*launch.module_argv("guestagent.server"), *chosen.serve], is_init=True)
        try:
            status = keeper.run()
        except Exception:  # noqa: BLE001 - an error here would be a kernel panic, and say less
            traceback.print_exc()
            status = 1
        if keeper.ended_by is not None:
            return "reboot" if keeper.ended_by == signal.SIGINT else chosen.off
        system.say(
            f"RESCUE: the agent cannot start (status {status}; the reason is above). Trying again every {RETRY:g} s. "
            "Ctrl-alt-del or SIGTERM to process 1 ends this machine; init=/bin/sh on the kernel's command line gives a shell."
        )
        ended_by = _wait_for_signal(RETRY)
        if ended_by is not None:
            return "reboot" if ended_by == signal.SIGINT else chosen.off


def _wait_for_signal(seconds: float) -> int | None:
    """The signal that ends the machine, or None after that time."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        info = signal.sigtimedwait(ENDING, seconds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return None if info is None else info.si_signo


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
