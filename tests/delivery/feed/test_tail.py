"""Handling of the store's events by a tail."""

from __future__ import annotations

import pytest

from eddyline.core import errors
from eddyline.core.errors import EddylineError, NewerFormat
from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, Record
from eddyline.core.store_link.grpc_follow import event_from_pb
from eddyline.core.store_link.protocol import FollowEnded, FollowItem, FollowStarted
from eddyline.delivery.feed.ring import Ring, RingBudget
from eddyline.delivery.feed.tail import TopicTail, error_of
from eddyline.v1 import apply_pb2, errors_pb2

LAST_SEQ = (1 << 64) - 1


@pytest.mark.parametrize("own_seq", [0, 4], ids=["without a record", "of a record"])
def test_gap_past_the_head_does_not_move_the_ring_past_it(own_seq: int) -> None:
    tail = TopicTail("log", 1, Ring("log", RingBudget(1 << 20), 1 << 20))
    tail.start(FollowStarted(1, TopicInfo("log", 7, Kind.LOG, TopicConfig(), 3, 1, "", 0), 3))
    gap = Gap(1, LAST_SEQ, GapReason.UNSYNCED, own_seq)
    tail.push_item(FollowItem(1, gap, next_after_seq=LAST_SEQ, head_seq=4))
    assert tail.ring.end_seq == 4
    tail.push_item(FollowItem(1, Batch.from_rows([Record(5, 1, data=b"next")]), next_after_seq=5, head_seq=5))
    frame = tail.ring.frame_after(4)
    assert frame is not None
    assert (frame.next_after_seq, tail.ring.end_seq) == (5, 5)


def test_gap_within_the_log_hides_nothing_that_follows_it() -> None:
    tail = TopicTail("log", 1, Ring("log", RingBudget(1 << 20), 1 << 20))
    tail.start(FollowStarted(1, TopicInfo("log", 7, Kind.LOG, TopicConfig(), 0, 1, "", 0), 0))
    tail.push_item(FollowItem(1, Gap(1, LAST_SEQ, GapReason.UNSYNCED, 1), next_after_seq=LAST_SEQ, head_seq=2))
    tail.push_item(FollowItem(1, Batch.from_rows([Record(2, 1, data=b"next")]), next_after_seq=2, head_seq=2))
    assert tail.ring.end_seq == 2
    assert tail.ring.frame_after(1) is not None


def error_over_the_wire(reason: str) -> EddylineError:
    ended = apply_pb2.FollowEnded(reason=reason, message="no")
    event = event_from_pb(apply_pb2.FollowTopicsResponse(follow_id=1, ended=ended))
    assert isinstance(event, FollowEnded)
    return error_of(event, "log")


@pytest.mark.parametrize("name", errors_pb2.ErrorReason.keys()[1:])
def test_every_reason_of_an_ended_follow_comes_back_as_its_class(name: str) -> None:
    reason = name.removeprefix("ERROR_REASON_")
    (error_class,) = {
        item
        for item in vars(errors).values()
        if isinstance(item, type)
        and issubclass(item, EddylineError)
        and item is not EddylineError
        and item.reason == reason
    }
    error = error_over_the_wire(reason)
    assert type(error) is error_class
    assert (error.message, error.metadata) == ("no", {"topic": "log"})


def test_a_subclass_of_another_error_comes_back_as_itself() -> None:
    assert type(error_over_the_wire("NEWER_FORMAT")) is NewerFormat


def test_an_unknown_reason_of_an_ended_follow_is_a_generic_error() -> None:
    assert type(error_over_the_wire("OF_A_NEWER_STORE")) is EddylineError
