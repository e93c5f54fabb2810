"""A source as clients see it: progress from positions of every format, lag, states of newer versions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eddyline.core.codec.source import PositionSummary, source_to_pb, status_to_pb, summarize_position
from eddyline.core.model.source import ControlState, SourceDefinition, SourceDetail, SourceInfo, SourceReport
from eddyline.ingest.copy.position import StreamPosition
from eddyline.v1 import source_pb2

AT_7 = StreamPosition(5, 7).encode()
INFO = SourceInfo(SourceDefinition("s", "t", "b"), AT_7, 3, "h", 400, SourceReport("LIVE", "", 9, 2), 10, 8, epoch=4)


def test_progress_is_decoded_from_positions_of_every_format() -> None:
    assert summarize_position(b"") is None
    timed = StreamPosition(5, 7, resync_serial=3, time_ns=9)
    plain, requested = StreamPosition(5, 7), StreamPosition(5, 7, resync_serial=3)
    for position in (plain, requested, timed, StreamPosition(-1, (1 << 64) - 1).after_changes()):
        assert summarize_position(position.encode()) == PositionSummary(position.revision, position.resync_serial)
    for unreadable in (b"\x09" + AT_7[1:], AT_7[:-1], b"\x01"):
        assert summarize_position(unreadable) is None


def test_lag_counts_from_the_position_or_over_the_whole_of_another_stream() -> None:
    source = source_to_pb(INFO)
    assert (source.position_revision, source.last_revision, source.lag, source.epoch) == (7, 9, 2, 4)
    behind = source_to_pb(replace(INFO, report=SourceReport("LIVE", "", 3, 0)))
    assert (behind.last_revision, behind.lag) == (7, 0)
    other = source_to_pb(replace(INFO, report=SourceReport("CURSOR_AHEAD", "rolled back", 9, 4)))
    assert (other.last_revision, other.lag, other.reason) == (4, 4, "rolled back")


def test_a_resync_is_pending_until_the_position_has_its_serial() -> None:
    requested = ControlState(resync_serial=1)
    done = StreamPosition(5, 7, resync_serial=1).encode()
    assert source_to_pb(replace(INFO, control=requested)).resync_pending
    assert not source_to_pb(replace(INFO, control=requested, position=done)).resync_pending
    assert not source_to_pb(replace(INFO, control=requested, position=b"")).resync_pending


def test_details_are_present_if_the_holder_reported_them() -> None:
    assert not source_to_pb(INFO).HasField("detail")
    info = replace(INFO, report=replace(INFO.report, detail=SourceDetail(warnings=("careful",))), gap_count=2, gap_ms=3)
    source = source_to_pb(info)
    assert (list(source.detail.warnings), source.gap_count, source.gap_ms) == (["careful"], 2, 3)


@pytest.mark.parametrize("state", ["", "FROM_THE_FUTURE"])
def test_unknown_states_are_unspecified(state: str) -> None:
    assert status_to_pb(state) == source_pb2.SOURCE_STATUS_UNSPECIFIED
