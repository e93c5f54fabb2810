"""Sends in flight: which of them count, and that slow readers do not."""

from __future__ import annotations

import pytest

from eddyline.delivery.schedule.in_flight import LATE_S, OVERTAKEN, STILL_S, WORKERS, InFlight, PendingRead


def waiters(count: int) -> list[PendingRead]:
    return [PendingRead(lambda: None) for _ in range(count)]


def overtake(under_way: InFlight, now_s: float, times: int = OVERTAKEN) -> None:
    """Begin and complete `count` sends."""
    for waiter in waiters(times):
        under_way.begin(waiter, now_s)
        assert under_way.end(waiter, now_s)


def test_turns_may_begin_until_the_bound_is_reached() -> None:
    under_way = InFlight()
    some = waiters(WORKERS)
    for waiter in some:
        assert under_way.wait_s(1.0) == 0.0
        under_way.begin(waiter, 1.0)
    assert under_way.wait_s(1.001) == pytest.approx(STILL_S - 0.001)
    assert under_way.end(some[3], 1.001)
    assert under_way.wait_s(1.001) == 0.0


def test_an_overtaken_reader_does_not_count_until_a_turn_of_it_is_not_overtaken() -> None:
    under_way = InFlight()
    (slow,) = waiters(1)
    under_way.begin(slow, 0.0)
    overtake(under_way, 0.0)
    for other in waiters(WORKERS - 1):
        under_way.begin(other, 0.0)
    assert under_way.wait_s(0.0) == 0.0, "whatever the time"
    assert len(under_way) == WORKERS - 1
    assert not under_way.end(slow, 1.0)
    under_way.begin(slow, 1.0)
    assert len(under_way) == WORKERS - 1, "its next turn counts neither"
    overtake(under_way, 1.0, OVERTAKEN // 2)
    assert not under_way.end(slow, 1.001)
    under_way.begin(slow, 2.0)
    assert len(under_way) == WORKERS


def test_a_busy_process_makes_no_reader_slow() -> None:
    """All sends take long, in order: none is overtaken, however late it is."""
    under_way = InFlight()
    many = waiters(200)
    for waiter in many:
        under_way.begin(waiter, 0.0)
    for number, waiter in enumerate(many):
        under_way.end(waiter, number * 0.001)
    assert not any(waiter.reader.slow for waiter in many)


def test_a_stopped_process_classifies_readers_as_slow_for_one_turn_at_most() -> None:
    under_way = InFlight()
    some = waiters(WORKERS)
    for waiter in some:
        under_way.begin(waiter, 0.0)
    assert under_way.wait_s(STILL_S) == 0.0
    for waiter in some:
        under_way.end(waiter, STILL_S)
    assert not any(waiter.reader.slow for waiter in some)


def test_without_any_send_those_in_flight_are_slow() -> None:
    under_way = InFlight()
    some = waiters(WORKERS)
    for waiter in some:
        under_way.begin(waiter, 1.0)
    assert under_way.wait_s(1.0 + STILL_S / 2) == pytest.approx(STILL_S / 2)
    assert under_way.wait_s(1.0 + STILL_S) == 0.0
    assert some[0].reader.slow
    assert len(under_way) == WORKERS - 1


def test_no_turn_waits_longer_than_the_bound_for_moving_sends() -> None:
    under_way = InFlight()
    oldest, *others = waiters(WORKERS + 20)
    under_way.begin(oldest, 0.0)
    for waiter in others:
        under_way.begin(waiter, 0.001)
    now_s = 0.0
    for waiter in others[:12]:
        now_s += LATE_S / 12.5
        assert 0 < under_way.wait_s(now_s) <= STILL_S
        under_way.end(waiter, now_s)
    assert under_way.wait_s(LATE_S + 0.001) == 0.0
    assert not oldest.reader.slow


def test_ending_a_send_without_a_turn_has_no_effect() -> None:
    under_way = InFlight()
    (waiter,) = waiters(1)
    assert not under_way.end(waiter, 5.0)
    under_way.begin(waiter, 5.0)
    assert under_way.forget(waiter)
    assert not under_way.forget(waiter)
    assert not under_way.end(waiter, 9.0)


def test_a_second_turn_of_one_subscription_counts_once() -> None:
    under_way = InFlight()
    (waiter,) = waiters(1)
    under_way.begin(waiter, 0.0)
    under_way.begin(waiter, 1.0)
    assert len(under_way) == 1
    assert under_way.end(waiter, 2.0)


def test_a_stalled_stream_is_slow_with_all_of_its_topics() -> None:
    under_way = InFlight()
    topics = waiters(100)
    for waiter in topics:
        waiter.reader = topics[0].reader
    for waiter in topics[:WORKERS]:
        under_way.begin(waiter, 0.0)
    assert under_way.wait_s(STILL_S) == 0.0
    for waiter in topics[WORKERS:]:
        assert under_way.wait_s(STILL_S) == 0.0
        under_way.begin(waiter, STILL_S)
    assert len(under_way) == WORKERS - 1
    other = waiters(1)[0]
    under_way.begin(other, STILL_S)
    assert under_way.wait_s(STILL_S) == 0.0
    assert len(under_way) <= WORKERS - 1
    assert not other.reader.slow


def test_sends_to_many_count_until_the_turn_of_the_loop_ends() -> None:
    under_way = InFlight()
    under_way.begin_passing(WORKERS - 1)
    assert under_way.wait_s(0.0) == 0.0
    (waiter,) = waiters(1)
    under_way.begin(waiter, 0.0)
    assert under_way.wait_s(0.0) > 0.0
    under_way.end_passing(0.001)
    assert under_way.wait_s(0.001) == 0.0
    under_way.begin_passing(WORKERS)
    assert under_way.end(waiter, 0.002)
    assert under_way.wait_s(0.002) == STILL_S, "they end with this turn of the loop, whatever the time"


def test_sends_to_many_overtake_a_slow_reader() -> None:
    under_way = InFlight()
    (slow,) = waiters(1)
    under_way.begin(slow, 0.0)
    under_way.begin_passing(OVERTAKEN)
    under_way.end_passing(0.0)
    assert not under_way.wait_s(0.0)
    under_way.end(slow, 0.001)
    assert slow.reader.slow


def test_a_subscription_that_closed_is_not_counted() -> None:
    under_way = InFlight()
    (waiter,) = waiters(1)
    waiter.is_closed = True
    under_way.begin(waiter, 0.0)
    assert len(under_way) == 0
