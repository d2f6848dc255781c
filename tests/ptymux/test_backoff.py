"""backoff.py: how long until the next dial."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ptymux import limits
from ptymux.backoff import Backoff

CHANCE = st.floats(0, 1, exclude_max=True)


def test_the_first_dial_after_a_good_connection_is_at_once() -> None:
    backoff = Backoff()
    assert backoff.next_delay(0.9) == 0.0
    assert backoff.next_delay(0.9) > 0.0
    backoff.worked()
    assert backoff.next_delay(0.9) == 0.0


def test_delays_double_up_to_the_most() -> None:
    backoff = Backoff(first=1.0, most=10.0)
    assert [backoff.next_delay(0.0) for _ in range(7)] == [0.0, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.worked()
    assert [backoff.next_delay(1 - 1e-9) for _ in range(3)][1:] == [1.0 * (1 - 5e-10), 2.0 * (1 - 5e-10)]


@given(chances=st.lists(CHANCE, min_size=1, max_size=40))
def test_a_delay_is_between_half_its_ceiling_and_its_ceiling(chances: list[float]) -> None:
    """Case C37: jitter, so that many clients of one restored VM do not dial in step."""
    backoff = Backoff()
    for index, chance in enumerate(chances):
        ceiling = 0.0 if index == 0 else min(limits.BACKOFF_MAX, limits.BACKOFF_FIRST * 2 ** (index - 1))
        assert ceiling / 2 <= backoff.next_delay(chance) <= ceiling


def test_ten_thousand_failures_do_not_overflow() -> None:
    """An agent that is gone for a weekend: the exponent is capped before it becomes a number without end."""
    backoff = Backoff()
    delays = [backoff.next_delay(0.5) for _ in range(10_000)]
    assert max(delays) == limits.BACKOFF_MAX * 0.75
    assert delays[-1] == limits.BACKOFF_MAX * 0.75
