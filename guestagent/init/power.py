"""The end of the machine: nobody is left running, the disks are clean, the power is off."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time

from guestagent.init.mounts import remount_read_only

RB_AUTOBOOT, RB_POWER_OFF, RB_DISABLE_CAD = 0x01234567, 0x4321FEDC, 0
INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # its inode in /proc/*/ns/pid (linux/proc_ns.h): the number is ABI
TERM_TIME = 2.0  # what daemons that sessions left behind get between SIGTERM and SIGKILL

_libc = ctypes.CDLL(None, use_errno=True)


def catch_ctrl_alt_del() -> None:
    """From now on ctrl-alt-del is a SIGINT to us, and not a reset on the spot.  In a container it is nobody's."""
    _libc.reboot(RB_DISABLE_CAD)


def end(how: str) -> None:
    """Kill everybody, save the disks, and `how` (poweroff or reboot).  Returns only if the kernel refuses."""
    _kill_everybody()
    os.sync()
    if owns_the_machine():
        with contextlib.suppress(OSError):  # busy or read-only already: what matters is on the disk since the sync
            remount_read_only("/")
    # In a PID namespace of its own this ends the namespace, and the machine goes on.
    _libc.reboot(RB_AUTOBOOT if how == "reboot" else RB_POWER_OFF)


def owns_the_machine() -> bool:
    """False in a container, whose disks are somebody else's."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        return True  # a kernel without namespaces, or no /proc


def _kill_everybody() -> None:
    for number, most in ((signal.SIGTERM, TERM_TIME), (signal.SIGKILL, TERM_TIME)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)  # everybody but us; stopped ones must run to see it
            os.kill(-1, signal.SIGCONT)
        deadline = time.monotonic() + most
        while time.monotonic() < deadline:
            try:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    time.sleep(0.01)
            except ChildProcessError:
                return
