"""Start one session's first process, on a PTY or on pipes.

Everything that can fail in the child (chdir, user, cgroup, exec) is done in the guarded `preexec_fn`, whose exception comes
back through a close-on-exec pipe: a failed start is an error here, never a stray child.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import resource
import signal
import sys
import termios
from collections.abc import Callable
from typing import Any, ClassVar

from ptyprocess import PtyProcess

IUTF8 = 0o40000  # asm-generic/termbits.h; not in the termios module
NAME_SHOWN, CAUSE_SHOWN = 200, 800  # characters in an error text: it must fit a message to the server


class SpawnFailed(Exception):
    """The child could not be started; `code` is one of ptymux.errors.CODES."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Terminal(PtyProcess):  # type: ignore[misc]
    """A PtyProcess that closes without sleeping, signalling or waiting: the keeper reaps, and who ends a session decides how."""

    closed: bool
    made: ClassVar[list[Terminal]] = []  # by the spawn that is under way

    def __init__(self, pid: int, fd: int) -> None:
        super().__init__(pid, fd)
        self.made.append(self)

    def close(self, force: bool = True) -> None:
        if not self.closed:
            self.fileobj.close()
            self.fd = -1
            self.closed = True


class Child:
    """A started process and the keeper's ends of its terminal or pipes, by name (see link.py)."""

    def __init__(self, pid: int, fds: dict[str, int], terminal: Terminal | None = None) -> None:
        self.pid = pid
        self.fds = fds
        self._terminal = terminal

    def close(self, only: str | None = None) -> None:
        """Close our ends (not the histories), or only the one of that name."""
        if self._terminal is not None:
            self._terminal.close()
            self.fds.clear()
        for name in [only] if only in self.fds else list(self.fds):
            os.close(self.fds.pop(name))


def spawn(request: dict[str, Any], group: str | None, files_limit: tuple[int, int]) -> Child:
    """Start what a ``spawn`` message asks for.  `files_limit` is the RLIMIT_NOFILE to give the child."""
    argv = request["argv"]
    try:
        user = _user(request.get("user"))
        environment = _environment(request["env"], user)
        cwd = request.get("cwd") or _home(user)
        argv = argv or [user.pw_shell or "/bin/sh", "-l"]
        program = find_program(argv[0], environment["PATH"], cwd)
        prepare = _preparation(argv, program, environment, cwd, user, group, files_limit, tty=request["tty"])
        if request["tty"]:
            return _spawn_on_terminal(prepare, *request["size"])
        return _spawn_on_pipes(prepare)
    except SpawnFailed:
        raise
    except Exception as error:
        name = argv[0] if argv else "the login shell"
        raise SpawnFailed("spawn", f"cannot start {name[:NAME_SHOWN]}: {_cause(error)[:CAUSE_SHOWN]}") from error


def _spawn_on_terminal(prepare: Callable[[], None], columns: int, rows: int) -> Child:
    # ptyprocess opens a pipe first, and forgets it if the fork or the terminal fails.  The numbers it will get are the lowest
    # that are free: those that this pipe gets.
    numbers = os.pipe()
    for fd in numbers:
        os.close(fd)
    try:
        # `prepare` does the exec itself; ptyprocess only wants to see some program there.
        terminal = Terminal.spawn([sys.executable], preexec_fn=prepare, dimensions=(rows, columns))
    except Exception:
        for fd in numbers:
            with contextlib.suppress(OSError):
                os.close(fd)
        for made in Terminal.made:  # ptyprocess leaves it to the garbage collector
            made.close()
        raise
    finally:
        Terminal.made.clear()
    os.set_inheritable(terminal.fd, False)
    return Child(terminal.pid, {"terminal": terminal.fd}, terminal)


def _cause(error: BaseException) -> str:
    return re.sub(r"^\[Errno \d+\] ", "", str(error)) or type(error).__name__


def _spawn_on_pipes(prepare: Callable[[], None]) -> Child:
    """As ptyprocess does it, with three pipes in place of the terminal."""
    opened: list[int] = []
    try:
        for _ in range(4):
            opened += os.pipe()
        stdin, to_stdin, from_stdout, stdout, from_stderr, stderr, failure, report = opened
        pid = os.fork()
    except OSError:
        for fd in opened:
            os.close(fd)
        raise
    if pid == 0:
        try:
            os.setsid()
            for number, fd in enumerate((stdin, stdout, stderr)):
                os.dup2(fd, number)
            os.closerange(3, report)
            os.closerange(report + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            prepare()
        except BaseException as error:  # noqa: BLE001 - the forked child must not unwind our stack
            os.write(report, _cause(error).encode())
        finally:
            os._exit(127)
    for fd in (stdin, stdout, stderr, report):
        os.close(fd)
    cause = os.read(failure, 4096)
    os.close(failure)
    if cause:
        for fd in (to_stdin, from_stdout, from_stderr):
            os.close(fd)
        raise RuntimeError(cause.decode("utf-8", "replace"))
    return Child(pid, {"stdin": to_stdin, "stdout": from_stdout, "stderr": from_stderr})


def _user(name: str | None) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(os.geteuid()) if name is None else pwd.getpwnam(name)
    except KeyError:
        if name is None:
            return pwd.struct_passwd(("root", "", os.geteuid(), os.getegid(), "", "/", "/bin/sh"))
        raise SpawnFailed("spawn", f"cannot start: there is no user {name!r}") from None


def _home(user: pwd.struct_passwd) -> str:
    return user.pw_dir if os.path.isdir(user.pw_dir) else "/"


def _environment(asked: dict[str, str], user: pwd.struct_passwd) -> dict[str, str]:
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell or "/bin/sh",
        "LANG": "C.UTF-8",
    }
    return {**environment, **asked}


def find_program(name: str, path: str, cwd: str) -> str:
    """The executable that `name` means in this PATH and folder."""
    if "/" in name:
        return name  # relative to the child's cwd: exec finds it after chdir
    for folder in path.split(":"):
        candidate = os.path.join(cwd, folder, name)
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    raise SpawnFailed("spawn", f"cannot start {name[:NAME_SHOWN]}: not found in PATH")


def _unguard_from_oom() -> None:
    """The agent may be guarded from the out-of-memory killer; what runs in it must not be."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        if int(file.read()) < 0:
            file.write("0")


def _preparation(
    argv: list[str],
    program: str,
    environment: dict[str, str],
    cwd: str,
    user: pwd.struct_passwd,
    group: str | None,
    files_limit: tuple[int, int],
    *,
    tty: bool,
) -> Callable[[], None]:
    """What the child does between fork and exec, the exec included (ptyprocess would put the path in argv[0])."""

    def prepare() -> None:
        if group is not None:
            with open(f"{group}/cgroup.procs", "w") as file:
                file.write("0")
        _unguard_from_oom()
        # Python ignores SIGPIPE and SIGXFSZ, and ignored signals are inherited: `yes | head` would never end quietly.
        for number in range(1, signal.NSIG):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        resource.setrlimit(resource.RLIMIT_NOFILE, files_limit)
        os.umask(0o022)
        if tty:
            attributes = termios.tcgetattr(0)
            attributes[0] |= IUTF8  # so that erase removes a whole character
            termios.tcsetattr(0, termios.TCSANOW, attributes)
        if os.geteuid() == 0 and user.pw_uid != 0:
            for fd in (0,) if tty else (0, 1, 2):
                os.fchown(fd, user.pw_uid, -1)  # or the program could not open /dev/tty or /dev/stdout
            os.initgroups(user.pw_name, user.pw_gid)
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
        elif user.pw_uid != os.geteuid():
            raise PermissionError(1, f"only root can start a session as {user.pw_name}")
        try:
            os.chdir(cwd)
        except OSError as error:
            raise OSError(error.errno, f"folder {cwd}: {error.strerror}") from None
        try:
            os.execve(program, argv, environment)
        except OSError as error:
            raise OSError(error.errno, error.strerror) from None

    return prepare
