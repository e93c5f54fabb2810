"""Seeded lives of one topic: appends, deletes, time, seals, checkpoints, bases, clean stops and kills, in a store and in the
model of `retained_log.py`. After each step the caller compares the two."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import TopicFull
from eddyline.core.model.topic import Discard, Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Op, Record
from tests.support.models.retained_log import Full, Retained
from tests.support.store.simulated import LogPlace, PlacedStore, append

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

STEPS = 30
TTL_MS = 1_000
PAUSES_S = (0.125, 0.5, 1.0, 1.125)
"""Exact in binary: time that this process has seen pass is counted in floats."""
KEYS = (b"", b"a", b"ab", b"b")


class TopicLife:
    """The model and the store, doing the same."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.kind = self.random.choice((Kind.LOG, Kind.KV, Kind.KV))
        self.store = PlacedStore(LogPlace.FRAMES, seed)
        self.model = Retained(self._config())
        self.placed: list[Record] = []
        self.fold: dict[bytes, Record] = {}
        self.erased: set[int] = set()
        self.trimmed_seq = 0
        """Rows up to here were deleted by a bound alone."""

    async def run(self, judge: Callable[[], Awaitable[None]]) -> None:
        """The whole life, checked after each step."""
        await self.store.start()
        await self.store.link.create_topic("t", self.kind, self.model.config)
        for _ in range(STEPS):
            await self.step()
            self.model.settle(self.now_ms)
            await judge()
        await self.store.stop()

    @property
    def now_ms(self) -> int:
        """The store's time."""
        return self.store.clock.now_ms()

    async def step(self) -> None:
        """One thing that happens."""
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
