"""What can be seen of the agent: the answers of `info`, `list`, `inspect` and `stats`, as plain maps."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from typing import Any

import msgpack

from guestagent.hub import Hub
from guestagent.session import Session
from ptymux import __version__, limits
from ptymux.messages import VERSIONS

Row = dict[str, Any]

LIST_PAGE = 512 * limits.KIB  # bytes of one page of `list`, so that it fits a frame whatever the labels are
COMMAND_SHOWN = 200  # characters of a command line in `list`
LAG_ROWS = 256  # attaches and histories that one answer lists; it must fit a frame


def info(hub: Hub) -> Row:
    """The agent."""
    return {
        "agent": hub.agent_id.hex(),
        "version": __version__,
        "protocol": list(VERSIONS),
        "generation": hub.generation.hex(),
        "lineage": [ancestor.generation.hex() for ancestor in hub.lineage],
        "server_pid": os.getpid(),
        "keeper_pid": hub.keeper_pid,
        "restarts": hub.restarts,
        "hostname": platform.node(),
        "cgroups": hub.cgroups,
        "no_cgroups": hub.no_cgroups or None,
        "limits": hub.config.limits.reported(),
        "sessions": len(hub.sessions),
    }


def page(hub: Hub, after: str) -> Row:
    """The sessions with ids behind `after`, as many as fit an answer."""
    rows: list[Row] = []
    size = 0
    names = sorted(hub.sessions)
    for name in names:
        if name <= after:
            continue
        row = summary(hub.sessions[name])
        size += len(msgpack.packb(row))
        if size > LIST_PAGE:
            return {"sessions": rows, "more": True}
        rows.append(row)
    return {"sessions": rows, "more": False}


def summary(session: Session) -> Row:
    """One line of `list`."""
    command = " ".join(session.meta["argv"]) or "(login shell)"
    row: Row = {
        "id": session.id,
        "name": session.name,
        "label": session.meta["label"],
        "command": command[:COMMAND_SHOWN],
        "pid": session.pid,
        "tty": session.tty,
        "state": "exited" if session.exited else "running",
        "policy": session.policy,
        "size": session.size(),
        "started": session.started,
        "ended": session.ended,
        "offset": session.history.head,
        "attached": sum(len(stream.attaches) for stream in session.streams.values()),
    }
    end = session.history.last_mark("exit")
    if end is not None:
        row["exit"] = end.data
    return row


def inspect(session: Session) -> Row:
    """Everything about one session."""
    return {
        **summary(session),
        "argv": session.meta["argv"][:256],
        "cwd": session.meta["cwd"],
        "user": session.meta["user"],
        "cgroup": session.group,
        "size_owner": session.size_owner.hex() if session.size_owner else None,
        "holder": session.holder.hex() if session.holder else None,
        "input_bytes": session.input.bytes_in,
        "streams": {
            name: {
                "oldest": stream.history.oldest,
                "head": stream.history.head,
                "size": stream.history.size,
                "marks": [stream.history.oldest_mark, stream.history.next_mark],
                "state": stream.state.value,
                "paused": stream.paused,
                "attaches": [
                    {
                        "client": attach.peer.client.hex(),
                        "view": attach.view,
                        "lag": attach.sender.lag,
                        "demoted": attach.demoted,
                    }
                    for attach in list(stream.attaches)[:64]
                ],
            }
            for name, stream in session.streams.items()
        },
    }


def stats(hub: Hub) -> Row:
    """What the `stats` method answers."""
    streams = [stream for session in hub.sessions.values() for stream in session.streams.values()]
    attaches = [attach for stream in streams for attach in stream.attaches]
    return {
        **asdict(hub.stats),
        "sessions": len(hub.sessions),
        "sessions_running": sum(session.status is None for session in hub.sessions.values()),
        "connections": len(hub.peers),
        "strangers": len(hub.strangers),
        "output_bytes": sum(stream.history.head for stream in streams),
        "input_bytes": sum(session.input.bytes_in for session in hub.sessions.values()),
        "paused": sum(stream.paused for stream in streams),
        "ticks": hub.pump.ticks,
        "restarts": hub.restarts,
        "attaches": len(attaches),
        "history": [
            {
                "session": stream.session.id,
                "stream": stream.name,
                "head": stream.history.head,
                "used": min(stream.history.head, stream.history.size),
                "size": stream.history.size,
            }
            for stream in streams[:LAG_ROWS]
        ],
        "lag": [
            {
                "session": attach.stream.session.id,
                "client": attach.peer.client.hex(),
                "channel": attach.channel,
                "lag": attach.sender.lag,
                "demoted": attach.demoted,
            }
            for attach in attaches[:LAG_ROWS]
        ],
    }
