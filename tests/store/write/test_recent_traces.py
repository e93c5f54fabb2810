"""Which of the newest commits are traced: as a list would have it, within the bounds of count and age."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.telemetry.trace_context import SeqTrace
from eddyline.store.write import traces
from eddyline.store.write.traces import AGE_S, TRACES_MAX, RecentTraces
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    import pytest

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 3), st.integers(1, 5)),
        st.tuples(st.just("pass"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("look"), st.integers(1, 3), st.integers(0, 12)),
    ),
    max_size=60,
)
KEPT = 7


@given(STEPS)
def test_matches_a_list_of_all_commits(steps: list[tuple[str, int, int]]) -> None:
    clock = ManualClock()
    recent, heads = RecentTraces(clock), {1: 0, 2: 0, 3: 0}
    made: list[tuple[float, int, SeqTrace]] = []
    for what, number, size in steps:
        if what == "put":
            heads[number] += size
            trace = SeqTrace(heads[number], f"{number}-{heads[number]}")
            recent.put(number, *trace)
            made.append((clock.monotonic_s(), number, trace))
        elif what == "pass":
            clock.advance(number)
        else:
            first, last = size, size + 6
            oldest_s = clock.monotonic_s() - AGE_S
            wanted = [
                trace
                for at_s, topic, trace in made
                if at_s >= oldest_s and topic == number and first <= trace.seq <= last
            ]
            assert recent.within(number, first, last) == tuple(wanted[:TRACES_MAX])
            assert len(recent) == sum(at_s >= oldest_s for at_s, _, _ in made)


def test_keeps_the_newest_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "COMMITS_MAX", KEPT)
    recent = RecentTraces(ManualClock())
    for seq in range(1, 100):
        recent.put(seq % 2, seq, "t")
    assert len(recent) == KEPT
    assert [trace.seq for trace in recent.within(0, 1, 99) + recent.within(1, 1, 99)] == [94, 96, 98, 93, 95, 97, 99]


def test_tells_a_bounded_number_of_an_item() -> None:
    recent = RecentTraces(ManualClock())
    for seq in range(1, 100):
        recent.put(1, seq, "t")
    assert [trace.seq for trace in recent.within(1, 10, 99)] == list(range(10, 10 + TRACES_MAX))
