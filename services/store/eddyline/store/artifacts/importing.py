"""ImportFold: an artifact becomes the fold and the base of a KV topic that never had a record. (`restore.py` handles a
topic whose fold is lost.)

    manifest, files, entries: all checked                 (a reader thread, `download.py`)
    tables of the fold's own, and a base's temporary      (the same thread, as entries are read)
    commit, between two background jobs, at the topic's gate:
        still without a record?                           else nothing changes
        SegmentChange with the base, `imported`           (durable from here on)
        base renamed, tables ingested by the fold         (the reader thread, the fold's)
        head, floor, the source's position                (visible from here on)

I1: a crash before the frame is synced changes nothing: a start removes temporaries. A crash after it keeps the import: a
start renames the base's file, and loads the fold from it. I2: readers and appends see the topic before or after the
import, never between: it holds the topic's gate, and the fold adopts the tables in one step of its thread. I3: memory is
that of one batch and one table's index.
Not promised: history. The log begins after the artifact's seq; a reader below it gets a COMPACTED gap, since only the
state up to there exists, as after a compaction, and the reader must take a snapshot to continue.
Failure: a refusal has changed nothing. After CommitUnknown the import stays invisible until the next start, which
determines whether it was committed.
Threading: event loop; see above.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import (
    ArtifactMismatch,
    DiskFloor,
    NotKv,
    TopicNotEmpty,
    TopicNotFound,
)
from eddyline.core.model.artifact import FoldImported
from eddyline.core.runtime.logging import fields
from eddyline.store.artifacts.download import ArtifactDownload, StagedArtifact
from eddyline.store.artifacts.job import run_with_progress
from eddyline.store.artifacts.manifest import DATA_NAME, is_same_source, to_artifact
from eddyline.store.artifacts.store import require_artifact_store
from eddyline.store.catalog.catalog import BaseEntry
from eddyline.store.compaction.segment_swap import next_source, rename_temporary
from eddyline.store.fold.entries import entries_of
from eddyline.store.fold.fold import FoldFailed, FoldStalled, WriterState
from eddyline.store.log.control import Imported, SegmentChange, apply_segment_change, segment_change_body
from eddyline.store.storage.layout import base_file, temporary_file
from eddyline.store.storage.segment.writer import write_segment
from eddyline.store.storage.wal.frame import FrameType, control_body
from eddyline.store.write.engine import completed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from eddyline.core.model.artifact import ArtifactProgress
    from eddyline.core.model.source import SourceDefinition
    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.runtime.fs import Fs
    from eddyline.store.artifacts.exporting import ExclusiveJob
    from eddyline.store.artifacts.job import ArtifactJob
    from eddyline.store.artifacts.manifest import ArtifactManifest
    from eddyline.store.artifacts.restore import FoldRestore
    from eddyline.store.artifacts.store import ArtifactSettings, ArtifactStore
    from eddyline.store.fold.fold import FoldTables
    from eddyline.store.log.sources import SourceTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.read.fold_reader import FoldReader
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.storage.layout import Layout
    from eddyline.store.storage.segment.footer import Compression, SegmentSource
    from eddyline.store.write.engine import Engine

logger = logging.getLogger(__name__)

RETRY_AFTER_MS: Final = 60_000


class ImportRequest(NamedTuple):
    """One import; `source` is that of the base's file."""

    topic: Topic
    source: SegmentSource
    definition: SourceDefinition | None
    from_topic: str
    artifact: str


class FoldImport:
    """Imports artifacts into topics of one store."""

    def __init__(
        self,
        *,
        engine: Engine,
        worker: Worker,
        clock: Clock,
        fs: Fs,
        layout: Layout,
        sources: SourceTable,
        entries: FoldReader,
        settings: ArtifactSettings | None,
        exclusive_job: ExclusiveJob,
        compression: Compression,
        between_rounds: asyncio.Lock,
        restore: FoldRestore,
    ) -> None:
        self._engine = engine
        self._worker = worker
        self._clock = clock
        self._fs = fs
        self._layout = layout
        self._sources = sources
        self._entries = entries
        self._settings = settings
        self._exclusive_job = exclusive_job
        self._compression: Compression = compression
        self._between_rounds = between_rounds
        self._restore = restore
        self._temporary: Path | None = None
        self._is_committed = False

    async def run(
        self, topic: Topic, *, from_topic: str, artifact: str, hold: Callable[[], AbstractAsyncContextManager[None]]
    ) -> AsyncGenerator[ArtifactProgress | FoldImported, None]:
        """Import an artifact ("" = the latest) of `from_topic`; yield progress, then the result. `hold` gives the topic's
        lock, for the commit. A topic whose fold is lost accepts only an artifact of itself.

        Raises:
            NotKv, TopicNotEmpty, TopicNotFound (deleted meanwhile), ArtifactInvalid, ArtifactNotFound, ArtifactMismatch,
                ArtifactsNotConfigured, ArtifactsUnreachable, TooManyScans, DiskFloor, ReadOnly, CommitUnknown.
        """
        artifact_store = require_artifact_store(self._settings)
        assert self._settings is not None, "it has the artifact store"
        if not topic.folds:
            raise NotKv(f"topic {topic.name} has no fold", topic=topic.name)
        if not topic.fold_lost:
            self._check_empty(topic)
        self._engine.gate.check_disk()
        staging = self._settings.staging / "import"
        with self._exclusive_job:
            staged = list[StagedArtifact]()
            request = ImportRequest(topic, next_source(topic), self._definition(topic), from_topic, artifact)
            work = partial(self._stage, artifact_store, request, staging)
            try:
                async with aclosing(run_with_progress(self._worker, self._clock, work, staged)) as steps:
                    async for progress in steps:
                        self._engine.gate.check_disk()
                        yield progress
                async with hold(), self._between_rounds, topic.gate:
                    is_new = not topic.fold_lost  # its loss may have been accepted meanwhile
                    if is_new:
                        await self._commit(topic, staged[0])
                    else:
                        self._is_committed = await self._restore.run(topic, staged[0])
                yield self._result(topic, staged[0], is_new=is_new)
            except (FoldFailed, FoldStalled, OSError) as error:
                raise DiskFloor(f"the artifact cannot be staged: {error}", retryAfterMs=RETRY_AFTER_MS) from error
            finally:
                # After a commit with unknown outcome the next start may need the base's file.
                self._is_committed |= bool(self._engine.read_only_reason)
                await completed(self._worker.submit(partial(self._clean, staging)))

    def _result(self, topic: Topic, staged: StagedArtifact, *, is_new: bool) -> FoldImported:
        manifest = staged.manifest
        logger.info("fold_imported", extra=fields(topic=topic.name, artifact=staged.name, entries=manifest.entry_count))
        return FoldImported(
            to_artifact(staged.name, manifest, is_latest=staged.is_latest),
            is_new and bool(topic.source and manifest.position),
            self._entries.state(topic, topic.head_seq),
        )

    # staged on a thread ------------------------------------------------------------------------------------------

    def _stage(
        self, artifact_store: ArtifactStore, request: ImportRequest, staging: Path, job: ArtifactJob
    ) -> StagedArtifact:
        topic = request.topic
        download = ArtifactDownload(artifact_store, request.from_topic, request.artifact)
        manifest = download.manifest
        if not topic.fold_lost:
            check_source(topic.name, download.name, manifest, request.definition)
        shutil.rmtree(staging, ignore_errors=True)
        fetched, loaded = staging / DATA_NAME, staging / "tables"
        for directory in (fetched, loaded):
            directory.mkdir(parents=True, mode=0o700)
        paths = download.fetch(self._fs, fetched, job)
        tables = self._engine.fold.new_tables(topic.id, loaded)
        source = request.source._replace(is_base=True, base_seq=manifest.seq)
        self._layout.make_topic_dir(self._fs, topic.id)
        path = base_file(self._layout.topic_dir(topic.id), manifest.seq, source.generation)
        self._temporary = temporary_file(path)
        batches = _add_to_tables(download.batches(paths, staging / "scratch", job), tables)
        footer = write_segment(self._fs, self._temporary, source, batches, compression=self._compression)
        tables.finish()
        rows, file_bytes = (footer.summary.rows, footer.summary.file_bytes) if footer is not None else (0, 0)
        base = BaseEntry(manifest.seq, source.generation, rows, file_bytes)
        base_path = path if footer is not None else None
        return StagedArtifact(
            download.name, download.is_latest, manifest, tables, base, base_path, source.generation + 1
        )

    def _clean(self, staging: Path) -> None:
        """Remove staged files; a committed base has its final name by now."""
        shutil.rmtree(staging, ignore_errors=True)
        if self._temporary is not None and not self._is_committed:
            with suppress(OSError):
                self._fs.unlink(self._temporary)
        self._temporary, self._is_committed = None, False

    # landed on the loop ------------------------------------------------------------------------------------------

    def _definition(self, topic: Topic) -> SourceDefinition | None:
        source = self._sources.find(topic.source) if topic.source else None
        return source.definition if source is not None else None

    def _check_empty(self, topic: Topic) -> None:
        if topic.closing or topic.deleted:
            raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
        position = topic.writers.get(topic.source).position if topic.source else b""
        if topic.staged_seq or topic.base is not None or position:
            had = (
                "has, or had, records"
                if topic.staged_seq
                else f"has source {topic.source}, which already has a position"
            )
            raise TopicNotEmpty(f"topic {topic.name} {had}; import into a new topic", topic=topic.name)

    async def _commit(self, topic: Topic, staged: StagedArtifact) -> None:
        manifest = staged.manifest
        self._check_empty(topic)
        check_source(topic.name, staged.name, manifest, self._definition(topic))
        writer = topic.source if manifest.position else ""
        fence = topic.writers.get(writer).fence if writer else 0
        writers = [(writer, WriterState(fence, manifest.position))] if writer else []
        change = SegmentChange(
            "import",
            staged.next_generation,
            base=staged.base,
            imported=Imported(writer, manifest.position if writer else b""),
        )
        ts_ms = max(topic.last_ts_ms, manifest.last_ts_ms, self._clock.now_ms())
        frame = control_body(FrameType.SEGMENT_CHANGE, topic.id, segment_change_body(change), ts_ms=ts_ms)
        committed = list[object]()
        try:
            await self._engine.control(frame, committed.append, topic)
        finally:
            self._is_committed = bool(committed)
            if committed:  # also on cancellation: the log has the import, so base and fold must follow
                await self._apply_committed(topic, staged, change, writers, ts_ms)

    async def _apply_committed(
        self,
        topic: Topic,
        staged: StagedArtifact,
        change: SegmentChange,
        writers: Sequence[tuple[str, WriterState]],
        ts_ms: int,
    ) -> None:
        """Rename the base's file, let the fold adopt the tables, then publish both. If the rename fails, the next start
        repeats it; if the fold fails, the next start loads it from the base."""
        engine, seq = self._engine, staged.manifest.seq
        naming = self._worker.submit(partial(self._rename_base, staged.base_path))
        adopting = engine.fold_worker.submit(partial(engine.fold.adopt, topic.id, staged.tables, seq, writers))
        cancelled = await _wait_all(naming, adopting)
        failure = adopting.exception()
        if failure is not None:
            assert isinstance(failure, Exception)
            raise engine.fold_failed(failure, "import") from failure
        topic.last_ts_ms = max(topic.last_ts_ms, ts_ms)
        topic.last_commit_s = self._clock.monotonic_s()
        apply_segment_change(topic, change, self._layout.topic_dir(topic.id))
        engine.table.dirty.add(topic)
        topic.moved()
        if cancelled is not None:
            raise cancelled

    def _rename_base(self, path: Path | None) -> None:
        if path is None:
            return
        try:
            rename_temporary(self._fs, path)
        except OSError as error:
            logger.warning("base_not_named", extra=fields(path=str(path), error=str(error)))


def check_source(topic: str, name: str, manifest: ArtifactManifest, definition: SourceDefinition | None) -> None:
    """Raise ArtifactMismatch if the artifact is of another source than the topic's, or of none."""
    if definition is None:
        return
    if manifest.source is None or not manifest.position:
        raise ArtifactMismatch(
            f"topic {topic} has source {definition.name}, artifact {name} has no position to continue it from",
            topic=topic,
            artifact=name,
        )
    if not is_same_source(manifest.source, definition):
        raise ArtifactMismatch(
            f"topic {topic} has source {definition.name} of bucket {definition.bucket}, artifact {name} is of source "
            f"{manifest.source['name']}: {manifest.source}",
            topic=topic,
            artifact=name,
        )


def _add_to_tables(batches: Iterator[Batch], tables: FoldTables) -> Iterator[Batch]:
    """Yield the batches, adding each to the tables."""
    for batch in batches:
        tables.add(entries_of(batch))
        yield batch


async def _wait_all(*jobs: asyncio.Future[None]) -> asyncio.CancelledError | None:
    """Wait until all jobs have ended, despite a cancellation, which is returned."""
    cancelled: asyncio.CancelledError | None = None
    for job in jobs:
        try:
            await completed(job)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            assert job.done()  # the caller checks it
    return cancelled
