"""The governor: pressure of three measurements, and the countermeasures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.delivery.schedule.governor import (
    SAMPLE_S,
    WINDOW_S_MAX,
    Governor,
    LadderStep,
    PressurePart,
    PressureReading,
    window_s,
)

stats = st.tuples(st.integers(0, 2_000), st.floats(0, 1), st.integers(0, 1 << 40))


def governor(workers: int = 16, send_bytes_max: int = 1_000) -> Governor:
    return Governor(workers=workers, send_bytes_max=send_bytes_max)


def pressed(one: Governor, samples: list[float]) -> list[PressureReading]:
    """Return readings of samples whose pressure comes from send bytes."""
    return [
        one.sample(number * SAMPLE_S, ready=0, latency_s=0.0, queued_bytes=round(pressure * 1_000))
        for number, pressure in enumerate(samples, 1)
    ]


@given(samples=st.lists(stats, max_size=60))
def test_pressure_is_the_largest_part_and_each_is_within_0_and_1(samples: list[tuple[int, float, int]]) -> None:
    one = governor()
    average_s = 0.0
    for number, (ready, latency_s, queued_bytes) in enumerate(samples):
        average_s += 0.2 * (latency_s - average_s)
        reading = one.sample(number * SAMPLE_S, ready=ready, latency_s=latency_s, queued_bytes=queued_bytes)
        assert reading.ready == min(1.0, ready / 128)
        assert reading.latency == pytest.approx(min(1.0, average_s / 0.005))
        assert reading.send_bytes == min(1.0, queued_bytes / 1_000)
        assert reading.pressure == max(reading.ready, reading.latency, reading.send_bytes)
        assert getattr(reading, reading.part.name.lower()) == reading.pressure
        assert 0.0 <= reading.window_s <= WINDOW_S_MAX


@given(samples=st.lists(st.floats(0, 1).map(lambda share: round(share, 3)), max_size=60))
def test_b0_is_slowed_after_five_samples_above_and_until_one_below(samples: list[float]) -> None:
    rulings = pressed(governor(), samples)
    slowed, above = False, 0
    for pressure, reading in zip(samples, rulings, strict=True):
        above = above + 1 if pressure > 0.8 else 0
        slowed = pressure >= 0.6 if slowed else above >= 5
        assert reading.slows_b0 == slowed
        expected = LadderStep.SLOW_B0 if slowed else LadderStep.COALESCE if pressure > 0.2 else LadderStep.REST
        assert reading.step is expected


@given(samples=st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_a_reading_has_the_start_and_reason_of_its_step(samples: list[float]) -> None:
    since_s, reason = 0.0, ""
    before = LadderStep.REST
    for number, reading in enumerate(pressed(governor(), samples), 1):
        if reading.step is not before:
            assert reading.reason, "a step that is begun has its reason"
            since_s, reason = number * SAMPLE_S, reading.reason
        assert (reading.since_s, reading.reason) == (since_s, reason)
        before = reading.step


@given(pressures=st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_the_window_grows_with_pressure_from_nothing_to_20_ms(pressures: list[float]) -> None:
    windows = [window_s(pressure) for pressure in sorted(pressures)]
    assert windows == sorted(windows)
    assert window_s(0.2) == 0.0
    assert window_s(0.6) == pytest.approx(0.01)
    assert window_s(1.0) == 0.02


def test_there_is_no_window_under_low_pressure() -> None:
    assert all(reading.window_s == 0.0 and not reading.slows_b0 for reading in pressed(governor(), [0.2] * 100))


def test_a_reading_names_the_part_that_makes_the_pressure() -> None:
    one = governor()
    assert one.sample(0.1, ready=64, latency_s=0.0, queued_bytes=0).part is PressurePart.READY
    assert one.sample(0.2, ready=0, latency_s=1.0, queued_bytes=0).part is PressurePart.LATENCY
    assert one.reading.reason == "ready topics at 0.50: above 0.2"
    assert one.sample(0.3, ready=0, latency_s=0.0, queued_bytes=10_000).pressure == 1.0


def test_each_step_has_its_reason() -> None:
    rulings = pressed(governor(), [0.9] * 5 + [0.7, 0.5, 0.1])
    assert [reading.reason for reading in rulings[3:]] == [
        "queued send bytes at 0.90: above 0.2",
        "queued send bytes at 0.90: above 0.8 for 5 samples",
        "queued send bytes at 0.90: above 0.8 for 5 samples",
        "queued send bytes at 0.50: below 0.6 again",
        "pressure at 0.10: 0.2 or less",
    ]
    assert [reading.since_s for reading in rulings[3:]] == pytest.approx([0.1, 0.5, 0.5, 0.7, 0.8])


def test_latency_is_a_moving_average() -> None:
    one = governor()
    for number in range(10):
        one.sample(number * SAMPLE_S, ready=0, latency_s=0.005, queued_bytes=0)
    assert one.latency_s == pytest.approx(0.005 * (1 - 0.8**10))
