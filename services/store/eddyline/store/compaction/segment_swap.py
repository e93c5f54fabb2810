"""Segment swap: write the new file, log one synced SegmentChange, rename the file, release the old ones.

    temporary written, fsynced, read back; directory fsynced    (background thread)
    SegmentChange                                               (commit; from here on the new set is valid)
    rename, directory fsync                                     (background thread)
    replaced files unlinked once they have no readers           (`garbage.py`)

I1: a crash between two of these steps leaves either the old set, with a temporary that recovery removes, or the new set,
with a temporary that recovery renames. I2: a failure loses nothing: the old set stays, and the work is done again.
Threading: event loop; one swap of a topic at a time (`background/scheduler.py` runs one job at a time).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from eddyline.core.runtime.logging import fields
from eddyline.store.catalog.catalog import BaseEntry
from eddyline.store.log.control import SegmentChange, apply_segment_change, segment_change_body
from eddyline.store.storage.layout import SegmentId, base_file, segment_file, temporary_file
from eddyline.store.storage.segment.footer import SegmentSource
from eddyline.store.storage.segment.writer import write_segment
from eddyline.store.storage.wal.frame import FrameType, control_body
from eddyline.store.write.engine import completed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.fs import Fs
    from eddyline.store.log.segments import Segment
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.files import LogFiles
    from eddyline.store.log_io.garbage import Garbage
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.storage.layout import Layout
    from eddyline.store.storage.segment.footer import Compression, Footer, SegmentSummary
    from eddyline.store.storage.wal.wal import Location
    from eddyline.store.write.engine import Engine

logger = logging.getLogger(__name__)


class SegmentSwap:
    """Swaps segments of any topic of a store."""

    def __init__(
        self,
        *,
        engine: Engine,
        files: LogFiles,
        layout: Layout,
        garbage: Garbage,
        worker: Worker,
        compression: Compression,
    ) -> None:
        self._engine = engine
        self._files = files
        self._layout = layout
        self._garbage = garbage
        self._worker = worker
        self._compression: Compression = compression

    async def write(
        self,
        topic: Topic,
        batches: Callable[[], Iterator[Batch]],
        *,
        stage: str,
        remove: Sequence[Segment] = (),
        segmented_seq: int = 0,
    ) -> None:
        """Replace the segments `remove` by one of the rows of `batches`, read on the background thread; by none if there are
        no rows.

        Raises:
            OSError, DataCorrupt: nothing changed. ReadOnly, CommitUnknown: as the engine's `control`.
        """
        if topic.closing:
            return
        source = next_source(topic)
        generation = source.generation
        footer = await self._worker.submit(partial(self._write, topic.id, source, batches))
        change = SegmentChange(
            stage=stage,
            next_generation=generation + 1,
            add=(footer.summary,) if footer is not None else (),
            remove=tuple(segment.id for segment in remove),
            segmented_seq=segmented_seq,
        )
        await self.change(topic, change, footer)

    async def change(self, topic: Topic, change: SegmentChange, footer: Footer | None = None) -> None:
        """Log a change whose new file, if any, is written already; then rename the file and release the old segments."""
        topic_dir = self._layout.topic_dir(topic.id)

        def committed(_: object) -> None:
            self._garbage.add_segments(apply_segment_change(topic, change, topic_dir))
            self._engine.table.segmented.add(topic)
            if footer is not None:
                for segment in topic.segments.within(footer.summary.first_seq, footer.summary.last_seq):
                    self._files.cache_footer(segment, footer)

        body = control_body(FrameType.SEGMENT_CHANGE, topic.id, segment_change_body(change), ts_ms=topic.last_ts_ms)
        if not topic.closing:
            await self._engine.control(body, committed, topic)
            if footer is not None:
                await self._worker.submit(partial(self._name, segment_file(topic_dir, footer.id)))
        elif footer is not None:
            await self._worker.submit(partial(self._drop, segment_file(topic_dir, footer.id)))
        await self._garbage.sweep()

    async def write_base(self, topic: Topic, seq: int, batches: Callable[[], Iterator[Batch]]) -> None:
        """Replace the topic's base by a dump of the fold as of `seq`. A base without rows has no file.

        Raises:
            OSError, DataCorrupt, FoldFailed: the old base stays. ReadOnly, CommitUnknown: as the engine's `control`.
        """
        if topic.closing:
            return
        source = next_source(topic)._replace(is_base=True, base_seq=seq)
        topic_dir = self._layout.topic_dir(topic.id)
        path = base_file(topic_dir, seq, source.generation)
        summary = await self._worker.submit(partial(self._write_base, path, source, batches))
        base = BaseEntry(
            seq, source.generation, *((summary.rows, summary.file_bytes) if summary is not None else (0, 0))
        )
        change = SegmentChange("base", source.generation + 1, base=base)
        if topic.closing:
            await self._worker.submit(partial(self._drop, path))
            return
        body = control_body(FrameType.SEGMENT_CHANGE, topic.id, segment_change_body(change), ts_ms=topic.last_ts_ms)
        committed: list[Location] = []
        try:
            await self._engine.control(body, committed.append, topic)
        finally:
            if committed:  # also after a cancellation: the log has the change, so the next catalog must have it
                await self._base_committed(topic, change, path if summary is not None else None)
        await self._garbage.sweep()

    async def _base_committed(self, topic: Topic, change: SegmentChange, path: Path | None) -> None:
        """Rename the base's file, then apply the change: readers of a base expect the file under its name, while a segment
        is valid from its frame on."""
        naming = self._worker.submit(partial(self._rename_base, path))
        try:
            await completed(naming)
        finally:
            if naming.done() and naming.exception() is None and not topic.deleted:  # else its directory goes as a whole
                self._garbage.add_segments(apply_segment_change(topic, change, self._layout.topic_dir(topic.id)))
                self._engine.table.dirty.add(topic)

    def _rename_base(self, path: Path | None) -> None:
        if path is not None:
            rename_temporary(self._files.fs, path)

    def _write_base(
        self, path: Path, source: SegmentSource, batches: Callable[[], Iterator[Batch]]
    ) -> SegmentSummary | None:
        self._layout.make_topic_dir(self._files.fs, source.topic_id)
        footer = write_segment(self._files.fs, temporary_file(path), source, batches(), compression=self._compression)
        return footer.summary if footer is not None else None

    def _write(self, topic_id: int, source: SegmentSource, batches: Callable[[], Iterator[Batch]]) -> Footer | None:
        topic_dir = self._layout.make_topic_dir(self._files.fs, topic_id)
        # The name holds the file's seqs, which are known only after the write: the temporary has a name of its own first.
        path = temporary_file(segment_file(topic_dir, SegmentId(0, 0, source.generation)))
        done = False
        try:
            footer = write_segment(self._files.fs, path, source, batches(), compression=self._compression)
            if footer is not None:
                self._files.fs.rename(path, temporary_file(segment_file(topic_dir, footer.id)))
                self._files.fs.fsync_dir(topic_dir)
            done = True
        finally:
            if not done:
                with suppress(OSError):
                    self._files.fs.unlink(path)
        return footer

    def _name(self, path: Path) -> None:
        """Rename the file of a committed frame; if that fails, the next start renames it."""
        try:
            rename_temporary(self._files.fs, path)
        except OSError as error:
            logger.warning("segment_not_named", extra=fields(path=str(path), error=str(error)))

    def _drop(self, path: Path) -> None:
        with suppress(OSError):
            self._files.fs.unlink(temporary_file(path))


def next_source(topic: Topic) -> SegmentSource:
    """Return the metadata of a topic's next file, and use up its generation."""
    generation = topic.next_generation
    topic.next_generation += 1
    return SegmentSource(topic.id, topic.name, topic.kind.name, topic.config_version, generation)


def rename_temporary(fs: Fs, path: Path) -> None:
    """Rename the temporary of a committed frame's file, durably."""
    fs.rename(temporary_file(path), path)
    fs.fsync_dir(path.parent)
