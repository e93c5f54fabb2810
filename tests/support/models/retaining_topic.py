"""A topic kept by the store's pure parts alone, everything in memory: floors, seq sets, walks and deletes put together.

It does what a store does around them: pieces with their numbers, the row look-ups they ask for, and what its frames say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eddyline.core.model.topic import Discard, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import gap_of, split_gaps
from eddyline.core.records.record import Gap, Op, Record
from eddyline.core.records.size import counted_bytes
from eddyline.store.log import floors as floor_rules
from eddyline.store.log.deletion import (
    DeleteBody,
    Deletion,
    EvictBody,
    decode_delete,
    decode_evict,
    encode_delete,
    encode_evict,
    removed_rows,
    visible,
)
from eddyline.store.log.floors import Floors, TimeSpan
from eddyline.store.log.front import LogRun, LogStartWalk
from eddyline.store.log.seq_set import SeqSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Retaining:
    """One topic. Only `settle` moves time, by its argument."""

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.head_seq = 0
        self.batches: list[Batch] = []
        self.floors = Floors()
        self.deleted = SeqSet()
        self.uncounted = SeqSet()
        self.record_bytes = 0
        self.rows_looked_at = 0

    # --- what happens -----------------------------------------------------------------------------------------

    def append(self, placed: Sequence[Record]) -> None:
        batch = Batch.from_rows(placed)
        self.batches.append(batch)
        self.head_seq = batch.last_seq
        self.record_bytes += int(counted_bytes(batch).sum())

    def lose(self, record: Record) -> None:
        gap = gap_of(record.seq, record.data or b"")
        self.uncounted.add_range(gap.first_seq, record.seq)
        self.append([record])

    def restart_ephemeral(self) -> None:
        self.floors = self.floors.raised(ephemeral=self.head_seq)
        self.record_bytes = 0
        self._trimmed()

    def settle(self, now_ms: int) -> None:
        config = self.config
        spans = (TimeSpan(batch.first_seq, batch.last_seq, *_times(batch)) for batch in self.batches)
        expired = floor_rules.expired_spans(spans, self.floors, now_ms=now_ms, ttl_ms=config.ttl_ms)
        through_seq = expired.through_seq
        if expired.boundary is not None:
            rows = self._batch(expired.boundary.first_seq)
            through_seq = max(through_seq, floor_rules.expired_rows(rows, now_ms=now_ms, ttl_ms=config.ttl_ms))
        aged = self.floors.raised(ttl=floor_rules.due_ttl(through_seq, self.floors, self.deleted))
        capped, excess_bytes = aged, 0
        if config.discard is Discard.OLD:
            due = floor_rules.due_cap_records(self.head_seq, config.cap_records, aged, self.uncounted)
            capped = aged.raised(cap=due)
            excess_bytes = self.record_bytes - config.cap_bytes if config.cap_bytes else 0
        walk = LogStartWalk(self.floors, self.uncounted, through_seq=capped.trim, excess_bytes=excess_bytes)
        self._walk(walk)
        moved = capped.raised(cap=walk.bytes_floor)
        if moved != self.floors:
            self._replay_evict(encode_evict(EvictBody(moved.cap, moved.ttl, walk.removed_bytes)))

    def delete(self, deletion: Deletion) -> DeleteBody:
        """The frame's body, after it was replayed."""
        seqs, record_bytes = SeqSet(), 0
        if deletion.match is None:
            through_seq = deletion.floor
            record_count = floor_rules.live_count(self.floors.trim, through_seq, self.uncounted)
            walk = LogStartWalk(self.floors, self.uncounted, through_seq=through_seq)
            self._walk(walk)
            record_bytes = walk.removed_bytes
        else:
            for batch in self.batches:
                removed = removed_rows(batch, deletion, trim_seq=self.floors.trim, deleted=self.deleted)
                seqs.add_array(removed.seqs)
                record_bytes += removed.record_bytes
            record_count = len(seqs)
        body = decode_delete(encode_delete(DeleteBody(deletion, seqs, record_count, record_bytes)))
        self.deleted.update(body.seqs)
        self.uncounted.update(body.seqs)
        self.floors = self.floors.raised(delete=body.deletion.floor)
        self.record_bytes -= body.record_bytes
        self._trimmed()
        return body

    def rewrite(self, at: int) -> None:
        """Neighbours become one batch, without what is gone: merge and reclaim."""
        joined = Batch.concat([visible(batch, self.floors, self.deleted) for batch in self.batches[at : at + 3]])
        self.batches[at : at + 3] = [joined] if joined.count else []

    # --- what is seen -----------------------------------------------------------------------------------------

    def read(self, after_seq: int) -> list[Record | Gap]:
        gap = self.floors.gap_after(after_seq)
        items: list[Record | Gap] = [] if gap is None else [gap]
        for batch in self.batches:
            rows = visible(batch, self.floors, self.deleted)
            for item in split_gaps(rows.slice(rows.index_after(after_seq), rows.count)):
                items.extend([item] if isinstance(item, Gap) else item.to_rows())
        return items

    @property
    def record_count(self) -> int:
        return floor_rules.record_count(self.head_seq, self.floors, self.uncounted)

    @property
    def earliest_seq(self) -> int:
        return floor_rules.earliest_seq(self.head_seq, self.floors, self.uncounted)

    # --- parts ------------------------------------------------------------------------------------------------

    def _replay_evict(self, control: dict[str, str | int]) -> None:
        body = decode_evict(control)
        moved = self.floors.raised(cap=body.cap_floor, ttl=body.ttl_floor)
        assert moved.cap == body.cap_floor
        assert moved.ttl == body.ttl_floor
        self.floors = moved
        self.record_bytes -= body.record_bytes
        self._trimmed()

    def _trimmed(self) -> None:
        self.floors = self.floors.past_deleted(self.deleted)
        for seqs in (self.deleted, self.uncounted):
            seqs.drop_through(self.floors.trim)

    def _walk(self, walk: LogStartWalk) -> None:
        for piece, batch in self._pieces():
            if walk.done:
                return
            if not walk.take(piece):
                walk.take_rows(batch)
                self.rows_looked_at += batch.count

    def _pieces(self) -> Iterator[tuple[LogRun, Batch]]:
        for batch in self.batches:
            gap_count = int((batch.ops_array() == Op.GAP).sum())
            size = int(counted_bytes(batch).sum())
            yield LogRun(batch.first_seq, batch.last_seq, batch.count - gap_count, size), batch

    def _batch(self, first_seq: int) -> Batch:
        return next(batch for batch in self.batches if batch.first_seq == first_seq)


def _times(batch: Batch) -> tuple[int, int]:
    if batch.ts_ms_each is None:
        return batch.ts_ms, batch.ts_ms
    times = np.frombuffer(batch.ts_ms_each, dtype="<i8")
    return int(times[0]), int(times[-1])
