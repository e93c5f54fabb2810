"""Log reads by seq, bounded in records, bytes and records examined.

Pieces of the log come from the cache or, off the loop, from files, verified. Only published frames are in the index, so
no record is read before it is visible. Neighbouring pieces are joined into one batch; a batch ends where a gap lies.
A read first enforces retention, so it never returns a record that is over the cap or too old. If floors move during a read,
it ends before them, and the next read returns the gap.
Threading: event loop; file reads on the reader threads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eddyline.core.errors import CursorAhead, DataCorrupt, InvalidArgument
from eddyline.core.model.read import (
    ALL_RECORDS,
    EXAMINED_BYTES_MAX,
    EXAMINED_RECORDS_MAX,
    READ_BYTES_DEFAULT,
    READ_BYTES_MAX,
    READ_LIMIT_DEFAULT,
    READ_LIMIT_MAX,
    READ_WAIT_MS_MAX,
    ReadResult,
)
from eddyline.core.model.record_filter import matching
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import split_gaps
from eddyline.core.records.record import Gap, GapReason
from eddyline.core.records.size import row_bytes
from eddyline.store.log.deletion import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.model.read import RecordFilter
    from eddyline.core.runtime.clock import Clock
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.pieces import StoredLog
    from eddyline.store.retention.retention import Retention
    from eddyline.store.storage.segment.footer import Footer


OWN_BYTES_MIN: Final = 9 << 20
"""Above what a record batch of a segment was ever cut to: single appends alone are larger. Copying costs 0.1 ms a MiB."""

ENOUGH_SHARE: Final = 0.7
"""[none] Share of the requested bytes from which on a read ends with a stored batch, not in the middle of the next.
Consecutive reads of 1 MiB then pass stored batches on unchanged, instead of joining two parts each."""


class _Bounds(NamedTuple):
    limit: int
    max_bytes: int
    record_filter: RecordFilter


class _Collected(NamedTuple):
    """Batches and the last seq examined; `whole` = as far as known, no append lies on both sides of it."""

    batches: list[Batch]
    last_seq: int
    whole: bool


class LogReader:
    """Reads any topic of a shard."""

    def __init__(
        self, *, log: StoredLog, retention: Retention, clock: Clock, on_corrupt: Callable[[DataCorrupt], None]
    ) -> None:
        """`on_corrupt` is called with every damaged piece that a read hits."""
        self._log = log
        self._retention = retention
        self._clock = clock
        self._on_corrupt = on_corrupt

    async def read(
        self,
        topic: Topic,
        *,
        after_seq: int,
        epoch: int = 0,
        limit: int = 0,
        max_bytes: int = 0,
        wait_ms: int = 0,
        record_filter: RecordFilter = ALL_RECORDS,
    ) -> ReadResult:
        """Read records above `after_seq`; 0 = the default of each bound. A caught-up read waits `wait_ms` for a record.

        Raises:
            InvalidArgument: a bound is out of range. CursorAhead: `after_seq` is above the head of the same epoch.
            DataCorrupt: a frame's checksum is wrong.
        """
        limit = _bounded(limit, READ_LIMIT_DEFAULT, READ_LIMIT_MAX, "limit")
        max_bytes = _bounded(max_bytes, READ_BYTES_DEFAULT, READ_BYTES_MAX, "max_bytes")
        wait_ms = _bounded(wait_ms, 0, READ_WAIT_MS_MAX, "wait_ms")
        items: list[Batch | Gap] = []
        if epoch and epoch != topic.id:
            items.append(Gap(0, 0, GapReason.RECREATED, old_epoch=epoch, new_epoch=topic.id))
            after_seq = 0
        elif after_seq > topic.head_seq:
            raise CursorAhead(
                f"the head of topic {topic.name} is {topic.head_seq}, below the cursor {after_seq}",
                topic=topic.name,
                headSeq=topic.head_seq,
                afterSeq=after_seq,
            )
        if not items and after_seq == topic.head_seq and wait_ms:
            await topic.wait_head(after_seq + 1, self._clock, wait_ms / 1000)
        await self._retention.enforce(topic, after_seq)
        gap = topic.floors.gap_after(after_seq)
        if gap is not None:
            after_seq = gap.last_seq
            if not items:
                items.append(gap)
        if record_filter.exclude_nodes and not topic.config.dedupe_node:
            record_filter = replace(record_filter, exclude_nodes=())
        bounds = _Bounds(limit, max_bytes, record_filter)
        batches, next_after_seq, whole = await self._collect(topic, after_seq, bounds)
        if batches:
            items.extend(split_gaps(batches[0] if len(batches) == 1 else Batch.concat(batches)))
        head_seq = max(topic.head_seq, next_after_seq)
        return ReadResult(tuple(items), next_after_seq, head_seq, topic.earliest_seq, topic.id, whole)

    async def _collect(self, topic: Topic, after_seq: int, bounds: _Bounds) -> _Collected:
        """Gather batches up to the bounds and the head."""
        head_seq = topic.head_seq
        limit, max_bytes, record_filter = bounds
        examined_records = examined_bytes = count = size = 0
        batches: list[Batch] = []
        whole = False
        may_hold = may_hold_any(record_filter)
        cursor = after_seq
        while cursor < head_seq and topic.floors.evict <= cursor:
            try:
                piece = await self._log.after(topic, cursor, may_hold=may_hold)
            except DataCorrupt as error:
                self._on_corrupt(error)
                raise
            if topic.floors.evict > cursor:
                break
            if piece is None:
                cursor = head_seq
                break
            if piece.batch is None:
                cursor, whole = min(piece.last_seq, head_seq), piece.ends
                continue
            batch = visible(piece.batch, topic.floors, topic.deleted_seqs)
            batch = batch.slice(batch.index_after(cursor), batch.index_after(head_seq))
            examined_records, examined_bytes = examined_records + batch.count, examined_bytes + batch.nbytes
            indices = None if record_filter.passes_all() else matching(batch, record_filter)
            selected = batch if indices is None else batch.select(indices)
            if size >= max_bytes * ENOUGH_SHARE and size + selected.content_bytes > max_bytes:
                # End with the previous piece: the rest of this one, and all that follows, would be cut inside pieces.
                break
            taken = fitting(selected, limit - count, max_bytes - size, at_least_one=count == 0)
            count += taken
            if taken < selected.count:
                if taken:
                    part = selected.slice(0, taken)
                    # A part's columns are views: a slow reader of 1 MiB would keep a batch of 64 MiB in memory.
                    batches.append(part.select(np.arange(taken)) if batch.nbytes > OWN_BYTES_MIN else part)
                # The cursor stops before the first record that does not fit: filtered records before it are examined.
                cursor = selected.seq_at(taken) - 1
                index = batch.index_after(cursor)
                whole = batch.ends_append(index) if index else whole
                break
            if taken:
                batches.append(selected)
                size += selected.content_bytes
            cursor, whole = min(piece.last_seq, head_seq), piece.ends
            if (
                count >= limit
                or size >= max_bytes
                or examined_records >= EXAMINED_RECORDS_MAX
                or examined_bytes >= EXAMINED_BYTES_MAX
            ):
                break
        # appends are published as a whole
        return _Collected(batches, cursor, whole or cursor == head_seq)


def may_hold_any(record_filter: RecordFilter) -> Callable[[Footer], bool] | None:
    """Return a footer check: may the segment hold a record that passes? None = every one may. Gap records always pass."""
    prefixes, tags = record_filter.key_prefixes, record_filter.tags
    if not prefixes and not tags:
        return None

    def may_hold(footer: Footer) -> bool:
        if footer.summary.gap_count:
            return True
        by_key = not prefixes or any(map(footer.may_hold_key_prefix, prefixes))
        return by_key and (not tags or any(map(footer.may_hold_tag, tags)))

    return may_hold


def fitting(batch: Batch, records_max: int, bytes_max: int, *, at_least_one: bool) -> int:
    """Count the first records that fit both bounds; with `at_least_one` never 0 for a batch that has records."""
    if batch.count == 0:
        return 0
    fits = min(batch.count, records_max)
    if batch.content_bytes > bytes_max:
        sizes = np.cumsum(row_bytes(batch))
        fits = min(fits, int(np.searchsorted(sizes, bytes_max, side="right")))
    return max(fits, 1) if at_least_one else max(fits, 0)


def _bounded(value: int, default: int, largest: int, field: str) -> int:
    if not 0 <= value <= largest:
        raise InvalidArgument(
            f"{field} must be 0 to {largest}, not {value}", field=field, value=value, valueMax=largest
        )
    return value or default
