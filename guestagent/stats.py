"""Counters of one server process.  `reports.py` shows them beside what sessions and connections say of themselves."""

from __future__ import annotations

from dataclasses import dataclass

import trio

LOOP_PROBE = 0.5  # seconds between two looks at how late the loop is


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
