"""Counters of one server process; `stats` reports them beside what the sessions and connections say of themselves."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from guestagent.hub import Hub

LOOP_PROBE = 0.5  # seconds between two looks at how late the loop is
LAG_ROWS = 256  # attaches and histories that one answer lists; it must fit a frame


@dataclass
class Stats:
    """Totals since the server started."""

    connections_total: int = 0
    sessions_total: int = 0
    bytes_out: int = 0  # sent to clients, framing included
    resumes: int = 0  # attaches that went on at a cursor
    gaps: int = 0  # discontinuities told to clients
    uncertain: int = 0  # reads that a killed server left without a size
    pauses: int = 0  # times a program was made to wait
    stalls: int = 0  # readers that were demoted
    protocol_errors: int = 0
    refused: int = 0  # hellos with a wrong or missing token
    loop_delay: float = 0.0  # seconds that the loop was late, last look
    loop_delay_max: float = 0.0

    async def watch_loop(self) -> None:
        """Measure how late the event loop runs, until cancelled."""
        while True:
            due = trio.current_time() + LOOP_PROBE
            await trio.sleep_until(due)
            self.loop_delay = max(0.0, trio.current_time() - due)
            self.loop_delay_max = max(self.loop_delay_max, self.loop_delay)


def report(hub: Hub) -> dict[str, Any]:
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
        "input_bytes": sum(session.bytes_in for session in hub.sessions.values()),
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
