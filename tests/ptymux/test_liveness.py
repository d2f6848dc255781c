"""liveness.py: is the peer still there?  All times are made up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptymux import limits
from ptymux.liveness import Liveness, Verdict

PING, DEAD = limits.PING_AFTER, limits.DEAD_AFTER


def watch(liveness: Liveness, start: float, end: float, step: float) -> list[tuple[float, Verdict]]:
    """Everything but OK that checks every `step` seconds say."""
    said = []
    count = int((end - start) / step + 1e-6)
    for i in range(1, count + 1):
        now = start + i * step
        verdict = liveness.check(now)
        if verdict is not Verdict.OK:
            said.append((now, verdict))
    return said


def test_a_quiet_link_is_pinged_and_then_given_up() -> None:
    """Cases C32, C36: silence alone is enough, no EOF is waited for, and two pings may be lost."""
    liveness = Liveness(0.0, PING, DEAD)
    assert watch(liveness, 0.0, DEAD, liveness.interval) == [
        (PING, Verdict.PING),
        (2 * PING, Verdict.PING),
        (DEAD, Verdict.DEAD),
    ]


def test_a_link_that_talks_is_left_alone() -> None:
    liveness = Liveness(0.0, PING, DEAD)
    for i in range(1, 500):
        liveness.heard(i * 4.0)
        assert liveness.check(i * 4.0 + 1) is Verdict.OK


def test_a_pong_begins_the_silence_anew() -> None:
    liveness = Liveness(0.0, PING, DEAD)
    for round_ in range(20):
        start = round_ * (PING + 1)
        assert [v for _, v in watch(liveness, start, start + PING, 5.0)][-1:] == [Verdict.PING]
        liveness.heard(start + PING + 1)
        assert liveness.check(start + PING + 1) is Verdict.OK


@pytest.mark.parametrize("nap", [12.0, 46.0, 3600.0, 86400.0 * 30])
@pytest.mark.parametrize(("ping", "dead"), [(PING, DEAD), (0.1, 0.3), (0.5, 1.0), (1.0, 1.1), (10.0, 10.5)])
def test_who_was_asleep_does_not_blame_the_peer(nap: float, ping: float, dead: float) -> None:
    """Case C39: after SIGSTOP or a suspended VM the old timestamps prove nothing; the peer is asked and gets its time."""
    liveness = Liveness(0.0, ping, dead)
    liveness.check(liveness.interval)
    wake = liveness.interval + nap
    assert liveness.check(wake) is Verdict.PING
    assert liveness.check(wake + liveness.interval) is Verdict.OK
    said = watch(liveness, wake + liveness.interval, wake + dead + liveness.interval, liveness.interval)
    assert said[-1][1] is Verdict.DEAD
    assert said[-1][0] >= wake + dead


@given(
    ping=st.floats(0.05, 100),
    ratio=st.floats(1.01, 10),
    nap=st.floats(0, 1000),
)
def test_one_nap_is_never_a_death_at_any_setting(ping: float, ratio: float, nap: float) -> None:
    """Heard a moment ago, then a nap of any length: OK or PING, never DEAD, whatever the times are configured to."""
    liveness = Liveness(0.0, ping, ping * ratio)
    liveness.heard(liveness.interval)
    liveness.check(liveness.interval)
    assert liveness.check(liveness.interval + nap) is not Verdict.DEAD


@given(late=st.lists(st.floats(0, 0.99), min_size=200, max_size=200))
def test_a_busy_side_still_finds_out(late: list[float]) -> None:
    """Checks that come up to a second late are no naps: the dead peer is found within dead_after and one check."""
    liveness = Liveness(0.0, PING, DEAD)
    now = 0.0
    for delay in late:
        now += liveness.interval + delay
        if liveness.check(now) is Verdict.DEAD:
            break
    assert DEAD <= now <= DEAD + liveness.interval + 1


def test_the_interval_is_short_enough_to_ping_in_time() -> None:
    """Checks at every interval ping at the latest one interval after ping_after."""
    liveness = Liveness(100.0, 9.0, 27.0)
    assert liveness.interval <= 3.0
    assert watch(liveness, 100.0, 112.0, liveness.interval)[0] == (109.0, Verdict.PING)


@pytest.mark.parametrize(("ping", "dead"), [(0, 1), (-1, 1), (5, 5), (6, 5)])
def test_times_that_make_no_sense_are_refused(ping: float, dead: float) -> None:
    with pytest.raises(ValueError, match="cannot watch a link"):
        Liveness(0.0, ping, dead)
