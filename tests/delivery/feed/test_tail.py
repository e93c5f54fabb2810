"""Handling of the store's events by a tail."""

from __future__ import annotations

import pytest

from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, Record
from eddyline.core.store_link.protocol import FollowItem, FollowStarted
from eddyline.delivery.feed.ring import Ring, RingBudget
from eddyline.delivery.feed.tail import TopicTail

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
