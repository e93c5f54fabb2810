"""Retention of a topic by the semantics alone: caps, age, discard, deletes and gap records over a plain list of rows.

After everything that happens, what is due goes at once: first rows that are too old, then the oldest records while there
are too many, then while they are too large. A topic that refuses evicts nothing for a cap. One thread; no clock of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.model.topic import Discard, TopicConfig
from eddyline.core.records.gap import encode_gap, gap_of
from eddyline.core.records.match import MatchField
from eddyline.core.records.meta import encode_meta
from eddyline.core.records.record import Gap, GapReason, Op, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.records.match import Match


class Full(Exception):
    """The append would pass a cap."""


class Answer(NamedTuple):
    """The seqs that a delete removed."""

    record_count: int
    record_bytes: int


@dataclass
class Retained:
    """One topic; `rows` are those that are there, gap records among them."""

    config: TopicConfig = field(default_factory=TopicConfig)
    head_seq: int = 0
    rows: list[Record] = field(default_factory=list)
    evict_floor: int = 0
    evict_reason: GapReason | None = None

    # --- what happens -----------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record], now_ms: int, ts_ms: int | None = None) -> list[Record]:
        """Commit records at the next seqs, at `ts_ms` where that is not now; they are returned as placed. Raises: Full."""
        ts_ms = now_ms if ts_ms is None else ts_ms
        self.settle(now_ms)
        if self.config.discard is Discard.REJECT:
            count, size = self.record_count + len(records), self.record_bytes + sum(map(counted_size, records))
            if 0 < self.config.cap_records < count or 0 < self.config.cap_bytes < size:
                raise Full
        placed = [record._replace(seq=self.head_seq + 1 + index, ts_ms=ts_ms) for index, record in enumerate(records)]
        self.rows += placed
        self.head_seq += len(placed)
        self.settle(now_ms)
        return placed

    def lose(self, count: int, now_ms: int, ts_ms: int | None = None) -> Record:
        """Power loss: `count` seqs hold nothing, and the next one the gap record that says so."""
        self.settle(now_ms)
        gap = Gap(self.head_seq + 1, self.head_seq + count, GapReason.UNSYNCED)
        record = Record(seq=gap.last_seq + 1, ts_ms=now_ms if ts_ms is None else ts_ms, op=Op.GAP, data=encode_gap(gap))
        self.rows.append(record)
        self.head_seq = record.seq
        return record

    def restart_ephemeral(self) -> None:
        """All records were in memory, and the memory is gone."""
        self._evict(self.head_seq, GapReason.EPHEMERAL)

    def delete(self, now_ms: int, *, before_seq: int = 0, match: Match | None = None, bound_seq: int) -> Answer:
        """Remove records on purpose."""
        self.settle(now_ms)
        kept, removed = list[Record](), list[Record]()
        for row in self.rows:
            hit = row.seq <= bound_seq and (before_seq == 0 or row.seq < before_seq)
            if match is not None:
                cell = row.key if match.field is MatchField.KEY else None if row.tag is None else row.tag.encode()
                hit = hit and row.op != Op.GAP and match.covers(cell)
            (removed if hit else kept).append(row)
        self.rows = kept
        records = [row for row in removed if row.op != Op.GAP]
        return Answer(len(records), sum(map(counted_size, records)))

    def settle(self, now_ms: int) -> None:
        """Let go what is due at this moment."""
        config = self.config
        if config.ttl_ms:
            expired = [row.seq for row in self.rows if now_ms - row.ts_ms > config.ttl_ms]
            if expired:
                self._evict(expired[-1], GapReason.TTL)
        if config.discard is Discard.OLD:
            while 0 < config.cap_records < self.record_count or 0 < config.cap_bytes < self.record_bytes:
                self._evict(self.records[0].seq, GapReason.CAP)

    def _evict(self, floor: int, reason: GapReason) -> None:
        assert floor > self.evict_floor
        self.evict_floor, self.evict_reason = floor, reason
        self.rows = [row for row in self.rows if row.seq > floor]

    # --- what is seen -----------------------------------------------------------------------------------------

    @property
    def records(self) -> list[Record]:
        """The live records."""
        return [row for row in self.rows if row.op != Op.GAP]

    @property
    def record_count(self) -> int:
        """How many there are."""
        return len(self.records)

    @property
    def record_bytes(self) -> int:
        """Their bytes towards a cap."""
        return sum(map(counted_size, self.records))

    @property
    def earliest_seq(self) -> int:
        """The first live record, else head + 1."""
        return self.records[0].seq if self.records else self.head_seq + 1

    def read(self, after_seq: int) -> list[Record | Gap]:
        """All that a reader of the seqs above `after_seq` sees."""
        items = list[Record | Gap]()
        if after_seq < self.evict_floor:
            assert self.evict_reason is not None
            items.append(Gap(after_seq + 1, self.evict_floor, self.evict_reason))
        for row in self.rows:
            if row.seq > after_seq:
                items.append(gap_of(row.seq, row.data or b"") if row.op == Op.GAP else row)
        return items


def counted_size(record: Record) -> int:
    """Bytes that a record counts."""
    texts = [text.encode() for text in (record.tag, record.node) if text is not None]
    cells = [record.key or b"", record.data or b"", record.version, encode_meta(record.meta) if record.meta else b""]
    return 32 + sum(map(len, texts)) + sum(map(len, cells))
