"""Sampling and spans: ratio, rate, header of the caller; bounded without an exporter; off at 0."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.telemetry import tracing
from eddyline.core.telemetry.trace_context import TraceContext
from eddyline.core.telemetry.tracing import LINKS_MAX, NOOP_TRACER, SAMPLED_MAX, SPANS_MAX, Tracer
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from eddyline.core.telemetry.tracing import EndedSpan

GIVEN = f"00-{7:032x}-{9:016x}-01"
UNSAMPLED = GIVEN[:-1] + "0"


def tracer(ratio: float = 1.0, clock: ManualClock | None = None, seed: int = 1) -> Tracer:
    return Tracer(ratio, clock=clock or ManualClock(), rng=Random(seed))


def only(made: Tracer) -> EndedSpan:
    (span,) = made.drain()
    return span


def test_with_a_ratio_of_0_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "OpenSpan", None)  # making one would fail
    for off in (tracer(0.0), NOOP_TRACER):
        assert not off.is_on
        assert off.start_root_span("x") is off.start_root_span("x", GIVEN) is off.start_child_span("x", GIVEN) is None
        assert off.drain() == []


def test_header_of_the_caller_decides_and_chance_without_one() -> None:
    rare, always = tracer(1e-12), tracer(1.0)
    assert rare.start_root_span("x") is rare.start_root_span("x", "not a context") is None
    assert (made := rare.start_root_span("x", GIVEN)) is not None
    assert (made.context.trace_id, made.context.span_id != 9) == (7, True)
    assert always.start_root_span("x", UNSAMPLED) is None
    assert always.start_child_span("x", UNSAMPLED) is always.start_child_span("x", "") is None
    assert always.start_root_span("x") is not None
    assert always.start_child_span("x", GIVEN) is not None


@given(st.integers(0, 1 << 32), st.sampled_from([0.1, 0.5, 0.9]))
def test_about_the_ratio_is_sampled(seed: int, ratio: float) -> None:
    clock = ManualClock()
    made, sampled = tracer(ratio, clock, seed), 0
    for _ in range(1_000):
        clock.advance(1.0)
        sampled += made.sample() is not None
    assert abs(sampled - 1_000 * ratio) < 120


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=300), st.sampled_from(["", GIVEN]))
def test_no_more_than_the_bound_is_sampled_in_any_time(pauses_ms: list[int], said: str) -> None:
    clock, times_s = ManualClock(), []
    made = tracer(1.0, clock)
    for pause_ms in pauses_ms:
        clock.advance(pause_ms / 10_000)
        if made.sample(said) is not None:
            times_s.append(clock.monotonic_s())
    for index, start_s in enumerate(times_s):
        for count, end_s in enumerate(times_s[index:], start=1):
            # a full bucket, and what fills it meanwhile
            assert count <= SAMPLED_MAX + (end_s - start_s) * SAMPLED_MAX + 1


def test_bound_is_refilled() -> None:
    clock = ManualClock()
    made = tracer(1.0, clock)
    assert sum(made.sample(GIVEN) is not None for _ in range(1_000)) == SAMPLED_MAX
    clock.advance(0.5)
    assert sum(made.sample(GIVEN) is not None for _ in range(1_000)) == SAMPLED_MAX // 2


def test_span_has_times_parent_attributes_and_events() -> None:
    clock = ManualClock()
    made = tracer(1.0, clock)
    first = made.start_root_span("first", GIVEN, {"a": 1})
    assert first is not None
    clock.advance(0.002)
    first.event("middle")
    second = first.end_and_start("second")
    clock.advance(0.003)
    second.end("THROTTLED")
    second.end()
    one, two = made.drain()
    start_ns = ManualClock().now_ms() * 1_000_000
    assert (one.start_ns, one.end_ns) == (start_ns, start_ns + 2_000_000)
    assert (two.start_ns, two.end_ns) == (start_ns + 2_000_000, start_ns + 5_000_000)
    assert one.parent is not None
    assert (one.parent.trace_id, one.parent.span_id) == (7, 9)
    assert two.parent == one.context
    assert dict(one.attributes) == {"a": 1}
    assert [(event.name, event.at_ns) for event in one.events] == [("middle", one.end_ns)]
    assert (one.error, two.error) == ("", "THROTTLED")


def test_trace_that_begins_here_has_no_parent() -> None:
    made = tracer(1.0)
    span = made.start_root_span("x")
    assert span is not None
    span.end()
    assert only(made).parent is None


def test_links_are_bounded() -> None:
    made = tracer(1.0)
    span = made.start_root_span("x", GIVEN)
    assert span is not None
    for _ in range(LINKS_MAX * 2):
        span.link(span.context)
    span.end()
    assert len(only(made).links) == LINKS_MAX


@given(st.lists(st.integers(-5_000, 2_000), min_size=1, max_size=50))
def test_clock_that_is_set_back_makes_no_span_end_before_it_began(steps_ms: list[int]) -> None:
    class Jumping(ManualClock):
        offset_ms = 0

        def now_ms(self) -> int:
            return super().now_ms() + self.offset_ms

    clock = Jumping()
    made = tracer(1.0, clock)
    for step_ms in steps_ms:
        span = made.start_span("x", TraceContext(1, 1))
        clock.advance(0.001)
        clock.offset_ms += step_ms
        span.end()
        ended = only(made)
        assert ended.start_ns <= ended.end_ns
        assert abs(made.now_ns() - clock.now_ms() * 1_000_000) <= 5_000_000


def test_spans_that_are_not_exported_are_bounded_and_counted() -> None:
    made = tracer(1.0)
    for _ in range(SPANS_MAX + 3):
        made.start_span("x", TraceContext(1, 1)).end()
    assert made.dropped_count == 3
    assert len(made.drain(5)) == 5
    assert len(made.drain()) == SPANS_MAX - 5
