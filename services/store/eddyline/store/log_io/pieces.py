"""One topic's log piece by piece, wherever it lies: segments, then WAL frames, or memory.

Each step looks the next piece up anew, so that a log may be sealed, merged and trimmed between two steps. What is read is
kept in the cache, and a segment's next record batches are read ahead, a few for each reader. Rows below floors and deleted
ones are the caller's to hide.
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
"""Above what a record batch of a segment was ever cut to. Frames of single large appends, up to 64 MiB, are read one at a
time: each is in memory twice while it is parsed, and reads of the others fill the threads."""
AHEAD: Final = 3
"""Record batches of a segment, of 768 KiB each, that are read while one is on its way out."""
PIECES_AT_ONCE: Final = 64
"""Pieces looked up, whoever wants them, between two turns of the loop: those that are in memory are there without a wait,
and a search through a million single appends is a million of them, some 10 us each."""


class StoredPiece(NamedTuple):
    """A stored batch, whole; `last_seq` is the last seq that is looked at with it: a skipped segment has no batch.

    `ends` = no append lies on both sides of `last_seq`; False = one may: a record batch of a segment may end in a large one.
    """

    last_seq: int
    batch: Batch | None
    ends: bool = True


class PreviousPiece(NamedTuple):
    """A stored batch, whole, on the way back; `first_seq` is the first seq that is looked at with it."""

    first_seq: int
    batch: Batch | None


@contextmanager
def unless_deleted(topic: Topic) -> Iterator[None]:
    """While a topic's files are read: those of a deleted one go whoever reads them, and are not corrupt.

    Raises:
        TopicNotFound: in the place of DataCorrupt, where it was deleted meanwhile.
    """
    try:
        yield
    except DataCorrupt as error:
        if topic.deleted:
            raise _deleted(topic) from error
        raise


def _ends_append(footer: Footer, position: int) -> bool:
    """Whether a record batch ends where an append does. A segment is made of whole frames, these of whole appends, and an
    append has one commit time."""
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
        self._looks = 0
        self._under_way: dict[tuple[Segment, int], asyncio.Future[Batch]] = {}

    async def after(
        self,
        topic: Topic,
        seq: int,
        *,
        may_hold: Callable[[Footer], bool] | None = None,
        wanted: Callable[[SegmentSummary | BatchEntry], bool] | None = None,
    ) -> StoredPiece | None:
        """The first piece that holds a seq above `seq`; None = there is none. A segment whose footer `may_hold` denies is
        passed over, as a piece without batch; so is what `wanted` does not want by its numbers, a whole segment or one
        record batch.

        Raises:
            DataCorrupt: it cannot be read, or is not what was written. TopicNotFound: it was deleted meanwhile.
        """
        await self._take_turns()
        segment = topic.segments.after(seq)
        if segment is not None:
            if wanted is not None and not wanted(segment.summary):
                return StoredPiece(segment.summary.last_seq, None)
            with unless_deleted(topic):
                return await self._of_segment(segment, seq, may_hold, wanted)
        if topic.memory is not None:
            batch = topic.memory.after(seq)
            if batch is None and topic.deleted:
                raise _deleted(topic)  # its memory went with it: not that there was nothing
            return StoredPiece(batch.last_seq, batch) if batch is not None else None
        position = topic.index.position_after(seq)
        if position == len(topic.index):
            return None
        entry = topic.index.entry(position)
        with unless_deleted(topic):
            found = await self._frame(topic, entry)
        if found is None:
            return await self.after(topic, seq, may_hold=may_hold, wanted=wanted)
        return StoredPiece(entry.last_seq, found)

    async def through(
        self, topic: Topic, seq: int, *, may_hold: Callable[[Footer], bool] | None = None
    ) -> PreviousPiece | None:
        """The last piece that holds a seq at or below `seq`: the way back of `after`, for topics that are on disk.

        Raises:
            DataCorrupt, TopicNotFound.
        """
        await self._take_turns()
        position = topic.index.position_through(seq)
        if position >= 0:
            entry = topic.index.entry(position)
            with unless_deleted(topic):
                found = await self._frame(topic, entry)
            if found is None:
                return await self.through(topic, seq, may_hold=may_hold)
            return PreviousPiece(entry.first_seq, found)
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
        """A segment's footer; the caller holds the segment.

        Raises:
            DataCorrupt.
        """
        footer = self.files.kept_footer(segment)
        return footer if footer is not None else await self._worker.submit(partial(self.files.footer, segment))

    async def batch(self, segment: Segment, entry: BatchEntry) -> Batch:
        """One record batch of a segment; the caller holds it.

        Raises:
            DataCorrupt.
        """
        batch = self._cache.get((segment, entry.offset))
        return batch if batch is not None else await asyncio.shield(self._reading(segment, entry))

    async def _take_turns(self) -> None:
        self._looks += 1
        if self._looks % PIECES_AT_ONCE == 0:
            await asyncio.sleep(0)

    async def _of_segment(
        self,
        segment: Segment,
        seq: int,
        may_hold: Callable[[Footer], bool] | None,
        wanted: Callable[[SegmentSummary | BatchEntry], bool] | None,
    ) -> StoredPiece:
        segment.hold()
        try:
            footer = await self.footer(segment)
            if may_hold is not None and not may_hold(footer):
                return StoredPiece(segment.summary.last_seq, None)
            position = footer.batch_after(seq)
            entry = footer.batches[position]
            ends = _ends_append(footer, position)
            if wanted is not None and not wanted(entry):
                return StoredPiece(entry.last_seq, None, ends)
            if seq < entry.first_seq:
                for following in footer.batches[position + 1 : position + 1 + AHEAD]:
                    self._read_ahead(segment, following, wanted)
            return StoredPiece(entry.last_seq, await self.batch(segment, entry), ends)
        finally:
            segment.let_go()

    def _read_ahead(
        self, segment: Segment, entry: BatchEntry, wanted: Callable[[SegmentSummary | BatchEntry], bool] | None
    ) -> None:
        """Whoever begins a record batch most often wants the next ones: read them while this one is on its way out."""
        if (wanted is None or wanted(entry)) and self._cache.get((segment, entry.offset)) is None:
            self._reading(segment, entry)

    def _reading(self, segment: Segment, entry: BatchEntry) -> asyncio.Future[Batch]:
        """A record batch that is being read, once for all who want it."""
        key = (segment, entry.offset)
        reading = self._under_way.get(key)
        if reading is None:
            segment.hold()
            reading = self._under_way[key] = self._worker.submit(partial(self.files.batch, segment, entry))
            reading.add_done_callback(partial(self._was_read, segment, entry))
        return reading

    def _was_read(self, segment: Segment, entry: BatchEntry, reading: asyncio.Future[Batch]) -> None:
        key = (segment, entry.offset)
        del self._under_way[key]
        segment.let_go()
        if not reading.cancelled() and reading.exception() is None:  # whoever waits for it gets what it raised
            self._cache.add(key, reading.result())

    async def _frame(self, topic: Topic, entry: IndexEntry) -> Batch | None:
        """The batch of an indexed frame; None where it was sealed, carried or trimmed while it was read: to be looked for
        anew."""
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
