"""Seeded: concurrent deletes, appends, reads, seals and bases of one topic leave the expected records, also after a
restart."""

from __future__ import annotations

import asyncio
from random import Random
from typing import NamedTuple

import pytest

from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Gap, Op, Record
from tests.support.manual_clock import settle
from tests.support.models.history import read_items
from tests.support.models.retained_log import counted_size
from tests.support.store.simulated import LogPlace, PlacedStore, append

SEEDS = 30
START_TURNS = 500
KEYS = (b"a", b"ab", b"b")


class FinishedDelete(NamedTuple):
    """A delete with its answer."""

    before_seq: int
    match: Match | None
    bound_seq: int
    removed: int

    def means(self, row: Record) -> bool:
        """True = it removed this row, if that was there."""
        below = row.seq <= self.bound_seq and (not self.before_seq or row.seq < self.before_seq)
        return below and (self.match is None or self.match.covers(row.key))


class ConcurrentOperations:
    """One topic, and the operations that run on it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.kind = self.random.choice(list(Kind))
        self.cap_records = self.random.choice((0, 0, 12))
        self.store = PlacedStore(LogPlace.KILLED, seed)
        self.placed: list[Record] = []
        self.done: list[FinishedDelete] = []

    async def run(self) -> None:
        """All of it."""
        await self.store.start()
        config = TopicConfig(cap_records=self.cap_records)
        await self.store.link.create_topic("t", self.kind, config)
        for _ in range(3):
            await settle(START_TURNS)  # the store's own jobs have begun and ended: `_file` does them from now on
            async with asyncio.TaskGroup() as group:
                for work in (self._append, self._append, self._delete, self._delete, self._read, self._file):
                    group.create_task(work())
            await self._judge()
            await self.store.put()
            await self._judge()
        await self.store.stop()

    async def _append(self) -> None:
        for _ in range(6):
            rows = [self._row() for _ in range(self.random.randint(1, 5))]
            result = await append(self.store.link, "t", Batch.from_rows(rows))
            self.placed += [row._replace(seq=result.first_seq + index) for index, row in enumerate(rows)]
            await self._idle()

    async def _delete(self) -> None:
        for _ in range(4):
            await self._idle()
            head_seq = (await self.store.link.get_topic("t")).head_seq
            before_seq = self.random.choice((0, 0, head_seq // 2 + 1))
            match = None if before_seq and self.random.random() < 0.5 else self._match()
            result = await self.store.link.delete_records("t", before_seq=before_seq, match=match)
            assert result.head_seq >= head_seq
            self.done.append(FinishedDelete(before_seq, match, result.head_seq, result.deleted_count))

    async def _read(self) -> None:
        for _ in range(6):
            done = list(self.done)
            seen = await read_items(self.store.link, "t")
            seqs = [item.seq for item in seen if isinstance(item, Record)]
            assert seqs == sorted(set(seqs))
            rows = [item for item in seen if isinstance(item, Record)]
            assert not [row for row in rows if any(one.means(row) for one in done)]
            await self._idle()

    async def _file(self) -> None:
        for _ in range(3):
            await self._idle()
            await self.store.seal()
            if self.kind is Kind.KV and self.random.random() < 0.5:
                await self.store.make_base("t")
            await self.store.link._parts.maintenance.round()

    async def _idle(self) -> None:
        for _ in range(self.random.randrange(40)):
            await asyncio.sleep(0)

    async def _judge(self) -> None:
        info = await self.store.link.get_topic("t")
        items = await read_items(self.store.link, "t")
        rows = [item for item in items if isinstance(item, Record)]
        self.placed.sort(key=lambda row: row.seq)
        floor = items[0].last_seq if items and isinstance(items[0], Gap) else 0
        left = [row.seq for row in self.placed if row.seq > floor and not any(one.means(row) for one in self.done)]
        assert [row.seq for row in rows] == left
        assert (info.record_count, info.record_bytes) == (len(rows), sum(map(counted_size, rows)))
        if not self.cap_records:
            assert sum(one.removed for one in self.done) == len(self.placed) - len(rows)
        if self.kind is Kind.KV:
            page = await self.store.link.batch_get_entries("t", KEYS)
            assert [entry and entry.seq for entry in page.entries] == [self._live_seq(key) for key in KEYS]

    def _live_seq(self, key: bytes) -> int | None:
        last = [row for row in self.placed if row.key == key][-1:]
        if not last or last[0].op == Op.DELETE or any(one.match and one.means(last[0]) for one in self.done):
            return None
        return last[0].seq

    def _row(self) -> Record:
        pick = self.random.choice
        op = pick((Op.PUT, Op.PUT, Op.DELETE)) if self.kind is Kind.KV else Op.APPEND
        return Record(op=op, key=pick(KEYS), data=pick((None, b"x" * 9)))

    def _match(self) -> Match:
        return Match(MatchField.KEY, self.random.choice(list(MatchKind)), self.random.choice(KEYS))


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_concurrent_deletes_leave_the_expected_records(seed: int) -> None:
    await ConcurrentOperations(seed).run()
