"""The short commands: ask, print, done."""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from ptymux import metrics
from ptymux.cli import stdio, svg
from ptymux.client import Agent, Attach, Session, connect
from ptymux.cursor import Cursor
from ptymux.events import Exit, Foreign, Gap, Output, Rewound
from ptymux.messages import is_map


class UsageError(Exception):
    """The command line does not make sense."""


Options = argparse.Namespace


def open_agent(options: Options, on_state: Callable[[str], None] | None = None) -> AbstractAsyncContextManager[Agent]:
    """The agent that the options name."""
    context = None
    if options.ca_file:
        try:
            context = ssl.create_default_context(cafile=options.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"cannot read {options.ca_file}: {error}") from None
    return connect(
        options.to,
        token=_token(options.token_file),
        wait=options.wait,
        give_up_after=options.give_up,
        ssl_context=context,
        on_state=on_state,
    )


def _token(path: str | None) -> str | None:
    """The token in a file: its first line that is not a comment, without a role in front."""
    if not path:
        return None
    for line in token_text(path).splitlines():
        if line.strip() and not line.startswith("#"):
            return line.split()[-1]
    raise UsageError(f"cannot read the token file {path}: there is no token in it")


def token_text(path: str) -> str:
    """What a token file says."""
    try:
        return Path(path).read_text()
    except OSError as error:
        raise UsageError(f"cannot read the token file {path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"cannot read the token file {path}: it is not text") from None


@asynccontextmanager
async def open_session(options: Options) -> AsyncGenerator[Session]:
    async with open_agent(options) as agent:
        yield await agent.find(options.session)


def show(options: Options, value: Any, text: str) -> int:
    """Print JSON or text, whichever was asked for."""
    print(json.dumps(value, default=_plain) if options.json else text)
    return 0


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"no JSON for {type(value).__name__}")


def printable(text: object) -> str:
    """`text` on one line and without control characters: names and commands are whatever somebody in the guest made them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def pairs(values: Mapping[str, Any], indent: str = "") -> str:
    """Nested maps as aligned lines."""
    lines: list[str] = []
    width = max((len(key) for key in values), default=0)
    for key, value in values.items():
        if is_map(value):
            lines.append(f"{indent}{printable(key)}:")
            lines.append(pairs(value, indent + "  "))
        else:
            lines.append(f"{indent}{printable(key):<{width}}  {'-' if value is None else printable(value)}")
    return "\n".join(line for line in lines if line)


def creation(options: Options) -> dict[str, Any]:
    """Arguments for Agent.create from the options that `new` and `exec` share."""
    return {
        "name": options.name,
        "label": options.label,
        "cwd": options.cwd,
        "env": dict(options.env),
        "user": options.user,
        "term": options.term,
        "history": options.history,
    }


async def new(options: Options) -> int:
    async with open_agent(options) as agent:
        session = await agent.create(
            options.command, size=options.size or (80, 24), policy=options.policy or "hold", **creation(options)
        )
    return show(options, {"id": session.id}, session.id)


async def ls(options: Options) -> int:
    async with open_agent(options) as agent:
        rows = await agent.sessions()
    cells: list[tuple[str, ...]] = [("ID", "NAME", "STATE", "SIZE", "OUTPUT", "STARTED", "COMMAND")]
    for row in rows:
        end = row.get("exit")
        state = row["state"] if end is None else f"exit {end['code']}" if "code" in end else f"signal {end['signal']}"
        dimensions = "x".join(map(str, row["size"])) if row["size"] else "pipes"
        started = time.strftime("%m-%d %H:%M", time.localtime(row["started"]))
        cells.append((row["id"], row["name"] or "-", state, dimensions, str(row["offset"]), started, row["command"]))
    cells = [tuple(map(printable, line)) for line in cells]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]) - 1)]
    text = "\n".join(
        "  ".join([*(f"{c:<{w}}" for c, w in zip(line[:-1], widths, strict=True)), line[-1]]) for line in cells
    )
    return show(options, rows, text)


async def inspect(options: Options) -> int:
    async with open_session(options) as session:
        row = await session.inspect()
    return show(options, row, pairs(row))


async def send(options: Options) -> int:
    async with open_session(options) as session:
        if options.text:
            data = os.fsencode(" ".join(options.text)) + (b"\r" if options.enter else b"")
            end = await session.send(data)
        else:
            session.keep_input(None)  # a file is not a keystroke: however long contact was lost, it is meant
            end = 0
            while data := await stdio.read_some(0):
                end = await session.send(data)
            if options.enter:
                end = await session.send(b"\r")
    return show(options, {"written": end}, "") if options.json else 0


async def read(options: Options) -> int:
    async with open_agent(options) as agent:
        session = await agent.find(options.session)
        cursor = None
        if options.start is not None:
            assert agent.generation is not None
            cursor = Cursor(agent.generation, options.start)
        writer = stdio.Writer(1)
        async with session.attach(cursor, stream=options.stream, view=True, repair="bytes") as stream:
            return await _copy(stream, writer, options)


async def _copy(stream: Attach, writer: stdio.Writer, options: Options) -> int:
    head: int = stream.answer["head"]
    offset: int = stream.answer["offset"]
    if options.start is not None and options.start > head:
        raise UsageError(f"cannot read from {options.start}: the output ends at {head}")
    while options.follow or offset < head:
        try:
            event = await anext(stream)
        except StopAsyncIteration:
            break
        match event:
            case Output(start, data):
                await writer.write(data if options.follow else data[: head - start])
                offset = start + len(data)
            case Gap() | Rewound() | Foreign():
                print(f"ptymux: {discontinuity(event)}", file=sys.stderr)
                offset = event.to
            case Exit():
                break
            case _:
                pass
    return 0


def discontinuity(event: Gap | Rewound | Foreign) -> str:
    """What a person should know of it."""
    match event:
        case Gap(start, _, None):
            return f"an unknown number of bytes may be missing at offset {start}: the agent's server was killed"
        case Gap(start, to, size):
            return f"{size} bytes are missing, from offset {start} to {to}"
        case Rewound(start, to):
            return f"this is a branch of the VM: what was shown from offset {to} to {start} did not happen here"
        case Foreign(to):
            return f"this is another VM: its output begins at offset {to}"


async def screen(options: Options) -> int:
    async with open_session(options) as session:
        shown = await session.screen(count=options.scrollback)
    if options.svg is not None:
        _save(options.svg, svg.picture(shown))
    if options.svg is None or options.json:
        show(options, shown, "\n".join([*shown["scrollback"]["text"], *shown["text"]]))
    return 0


def _save(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


async def resize(options: Options) -> int:
    async with open_session(options) as session:
        await session.resize(*options.size)
    return show(options, {"size": options.size}, "") if options.json else 0


async def signal(options: Options) -> int:
    async with open_session(options) as session:
        await session.signal(options.signal, everyone=options.all)
    return show(options, {"signal": options.signal}, "") if options.json else 0


async def kill(options: Options) -> int:
    async with open_session(options) as session:
        await session.kill()
    return show(options, {"killed": session.id}, "") if options.json else 0


async def remove(options: Options) -> int:
    async with open_session(options) as session:
        await session.remove(force=options.force)
    return show(options, {"removed": session.id}, "") if options.json else 0


async def poweroff(options: Options) -> int:
    async with open_agent(options) as agent:
        await agent.request("poweroff", keyed=False)
    return show(options, {"poweroff": True}, "") if options.json else 0


async def info(options: Options) -> int:
    async with open_agent(options) as agent:
        values = await agent.info()
    return show(options, values, pairs(values))


async def stats(options: Options) -> int:
    async with open_agent(options) as agent:
        values = await agent.stats()
    if options.prometheus:
        print(metrics.prometheus(values), end="")
        return 0
    flat = {key: value for key, value in values.items() if not isinstance(value, list)}
    return show(options, values, pairs(flat))
