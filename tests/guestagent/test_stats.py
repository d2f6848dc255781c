"""stats.py: how late the loop runs."""

from __future__ import annotations

from dataclasses import asdict

import trio
import trio.testing

from guestagent.stats import LOOP_PROBE, Stats


def test_counters_begin_at_zero() -> None:
    assert set(asdict(Stats()).values()) == {0}


async def test_a_loop_in_time(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    stats = Stats()
    nursery.start_soon(stats.watch_loop)
    await trio.sleep(10 * LOOP_PROBE)
    assert stats.loop_delay_max == 0
    nursery.cancel_scope.cancel()


async def test_a_late_loop(mock_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    """The last delay and the longest one."""
    stats = Stats()
    nursery.start_soon(stats.watch_loop)
    delays = []
    for step in (LOOP_PROBE + 2.0, LOOP_PROBE + 0.5, LOOP_PROBE):
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(step)
        await trio.testing.wait_all_tasks_blocked()
        delays.append((round(stats.loop_delay, 6), round(stats.loop_delay_max, 6)))
    assert delays == [(2.0, 2.0), (0.5, 2.0), (0.0, 2.0)]
    nursery.cancel_scope.cancel()
