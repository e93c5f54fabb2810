"""Floors, the counts above them, what is due, and the table of the semantics row by row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.model.topic import TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Gap, GapReason, Record
from eddyline.store.log.deletion import Deletion
from eddyline.store.log.floors import (
    Expired,
    Floors,
    TimeSpan,
    due_cap_records,
    due_ttl,
    earliest_seq,
    expired_rows,
    expired_spans,
    live_count,
    record_count,
)
from eddyline.store.log.seq_set import SeqSet
from tests.support.models.retained_log import Retained
from tests.support.models.retaining_topic import Retaining

TTL_MS = 100
seqs = st.integers(0, 30)
floors = st.builds(Floors, seqs, seqs, seqs, seqs)


class Topic:
    """The parts, and beside them the model, whose reads must be the same."""

    def __init__(self, *, cap_records: int = 0, ttl_ms: int = 0) -> None:
        config = TopicConfig(cap_records=cap_records, ttl_ms=ttl_ms)
        self.parts, self.model = Retaining(config), Retained(config)
        self.now_ms = 0

    def append(self, count: int) -> None:
        for _ in range(count):
            self.parts.append(self.model.append([Record(data=b"x")], self.now_ms))
            self.parts.settle(self.now_ms)

    def delete_before(self, seq: int) -> None:
        self.model.delete(self.now_ms, before_seq=seq, bound_seq=self.model.head_seq)
        self.parts.delete(Deletion(seq, self.parts.head_seq))

    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.model.settle(self.now_ms)
        self.parts.settle(self.now_ms)

    def read(self, after_seq: int = 0) -> list[Gap | int]:
        """Gaps, and the seqs of records."""
        items = self.parts.read(after_seq)
        assert items == self.model.read(after_seq)
        return [item if isinstance(item, Gap) else item.seq for item in items]


def seqset(*members: int) -> SeqSet:
    made = SeqSet()
    for seq in members:
        made.add(seq)
    return made


# --- the table of the semantics ---------------------------------------------------------------------------------


def test_cap_of_three_and_five_appends_tell_of_the_first_two() -> None:
    topic = Topic(cap_records=3)
    topic.append(5)
    assert topic.read() == [Gap(1, 2, GapReason.CAP), 3, 4, 5]


def test_cap_of_three_and_five_appends_after_one_tell_of_the_second() -> None:
    topic = Topic(cap_records=3)
    topic.append(5)
    assert topic.read(1) == [Gap(2, 2, GapReason.CAP), 3, 4, 5]


def test_cap_of_three_and_five_appends_after_two_are_silent() -> None:
    topic = Topic(cap_records=3)
    topic.append(5)
    assert topic.read(2) == [3, 4, 5]


def test_five_appends_and_a_delete_before_three_are_silent() -> None:
    topic = Topic()
    topic.append(5)
    topic.delete_before(3)
    assert topic.read() == [3, 4, 5]
    assert (topic.parts.earliest_seq, topic.parts.record_count) == (3, 3)


def test_cap_gap_after_a_delete_covers_what_was_deleted_too() -> None:
    topic = Topic(cap_records=4)
    topic.append(4)
    topic.delete_before(3)
    assert topic.read() == [3, 4]
    topic.append(6)
    assert topic.read() == [Gap(1, 6, GapReason.CAP), 7, 8, 9, 10]


def test_all_expired_is_a_gap_to_the_head_and_no_records() -> None:
    topic = Topic(ttl_ms=TTL_MS)
    topic.append(3)
    topic.pass_time(TTL_MS)
    assert topic.read() == [1, 2, 3]
    topic.pass_time(1)
    assert topic.read() == [Gap(1, 3, GapReason.TTL)]
    assert topic.parts.earliest_seq == topic.parts.head_seq + 1


def test_recreated_topic_begins_without_floors() -> None:
    topic = Topic(cap_records=3)
    topic.append(2)
    assert topic.parts.floors == Floors()
    assert topic.read() == [1, 2]


def test_a_cursor_ahead_of_the_head_missed_nothing_here() -> None:
    topic = Topic(cap_records=3)
    topic.append(5)
    assert topic.parts.floors.gap_after(6) is None


# --- floors -----------------------------------------------------------------------------------------------------


@given(floors, floors)
def test_no_floor_goes_back(before: Floors, move: Floors) -> None:
    after = before.raised(**move._asdict())
    assert all(new == max(old, to) for new, old, to in zip(after, before, move, strict=True))


@given(floors, seqs)
def test_readers_get_a_gap_exactly_below_the_evict_floor(kept: Floors, after_seq: int) -> None:
    gap = kept.gap_after(after_seq)
    assert (gap is not None) == (after_seq < max(kept.cap, kept.ttl, kept.ephemeral, kept.compacted))
    if gap is not None:
        assert (gap.first_seq, gap.last_seq) == (after_seq + 1, kept.evict)
        lost = {
            GapReason.CAP: kept.cap,
            GapReason.TTL: kept.ttl,
            GapReason.EPHEMERAL: kept.ephemeral,
            GapReason.COMPACTED: kept.compacted,
        }
        assert lost[kept.reason] == kept.evict
        assert gap.reason is kept.reason


def test_reason_is_that_of_the_larger_floor() -> None:
    assert Floors(cap=3, ttl=5).reason is GapReason.TTL
    assert Floors(cap=5, ttl=3).reason is GapReason.CAP
    assert Floors(cap=5, ttl=3, ephemeral=6).reason is GapReason.EPHEMERAL


@given(floors, st.sets(seqs), seqs)
def test_counts_are_those_of_the_seqs_above_the_floors(kept: Floors, gone: set[int], more: int) -> None:
    head_seq = kept.trim + more
    uncounted = seqset(*(seq for seq in gone if seq <= head_seq))
    live = [seq for seq in range(kept.trim + 1, head_seq + 1) if seq not in gone]
    assert record_count(head_seq, kept, uncounted) == len(live)
    assert earliest_seq(head_seq, kept, uncounted) == (live[0] if live else head_seq + 1)
    assert live_count(kept.trim, head_seq, uncounted) == len(live)
    assert live_count(kept.trim, kept.trim - 1, uncounted) == 0


@given(floors, st.sets(seqs), seqs, st.integers(1, 10))
def test_due_cap_leaves_exactly_the_cap(kept: Floors, gone: set[int], more: int, cap: int) -> None:
    head_seq = kept.trim + more
    uncounted = seqset(*(seq for seq in gone if seq <= head_seq))
    had = record_count(head_seq, kept, uncounted)
    due = due_cap_records(head_seq, cap, kept, uncounted)
    assert record_count(head_seq, kept.raised(cap=due), uncounted) == min(had, cap)
    assert due == kept.cap or due not in uncounted
    assert due_cap_records(head_seq, 0, kept, uncounted) == kept.cap


def test_floor_of_deletes_rises_over_the_deleted_seqs_behind_trim() -> None:
    deleted = seqset(4, 5, 7)
    assert Floors(cap=3).past_deleted(deleted) == Floors(cap=3, delete=5)
    assert Floors(cap=2).past_deleted(deleted) == Floors(cap=2)
    assert Floors(cap=3).past_deleted(deleted).gap_after(3) is None


# --- age --------------------------------------------------------------------------------------------------------


def test_expiry_is_strict_and_by_whole_spans_first() -> None:
    spans = [TimeSpan(1, 4, 10, 10), TimeSpan(5, 9, 11, 14), TimeSpan(10, 12, 20, 20)]

    def expired(now_ms: int, trim: int = 0) -> Expired:
        return expired_spans(spans, Floors(cap=trim), now_ms=now_ms, ttl_ms=TTL_MS)

    assert expired(10 + TTL_MS) == Expired(0)
    assert expired(11 + TTL_MS) == Expired(4)
    assert expired(12 + TTL_MS) == Expired(4, spans[1])
    assert expired(15 + TTL_MS) == Expired(9)
    assert expired(12 + TTL_MS, trim=4) == Expired(0, spans[1])
    assert expired(12 + TTL_MS, trim=9) == Expired(0)
    assert expired_spans(spans, Floors(), now_ms=1 << 40, ttl_ms=0) == Expired(0)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).map(sorted), st.integers(0, 12))
def test_expired_rows_are_those_older_than_the_ttl(times: list[int], passed_ms: int) -> None:
    batch = Batch.from_rows([Record(seq=7 + index, ts_ms=ts_ms) for index, ts_ms in enumerate(times)])
    now_ms = TTL_MS + passed_ms
    expired = [7 + index for index, ts_ms in enumerate(times) if now_ms - ts_ms > TTL_MS]
    assert expired_rows(batch, now_ms=now_ms, ttl_ms=TTL_MS) == max(expired, default=0)


def test_deleted_rows_do_not_expire() -> None:
    assert due_ttl(5, Floors(), seqset(4, 5)) == 3
    assert due_ttl(5, Floors(ttl=1, cap=3), seqset(4, 5)) == 1
    assert due_ttl(0, Floors(ttl=1), SeqSet()) == 1


def test_deleted_rows_at_the_end_do_not_count_as_expired() -> None:
    topic = Topic(ttl_ms=TTL_MS)
    topic.append(2)
    topic.parts.append(topic.model.append([Record(tag="gone")], topic.now_ms))
    match = Match(MatchField.TAG, MatchKind.EQ, b"gone")
    topic.model.delete(topic.now_ms, match=match, bound_seq=3)
    topic.parts.delete(Deletion(0, 3, match))
    topic.pass_time(TTL_MS + 1)
    assert topic.read() == [Gap(1, 2, GapReason.TTL)]
    assert topic.read(2) == []


def test_age_goes_before_number() -> None:
    topic = Topic(ttl_ms=TTL_MS, cap_records=3)
    topic.append(3)
    topic.now_ms += TTL_MS + 1
    topic.append(1)
    assert topic.read() == [Gap(1, 3, GapReason.TTL), 4]
