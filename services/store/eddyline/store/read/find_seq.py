"""Seq lookup by time: the first live record committed at or after a time, or with a source time at or after it.

Commit times never decrease along a log: segments, record batches and frames are skipped by their time bounds, and the rows
of one piece are read, or of some where all late rows of a piece were deleted. Source times may come in any order: only parts
whose latest source time is too early are skipped.
Floors and deletes are those at the moment each piece is read. Threading: event loop; files are read on the reader threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eddyline.core.model.read import SeqFound
from eddyline.core.records.record import Op
from eddyline.store.log.deletion import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from eddyline.core.records.batch import Batch
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.pieces import StoredLog
    from eddyline.store.retention.retention import Retention
    from eddyline.store.storage.segment.footer import BatchEntry, SegmentSummary


class FindSeq:
    """Time lookups in any topic of a shard."""

    def __init__(self, *, log: StoredLog, retention: Retention) -> None:
        self._log = log
        self._retention = retention

    async def by_commit_time(self, topic: Topic, time_ms: int) -> SeqFound:
        """Find the first live record committed at or after `time_ms`, in milliseconds since the Unix epoch.

        Raises:
            DataCorrupt, and as `Retention.enforce`.
        """

        def may_match(part: SegmentSummary | BatchEntry) -> bool:
            return part.last_ts_ms >= time_ms

        def hits(batch: Batch) -> NDArray[np.bool_]:
            return commit_times(batch) >= time_ms

        await self._retention.enforce(topic)
        return await self._first(topic, may_match, hits, frames_after_ms=time_ms)

    async def by_source_time(self, topic: Topic, time_ns: int) -> SeqFound:
        """Find the live record of the lowest seq with a source time at or after `time_ns`, nanoseconds since the Unix epoch.

        Raises:
            as `by_commit_time`.
        """

        def may_match(part: SegmentSummary | BatchEntry) -> bool:
            return part.source_ts_ns_max != 0 and part.source_ts_ns_max >= time_ns

        def hits(batch: Batch) -> NDArray[np.bool_]:
            if batch.source_ts_ns is None:
                return np.zeros(batch.count, dtype=np.bool_)
            times = np.frombuffer(batch.source_ts_ns, dtype="<i8")
            late: NDArray[np.bool_] = (times != 0) & (times >= time_ns)
            return late

        await self._retention.enforce(topic)
        return await self._first(topic, may_match, hits)

    async def _first(
        self,
        topic: Topic,
        may_match: Callable[[SegmentSummary | BatchEntry], bool],
        hits: Callable[[Batch], NDArray[np.bool_]],
        *,
        frames_after_ms: int | None = None,
    ) -> SeqFound:
        cursor = topic.floors.trim
        while True:
            if frames_after_ms is not None and cursor >= topic.segments.last_seq:
                cursor = max(cursor, topic.index.seq_before_time(frames_after_ms))
            piece = await self._log.after(topic, cursor, may_match=may_match)
            if piece is None:
                return SeqFound(topic.head_seq + 1, False, topic.head_seq, topic.earliest_seq, topic.id)
            cursor = piece.last_seq
            if piece.batch is None:
                continue
            batch = visible(piece.batch, topic.floors, topic.deleted_seqs)
            matches = np.flatnonzero(hits(batch) & (batch.ops_array() != Op.GAP))
            if len(matches):
                seq = batch.seq_at(int(matches[0]))
                return SeqFound(seq, True, topic.head_seq, topic.earliest_seq, topic.id)


def commit_times(batch: Batch) -> NDArray[np.int64]:
    """Return each row's commit time, in milliseconds since the Unix epoch."""
    if batch.ts_ms_each is None:
        return np.full(batch.count, batch.ts_ms, dtype=np.int64)
    return np.frombuffer(batch.ts_ms_each, dtype="<i8")
