"""Erasure: removes deleted records from every file on the disk: segments, WAL files, fold, base.

Each topic:   a new base of its fold; segments below it are reclaimed; frames sealed; segments with deleted rows rewritten
each fold:    RocksDB rewrites the files that hold the topic (`Fold.erase`)
once:         two checkpoints with a frame between them: the first closes every WAL file that may hold deleted rows, the
              second carries the remaining frames of these files and unlinks them
each topic:   replaced files are removed once their readers end; then a logged and synced frame resets `erase_due_ms`

The directory of a deleted topic is removed as garbage; its WAL files and fold are erased with the others.
I1: once an erasure is logged as done, no file of the data directory holds a record deleted before it began. I2: that frame
is the last step: after a crash before it the erasure is repeated. I3: a delete during an erasure is due at its own time.
I4: the work goes in steps, each at most a segment, a base or a checkpoint, so that sealing comes in between.
Failure: a failure of one topic does not stop the others; finished work stays.
Threading: event loop, the steps of one erasure at a time. A fold's erasure runs on a reader thread.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import DiskFloor, EddylineError, TooManyScans
from eddyline.store.compaction.reclaim import reclaim
from eddyline.store.compaction.rewrite import dead_rows
from eddyline.store.fold.fold import RETRY_AFTER_MS, FoldStalled
from eddyline.store.log.control import SegmentChange, segment_change_body
from eddyline.store.stats import Stage
from eddyline.store.storage.layout import wal_numbers
from eddyline.store.storage.wal.frame import FrameType, control_body

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from eddyline.core.runtime.fs import Fs
    from eddyline.store.background.checkpoint import Checkpointer
    from eddyline.store.catalog.catalog import ErasingEntry
    from eddyline.store.compaction.fold_base import BaseMaker
    from eddyline.store.compaction.rewrite import Rewriter
    from eddyline.store.compaction.seal import Sealer
    from eddyline.store.compaction.segment_swap import SegmentSwap
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.garbage import Garbage
    from eddyline.store.retention.retention import Retention
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.storage.layout import Layout
    from eddyline.store.storage.wal.wal import WalEnd
    from eddyline.store.write.engine import Engine

WAIT_S_MAX: Final = 600.0
"""Longest wait for readers of replaced files, and scans that pin the fold's: twice the life of a scan. Then the erasure
fails, and is tried again."""
FOLD_PAUSE_S: Final = 1.0
"""Pause between two attempts on a fold: each flushes it."""


class EraseStep(NamedTuple):
    """Progress of an erasure. `waits` = the next step must wait for a reader, a scan or a thread."""

    stage: Stage
    done_bytes: int
    total_bytes: int
    waits: bool = False


class _ErasedTopic(NamedTuple):
    topic: Topic
    delete_mark: int
    ts_ms: int


class EraseJob:
    """Erases topics of one store."""

    def __init__(
        self,
        *,
        engine: Engine,
        retention: Retention,
        checkpointer: Checkpointer,
        sealer: Sealer,
        bases: BaseMaker,
        rewriter: Rewriter,
        swap: SegmentSwap,
        garbage: Garbage,
        fs: Fs,
        layout: Layout,
        background: Worker,
        reader: Worker,
        erase_within_ms: int,
    ) -> None:
        self._engine = engine
        self._retention = retention
        self._checkpointer = checkpointer
        self._sealer = sealer
        self._bases = bases
        self._rewriter = rewriter
        self._swap = swap
        self._garbage = garbage
        self._fs = fs
        self._layout = layout
        self._background = background
        self._reader = reader
        self._erase_within_ms = erase_within_ms

    async def erase(self, topics: Sequence[Topic], gone: Sequence[ErasingEntry]) -> AsyncGenerator[EraseStep, None]:
        """Erase the deleted records of `topics`, and the deleted topics `gone` whole. A caller may stop early by closing it.

        Raises:
            the first failure of a topic, once the others are erased: DataCorrupt, DiskFloor, FoldLost, OSError. Of all:
                ReadOnly, CommitUnknown, CatalogFailed, FoldFailed; TooManyScans: readers or scans hold the old files.
        """
        progress = _ByteProgress(sum(map(_topic_bytes, topics)) + self._wal_bytes)
        failures: list[EddylineError | OSError] = []
        rewritten: list[_ErasedTopic] = []
        for topic in topics:
            start = _ErasedTopic(topic, topic.delete_mark, self._engine.clock.now_ms())
            try:
                async for step in self._rewrite(topic, progress):
                    yield step
                rewritten.append(start)
            except (EddylineError, OSError) as error:
                failures.append(_as_domain_error(error))
        if rewritten or gone:
            folds = [start.topic.id for start in rewritten if start.topic.folds] + [g.topic_id for g in gone if g.folds]
            for topic_id in folds:
                # Closed together with this generator, not later: it waits for the fold's job.
                async with aclosing(self._erase_fold(topic_id, progress)) as steps:
                    async for step in steps:
                        yield step
            ids = [start.topic.id for start in rewritten] + [entry.topic_id for entry in gone]
            async for step in self._purge_wal(ids, progress):
                yield step
            async for step in self._purge_files(ids, progress):
                yield step
        for start in rewritten:
            await self._log_erased(start)
        for entry in gone:
            self._garbage.erasing.pop(entry.topic_id, None)
        yield progress.step(Stage.ERASE)
        if failures:
            raise failures[0]

    @property
    def _wal_bytes(self) -> int:
        return sum(committer.wal.bytes_total for committer in self._engine.committers)

    async def _rewrite(self, topic: Topic, progress: _ByteProgress) -> AsyncGenerator[EraseStep, None]:
        """Remove the topic's deleted records from all files but the WAL's."""
        if topic.folds and not topic.closing:
            yield progress.step(Stage.BASE)
            await self._bases.make(topic)
        if not topic.closing:
            await reclaim(self._swap, topic)
        progress.done_bytes += topic.index.frame_bytes
        yield progress.step(Stage.SEAL)
        await self._sealer.seal(topic, topic.head_seq)
        for segment in list(topic.segments):
            if segment.replaced or topic.closing or not dead_rows(topic, segment):
                continue
            yield progress.step(Stage.REWRITE)
            await self._rewriter.rewrite(topic, [segment], stage="erase")
            progress.done_bytes += segment.summary.file_bytes

    async def _erase_fold(self, topic_id: int, progress: _ByteProgress) -> AsyncGenerator[EraseStep, None]:
        """Erase the topic in the fold. No job is in flight when this ends or is closed: the fold may be closed then."""
        end_s = self._engine.clock.monotonic_s() + WAIT_S_MAX
        while True:
            job = self._reader.submit(partial(_erased, self._engine, topic_id))
            try:
                while not job.done():
                    yield progress.step(Stage.ERASE, waits=True)
            finally:
                if not job.done():
                    await asyncio.wait([job])
            if job.result():
                return
            now_s = self._engine.clock.monotonic_s()
            if now_s >= end_s:
                message = "scans of the fold keep its old files open: try again when they have ended"
                raise TooManyScans(message, retryAfterMs=RETRY_AFTER_MS)
            while self._engine.clock.monotonic_s() < now_s + FOLD_PAUSE_S:
                yield progress.step(Stage.ERASE, waits=True)

    async def _purge_wal(self, topic_ids: Sequence[int], progress: _ByteProgress) -> AsyncGenerator[EraseStep, None]:
        """Remove every present WAL file of the topics' WAL shards."""
        shards = {topic_id % len(self._engine.committers): topic_id for topic_id in topic_ids}
        newest = {shard: _newest_written(self._engine.committers[shard].wal.end) for shard in shards}
        yield progress.step(Stage.CHECKPOINT)
        await self._checkpointer.run()
        for topic_id in shards.values():
            await self._log_empty_change(topic_id)
        yield progress.step(Stage.CHECKPOINT)
        await self._checkpointer.run()
        for shard in shards:
            await self._background.submit(partial(self._check_removed, shard, newest[shard]))
        progress.done_bytes += self._wal_bytes

    async def _log_empty_change(self, topic_id: int) -> None:
        """Log a frame that changes nothing, so that the file that the last checkpoint closed is no longer the newest."""
        topic = self._engine.table.by_id(topic_id)
        generation = topic.next_generation if topic is not None else 1
        body = segment_change_body(SegmentChange("erase", generation))
        ts_ms = topic.last_ts_ms if topic is not None else self._engine.clock.now_ms()
        frame = control_body(FrameType.SEGMENT_CHANGE, topic_id, body, ts_ms=ts_ms)
        await self._engine.control(frame, lambda _: None, topic)

    def _check_removed(self, shard: int, number: int) -> None:
        """Check that no WAL file up to `number` is left. Blocking.

        Raises:
            OSError: one is.
        """
        directory = self._layout.wal_shard(shard)
        if any(existing <= number for existing in wal_numbers(self._fs.listdir(directory))):
            raise OSError(errno.EBUSY, "WAL files that hold deleted records could not be removed", str(directory))

    async def _purge_files(self, topic_ids: Sequence[int], progress: _ByteProgress) -> AsyncGenerator[EraseStep, None]:
        """Wait until every replaced file of these topics is removed."""
        end_s = self._engine.clock.monotonic_s() + WAIT_S_MAX
        await self._garbage.sweep()
        while any(map(self._garbage.has_files_of, topic_ids)):
            if self._engine.clock.monotonic_s() >= end_s:
                message = "readers keep replaced files open: try again when they have ended"
                raise TooManyScans(message, retryAfterMs=RETRY_AFTER_MS)
            yield progress.step(Stage.ERASE, waits=True)
            await self._garbage.sweep()

    async def _log_erased(self, start: _ErasedTopic) -> None:
        """Log the erasure as done. The lock keeps deletes from coming between the check and the frame."""
        topic = start.topic
        async with self._retention.hold(topic):
            due_ms = 0 if topic.delete_mark == start.delete_mark else start.ts_ms + self._erase_within_ms
            if topic.erase_due_ms != due_ms and not topic.closing:
                change = SegmentChange("erased", topic.next_generation, erase_due_ms=due_ms)
                await self._swap.change(topic, change)


class _ByteProgress:
    """Byte counts of an erasure's progress."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.done_bytes = 0

    def step(self, stage: Stage, *, waits: bool = False) -> EraseStep:
        """Return the progress at `stage`; the total grows if more bytes than expected were done."""
        self.total_bytes = max(self.total_bytes, self.done_bytes)
        return EraseStep(stage, self.done_bytes, self.total_bytes, waits)


def _topic_bytes(topic: Topic) -> int:
    dead = [segment.summary.file_bytes for segment in topic.segments if dead_rows(topic, segment)]
    return topic.index.frame_bytes + sum(dead)


def _newest_written(end: WalEnd) -> int:
    """Return the number of the newest WAL file that has a frame."""
    return end.file_number if end.file_bytes else end.file_number - 1


def _erased(engine: Engine, topic_id: int) -> bool:
    try:
        return engine.fold.erase(topic_id)
    except FoldStalled:
        return False


def _as_domain_error(error: EddylineError | OSError) -> EddylineError | OSError:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return DiskFloor(
            "the disk is full: files with deleted records cannot be rewritten", retryAfterMs=RETRY_AFTER_MS
        )
    return error
