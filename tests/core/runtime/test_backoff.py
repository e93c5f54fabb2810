"""Bounds of retry delays."""

from __future__ import annotations

from random import Random

import pytest

from eddyline.core.runtime.backoff import Backoff


@pytest.mark.parametrize("seed", range(20))
def test_delays_stay_below_a_ceiling_that_doubles_up_to_the_cap(seed: int) -> None:
    backoff = Backoff(Random(seed), base_s=0.1, cap_s=5.0)
    for failures in range(200):
        assert 0.0 <= backoff.next_delay_s() <= min(5.0, 0.1 * 2.0**failures)
    assert backoff.failures == 200


def test_jitter_is_full() -> None:
    backoff = Backoff(Random(1), base_s=1.0, cap_s=1.0)
    delays = [backoff.next_delay_s() for _ in range(1000)]
    assert min(delays) < 0.05
    assert max(delays) > 0.95


def test_a_reset_starts_from_the_base() -> None:
    backoff = Backoff(Random(1), base_s=0.1, cap_s=5.0)
    for _ in range(10):
        backoff.next_delay_s()
    backoff.reset()
    assert backoff.next_delay_s() <= 0.1


def test_delay_is_at_least_the_server_s_hint() -> None:
    backoff = Backoff(Random(1), base_s=0.1, cap_s=0.1)
    assert all(2.0 <= backoff.next_delay_s(minimum_s=2.0) <= 2.1 for _ in range(100))


def test_the_same_seed_gives_the_same_delays() -> None:
    first, second = Backoff(Random(7)), Backoff(Random(7))
    assert [first.next_delay_s() for _ in range(9)] == [second.next_delay_s() for _ in range(9)]
