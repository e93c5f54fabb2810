"""One topic's log piece by piece, from segments, then WAL frames, or from memory.

Each step looks up the next piece again, so that a log may be sealed, merged and trimmed between two steps. Batches read are
cached, and a segment's next record batches are read ahead, a few for each reader. The caller must hide rows below floors and
deleted ones.
Threading: event loop; files are read on the reader threads.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import DataCorrupt, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eddyline.core.records.batch import Batch
    from eddyline.store.log.batch_cache import BatchCache
    from eddyline.store.log.index import IndexEntry
    from eddyline.store.log.segments import Segment
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.files import LogFiles
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.storage.segment.footer import BatchEntry, Footer, SegmentSummary
    from eddyline.store.storage.wal.wal import Location

LARGE_BYTES: Final = 9 << 20
"""Larger than any record batch of a segment. Frames of single large appends, up to 64 MiB, are read one at a time: each is
in memory twice while it is parsed, and reads of the others fill the threads."""
AHEAD: Final = 3
"""Record batches of a segment, of 768 KiB each, that are read ahead while one is being sent."""
PIECES_AT_ONCE: Final = 64
"""Lookups by all callers before the event loop is yielded: a piece in memory is returned without an await, and a search
through a million single appends makes a million lookups of some 10 us each."""


class StoredPiece(NamedTuple):
    """A stored batch, whole; `last_seq` is the last seq that it covers. A skipped segment has no batch.

    `ends` = no append lies on both sides of `last_seq`; False = one may: a segment's record batch may end inside a large
    append.
    """

    last_seq: int
    batch: Batch | None
    ends: bool = True


class PreviousPiece(NamedTuple):
    """A stored batch, whole, of a backward read; `first_seq` is the first seq that it covers."""

    first_seq: int
    batch: Batch | None


@contextmanager
def unless_deleted(topic: Topic) -> Iterator[None]:
    """Guard a read of a topic's files: those of a deleted topic are removed during reads, and are not corrupt.

    Raises:
        TopicNotFound: instead of DataCorrupt, if the topic was deleted meanwhile.
    """
    try:
        yield
    except DataCorrupt as error:
        if topic.deleted:
            raise _deleted(topic) from error
        raise


def _ends_append(footer: Footer, position: int) -> bool:
    """Return whether a record batch ends where an append ends. A segment consists of whole frames, a frame of whole appends,
    and an append has one commit time."""
    entries = footer.batches
    return position + 1 == len(entries) or entries[position].last_ts_ms != entries[position + 1].first_ts_ms


def _deleted(topic: Topic) -> TopicNotFound:
    return TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)


class StoredLog:
    """Reads pieces of any topic of a store."""

    def __init__(self, *, files: LogFiles, cache: BatchCache, worker: Worker) -> None:
        self.files = files
        self._cache = cache
        self._worker = worker
        self._large = asyncio.Lock()
        self._lookups = 0
        self._in_flight: dict[tuple[Segment, int], asyncio.Future[Batch]] = {}

    async def after(
        self,
        topic: Topic,
        seq: int,
        *,
        may_hold: Callable[[Footer], bool] | None = None,
        may_match: Callable[[SegmentSummary | BatchEntry], bool] | None = None,
    ) -> StoredPiece | None:
        """Return the first piece that holds a seq above `seq`; None = no such piece. A segment whose footer fails `may_hold`
        is skipped, as a piece without batch; so is a segment or record batch whose summary fails `may_match`.

        Raises:
            DataCorrupt: it cannot be read, or its checksum is wrong. TopicNotFound: the topic was deleted meanwhile.
        """
        await self._yield_loop()
        segment = topic.segments.after(seq)
        if segment is not None:
            if may_match is not None and not may_match(segment.summary):
                return StoredPiece(segment.summary.last_seq, None)
            with unless_deleted(topic):
                return await self._of_segment(segment, seq, may_hold, may_match)
        if topic.memory is not None:
            batch = topic.memory.after(seq)
            if batch is None and topic.deleted:
                raise _deleted(topic)  # its memory was freed with it: the records existed
            return StoredPiece(batch.last_seq, batch) if batch is not None else None
        position = topic.index.position_after(seq)
        if position == len(topic.index):
            return None
        entry = topic.index.entry(position)
        with unless_deleted(topic):
            frame_batch = await self._frame(topic, entry)
        if frame_batch is None:
            return await self.after(topic, seq, may_hold=may_hold, may_match=may_match)
        return StoredPiece(entry.last_seq, frame_batch)

    async def through(
        self, topic: Topic, seq: int, *, may_hold: Callable[[Footer], bool] | None = None
    ) -> PreviousPiece | None:
        """Return the last piece that holds a seq at or below `seq`: the backward form of `after`, for topics on disk.

        Raises:
            DataCorrupt, TopicNotFound.
        """
        await self._yield_loop()
        position = topic.index.position_through(seq)
        if position >= 0:
            entry = topic.index.entry(position)
            with unless_deleted(topic):
                frame_batch = await self._frame(topic, entry)
            if frame_batch is None:
                return await self.through(topic, seq, may_hold=may_hold)
            return PreviousPiece(entry.first_seq, frame_batch)
        segment = topic.segments.through(seq)
        if segment is None:
            return None
        segment.hold()
        try:
            with unless_deleted(topic):
                footer = await self.footer(segment)
                if may_hold is not None and not may_hold(footer):
                    return PreviousPiece(segment.summary.first_seq, None)
                batch_entry = footer.batches[footer.batch_through(seq)]
                return PreviousPiece(batch_entry.first_seq, await self.batch(segment, batch_entry))
        finally:
            segment.let_go()

    async def footer(self, segment: Segment) -> Footer:
        """Return a segment's footer; the caller holds the segment.

        Raises:
            DataCorrupt.
        """
        footer = self.files.cached_footer(segment)
        return footer if footer is not None else await self._worker.submit(partial(self.files.footer, segment))

    async def batch(self, segment: Segment, entry: BatchEntry) -> Batch:
        """Read one record batch of a segment; the caller holds the segment.

        Raises:
            DataCorrupt.
        """
        batch = self._cache.get((segment, entry.offset))
        return batch if batch is not None else await asyncio.shield(self._reading(segment, entry))

    async def _yield_loop(self) -> None:
        self._lookups += 1
        if self._lookups % PIECES_AT_ONCE == 0:
            await asyncio.sleep(0)

    async def _of_segment(
        self,
        segment: Segment,
        seq: int,
        may_hold: Callable[[Footer], bool] | None,
        may_match: Callable[[SegmentSummary | BatchEntry], bool] | None,
    ) -> StoredPiece:
        segment.hold()
        try:
            footer = await self.footer(segment)
            if may_hold is not None and not may_hold(footer):
                return StoredPiece(segment.summary.last_seq, None)
            position = footer.batch_after(seq)
            entry = footer.batches[position]
            ends = _ends_append(footer, position)
            if may_match is not None and not may_match(entry):
                return StoredPiece(entry.last_seq, None, ends)
            if seq < entry.first_seq:
                for following in footer.batches[position + 1 : position + 1 + AHEAD]:
                    self._read_ahead(segment, following, may_match)
            return StoredPiece(entry.last_seq, await self.batch(segment, entry), ends)
        finally:
            segment.let_go()

    def _read_ahead(
        self, segment: Segment, entry: BatchEntry, may_match: Callable[[SegmentSummary | BatchEntry], bool] | None
    ) -> None:
        """Start a read of a following record batch: most readers of one need the next ones too."""
        if (may_match is None or may_match(entry)) and self._cache.get((segment, entry.offset)) is None:
            self._reading(segment, entry)

    def _reading(self, segment: Segment, entry: BatchEntry) -> asyncio.Future[Batch]:
        """Return the read in flight of a record batch, started if there is none: one for all callers."""
        key = (segment, entry.offset)
        reading = self._in_flight.get(key)
        if reading is None:
            segment.hold()
            reading = self._in_flight[key] = self._worker.submit(partial(self.files.batch, segment, entry))
            reading.add_done_callback(partial(self._was_read, segment, entry))
        return reading

    def _was_read(self, segment: Segment, entry: BatchEntry, reading: asyncio.Future[Batch]) -> None:
        key = (segment, entry.offset)
        del self._in_flight[key]
        segment.let_go()
        if not reading.cancelled() and reading.exception() is None:  # its callers get the exception
            self._cache.add(key, reading.result())

    async def _frame(self, topic: Topic, entry: IndexEntry) -> Batch | None:
        """Return the batch of an indexed frame; None = it was sealed, carried or trimmed during the read: look it up
        again."""
        key = (topic.id, entry.location)
        batch = self._cache.get(key)
        if batch is None:
            try:
                batch = await self._read_frame(topic.id, entry.location)
            except DataCorrupt:
                position = topic.index.position_after(entry.last_seq - 1)
                if position == len(topic.index) or topic.index.entry(position).location != entry.location:
                    return None
                raise
            self._cache.add(key, batch)
        return batch

    async def _read_frame(self, topic_id: int, location: Location) -> Batch:
        reading = partial(self.files.frame, topic_id, location)
        if location.length <= LARGE_BYTES:
            return await self._worker.submit(reading)
        async with self._large:
            return await self._worker.submit(reading)
