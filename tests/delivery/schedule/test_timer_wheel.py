"""The wheel: coarse deadlines on one timer, never early, each fired once."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from eddyline.delivery.schedule.timer_wheel import IDLE_MIN, TICK_S, TimerWheel
from tests.support.manual_clock import ManualClock


def test_any_number_of_deadlines_arm_one_timer() -> None:
    clock = ManualClock()
    wheel = TimerWheel(clock)
    for number in range(1000):
        wheel.schedule(10 - number / 1000, lambda: None)
    assert clock.pending == 1
    wheel.close()
    assert clock.pending == 0


@given(delays=st.lists(st.floats(0, 100), max_size=20), step_s=st.floats(0.001, 7))
def test_each_fires_once_within_a_tick_and_never_early(delays: list[float], step_s: float) -> None:
    clock = ManualClock()
    wheel = TimerWheel(clock)
    fired: list[float | None] = [None] * len(delays)

    def note(index: int) -> None:
        assert fired[index] is None
        fired[index] = clock.monotonic_s()

    for index, delay_s in enumerate(delays):
        wheel.schedule(delay_s, partial(note, index))
    for _ in range(20):
        clock.advance(step_s)
    clock.advance(102)
    for delay_s, at_s in zip(delays, fired, strict=True):
        assert at_s is not None
        assert delay_s - 0.001 <= at_s <= delay_s + 2 * TICK_S


def test_cancelled_deadline_does_not_fire() -> None:
    clock = ManualClock()
    wheel = TimerWheel(clock)
    fired: list[str] = []
    wheel.schedule(1, lambda: fired.append("kept"))
    wheel.schedule(1, lambda: fired.append("cancelled")).cancel()
    clock.advance(2)
    assert fired == ["kept"]


def test_deadline_that_schedules_itself_for_now_waits_for_the_next_tick() -> None:
    clock = ManualClock()
    wheel = TimerWheel(clock)
    fired: list[float] = []

    def again() -> None:
        fired.append(clock.monotonic_s())
        wheel.schedule(0, again)

    wheel.schedule(0, again)
    clock.advance(1)
    assert len(fired) <= 1 / TICK_S + 1


def test_cancelled_deadlines_are_not_kept_until_they_are_due() -> None:
    clock = ManualClock()
    wheel = TimerWheel(clock)
    fired: list[str] = []
    for number in range(10_000):
        wheel.schedule(1_800.0 + number, lambda: fired.append("gone")).cancel()
        if number % 1_000 == 0:
            wheel.schedule(5.0 + number, lambda: fired.append("kept"))
    assert sum(map(len, wheel._slots.values())) <= IDLE_MIN + 11
    clock.advance(20_000.0)
    assert fired == ["kept"] * 10
