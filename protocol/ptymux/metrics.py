"""The agent's statistics in Prometheus text form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# name in `stats` -> (type, help)
_PLAIN = {
    "sessions": ("gauge", "Sessions, running or ended and kept."),
    "sessions_running": ("gauge", "Sessions whose program runs."),
    "sessions_total": ("counter", "Sessions created since the server started."),
    "connections": ("gauge", "Clients that are connected."),
    "connections_total": ("counter", "Connections accepted since the server started."),
    "strangers": ("gauge", "Connections that have not said hello."),
    "attaches": ("gauge", "Streams that are followed."),
    "output_bytes": ("gauge", "Bytes written by the programs of the present sessions."),
    "input_bytes": ("gauge", "Bytes typed into the present sessions by way of this server process."),
    "bytes_out": ("counter", "Bytes sent to clients, framing included."),
    "resumes": ("counter", "Attaches that went on at a cursor without loss."),
    "gaps": ("counter", "Discontinuities told to clients."),
    "uncertain": ("counter", "Reads that a killed server left without a size."),
    "pauses": ("counter", "Times that a program was made to wait for a reader."),
    "paused": ("gauge", "Streams that wait for a reader now."),
    "stalls": ("counter", "Readers that were not waited for any more."),
    "protocol_errors": ("counter", "Connections dropped for malformed input."),
    "refused": ("counter", "Hellos with a missing or wrong token."),
    "restarts": ("counter", "Times that the keeper restarted the server."),
    "loop_delay": ("gauge", "Seconds that the event loop was late at the last look."),
    "loop_delay_max": ("gauge", "The most that it was late."),
}


def prometheus(stats: Mapping[str, Any]) -> str:
    """`stats` as :meth:`ptymux.Agent.stats` gives it."""
    lines: list[str] = []
    for name, (kind, text) in _PLAIN.items():
        if name in stats:
            _head(lines, name, kind, text)
            lines.append(
                f"guestagent_{name} {stats[name]:g}"
                if isinstance(stats[name], float)
                else f"guestagent_{name} {stats[name]}"
            )
    _head(lines, "history_used_bytes", "gauge", "Bytes of output that a stream keeps.")
    lines.extend(
        f'guestagent_history_used_bytes{{session="{row["session"]}",stream="{row["stream"]}"}} {row["used"]}'
        for row in stats.get("history", ())
    )
    _head(lines, "lag_bytes", "gauge", "Bytes that an attach has not acknowledged.")
    lines.extend(
        f'guestagent_lag_bytes{{session="{row["session"]}",client="{row["client"]}",channel="{row["channel"]}"}} {row["lag"]}'
        for row in stats.get("lag", ())
    )
    return "\n".join(lines) + "\n"


def _head(lines: list[str], name: str, kind: str, text: str) -> None:
    lines.append(f"# HELP guestagent_{name} {text}")
    lines.append(f"# TYPE guestagent_{name} {kind}")
