"""Seeded histories of one topic in a store that seals, checkpoints, makes bases, stops and is killed: reads, counts,
look-ups by time, histories of keys and keys as they were, against the semantics over plain rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import HistoryGone, TimeNotReached
from eddyline.core.model.topic import Kind
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, Op, Record
from tests.support.models.history import read_items
from tests.support.store.topic_life import KEYS, TopicLife

if TYPE_CHECKING:
    from eddyline.core.model.read import EntryPage

SEEDS = 60


class RetentionLife(TopicLife):
    """A topic's history, with checks of all reads."""

    async def check(self) -> None:
        model, link = self.model, self.store.link
        info = await link.get_topic("t")
        seen = (info.head_seq, info.evict_floor, info.earliest_seq, info.record_count, info.record_bytes)
        assert seen == (
            model.head_seq,
            model.evict_floor,
            model.earliest_seq,
            model.record_count,
            model.record_bytes,
        )
        for after_seq in {0, model.evict_floor, self.random.randint(0, model.head_seq)}:
            assert await read_items(link, "t", after_seq) == model.read(after_seq)
        await self._judge_times()
        if self.kind is Kind.KV:
            await self._judge_keys()

    async def _judge_times(self) -> None:
        at_ms, at_ns = self.now_ms - self.random.choice((0, 125, 500, 1_000)), self.random.randint(-2, 9)
        by_commit = [row.seq for row in self.model.records if row.ts_ms >= at_ms]
        result = await self.store.link.find_seq("t", commit_time_ms=at_ms)
        assert (result.seq, result.found) == (by_commit[0] if by_commit else self.model.head_seq + 1, bool(by_commit))
        by_source = [row.seq for row in self.model.records if row.source_ts_ns and row.source_ts_ns >= at_ns]
        result = await self.store.link.find_seq("t", source_time_ns=at_ns)
        assert (result.seq, result.found) == (by_source[0] if by_source else self.model.head_seq + 1, bool(by_source))

    async def _judge_keys(self) -> None:
        key, link = self.random.choice(KEYS[1:]), self.store.link
        page = await link.batch_get_entries("t", KEYS[1:])
        assert [entry and entry.seq for entry in page.entries] == [
            self.fold[key].seq if key in self.fold else None for key in KEYS[1:]
        ]
        items: list[Record | Gap] = []
        async for item in link.key_history("t", key):
            items += item.to_rows() if isinstance(item, Batch) else [item]
        assert items == [item for item in self.model.read(0) if isinstance(item, Gap) or item.key == key]
        seq = self.random.randint(0, self.model.head_seq)
        try:
            self._check(key, seq, await link.entry_at("t", key, at_seq=seq))
        except HistoryGone as gone:
            self._check_gone(key, seq)
            assert gone.earliest_seq > seq
            self._check(key, gone.earliest_seq, await link.entry_at("t", key, at_seq=gone.earliest_seq))
        await self._judge_time(key, self.now_ms - self.random.choice((0, 125, 500, 1_000, 3_000)))

    async def _judge_time(self, key: bytes, at_ms: int) -> None:
        seq = max([row.seq for row in self.placed if row.ts_ms <= at_ms], default=0)
        try:
            page = await self.store.link.entry_at("t", key, at_time_ms=at_ms)
        except TimeNotReached:
            assert at_ms == self.now_ms
        except HistoryGone as gone:
            self._check_gone(key, seq)
            self._check(key, gone.earliest_seq, await self.store.link.entry_at("t", key, at_seq=gone.earliest_seq))
        else:
            self._check(key, seq, page, by_time=True)

    def _as_of(self, key: bytes, seq: int) -> Record | None:
        rows = [row for row in self.placed if row.key == key and row.seq <= seq and row.seq not in self.erased]
        return rows[-1] if rows else None

    def _check(self, key: bytes, seq: int, page: EntryPage, *, by_time: bool = False) -> None:
        expected = self._as_of(key, seq)
        (entry,) = page.entries
        live = expected if expected is not None and expected.op == Op.PUT else None
        assert (entry and (entry.seq, entry.data)) == (live and (live.seq, live.data))
        assert by_time or page.state.fold_seq == seq
        if entry is not None:
            current = self.fold.get(key)
            assert entry.seq > self.trimmed_seq or (current and current.seq == entry.seq), "deleted, and shown"

    def _check_gone(self, key: bytes, seq: int) -> None:
        expected, trim = self._as_of(key, seq), self.store.topic("t").floors.trim
        assert trim, "nothing is gone"
        assert expected is None or expected.seq <= trim, "the log has it"
        assert key not in self.fold or self.fold[key].seq > seq, "the fold has it"


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_store_keeps_the_records_that_the_semantics_define(seed: int) -> None:
    run = RetentionLife(seed)
    await run.run(run.check)
    assert run.model.evict_reason in (None, GapReason.CAP, GapReason.TTL, GapReason.EPHEMERAL)
