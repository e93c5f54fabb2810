"""States, and what ends them."""

from __future__ import annotations

import pytest

from eddyline.ingest.progress import Progress, State
from eddyline.v1 import source_pb2
from tests.support.manual_clock import ManualClock

STATES: tuple[State, ...] = (
    "STARTING",
    "RESYNCING",
    "LIVE",
    "RECOVERING",
    "BUCKET_MISSING",
    "STREAM_RECREATED",
    "CURSOR_AHEAD",
    "OVERSIZE",
)


def test_states_are_those_of_the_contract() -> None:
    names = [value.name.removeprefix("SOURCE_STATUS_") for value in source_pb2.SourceStatus.DESCRIPTOR.values]
    assert names == ["UNSPECIFIED", *STATES]


@pytest.mark.parametrize(
    ("stop", "leaves"),
    [
        ("BUCKET_MISSING", {"RESYNCING", "LIVE"}),
        ("OVERSIZE", {"LIVE"}),
        ("CURSOR_AHEAD", set()),
        ("STREAM_RECREATED", set()),
    ],
)
def test_a_stop_is_left_only_by_what_ends_it(stop: State, leaves: set[State]) -> None:
    for state in ("STARTING", "RESYNCING", "LIVE", "RECOVERING"):
        progress = Progress(ManualClock())
        progress.enter(stop, "why")
        progress.enter(state)
        assert (progress.state == state) == (state in leaves)


def test_time_in_a_state_starts_when_it_is_entered_and_not_when_it_is_repeated() -> None:
    clock = ManualClock()
    progress = Progress(clock)
    clock.advance(1)
    progress.enter("LIVE")
    clock.advance(2)
    progress.enter("LIVE")
    assert progress.since_ms == 2_000


def test_lag_is_what_lies_between_and_reasons_are_cut() -> None:
    progress = Progress(ManualClock())
    progress.saw(10)
    progress.saw(8)
    progress.position_revision = 7
    progress.enter("RECOVERING", "x" * 2_000)
    report = progress.report()
    assert (report.last_revision, report.lag, len(report.reason)) == (10, 3, 250)
    assert progress.changed.is_set()
