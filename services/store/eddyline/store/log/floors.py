"""Floors of a topic's log (Kafka: log start offset): up to which seq its records are gone, and for which reason.

I1: a floor never goes back. I2: `evict` is the seq of a row that retention took, never of one that a delete had taken
before, so `evict < earliest_seq`. I3: rows up to `trim` are gone, whatever file still holds them; rows above it are live,
except those in the topic's set of deleted seqs.

A topic also has seqs that hold no record: those of its gap records, and those of UNSYNCED gaps. With the deleted seqs they
are `uncounted` here; between `trim` and the head every other seq is a live record, so counts are arithmetic.

Retention moves floors in this order, each step from the floors of the step before: records that are too old go, then those
beyond the record cap, then those beyond the byte cap (`eddyline.store.log.front`). A delete is applied after due moves.
Threading: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eddyline.core.records.record import Gap, GapReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eddyline.core.records.batch import Batch
    from eddyline.store.log.seq_set import SeqSet


class Floors(NamedTuple):
    """The highest seq lost to each cause; 0 = none. `delete` is that of a prefix removed on request, `compacted` that of an
    imported fold: only the fold has the records up to it."""

    cap: int = 0
    ttl: int = 0
    ephemeral: int = 0
    delete: int = 0
    compacted: int = 0

    @property
    def evict(self) -> int:
        """The highest seq lost without a request."""
        return max(self.cap, self.ttl, self.ephemeral, self.compacted)

    @property
    def reason(self) -> GapReason:
        """The reason of the loss at `evict`; of equal floors the first counts."""
        evict = self.evict
        if self.cap == evict:
            return GapReason.CAP
        if self.ttl == evict:
            return GapReason.TTL
        return GapReason.EPHEMERAL if self.ephemeral == evict else GapReason.COMPACTED

    @property
    def trim(self) -> int:
        """Every row up to this seq is gone."""
        return max(self.evict, self.delete)

    def raised(self, *, cap: int = 0, ttl: int = 0, ephemeral: int = 0, delete: int = 0, compacted: int = 0) -> Floors:
        """Return the floors after these moves; one that would go back stays (I1)."""
        return Floors(
            max(self.cap, cap),
            max(self.ttl, ttl),
            max(self.ephemeral, ephemeral),
            max(self.delete, delete),
            max(self.compacted, compacted),
        )

    def past_deleted(self, deleted: SeqSet) -> Floors:
        """Return the floors with that of deletes raised over the deleted seqs that follow `trim`.

        Readers see no difference; the set can drop those seqs, and the row behind `trim` is live."""
        if self.trim + 1 not in deleted:
            return self
        return self.raised(delete=deleted.first_absent_after(self.trim) - 1)

    def gap_after(self, after_seq: int) -> Gap | None:
        """Return the gap that a reader of the seqs above `after_seq` gets first; None = it missed nothing."""
        evict = self.evict
        if after_seq >= evict:
            return None
        return Gap(after_seq + 1, evict, self.reason)


class TimeSpan(NamedTuple):
    """Rows that lie together: seqs and commit times of the first and the last of them."""

    first_seq: int
    last_seq: int
    first_ts_ms: int
    last_ts_ms: int


class Expired(NamedTuple):
    """Rows up to `through_seq` are too old (0 = none), and some of `boundary` too if it is not None: `expired_rows`."""

    through_seq: int
    boundary: TimeSpan | None = None


def live_count(after_seq: int, through_seq: int, uncounted: SeqSet) -> int:
    """Count live records above `after_seq`, which is at or above `trim`, up to `through_seq`, inclusive."""
    if through_seq <= after_seq:
        return 0
    return through_seq - after_seq - uncounted.count(after_seq + 1, through_seq)


def record_count(head_seq: int, floors: Floors, uncounted: SeqSet) -> int:
    """Count all live records."""
    return live_count(floors.trim, head_seq, uncounted)


def earliest_seq(head_seq: int, floors: Floors, uncounted: SeqSet) -> int:
    """Seq of the first live record, else head + 1."""
    return min(uncounted.first_absent_after(floors.trim), head_seq + 1)


def due_cap_records(head_seq: int, cap_records: int, floors: Floors, uncounted: SeqSet) -> int:
    """Return the cap floor that leaves at most `cap_records` (0 = off) live records: unchanged if there are no more."""
    excess = record_count(head_seq, floors, uncounted) - cap_records
    if cap_records == 0 or excess <= 0:
        return floors.cap
    return uncounted.select_after(floors.trim, excess)


def expired_spans(spans: Iterable[TimeSpan], floors: Floors, *, now_ms: int, ttl_ms: int) -> Expired:
    """Return how far rows are older than `ttl_ms` (0 = off). Reads spans in seq order until one is not all expired."""
    through_seq = 0
    if ttl_ms == 0:
        return Expired(through_seq)
    for span in spans:
        if span.last_seq <= floors.trim:
            continue
        if now_ms - span.first_ts_ms <= ttl_ms:
            break
        if now_ms - span.last_ts_ms <= ttl_ms:
            return Expired(through_seq, span)
        through_seq = span.last_seq
    return Expired(through_seq)


def expired_rows(batch: Batch, *, now_ms: int, ttl_ms: int) -> int:
    """Return the seq of the last row of a placed batch that is older than `ttl_ms`; 0 = none is."""
    if batch.ts_ms_each is None:
        return batch.last_seq if now_ms - batch.ts_ms > ttl_ms else 0
    times = np.frombuffer(batch.ts_ms_each, dtype="<i8")
    expired = int(np.searchsorted(times, now_ms - ttl_ms, side="left"))
    return batch.seq_at(expired - 1) if expired else 0


def due_ttl(through_seq: int, floors: Floors, deleted: SeqSet) -> int:
    """Return the TTL floor if rows up to `through_seq` are expired: the last of them that was not deleted (I2)."""
    lost = deleted.last_absent_through(through_seq)
    return lost if lost > floors.trim else floors.ttl
