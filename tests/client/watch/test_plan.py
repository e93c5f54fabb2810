"""The requests of `WatchPlan` after each kind of frame."""

from __future__ import annotations

import pytest

from eddyline.client.watch.events import (
    CaughtUp,
    Lost,
    Position,
    Records,
    SnapshotBegan,
    SnapshotEnded,
    SnapshotResumed,
    TopicGone,
)
from eddyline.client.watch.plan import (
    REQUEST_BYTES_MAX,
    TOPICS_MAX,
    AtRevision,
    AtTime,
    StartPoint,
    WatchPlan,
    WatchTopic,
)
from eddyline.core.errors import InvalidArgument, InvalidName, MalformedColumns
from eddyline.core.records.record import MESSAGE_BYTES_MAX, Gap, GapReason
from eddyline.delivery.resume_token import AFTER_KEY_BYTES_MAX
from eddyline.v1 import delivery_pb2, log_pb2, types_pb2
from tests.support.delivery.scripted_roles import (
    caught_up_frame,
    columns_frame,
    cursor,
    deleted_frame,
    gap_frame,
    going_away_frame,
    heartbeat_frame,
    progress_frame,
    rows_frame,
    snapshot_begin_frame,
    snapshot_end_frame,
    snapshot_resume_frame,
)


def plan_of(*names: str, start: StartPoint = "snapshot") -> WatchPlan:
    return WatchPlan([WatchTopic(name, start) for name in names], heartbeat_ms=1000)


def starts(plan: WatchPlan) -> dict[str, types_pb2.Cursor | int]:
    """Return each topic's start in a request: a cursor, or a point."""
    return {
        topic.topic: topic.cursor if topic.WhichOneof("start") == "cursor" else topic.point
        for topic in plan.request().topics
    }


@pytest.mark.parametrize(
    ("start", "point"),
    [
        ("snapshot", delivery_pb2.START_POINT_SNAPSHOT),
        ("tail", delivery_pb2.START_POINT_TAIL),
        ("earliest", delivery_pb2.START_POINT_EARLIEST),
    ],
)
def test_first_request_asks_for_the_start(start: StartPoint, point: int) -> None:
    assert starts(plan_of("a", start=start)) == {"a": point}


def test_position_start_is_a_cursor() -> None:
    plan = WatchPlan([WatchTopic("a", Position(7, 3), (b"x",))], heartbeat_ms=1000)
    assert starts(plan) == {"a": cursor("a", 3)}
    assert list(plan.request().topics[0].key_prefixes) == [b"x"]


def test_records_move_the_place_behind_them() -> None:
    plan = plan_of("a", "b", start="earliest")
    event = plan.accept(rows_frame("a", 1, 2))
    assert isinstance(event, Records)
    assert [record.seq for record in event.records] == [1, 2]
    assert not event.in_snapshot
    assert starts(plan) == {"a": cursor("a", 2), "b": delivery_pb2.START_POINT_EARLIEST}


def test_records_in_columns_are_those_in_rows_and_rows_are_taken_too() -> None:
    assert plan_of("a").request().format == types_pb2.BATCH_FORMAT_COLUMNS
    plans = [plan_of("a", start="earliest") for _ in range(2)]
    events = [plans[0].accept(columns_frame("a", 1, 2)), plans[1].accept(rows_frame("a", 1, 2))]
    assert events[0] == events[1] is not None
    assert starts(plans[0]) == starts(plans[1]) == {"a": cursor("a", 2)}
    for plan in plans:
        plan.accept(snapshot_begin_frame("a", 9))
    assert plans[0].accept(columns_frame("a", 5, in_snapshot_of=9)) == plans[1].accept(
        rows_frame("a", 5, in_snapshot_of=9)
    )


def test_columns_that_do_not_fit_together_move_no_place() -> None:
    plan = plan_of("a", start="earliest")
    plan.accept(columns_frame("a", 1))
    frame = columns_frame("a", 2, 3)
    frame.columns.key.offsets += b"\0"
    with pytest.raises(MalformedColumns):
        plan.accept(frame)
    assert starts(plan) == {"a": cursor("a", 1)}


def test_gap_moves_the_place_behind_it() -> None:
    plan = plan_of("a", start="earliest")
    frame = delivery_pb2.WatchTopicsResponse(
        topic="a",
        cursor=cursor("a", 4),
        gap=types_pb2.Gap(first_seq=2, last_seq=4, reason=types_pb2.GAP_REASON_UNSYNCED),
    )
    assert plan.accept(frame) == Lost("a", Gap(2, 4, GapReason.UNSYNCED), Position(7, 4))
    assert starts(plan) == {"a": cursor("a", 4)}


def test_interrupted_snapshot_starts_over() -> None:
    plan = plan_of("a")
    assert plan.accept(snapshot_begin_frame("a", 9)) == SnapshotBegan("a", 9)
    event = plan.accept(rows_frame("a", 3, 5, in_snapshot_of=9))
    assert isinstance(event, Records)
    assert event.in_snapshot
    assert starts(plan) == {"a": delivery_pb2.START_POINT_SNAPSHOT}
    assert plan.positions == {}


def test_complete_snapshot_goes_on_behind_its_point() -> None:
    plan = plan_of("a")
    plan.accept(snapshot_begin_frame("a", 9))
    plan.accept(rows_frame("a", 3, in_snapshot_of=9))
    assert plan.accept(snapshot_end_frame("a", 9, 1)) == SnapshotEnded("a", 9, 1, Position(7, 9))
    assert starts(plan) == {"a": cursor("a", 9)}
    assert plan.positions == {"a": Position(7, 9)}


def test_newest_token_is_sent_with_newer_cursors() -> None:
    plan = plan_of("a", "b", start="tail")
    assert plan.accept(caught_up_frame(b"one")) == CaughtUp()
    assert plan.accept(heartbeat_frame(b"two")) is None
    plan.accept(rows_frame("b", 5))
    assert plan.request().resume_token == b"two"
    assert starts(plan) == {"a": delivery_pb2.START_POINT_TAIL, "b": cursor("b", 5)}


def test_a_request_leaves_out_a_deleted_topic_and_keeps_quiet_ones_by_the_token() -> None:
    plan = plan_of("a", "quiet", start="tail")
    plan.accept(caught_up_frame(b"of both"))
    assert plan.accept(deleted_frame("a")) == TopicGone("a", 7)
    assert plan.request().resume_token == b"of both"
    assert starts(plan) == {"quiet": delivery_pb2.START_POINT_TAIL}
    plan.accept(heartbeat_frame(b"newer"))
    assert plan.request().resume_token == b"newer"
    assert not plan.finished
    plan.accept(deleted_frame("quiet"))
    assert plan.finished


def test_a_topic_missing_at_a_resume_is_gone_only_if_it_existed_before() -> None:
    plan = plan_of("a", start="earliest")
    assert plan.drop("a") is None
    plan.accept(rows_frame("a", 1))
    assert plan.drop("a") == TopicGone("a", 7)


def test_refused_token_is_dropped_only_where_every_topic_has_a_cursor() -> None:
    plan = plan_of("a", "b", start="tail")
    plan.accept(caught_up_frame(b"token"))
    plan.accept(rows_frame("a", 1))
    assert not plan.drop_token()
    plan.accept(rows_frame("b", 1))
    assert plan.drop_token()
    assert plan.request().resume_token == b""


def test_frames_of_topics_outside_the_request_are_ignored() -> None:
    assert plan_of("a").accept(rows_frame("other", 1)) is None


@pytest.mark.parametrize("names", [[], ["a", "a"], [f"t{number}" for number in range(TOPICS_MAX + 1)]])
def test_wrong_number_of_topics_is_refused(names: list[str]) -> None:
    with pytest.raises(InvalidArgument):
        plan_of(*names)


def test_bad_name_is_refused() -> None:
    with pytest.raises(InvalidName):
        plan_of("-bad")


def test_every_request_has_filters_and_options() -> None:
    wanted = WatchTopic(
        "a",
        "tail",
        (b"k",),
        tags=("t",),
        exclude_nodes=("n",),
        ignore_deletes=True,
        metadata_only=True,
        updates_only=True,
        heals=True,
    )
    plan = WatchPlan([wanted], heartbeat_ms=1000, resume_snapshots=True)
    for _ in range(2):
        request = plan.request()
        topic = request.topics[0]
        assert (list(topic.key_prefixes), list(topic.tags), list(topic.exclude_nodes)) == ([b"k"], ["t"], ["n"])
        assert topic.ignore_deletes
        assert topic.metadata_only
        assert topic.updates_only
        assert topic.on_gap == log_pb2.GAP_POLICY_HEAL
        assert request.resume_snapshots
        plan.accept(rows_frame("a", 1))


def test_requests_have_time_and_revision_until_there_is_a_position() -> None:
    plan = WatchPlan([WatchTopic("a", AtTime(7)), WatchTopic("b", AtRevision(9))], heartbeat_ms=1000)
    assert [(topic.ts_ms, topic.revision) for topic in plan.request().topics] == [(7, 0), (0, 9)]
    plan.accept(rows_frame("a", 3))
    assert plan.request().topics[0].cursor == cursor("a", 3)
    assert plan.request().topics[1].revision == 9


def test_requests_start_before_a_gap_until_its_values_are_complete() -> None:
    plan = WatchPlan([WatchTopic("a", Position(7, 2), heals=True)], heartbeat_ms=1000)
    assert isinstance(plan.accept(gap_frame("a", 3, 6, at_seq=2)), Lost)
    plan.accept(snapshot_begin_frame("a", 10))
    plan.accept(rows_frame("a", 9, in_snapshot_of=2))
    assert starts(plan) == {"a": cursor("a", 2)}
    plan.accept(snapshot_end_frame("a", 10, 1))
    assert starts(plan) == {"a": cursor("a", 10)}


def test_progress_moves_the_place_and_says_nothing() -> None:
    plan = plan_of("a", start="tail")
    assert plan.accept(progress_frame("a", 8)) is None
    assert starts(plan) == {"a": cursor("a", 8)}


def test_snapshot_that_goes_on_keeps_its_token() -> None:
    plan = WatchPlan([WatchTopic("a", "snapshot")], heartbeat_ms=1000, resume_snapshots=True)
    plan.accept(snapshot_begin_frame("a", 10))
    plan.accept(heartbeat_frame(b"token"))
    assert plan.request().resume_token == b"token"
    assert plan.accept(snapshot_resume_frame("a", 10, b"k")) == SnapshotResumed("a", 10, b"k")
    event = plan.accept(rows_frame("a", 11))
    assert isinstance(event, Records)
    assert event.in_snapshot


def test_metadata_comes_with_the_size_of_what_was_left_out() -> None:
    plan = WatchPlan([WatchTopic("a", "tail", metadata_only=True)], heartbeat_ms=1000)
    frame = rows_frame("a", 1, 2)
    for row in frame.rows.records:
        row.ClearField("data")
    frame.rows.records[0].data_bytes = 0
    columns = columns_frame("a", 1, 2)
    columns.columns.ClearField("data")
    columns.columns.data_bytes = bytes(4) + b"\xff" * 4
    for one in (frame, columns):
        event = plan.accept(one)
        assert isinstance(event, Records)
        assert event.data_bytes == (0, None)


def test_going_away_brings_a_token() -> None:
    plan = plan_of("a", start="tail")
    assert plan.accept(going_away_frame(b"token")) is None
    assert plan.request().resume_token == b"token"


@pytest.mark.parametrize(
    "start",
    [
        Position(-1, 3),
        Position(7, -1),
        Position(7, 1 << 64),
        Position(1 << 64, 3),
        AtTime(-1),
        AtTime(1 << 63),
        AtRevision(0),
        AtRevision(-4),
        AtRevision(1 << 64),
    ],
)
def test_numbers_that_are_no_place_are_refused(start: Position | AtTime | AtRevision) -> None:
    with pytest.raises(InvalidArgument):
        WatchPlan([WatchTopic("a", start)], heartbeat_ms=1000)


@pytest.mark.parametrize("start", [Position(0, 0), Position((1 << 64) - 1, (1 << 64) - 1), AtTime(0), AtRevision(1)])
def test_the_outermost_positions_are_requested(start: Position | AtTime | AtRevision) -> None:
    assert len(WatchPlan([WatchTopic("a", start)], heartbeat_ms=1000).request().topics) == 1


def test_a_start_of_no_kind_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(InvalidArgument, match="snapshot, tail, earliest, or at a Position, an AtTime or an AtRevision"):
        plan_of("a", start="middle")  # type: ignore[arg-type] # what a caller without types may give


def prefixed(count: int, *, key_bytes: int = 1 << 10) -> list[WatchTopic]:
    keys = tuple(number.to_bytes(2, "big") + bytes(key_bytes - 2) for number in range(1_000))
    return [WatchTopic(f"t{number:02}", "tail", keys) for number in range(count)]


@pytest.mark.parametrize("topics", [70, 64])
def test_a_request_that_no_call_carries_is_refused_with_its_size(topics: int) -> None:
    with pytest.raises(InvalidArgument, match="bytes as one message") as refused:
        WatchPlan(prefixed(topics), heartbeat_ms=1000)
    assert refused.value.metadata["limitBytes"] == str(REQUEST_BYTES_MAX)
    assert int(refused.value.metadata["sizeBytes"]) > REQUEST_BYTES_MAX


def test_the_largest_first_request_has_room_to_resume_all_of_its_topics() -> None:
    names = [f"{number:0255}" for number in range(TOPICS_MAX)]
    plan = WatchPlan([WatchTopic(name, "snapshot") for name in names], heartbeat_ms=1000)
    first = plan.request().ByteSize()
    for name in names:
        frame = rows_frame(name, (1 << 64) - 1)
        frame.cursor.epoch = (1 << 64) - 1
        plan.accept(frame)
    plan.accept(heartbeat_frame(bytes(TOKEN_BYTES_MAX)))
    assert plan.request().ByteSize() - first < MESSAGE_BYTES_MAX - REQUEST_BYTES_MAX


TOKEN_BYTES_MAX = 9 + TOPICS_MAX * (33 + 2 + AFTER_KEY_BYTES_MAX)
"""Of 1 000 topics that are all within a snapshot."""
