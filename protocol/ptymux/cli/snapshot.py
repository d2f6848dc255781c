"""`ptymux snapshot ...`: the lifecycle from the host's command line."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from ptymux.cli.commands import Options, UsageError, open_agent, printable, show, token_text
from ptymux.client import Agent
from ptymux.errors import RequestFailed
from ptymux.messages import is_list, is_map

Verbs = Any  # argparse's own class is private


def add(verbs: Verbs, parser: type[argparse.ArgumentParser]) -> None:
    """Add `snapshot` and what it can do."""
    text = "quiesce the guest for a snapshot, and bring it back as itself or as a branch"
    top = verbs.add_parser("snapshot", help=text, description=text, epilog="Every action takes --json.")
    what = top.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=parser)

    def action(name: str, run: Callable[[Options], Awaitable[int]], text: str, ticket: str | None) -> Any:
        sub = what.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print JSON")
        if ticket is not None:
            needed = ticket == "needed"
            sub.add_argument("--ticket", metavar="T", type=_ticket, required=needed, help=f"of the quiesce ({ticket})")
        return sub

    sub = action("prepare", prepare, "quiesce: nothing in the guest moves until resume or restore", "made if left out")
    sub.add_argument("--budget", metavar="SECONDS", type=_seconds, help="undo everything if it takes longer")
    action("resume", resume, "the same VM goes on", "needed")
    action("abort", abort, "there will be no snapshot", "default: the present one")
    action("status", status, "state, ticket, and how the last one ended", None)
    sub = action(
        "restore", restore, "this VM was restored from a snapshot: make it one of its own", "none: not quiesced"
    )
    sub.add_argument("--generation", metavar="HEX", type=_generation, help="default: made in the guest")
    sub.add_argument("--time", metavar="SECONDS", type=_seconds, help="unix time now (default: this host's)")
    sub.add_argument("--no-time", action="store_true", help="leave the clock alone")
    sub.add_argument("--new-token-file", metavar="FILE", help="tokens that replace all earlier ones")
    sub.add_argument("--keep-tokens", action="store_true", help="the earlier tokens stay good")
    sub.add_argument("--env", metavar="K=V", action="append", default=[], help="for new sessions; may be given again")
    sub.add_argument("--hostname", metavar="NAME")
    sub.add_argument("--machine-id", metavar="HEX", help="32 digits, or random")
    sub.add_argument("--boot-id", action="store_true", help="a new boot id")
    sub.add_argument("--random-seed", action="store_true", help="a new seed for the next boot")


def _generation(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != 16:
        raise argparse.ArgumentTypeError(f"must be 32 hex digits, not {text!r}")
    return value


def _ticket(text: str) -> str:
    """Not empty: a script whose variable is unset would say that there was no quiesce, and all cursors would be foreign."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be seconds, more than 0, not {text!r}")
    return value


async def _ask(options: Options, ask: Callable[[Agent], Awaitable[dict[str, Any]]]) -> int:
    """Ask, and print the answer; what went wrong without keeping the guest from going on, on stderr too.  A refusal is printed too, with its details, where programs read."""
    async with open_agent(options) as agent:
        try:
            answer = await ask(agent)
        except RequestFailed as error:
            if options.json:
                print(json.dumps({"error": error.code, "message": str(error), **error.details}, default=bytes.hex))
            raise
    status = show(options, answer, "\n".join(_lines(answer)))
    for text in _trouble(answer):
        print(f"ptymux: {printable(text)}", file=sys.stderr)
    return status


def _trouble(answer: dict[str, Any]) -> Iterator[str]:
    """What could not be undone, and hooks of a restore that failed."""
    for text in answer.get("undo_errors") or ():
        yield str(text)
    for result in answer.get("hooks") or ():
        if str(result.get("hook")).startswith("post-restore/") and result.get("status") != 0:
            yield f"hook {result['hook']}: {result.get('error') or 'status {}'.format(result.get('status'))}"


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """An answer for people: lists as one line an item."""
    for key, value in values.items():
        if value and is_list(value):
            yield f"{indent}{key}:"
            yield from (f"{indent}  {_item(item)}" for item in value)
        elif value and is_map(value):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key}  {_item(value)}"


def _item(item: Any, name: str = "") -> str:
    """On one line; what is within something else with the names of both."""
    if is_map(item):
        return "  ".join(_item(value, f"{name}.{key}" if name else str(key)) for key, value in item.items()) or "-"
    if isinstance(item, float):
        text = f"{item:.6f}".rstrip("0").rstrip(".")
    elif isinstance(item, bool):
        text = "yes" if item else "no"
    else:
        text = "-" if item in (None, "", []) else printable(item)
    return f"{printable(name)} {text}".lstrip()


async def prepare(options: Options) -> int:
    return await _ask(options, lambda agent: agent.snapshot_prepare(ticket=options.ticket, budget=options.budget))


async def resume(options: Options) -> int:
    return await _ask(options, lambda agent: agent.snapshot_resume(options.ticket))


async def abort(options: Options) -> int:
    return await _ask(options, lambda agent: agent.snapshot_abort(options.ticket))


async def status(options: Options) -> int:
    return await _ask(options, lambda agent: agent.snapshot_status())


async def restore(options: Options) -> int:
    tokens = token_text(options.new_token_file) if options.new_token_file else None
    variables = [item.partition("=") for item in options.env]
    if any(not key or not equals for key, equals, _ in variables):
        raise UsageError("--env must be KEY=VALUE")
    began = time.monotonic()  # --time is of now, and it may take a while to reach the agent

    def now() -> float | None:
        return None if options.time is None else options.time + time.monotonic() - began

    return await _ask(
        options,
        lambda agent: agent.snapshot_restore(
            options.ticket,
            generation=options.generation,
            wall_time=now(),
            set_clock=not options.no_time,
            tokens=tokens,
            keep_tokens=options.keep_tokens,
            env={key: value for key, _, value in variables},
            hostname=options.hostname,
            machine_id=options.machine_id,
            boot_id=options.boot_id,
            random_seed=options.random_seed,
        ),
    )
