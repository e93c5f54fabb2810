"""Front of a topic's log: up to which seq records are expired, and how many bytes a move of the floors frees.

Summaries decide for whole segments and record batches; rows are read only of a batch with the boundary inside. The pure
arithmetic is in `log/floors.py` and `log/front.py`.
Threading: event loop; files are read on the reader threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eddyline.store.log.floors import TimeSpan, expired_rows, expired_spans
from eddyline.store.log.front import LogRun
from eddyline.store.log_io.pieces import unless_deleted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.core.records.batch import Batch
    from eddyline.store.log.front import LogStartWalk
    from eddyline.store.log.index import IndexEntry
    from eddyline.store.log.segments import Segment
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.pieces import StoredLog
    from eddyline.store.storage.segment.footer import BatchEntry, SegmentSummary


class LogAge(NamedTuple):
    """Rows up to `through_seq` are expired (0 = none); the others are no older than `oldest_ts_ms`."""

    through_seq: int
    oldest_ts_ms: int


class LogStart:
    """Reads the front of any topic's log."""

    def __init__(self, log: StoredLog) -> None:
        self._log = log

    async def expired(self, topic: Topic, *, now_ms: int, ttl_ms: int) -> LogAge:
        """Find the rows of the log that are older than `ttl_ms`.

        Raises:
            DataCorrupt, TopicNotFound (deleted meanwhile).
        """
        spans = expired_spans(_spans(topic), topic.floors, now_ms=now_ms, ttl_ms=ttl_ms)
        if spans.boundary is None:
            after_seq = max(spans.through_seq, topic.floors.trim)
            oldest_ms = next((s.first_ts_ms for s in _spans(topic) if s.last_seq > after_seq), topic.last_ts_ms)
            return LogAge(spans.through_seq, oldest_ms)
        batch = await self._boundary(topic, spans.boundary, now_ms=now_ms, ttl_ms=ttl_ms)
        through_seq = max(expired_rows(batch, now_ms=now_ms, ttl_ms=ttl_ms), spans.through_seq)
        return LogAge(through_seq, _ts_after(batch, max(through_seq, topic.floors.trim)))

    async def walk(self, topic: Topic, walk: LogStartWalk) -> None:
        """Walk pieces from the front on until `walk` is done.

        Raises:
            DataCorrupt, TopicNotFound (deleted meanwhile).
        """
        seq = topic.floors.trim
        while not walk.done:
            # Each step looks up the next piece again: frames may be sealed, and segments merged, while a piece is read.
            if (segment := topic.segments.after(seq)) is not None:
                segment.hold()
                try:
                    with unless_deleted(topic):
                        await self._walk_segment(segment, seq, walk)
                finally:
                    segment.let_go()
                seq = segment.summary.last_seq
            elif topic.memory is not None and (batch := topic.memory.after(seq)) is not None:
                walk.take_rows(batch)
                seq = batch.last_seq
            elif (position := topic.index.position_after(seq)) < len(topic.index):
                seq = await self._walk_frame(topic, topic.index.entry(position), seq, walk)
            else:
                return

    async def _walk_frame(self, topic: Topic, entry: IndexEntry, seq: int, walk: LogStartWalk) -> int:
        """Walk the frame after `seq`. Returns the last seq walked."""
        gaps = topic.uncounted.count(entry.first_seq, entry.last_seq) - topic.deleted_seqs.count(
            entry.first_seq, entry.last_seq
        )
        records = entry.last_seq - entry.first_seq + 1 - gaps
        if walk.take(LogRun(entry.first_seq, entry.last_seq, records, entry.record_bytes)):
            return entry.last_seq
        piece = await self._log.after(topic, seq)
        if piece is None or piece.batch is None:
            return entry.last_seq
        walk.take_rows(piece.batch)
        return piece.last_seq

    async def _walk_segment(self, segment: Segment, seq: int, walk: LogStartWalk) -> None:
        if walk.take(_piece_of(segment.summary)):
            return
        footer = await self._log.footer(segment)
        for entry in footer.batches[footer.batch_after(seq) :]:
            if not walk.take(_piece_of(entry)):
                walk.take_rows(await self._log.batch(segment, entry))
            if walk.done:
                return

    async def _boundary(self, topic: Topic, span: TimeSpan, *, now_ms: int, ttl_ms: int) -> Batch:
        """Return the batch with the boundary inside: of a segment one record batch, expired by the footer, else the whole
        piece."""
        segment = topic.segments.after(span.first_seq - 1)
        if segment is None or segment.summary.first_seq > span.last_seq:
            piece = await self._log.after(topic, span.first_seq - 1)
            assert piece is not None
            assert piece.batch is not None
            return piece.batch
        segment.hold()
        try:
            with unless_deleted(topic):
                footer = await self._log.footer(segment)
                spans = [TimeSpan(*entry[:4]) for entry in footer.batches]
                expired = expired_spans(spans, topic.floors, now_ms=now_ms, ttl_ms=ttl_ms)
                after_seq = max(expired.through_seq, topic.floors.trim)
                entry = footer.batches[min(footer.batch_after(after_seq), len(footer.batches) - 1)]
                return await self._log.batch(segment, entry)
        finally:
            segment.let_go()


def _spans(topic: Topic) -> Iterator[TimeSpan]:
    for segment in topic.segments:
        summary = segment.summary
        yield TimeSpan(summary.first_seq, summary.last_seq, summary.first_ts_ms, summary.last_ts_ms)
    if topic.memory is not None:
        for batch in topic.memory:
            yield TimeSpan(batch.first_seq, batch.last_seq, batch.ts_ms, batch.ts_ms)
    for position in range(len(topic.index)):
        entry = topic.index.entry(position)
        yield TimeSpan(entry.first_seq, entry.last_seq, entry.ts_ms, entry.ts_ms)


def _piece_of(part: SegmentSummary | BatchEntry) -> LogRun:
    return LogRun(part.first_seq, part.last_seq, part.rows - part.gap_count, part.record_bytes)


def _ts_after(batch: Batch, seq: int) -> int:
    """Return the commit time of the first row above `seq`, else of the last row."""
    if batch.ts_ms_each is None:
        return batch.ts_ms
    index = min(batch.index_after(seq), batch.count - 1)
    return int(np.frombuffer(batch.ts_ms_each, dtype="<i8")[index])
