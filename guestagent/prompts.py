"""Does a shell read the terminal now?  Then what a full-screen program before it left armed (the mouse, the focus) is nobody's."""

from __future__ import annotations

import os

SHELLS = frozenset({"bash", "zsh", "fish", "sh", "dash", "ksh", "mksh", "ash", "busybox", "nu", "tcsh", "csh"})


def shell_reads(pid: int, fd: int) -> bool:
    """Is process `pid` a shell at its prompt, as far as anyone can tell from outside?  `fd` is the master of its terminal."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            if os.tcgetpgrp(fd) != pid or file.read().strip() not in SHELLS:
                return False
        with open(f"/proc/{pid}/cmdline") as file:
            if _runs_script(file.read().split("\0")[1:-1]):
                return False
        # Its programs have process groups of their own, unless it is one without job control.
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return all(os.getpgid(int(child)) != pid for child in file.read().split())
    except OSError:
        return False


def _runs_script(arguments: list[str]) -> bool:
    """Was a shell started with these to run something, and not to read commands?"""
    options = [word for word in arguments if word[:1] == "-" and word[:2] != "--"]
    return (arguments[:1] != [] and arguments[0][:1] not in ("-", "+")) or any("c" in word for word in options)
