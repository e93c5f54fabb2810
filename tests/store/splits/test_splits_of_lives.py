"""Seeded histories of one topic: its splits together return the records of log reads, and the fold at each point."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from xxhash import xxh3_64_intdigest

from eddyline.core.errors import HistoryGone
from eddyline.core.model.read import RecordFilter
from eddyline.core.model.record_filter import matching
from eddyline.core.model.topic import Kind
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, Op, Record
from eddyline.store.splits.model import ALL, PlanRequest, SplitFilter, SplitKind
from tests.support.store.split_reads import joined, planned, read_split, within
from tests.support.store.topic_life import KEYS, TopicLife

if TYPE_CHECKING:
    from eddyline.store.splits.model import Split

pytestmark = pytest.mark.sim

SEEDS = 60


class SplitsLife(TopicLife):
    """A topic's history, with its splits."""

    async def check(self) -> None:
        for after_seq in {0, self.model.evict_floor, self.random.randint(0, self.model.head_seq)}:
            end_seq = self.random.choice((0, self.random.randint(1, self.model.head_seq + 1)))
            await self._judge_log(after_seq, end_seq, self.random.choice((ALL, self._filter())))
        if self.kind is Kind.KV:
            await self._judge_fold(self.random.randint(0, self.model.head_seq))
            await self._judge_fold(self.model.head_seq)

    async def _judge_log(self, after_seq: int, end_seq: int, split_filter: SplitFilter) -> None:
        model, link = self.model, self.store.link
        request = PlanRequest(
            after_seq, end_seq, None, split_filter, self.random.randint(1, 9), limit=self.random.randint(1, 3)
        )
        plan, splits = await planned(link, "t", request)
        first_seq = after_seq + 1 if after_seq else model.earliest_seq
        last_seq = end_seq - 1 if end_seq else model.head_seq
        assert (plan.first_seq, plan.end_seq) == (first_seq, max(last_seq + 1, first_seq))
        assert plan.head_seq == model.head_seq
        self._check_cut(splits, first_seq, last_seq, covers=split_filter == ALL)
        items: list[Record | Gap] = []
        for split in splits:
            result = await read_split(link, "t", split, epoch=plan.epoch, split_filter=split_filter)
            again = await read_split(link, "t", split, epoch=plan.epoch, split_filter=split_filter)
            assert (result.items, result.counts) == (again.items, again.counts)
            assert result.counts.row_count <= split.record_count
            items += result.items
        expected = within(model.read(first_seq - 1), last_seq)
        assert joined(items) == [item for item in expected if isinstance(item, Gap) or _passes(item, split_filter)]

    def _check_cut(self, splits: list[Split], first_seq: int, last_seq: int, *, covers: bool) -> None:
        for before, split in pairwise(splits):
            assert split.first == before.last + 1 if covers else split.first > before.last
        if splits:
            assert splits[0].first == first_seq if covers else splits[0].first >= first_seq
            assert splits[-1].last == last_seq if covers else splits[-1].last <= last_seq
        else:
            assert not covers or last_seq < first_seq

    async def _judge_fold(self, seq: int) -> None:
        link, topic = self.store.link, self.store.topic("t")
        request = PlanRequest(as_of_seq=seq, max_records=self.random.randint(1, 5), limit=self.random.randint(1, 3))
        try:
            plan, splits = await planned(link, "t", request)
        except HistoryGone as gone:
            assert topic.base is not None
            assert gone.earliest_seq == topic.base.seq > seq
            assert topic.floors.trim
            return
        newest: dict[bytes, Record] = {}
        try:
            for split in splits:
                result = await read_split(link, "t", split, epoch=plan.epoch)
                if split.kind is SplitKind.HISTORY:
                    assert result.counts.row_count + result.counts.deleted_count <= split.record_count + len(
                        self.erased
                    )
                for item in result.items:
                    if isinstance(item, Record) and item.seq > newest.get(item.key or b"", Record()).seq:
                        newest[item.key or b""] = item
        except HistoryGone:
            with pytest.raises(HistoryGone):
                for key in KEYS[1:]:
                    await link.entry_at("t", key, at_seq=seq)
            return
        for key in KEYS[1:]:
            (entry,) = (await link.entry_at("t", key, at_seq=seq)).entries
            row = newest.get(key)
            assert entry == (row if row is not None and row.op == Op.PUT else None), (key, seq, splits)

    def _filter(self) -> SplitFilter:
        pick = self.random.choice
        records = RecordFilter(
            key_prefixes=pick(((), (b"a",), (b"ab", b"b"), (b"x",))),
            tags=pick(((), ("t",), ("u", "none"))),
            ops=pick(((), (Op.PUT, Op.APPEND), (Op.DELETE,))),
        )
        share_count = pick((0, 0, 1, 2))
        return SplitFilter(
            pick((records, RecordFilter())),
            pick((0, 0, 3, -1, 9)),
            pick((0, 0, 7, 1)),
            share_count,
            self.random.randrange(share_count) if share_count else 0,
        )


def _passes(row: Record, split_filter: SplitFilter) -> bool:
    result = matching(Batch.from_rows([row]), split_filter.records)
    if result is not None and not len(result):
        return False
    if split_filter.by_source_time:
        since, end = split_filter.source_from_ns, split_filter.source_end_ns
        if not row.source_ts_ns or (since and row.source_ts_ns < since) or (end and row.source_ts_ns >= end):
            return False
    count = split_filter.share_count
    return not count or (row.key is not None and xxh3_64_intdigest(row.key) % count == split_filter.share)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_splits_return_each_record_once(seed: int) -> None:
    run = SplitsLife(seed)
    await run.run(run.check)
