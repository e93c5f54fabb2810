"""Log pieces for a scan: a segment's record batch as its Arrow message, or a run of WAL frames or of batches in memory.

Unlike `log_io/pieces.py` it bypasses the cache: a scan would only push hot batches out of it. Each step looks up the next
piece again, so that a log may be sealed, merged and trimmed between two steps.
I1: a piece holds every stored record above the cursor and up to its `last_seq`. I2: a segment is held while a job reads it,
also if its reader is cancelled meanwhile.
Threading: event loop; files are read on the reader threads, one job at a time for each reader.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from eddyline.core.errors import DataCorrupt, TopicNotFound
from eddyline.store.log_io.pieces import unless_deleted
from eddyline.store.splits.filter import may_hold, may_hold_passing
from eddyline.store.storage.segment.batching import record_batches
from eddyline.store.storage.segment.reader import decode_message
from eddyline.store.storage.segment.writer import BYTES_MAX, ROWS_MAX
from eddyline.store.write.engine import completed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from eddyline.core.records.batch import Batch
    from eddyline.store.log.index import IndexEntry
    from eddyline.store.log.segments import Segment
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.files import LogFiles
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.splits.model import SplitFilter
    from eddyline.store.storage.segment.footer import BatchEntry, Footer

T = TypeVar("T")

FRAMES_AT_ONCE: Final = 2_048
"""Frames of one job: if each is a single append, reading and joining them takes a thread some 60 ms."""


class StoredBatch(NamedTuple):
    """A record batch of a segment or base as written, verified."""

    message: bytes
    entry: BatchEntry
    path: Path

    def batch(self) -> Batch:
        """Decode it. Raises: DataCorrupt."""
        return decode_message(self.message, self.path, self.entry)


class ScanPiece(NamedTuple):
    """Stored records up to `last_seq`: a message, or batches; neither = the filter rules them out by footer or summary."""

    last_seq: int
    stored: StoredBatch | None = None
    batches: tuple[Batch, ...] = ()


class ScanPieces:
    """Finds and reads the pieces of any topic of a store."""

    def __init__(self, *, files: LogFiles, worker: Worker) -> None:
        self._files = files
        self._worker = worker

    async def after(self, topic: Topic, seq: int, last_seq: int, split_filter: SplitFilter) -> ScanPiece | None:
        """Return the first piece that holds a seq above `seq`, of those that begin at or below `last_seq`; None = no such
        piece.

        Raises:
            DataCorrupt: it cannot be read, or its checksum is wrong. TopicNotFound: the topic was deleted meanwhile.
        """
        while True:
            segment = topic.segments.after(seq)
            if segment is not None and segment.summary.first_seq <= last_seq:
                with unless_deleted(topic):
                    return await self._of_segment(segment, seq, last_seq, split_filter)
            if topic.deleted:
                raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
            if topic.memory is not None:
                return await self._of_memory(topic, seq, last_seq)
            entries = frames_after(topic, seq, last_seq)
            if not entries:
                return None
            try:
                with unless_deleted(topic):
                    batches = await self.run(partial(self._frames, topic.id, entries))
            except DataCorrupt:
                # Sealed, carried or trimmed during the read: look them up again.
                if frames_after(topic, seq, last_seq) == entries:
                    raise
                continue
            return ScanPiece(entries[-1].last_seq, batches=batches)

    async def footer(self, segment: Segment) -> Footer:
        """Return a segment's footer; the caller holds the segment.

        Raises:
            DataCorrupt.
        """
        footer = self._files.cached_footer(segment)
        return footer if footer is not None else await self.run(partial(self._files.footer, segment))

    async def run(self, job: Callable[[], T]) -> T:
        """Run a job on the reader threads. A cancelled caller waits for it: the files of the job must stay until then."""
        running = self._worker.submit(job)
        await completed(running)
        return running.result()

    async def _of_segment(self, segment: Segment, seq: int, last_seq: int, split_filter: SplitFilter) -> ScanPiece:
        if not may_hold_passing(segment.summary, split_filter):
            return ScanPiece(segment.summary.last_seq)
        segment.hold()
        try:
            footer = await self.footer(segment)
            if not may_hold(footer, split_filter):
                return ScanPiece(segment.summary.last_seq)
            entry = footer.batches[footer.batch_after(seq)]
            if not may_hold_passing(entry, split_filter) or entry.first_seq > last_seq:
                return ScanPiece(entry.last_seq)
            message = await self.run(partial(self._files.message, segment, entry))
            return ScanPiece(entry.last_seq, StoredBatch(message, entry, segment.path))
        finally:
            segment.let_go()

    async def _of_memory(self, topic: Topic, seq: int, last_seq: int) -> ScanPiece | None:
        assert topic.memory is not None
        batches: list[Batch] = []
        rows = size = 0
        while len(batches) < FRAMES_AT_ONCE and (batch := topic.memory.after(seq)) is not None:
            rows, size = rows + batch.count, size + batch.nbytes
            if batch.first_seq > last_seq or (batches and (rows > ROWS_MAX or size > BYTES_MAX)):
                break
            batches.append(batch)
            seq = batch.last_seq
        if not batches:
            return None
        return ScanPiece(seq, batches=await self.run(partial(_joined, batches)))

    def _frames(self, topic_id: int, entries: Sequence[IndexEntry]) -> tuple[Batch, ...]:
        return _joined([self._files.frame(topic_id, entry.location) for entry in entries])


def frames_after(topic: Topic, seq: int, last_seq: int) -> list[IndexEntry]:
    """Return the frames above `seq` that begin at or below `last_seq`, as many as make one record batch; at least one, if
    any."""
    entries: list[IndexEntry] = []
    index = topic.index
    start, rows, size = index.position_after(seq), 0, 0
    for position in range(start, min(len(index), start + FRAMES_AT_ONCE)):
        entry = index.entry(position)
        rows, size = rows + entry.last_seq - entry.first_seq + 1, size + entry.location.length
        if entry.first_seq > last_seq or (entries and (rows > ROWS_MAX or size > BYTES_MAX)):
            break
        entries.append(entry)
    return entries


def _joined(batches: Sequence[Batch]) -> tuple[Batch, ...]:
    return tuple(record_batches(batches, rows_max=ROWS_MAX, bytes_max=BYTES_MAX))
