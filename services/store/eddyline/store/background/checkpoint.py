"""Checkpoints: the catalog records the state of every changed topic, and unneeded WAL files are removed.

    1 seal     topics with much unsegmented; 100 000 trickling topics do not make 100 000 files
    2 carry    other frames in old files are written again at the log's end, verbatim, so that those files are free
    3 cut      between two groups, with no append in flight: a new WAL file begins, every changed topic is encoded
    4 sync     WAL and fold: the encoded state is durable before the catalog has it
    5 write    the catalog's one synced batch
    6 unlink   files below the oldest that an index points into

Only step 3 blocks appends, for the time of one group, the fold's lag and the encoding.
I1: a catalog contains only durable state. I2: a WAL file is removed only when the catalog has its effects and no index
points into it. I3: a failure before step 5 changes nothing; after it, the next start or checkpoint removes the files.
Threading: event loop; one checkpoint at a time.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import DataCorrupt
from eddyline.core.runtime.logging import fields
from eddyline.store.catalog.catalog import CatalogHead, WalPosition
from eddyline.store.fold.fold import sync_for_checkpoint
from eddyline.store.log_io.catalog_entries import encode_catalog_topic, source_of
from eddyline.store.storage.wal.frame import carried_body
from eddyline.store.write.engine import completed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.store.catalog.catalog import Catalog, TopicEntry
    from eddyline.store.compaction.seal import Sealer
    from eddyline.store.log.index import IndexEntry
    from eddyline.store.log.sources import SourceTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.files import LogFiles
    from eddyline.store.log_io.garbage import Garbage
    from eddyline.store.runtime.age_clock import AgeClock
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.storage.wal.frame import FrameBody
    from eddyline.store.storage.wal.wal import Location, Wal, WalEnd
    from eddyline.store.write.engine import Engine

logger = logging.getLogger(__name__)

SEALED_BYTES_MIN: Final = 1 << 20
SEALED_RECORDS_MIN: Final = 10_000
"""A topic with so much unsegmented is sealed at a checkpoint; less is carried: a file has its cost (a name, a footer, an
open), and merging small files costs more than writing their frames again at each checkpoint."""
CARRIED_BYTES_MAX: Final = 64 << 20
"""Bytes that one checkpoint carries at most: a second of a slow disk. Above it the largest topics are sealed instead."""
CARRIED_AT_ONCE: Final = 256
"""Frames of one group: they are small, since topics with more are sealed, so a group delays appends only briefly."""


class _Carried(NamedTuple):
    topic: Topic
    entry: IndexEntry


class Checkpointer:
    """Takes the checkpoints of one store."""

    def __init__(
        self,
        *,
        engine: Engine,
        catalog: Catalog,
        sources: SourceTable,
        sealer: Sealer,
        files: LogFiles,
        garbage: Garbage,
        worker: Worker,
        store_id: str,
        checkpoint: int,
        ages: AgeClock,
        writer_keep_ms: int,
    ) -> None:
        self._engine = engine
        self._catalog = catalog
        self._sources = sources
        self._sealer = sealer
        self._files = files
        self._garbage = garbage
        self._worker = worker
        self._store_id = store_id
        self._ages = ages
        self._writer_keep_ms = writer_keep_ms
        self.number = checkpoint
        """Number of the last completed checkpoint; 0 = none."""
        self._placed_bytes = 0
        self._forgotten: list[list[int]] = [[] for _ in engine.committers]
        """For each shard, numbers of unneeded WAL files that may still be on the disk."""

    @property
    def bytes_since(self) -> int:
        """Bytes of frames since the last checkpoint."""
        return sum(committer.wal.placed_bytes for committer in self._engine.committers) - self._placed_bytes

    async def run(self, *, light: bool = False, clean: bool = False) -> None:
        """Take a checkpoint. `light` = without sealing and carrying: at the start and stop of a store, to keep them short.
        `clean` = the store stops.

        Raises:
            OSError, DataCorrupt, CatalogFailed, FoldFailed: not taken; the log still has everything. ReadOnly,
                CommitUnknown.
        """
        engine = self._engine
        if not light:
            oldest = [committer.wal.end.file_number for committer in engine.committers]
            await self._free_files(oldest)
        entries, gone, ends = await self._cut(clean=clean)
        positions, done = self._positions(ends), False
        try:
            done = await self._write(entries, gone, positions)
        finally:
            # Failed or cancelled: the encoded topics are still not in the catalog.
            if not done:
                self._mark_dirty(entries, gone)
        if not done:
            return
        self.number += 1
        for committer in engine.committers:
            committer.wal.checkpoint = self.number
        await self._unlink(positions)

    async def _write(
        self, entries: Sequence[TopicEntry], gone: Sequence[int], positions: Sequence[WalPosition]
    ) -> bool:
        """Make the encoded state durable, then write it to the catalog; False = the shard is read-only."""
        engine = self._engine
        for committer in engine.committers:
            await committer.sync()
        if engine.read_only_reason:
            return False
        await engine.fold_worker.submit(partial(sync_for_checkpoint, engine.fold, self.number + 1))
        head = CatalogHead(
            checkpoint=self.number + 1,
            store_id=self._store_id,
            next_topic_id=engine.table.next_id,
            wal=tuple(positions),
            garbage=self._garbage.paths,
            erasing=tuple(self._garbage.erasing.values()),
        )
        await self._worker.submit(partial(self._catalog.write, head, entries, gone))
        return True

    async def _free_files(self, newest: Sequence[int]) -> None:
        """Seal or carry all frames in files below `newest`, one number a WAL shard."""
        carried: list[Topic] = []
        for topic in self._engine.table.with_frames():
            index = topic.index
            if index.frame_bytes >= SEALED_BYTES_MIN or index.record_count >= SEALED_RECORDS_MIN or topic.erase_due_ms:
                await self._sealer.seal(topic, topic.head_seq)
            elif index.first_file and index.first_file < newest[topic.id % len(newest)]:
                carried.append(topic)
        carried.sort(key=lambda topic: topic.index.frame_bytes)
        total, frames = 0, list[_Carried]()
        for topic in carried:
            total += topic.index.frame_bytes
            if total > CARRIED_BYTES_MAX:
                await self._sealer.seal(topic, topic.head_seq)
            else:
                below = newest[topic.id % len(newest)]
                entries = topic.index.entries_through(topic.head_seq)
                frames += [_Carried(topic, entry) for entry in entries if entry.location.file_number < below]
        for start in range(0, len(frames), CARRIED_AT_ONCE):
            await self._carry(frames[start : start + CARRIED_AT_ONCE])

    async def _carry(self, frames: Sequence[_Carried]) -> None:
        """Write old frames again at the end of the log."""
        bodies = await self._worker.submit(partial(self._bodies, frames))
        carrying = [
            self._engine.stage_control(body, partial(_moved, topic, entry.first_seq), topic, sync=False)
            for (topic, entry), body in zip(frames, bodies, strict=True)
            if body is not None and not topic.closing
        ]
        for carried in carrying:
            await completed(carried)

    def _bodies(self, frames: Sequence[_Carried]) -> list[FrameBody | None]:
        """Read the frames' bodies; None if the topic was deleted meanwhile and its file removed."""
        bodies: list[FrameBody | None] = []
        for topic, entry in frames:
            try:
                bodies.append(carried_body(topic.id, self._files.frame(topic.id, entry.location)))
            except DataCorrupt:
                if not topic.deleted:
                    raise
                bodies.append(None)
        return bodies

    async def _cut(self, *, clean: bool) -> tuple[list[TopicEntry], list[int], list[WalEnd]]:
        """Begin a new WAL file and encode the changed topics, with no append in flight."""
        engine, table = self._engine, self._engine.table
        async with AsyncExitStack() as held:
            for committer in engine.committers:
                await held.enter_async_context(committer.held())
            await engine.applier.drain()
            expired_ms = self._ages.now_ms() - self._writer_keep_ms
            for topic in table.dirty:
                topic.expire_writers(expired_ms)
            changed = set(table.dirty)
            if clean:
                changed.update(topic for topic in table.all() if topic.is_ephemeral)
            entries = [encode_catalog_topic(topic, source_of(topic, self._sources), clean=clean) for topic in changed]
            gone = sorted(table.gone)
            table.dirty.clear()
            table.gone.clear()
            self._placed_bytes += self.bytes_since
            return entries, gone, [committer.wal.cut() for committer in engine.committers]

    def _positions(self, ends: Sequence[WalEnd]) -> list[WalPosition]:
        """Return where recovery reads each WAL shard: state after its end, data from the oldest file that an index points
        into."""
        oldest = [end.file_number if end.file_bytes >= 0 else end.file_number + 1 for end in ends]
        for topic in self._engine.table.with_frames():
            shard = topic.id % len(ends)
            oldest[shard] = min(oldest[shard], topic.index.first_file or oldest[shard])
        return [
            WalPosition(shard, end.file_number + 1, number, end.file_bytes)
            for shard, (end, number) in enumerate(zip(ends, oldest, strict=True))
        ]

    def _mark_dirty(self, entries: Sequence[TopicEntry], gone: Sequence[int]) -> None:
        """Mark the topics changed again, for the next checkpoint: this one was not written."""
        table = self._engine.table
        table.gone.update(gone)
        for entry in entries:
            topic = table.by_id(entry.id)
            if topic is not None:
                table.dirty.add(topic)

    async def _unlink(self, positions: Sequence[WalPosition]) -> None:
        for committer, position, forgotten in zip(self._engine.committers, positions, self._forgotten, strict=True):
            forgotten.extend(committer.wal.forget_below(position.data_number))
            job = partial(_unlinked, committer.wal, position.shard, tuple(forgotten))
            forgotten[:] = await self._worker.submit(job)


def _unlinked(wal: Wal, shard: int, numbers: Sequence[int]) -> list[int]:
    """Remove files. Returns the numbers of those that could not be removed. Blocking."""
    remaining: list[int] = []
    for number in numbers:
        try:
            wal.unlink([number])
        except OSError as error:
            logger.warning("wal_file_stays", extra=fields(shard=shard, number=number, error=str(error)))
            remaining.append(number)
    return remaining


def _moved(topic: Topic, first_seq: int, location: Location) -> None:
    topic.index.move(first_seq, location)
