"""States, and the events that end them."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from eddyline.ingest.copy.progress import STOPPED, CopyProgress, State
from eddyline.v1 import source_pb2
from tests.support.ingest.bucket_stream import BUCKET_STREAM
from tests.support.manual_clock import ManualClock

STATES: tuple[State, ...] = get_args(State)
COPYING: set[State] = {"SNAPSHOT", "RESYNCING", "CATCHING_UP", "LIVE"}


def test_states_are_those_of_the_contract() -> None:
    values = source_pb2.SourceStatus.DESCRIPTOR.values
    names = {value.name.removeprefix("SOURCE_STATUS_") for value in values if not value.GetOptions().deprecated}
    assert names == {"UNSPECIFIED", *STATES}


@pytest.mark.parametrize(
    ("stop", "leaves"),
    [
        ("SOURCE_LOST", COPYING),
        ("OVERSIZE", {"LIVE"}),
        ("CURSOR_AHEAD", COPYING),
        ("CURSOR_EXPIRED", COPYING),
        ("STREAM_RECREATED", COPYING),
    ],
)
def test_a_stop_is_left_only_by_what_ends_it(stop: State, leaves: set[State]) -> None:
    for state in STATES:
        if state == stop:
            continue
        progress = CopyProgress(ManualClock())
        progress.set_state(stop, "why")
        progress.set_state(state)
        assert (progress.state == state) == (state in leaves or state in STOPPED or state == "PAUSED")


def test_time_in_a_state_starts_when_it_is_entered_and_not_when_it_is_repeated() -> None:
    clock = ManualClock()
    progress = CopyProgress(clock)
    clock.advance(1)
    progress.set_state("LIVE")
    clock.advance(2)
    progress.set_state("LIVE")
    assert progress.since_ms == 2_000


def test_lag_is_what_lies_between_and_reasons_are_cut() -> None:
    progress = CopyProgress(ManualClock())
    progress.set_head(10)
    progress.set_head(8)
    progress.position_revision = 7
    progress.set_state("RECOVERING", "x" * 2_000)
    report = progress.report()
    assert (report.last_revision, report.lag, len(report.reason)) == (10, 3, 250)
    assert progress.changed.is_set()


def test_position_that_passes_what_was_reported_is_reported_again_where_more_is_known() -> None:
    progress = CopyProgress(ManualClock())
    progress.set_head(10)
    progress.report()
    progress.set_head(20)
    progress.position_revision = 9
    assert not progress.changed.is_set()
    progress.position_revision = 10  # by the report alone it would be level
    assert progress.changed.is_set()
    progress.report()
    progress.changed.clear()
    progress.position_revision = 20  # and now it is
    assert not progress.changed.is_set()


def test_rate_and_time_left_are_those_of_the_last_ten_seconds() -> None:
    clock = ManualClock()
    progress = CopyProgress(clock, "s")
    progress.set_state("SNAPSHOT")
    progress.set_head(10_000)
    assert (progress.revisions_per_s, progress.remaining_s) == (0, None)
    for _ in range(20):  # 100 a second, twice as fast as before in the last ten seconds
        clock.advance(1)
        progress.position_revision += 50
    for _ in range(10):
        clock.advance(1)
        progress.position_revision += 100
    assert progress.revisions_per_s == 100
    assert progress.remaining_s == 80  # 8 000 lag
    detail = progress.current_report().detail
    assert detail is not None
    assert (detail.revisions_per_s, detail.remaining_ms) == (100, 80_000)
    progress.set_state("LIVE")
    assert progress.remaining_s is None
    clock.advance(60)
    assert progress.revisions_per_s == 0
    progress.switch_stream(5, 7)  # another stream: its revisions are no progress of this one
    clock.advance(1)
    assert progress.revisions_per_s == 0


def test_the_last_decision_outlasts_states_that_are_no_decisions() -> None:
    clock = ManualClock()
    progress = CopyProgress(clock, "s")
    progress.set_state("SNAPSHOT", detail="from the beginning")
    clock.advance(2)
    progress.set_state("LIVE", detail="caught up")
    progress.set_state("RECOVERING", "consumer lost")
    detail = progress.current_report().detail
    assert detail is not None
    assert (detail.decision, detail.decision_ms) == ("from the beginning", 2_000)
    progress.set_state("CURSOR_AHEAD", "rolled back")
    detail = progress.current_report().detail
    assert detail is not None
    assert (detail.decision, detail.decision_ms, detail.state_ms) == ("rolled back", 0, 0)


def test_what_is_reported_fits_the_contract() -> None:
    progress = CopyProgress(ManualClock(), "s")
    progress.set_stream_settings(replace(BUCKET_STREAM, history=1, peer_troubles=tuple("ä" * 2_000 for _ in range(40))))
    progress.set_file_drift("ö" * 2_000, "ü" * 2_000)
    detail = progress.current_report().detail
    assert detail is not None
    assert len(detail.warnings) == 16
    assert max(len(text.encode()) for text in (*detail.warnings, detail.file_drift)) == 1024


def test_another_setting_or_server_of_the_stream_is_reported_at_once() -> None:
    progress = CopyProgress(ManualClock(), "s")
    progress.set_stream_settings(BUCKET_STREAM)
    assert not progress.changed.is_set()
    for look in (
        replace(BUCKET_STREAM, history=5),
        replace(BUCKET_STREAM, history=5, peer_troubles=("NATS server n2 is offline",)),
    ):
        progress.set_stream_settings(look)
        assert progress.changed.is_set()
        progress.changed.clear()
        progress.set_stream_settings(look)
        assert not progress.changed.is_set()
    detail = progress.current_report().detail
    assert detail is not None
    assert detail.warnings == (
        "may miss revisions: it keeps 5 revisions of a key; the maximum is 64",
        "NATS server n2 is offline",
    )
