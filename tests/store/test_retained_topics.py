"""Seeded histories of one topic in a store that seals, checkpoints, makes bases, stops and is killed: reads, counts,
look-ups by time, histories of keys and keys as they were, against the semantics over plain rows."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.batch import Batch
from eddyline.core.errors import HistoryGone, TimeNotReached, TopicFull
from eddyline.core.match import Match, MatchField, MatchKind
from eddyline.core.record import Gap, GapReason, Op, Record
from eddyline.core.topic import Discard, Durability, Kind, TopicConfig
from tests.support.placed import Place, PlacedStore, items_after
from tests.support.retained import Full, Retained
from tests.support.store import append

if TYPE_CHECKING:
    from eddyline.core.read import EntryPage

SEEDS = 60
STEPS = 30
TTL_MS = 1_000
PAUSES_S = (0.125, 0.5, 1.0, 1.125)
"""Exact in binary: time that this process has seen pass is counted in floats."""
KEYS = (b"", b"a", b"ab", b"b")


class Run:
    """The model and the store, doing the same."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.kind = self.random.choice((Kind.LOG, Kind.KV, Kind.KV))
        self.store = PlacedStore(Place.FRAMES, seed)
        self.model = Retained(self._config())
        self.placed: list[Record] = []
        self.fold: dict[bytes, Record] = {}
        self.erased: set[int] = set()
        self.trimmed_seq = 0
        """Rows up to here were deleted by a bound alone."""

    async def run(self) -> None:
        """All of it."""
        await self.store.start()
        await self.store.link.create_topic("t", self.kind, self.model.config)
        for _ in range(STEPS):
            await self.step()
            self.model.settle(self.now_ms)
            await self.judge()
        await self.store.stop()

    @property
    def now_ms(self) -> int:
        return self.store.clock.now_ms()

    async def step(self) -> None:
        choice = self.random.random()
        if choice < 0.4:
            await self._append()
        elif choice < 0.5:
            self.store.clock.advance(self.random.choice(PAUSES_S))
        elif choice < 0.7:
            await self._delete()
        elif choice < 0.8:
            await self.store.seal()
        elif choice < 0.85:
            await self.store.link._parts.checkpointer.run()
        elif choice < 0.9 and self.kind is Kind.KV:
            await self.store.make_base("t")
        else:
            await self._restart()

    async def _append(self) -> None:
        rows = [self._row() for _ in range(self.random.randint(1, 4))]
        try:
            placed = self.model.append(rows, self.now_ms)
        except Full:
            with pytest.raises(TopicFull):
                await append(self.store.link, "t", Batch.from_rows(rows))
            return
        result = await append(self.store.link, "t", Batch.from_rows(rows))
        assert (result.first_seq, result.last_seq) == (placed[0].seq, placed[-1].seq)
        self.placed += placed
        for row in placed:
            if row.op == Op.PUT:
                self.fold[row.key or b""] = row
            elif row.op == Op.DELETE:
                self.fold.pop(row.key or b"", None)

    async def _delete(self) -> None:
        head_seq = self.model.head_seq
        before_seq = self.random.choice((0, head_seq + 2, self.random.randint(1, head_seq + 1)))
        match = self._match() if not before_seq or self.random.random() < 0.5 else None
        answer = self.model.delete(self.now_ms, before_seq=before_seq, match=match, bound_seq=head_seq)
        result = await self.store.link.delete_records("t", before_seq=before_seq, match=match)
        assert (result.deleted_count, result.head_seq) == (answer.record_count, head_seq)
        through_seq = min(before_seq - 1, head_seq) if before_seq else head_seq
        if match is None:
            self.trimmed_seq = max(self.trimmed_seq, through_seq)
        elif match.field is MatchField.KEY:
            self.erased |= {row.seq for row in self.placed if row.seq <= through_seq and match.covers(row.key)}
            self.fold = {
                key: row for key, row in self.fold.items() if not (match.covers(key) and row.seq <= through_seq)
            }

    async def _restart(self) -> None:
        await self.store.stop(kill=self.random.random() < 0.5)
        await self.store.start()
        if self.model.config.durability is Durability.EPHEMERAL:
            self.model.head_seq = (await self.store.link.get_topic("t")).head_seq
            if self.model.head_seq > self.model.evict_floor:
                self.model.restart_ephemeral()

    # what is seen ------------------------------------------------------------------------------------------------

    async def judge(self) -> None:
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
            assert await items_after(link, "t", after_seq) == model.read(after_seq)
        await self._judge_times()
        if self.kind is Kind.KV:
            await self._judge_keys()

    async def _judge_times(self) -> None:
        at_ms, at_ns = self.now_ms - self.random.choice((0, 125, 500, 1_000)), self.random.randint(-2, 9)
        by_commit = [row.seq for row in self.model.records if row.ts_ms >= at_ms]
        found = await self.store.link.find_seq("t", commit_time_ms=at_ms)
        assert (found.seq, found.found) == (by_commit[0] if by_commit else self.model.head_seq + 1, bool(by_commit))
        by_source = [row.seq for row in self.model.records if row.source_ts_ns and row.source_ts_ns >= at_ns]
        found = await self.store.link.find_seq("t", source_time_ns=at_ns)
        assert (found.seq, found.found) == (by_source[0] if by_source else self.model.head_seq + 1, bool(by_source))

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

    # what is chosen ----------------------------------------------------------------------------------------------

    def _config(self) -> TopicConfig:
        pick = self.random.choice
        cap_records, cap_bytes = pick(((0, 0), (0, 0), (4, 0), (9, 0), (0, 600), (9, 400)))
        durable = (Durability.DISK, Durability.FSYNC)
        return TopicConfig(
            durability=pick((*durable, Durability.EPHEMERAL) if self.kind is Kind.LOG else durable),
            ttl_ms=pick((0, 0, TTL_MS)),
            cap_records=cap_records,
            cap_bytes=cap_bytes,
            discard=pick((Discard.OLD, Discard.OLD, Discard.REJECT)) if cap_records or cap_bytes else Discard.OLD,
        )

    def _row(self) -> Record:
        pick = self.random.choice
        data, tag, source_ts_ns = pick((None, b"", b"x" * 30)), pick((None, "t", "tu", "u")), pick((0, 0, 3, 7, -1))
        if self.kind is Kind.LOG:
            return Record(key=pick((None, *KEYS)), data=data, tag=tag, source_ts_ns=source_ts_ns)
        op = pick((Op.PUT, Op.PUT, Op.PUT, Op.DELETE))
        return Record(op=op, key=pick(KEYS[1:]), data=data, tag=tag, source_ts_ns=source_ts_ns)

    def _match(self) -> Match:
        fields = (MatchField.KEY,) if self.kind is Kind.KV else (MatchField.KEY, MatchField.TAG)
        field, kind = self.random.choice(fields), self.random.choice(list(MatchKind))
        values = (b"", b"a", b"ab", b"b") if field is MatchField.KEY else (b"", b"t", b"tu", b"u")
        return Match(field, kind, self.random.choice(values))


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_store_keeps_what_the_semantics_say(seed: int) -> None:
    run = Run(seed)
    await run.run()
    assert run.model.evict_reason in (None, GapReason.CAP, GapReason.TTL, GapReason.EPHEMERAL)
