"""Options, dispatch, and what an error looks like: one line on stderr, exit 2 for usage, 255 for lost contact, else 1."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import trio

from ptymux import __version__, limits
from ptymux.cli import attach, commands, execute, snapshot
from ptymux.errors import AddressError, ConnectionLost, PtymuxError

LOST = 255


def size(text: str) -> tuple[int, int]:
    columns, _, rows = text.lower().partition("x")
    if not (columns.isdigit() and rows.isdigit()):
        raise argparse.ArgumentTypeError(f"must be COLSxROWS, not {text!r}")
    return int(columns), int(rows)


def variable(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, not {text!r}")
    return key, value


def offset(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be a number of bytes, not {text!r}")
    return int(text)


def lines(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 1000:
        raise argparse.ArgumentTypeError(f"must be a number of lines up to 1000, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text!r}")
    return value


class Parser(argparse.ArgumentParser):
    """Usage errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {commands.printable(' '.join(message.split()))}\n")


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="ptymux", description="Terminals in a guest that never lose a byte.")
    top.add_argument("--version", action="version", version=f"ptymux {__version__}")
    top.add_argument(
        "--to",
        metavar="ADDRESS",
        default=os.environ.get("PTYMUX_TO"),
        help="the agent: unix:PATH, vsock:CID:PORT, firecracker:PATH:PORT, tcp:HOST:PORT, ws://HOST:PORT/, wss://...; default $PTYMUX_TO",
    )
    top.add_argument(
        "--token-file",
        metavar="FILE",
        default=os.environ.get("PTYMUX_TOKEN_FILE"),
        help="file with the token; default $PTYMUX_TOKEN_FILE",
    )
    top.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=1.0,  # longer than a restart of the agent's server takes
        help="keep dialling for so long until the agent answers (default %(default)g)",
    )
    top.add_argument(
        "--give-up",
        metavar="SECONDS",
        type=seconds,
        default=limits.GIVE_UP_AFTER,
        help="exit with 255 after so long without contact (default %(default)g)",
    )
    top.add_argument("--ca-file", metavar="FILE", help="authorities to trust for wss://")
    verbs = top.add_subparsers(dest="verb", metavar="COMMAND", required=True)

    def verb(name: str, run: object, text: str, *, json: bool = True) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        if json:
            sub.add_argument("--json", action="store_true", help="print JSON")
        return sub

    def session(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("session", metavar="ID|NAME")

    def starting(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--name", help="a name to find it by")
        sub.add_argument("--label", help="any text, shown by inspect")
        sub.add_argument("--cwd", metavar="DIR")
        sub.add_argument("--env", metavar="K=V", type=variable, action="append", default=[], help="may be given again")
        sub.add_argument("--user", metavar="NAME")
        sub.add_argument("--size", metavar="COLSxROWS", type=size)
        sub.add_argument("--term", help="TERM of the program")
        sub.add_argument("--history", metavar="BYTES", type=int, help="output to keep")

    new = verb("new", commands.new, "start a program in a new session and print the session's id")
    starting(new)
    new.add_argument(
        "--policy", choices=("hold", "block", "overwrite"), help="who may slow the program down (default hold)"
    )
    new.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="default: a login shell")

    run = verb("exec", execute.run, "run a command in the guest: its output, its input, its exit status", json=False)
    starting(run)
    run.add_argument("--tty", action=argparse.BooleanOptionalAction, default=True, help="a terminal (default) or pipes")
    run.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER)

    sub = verb("attach", attach.run, f"use a session from this terminal; {attach.DETACH_TEXT} detaches", json=False)
    session(sub)
    sub.add_argument("--view", action="store_true", help="only look")
    sub.add_argument(
        "--detach-key", metavar="KEY", type=attach.key, default=attach.key("C-]"), help="default C-] (Ctrl and ])"
    )

    verb("ls", commands.ls, "list the sessions")
    session(verb("inspect", commands.inspect, "everything about one session"))

    sub = verb("send", commands.send, "type into a session: the arguments, or else stdin")
    session(sub)
    sub.add_argument("--enter", action="store_true", help="press Enter at the end")
    sub.add_argument("text", nargs="*")

    sub = verb("read", commands.read, "print a session's output", json=False)
    session(sub)
    sub.add_argument(
        "--from",
        dest="start",
        metavar="OFFSET",
        type=offset,
        help="begin at this offset (default: the oldest byte there is)",
    )
    sub.add_argument("--follow", action="store_true", help="go on until the program ends")
    sub.add_argument("--stream", choices=("stdout", "stderr"), default="stdout")

    sub = verb("screen", commands.screen, "what a session's terminal shows now")
    session(sub)
    sub.add_argument("--svg", metavar="FILE", help="write a picture instead")
    sub.add_argument(
        "--scrollback", metavar="LINES", type=lines, default=0, help="lines above the screen too, at most 1000"
    )

    sub = verb("resize", commands.resize, "set a session's size")
    session(sub)
    sub.add_argument("size", metavar="COLSxROWS", type=size)

    sub = verb("signal", commands.signal, "send a signal to a session's foreground programs")
    session(sub)
    sub.add_argument("signal", metavar="SIGNAL", help="name or number")
    sub.add_argument("--all", action="store_true", help="to every process of the session")

    session(verb("kill", commands.kill, "kill everything in a session"))
    sub = verb("rm", commands.remove, "forget an ended session and its history")
    session(sub)
    sub.add_argument("--force", action="store_true", help="kill it first if it runs")

    verb("poweroff", commands.poweroff, "end the guest, if the agent is its process 1")
    verb("info", commands.info, "the agent: versions, generation, pids, limits")
    sub = verb("stats", commands.stats, "the agent's counters")
    sub.add_argument("--prometheus", action="store_true", help="in Prometheus text form")
    snapshot.add(verbs, Parser)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    options, more = parser().parse_known_args(arguments)
    if more:
        if options.verb != "send" or any(text.startswith("-") for text in more):
            return complain(f"unrecognized arguments: {' '.join(more)}", 2)
        options.text += more  # argparse takes the text only where it stands before the options
    if not options.to:
        return complain("no agent: give --to ADDRESS or set PTYMUX_TO", 2)
    command = getattr(options, "command", None)
    if command and command[0] == "--":
        options.command = command[1:]
    if options.verb == "exec" and not options.command:
        return complain("exec needs a command: ptymux exec -- CMD ...", 2)
    try:
        status: int = trio.run(options.run, options, strict_exception_groups=True)
        sys.stdout.flush()
    except AddressError as error:
        return complain(str(error), 2)
    except commands.UsageError as error:
        return complain(str(error), 2)
    except ConnectionLost as error:
        return complain(str(error), LOST)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter fails when it flushes what is left
        return 128 + signal.SIGPIPE
    except (PtymuxError, OSError) as error:
        return complain(str(error), 1)
    except KeyboardInterrupt:
        return 130
    return status


def complain(text: str, status: int) -> int:
    print(f"ptymux: {commands.printable(' '.join(text.split()))}", file=sys.stderr)
    return status
