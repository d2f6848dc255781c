"""Terminals to look at and type into: windows of a private tmux server."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import trio

from tests.harness import PATIENCE, children, clean_environment, wait_for

LOOK_EVERY = 0.03  # seconds; each look is a process
PROMPT = "local$ "  # of the shell in a window


class Tmux:
    """A tmux server of our own, with the default configuration and nothing of the user's."""

    def __init__(self, folder: Path, address: str) -> None:
        self._command = ["tmux", "-L", f"ptymux-test-{os.getpid()}", "-f", "/dev/null", "-u"]
        self._numbers = itertools.count()
        self._folder = folder
        self._environment = clean_environment(
            TMUX_TMPDIR=str(folder),
            TERM="xterm-256color",
            LC_ALL="C.UTF-8",
            PTYMUX_TO=address,
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            PS1=PROMPT,
            HISTFILE="",
        )
        for name in ("TMUX", "TMUX_PANE", "PROMPT_COMMAND"):
            self._environment.pop(name, None)

    def run(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert not check or done.returncode == 0, f"tmux {shlex.join(arguments)}: {done.stderr}"
        return done.stdout

    def window(self, columns: int = 80, rows: int = 24) -> Window:
        """A new window with a shell, of this size whatever the others have."""
        name = f"w{next(self._numbers)}"
        notes = self._folder / name
        notes.mkdir()
        shell = ["bash", "--norc", "--noprofile"]
        self.run("new-session", "-d", "-s", name, "-x", str(columns), "-y", str(rows), "-n", name, *shell)
        self.run("set-option", "-t", name, "status", "off")
        self.run("resize-window", "-t", name, "-x", str(columns), "-y", str(rows))
        window = Window(self, name, notes)
        window.wait(lambda: window.text.startswith(PROMPT.strip()), "the shell's prompt")
        return window

    def stop(self) -> None:
        self.run("kill-server", check=False)


@contextlib.contextmanager
def running_tmux(folder: Path, address: str) -> Iterator[Tmux]:
    tmux = Tmux(folder, address)
    try:
        yield tmux
    finally:
        tmux.stop()


class Window:
    """What a person sees and types."""

    def __init__(self, tmux: Tmux, name: str, notes: Path) -> None:
        self._tmux = tmux
        self.name = name
        self._notes = notes

    # --- typing -----------------------------------------------------------------------------------
    def keys(self, *keys: str) -> None:
        """Press keys by tmux's names: ``Enter``, ``C-c``, ``Up``."""
        self._tmux.run("send-keys", "-t", self.name, *keys)

    def type(self, text: str) -> None:
        self._tmux.run("send-keys", "-t", self.name, "-l", "--", text)

    def line(self, text: str) -> None:
        self.type(text)
        self.keys("Enter")

    def paste(self, text: str) -> None:
        """As a terminal pastes: bracketed, if the program asked for that."""
        self._tmux.run("set-buffer", "--", text)
        self._tmux.run("paste-buffer", "-p", "-t", self.name)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux.run("resize-window", "-t", self.name, "-x", str(columns), "-y", str(rows))

    # --- looking ----------------------------------------------------------------------------------
    @property
    def lines(self) -> list[str]:
        return self._tmux.run("capture-pane", "-p", "-t", self.name).split("\n")[:-1]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def all_text(self) -> str:
        """With the scrollback."""
        return self._tmux.run("capture-pane", "-p", "-S", "-", "-t", self.name)

    def flag(self, name: str) -> str:
        """One of tmux's format variables: ``alternate_on``, ``cursor_flag``, ``mouse_any_flag``."""
        return self._tmux.run("display-message", "-p", "-t", self.name, f"#{{{name}}}").strip()

    def wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE:g} s for {what}; the screen:\n{self.text}")
            time.sleep(LOOK_EVERY)

    def shows(self, text: str, count: int = 1) -> None:
        """Wait for a text on the screen."""
        self.wait(lambda: self.text.count(text) >= count, repr(text))

    def shows_not(self, text: str) -> None:
        """Wait for a text to be gone."""
        self.wait(lambda: text not in self.text, f"{text!r} to be gone")

    async def will_show(self, text: str) -> None:
        """As :meth:`shows`, while other tasks run."""
        await self.until(lambda: text in self.text, repr(text))

    async def until(self, condition: Callable[[], object], what: str) -> None:
        with trio.move_on_after(PATIENCE):
            while not condition():  # noqa: ASYNC110 - tmux tells nobody
                await trio.sleep(LOOK_EVERY)
            return
        raise TimeoutError(f"waited {PATIENCE:g} s for {what}; the screen:\n{self.text}")

    # --- the client in it -------------------------------------------------------------------------
    def attach(self, session: str, *options: str) -> None:
        """Type the command that attaches; it says with which status it ended, and notes the terminal's settings around."""
        command = shlex.join(["ptymux", "attach", *options, session])
        before, after = (shlex.quote(str(self._notes / name)) for name in ("before", "after"))
        self.run_in_shell(f'stty -a >{before}; {command}; s=$?; stty -a >{after}; echo "left with $s."')

    def run_in_shell(self, script: str) -> None:
        """A line too long to type: the shell reads it from a file."""
        file = self._notes / "script"
        file.write_text(script)
        self.line(f". {shlex.quote(str(file))}")

    def client_pid(self) -> int:
        """The attached client's process."""
        shell = int(self.flag("pane_pid"))
        return wait_for(lambda: next(iter(children(shell, "ptymux")), 0), "the client's process")

    def leave(self) -> None:
        """Detach, and be at the shell's prompt again."""
        self.keys("C-]")
        self.left(0)

    def left(self, status: int) -> None:
        """Wait until the client has ended with this status."""
        self.wait(lambda: re.search(r"left with \d+\.", self.text), "the client to end")
        assert f"left with {status}." in self.text, self.text

    def settings(self) -> tuple[str, str]:
        """The terminal's settings before the client and after it, without the size."""
        before, after = ((self._notes / name).read_text() for name in ("before", "after"))
        return re.sub(r"rows \d+; columns \d+;", "", before), re.sub(r"rows \d+; columns \d+;", "", after)
