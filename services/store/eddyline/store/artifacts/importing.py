"""ImportFold: an artifact becomes the fold, and the base, of a KV topic that never had a record. (Of one whose fold is lost:
`restoring.py`.)

    manifest, files, entries: all checked                 (a reader thread, `fetching.py`)
    tables of the fold's own, and a base's temporary      (the same thread, as entries are read)
    landing, between two jobs of maintenance, at the topic's gate:
        still without a record?                           else nothing changes
        SegmentChange with the base, `imported`           (commit; from here on it counts)
        the base has its name, the tables are the fold's  (the reader thread, the fold's)
        head, floor, the source's position                (from here on it is visible)

I1: a crash before the frame is synced leaves nothing: a start removes temporaries. Behind it all is there: a start names the
base's file, and makes of it what the fold lacks. I2: readers and appends see the
topic before or after, never between: its gate is held, and the fold is taken over in one step of its thread. I3: memory is
that of one batch and one table's index.
Not promised: history. The log begins behind the artifact's seq; a floor says COMPACTED to who reads below it, since as after
a compaction the state up to there is all that is left, and one must take it (a snapshot) to go on.
Failure: what is refused has changed nothing. After CommitUnknown nothing shows before the next start, which settles whether
it landed.
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
from eddyline.store.artifacts.job import watched
from eddyline.store.artifacts.manifest import DATA_NAME, described, is_same_source
from eddyline.store.artifacts.store import shelf_of
from eddyline.store.catalog.catalog import BaseEntry
from eddyline.store.compaction.segment_swap import next_source, rename_temporary
from eddyline.store.fold.entries import entries_of
from eddyline.store.fold.fold import FoldFailed, FoldStalled, WriterState
from eddyline.store.log.control import Imported, SegmentChange, apply_segment_change, segment_change_body
from eddyline.store.storage.layout import base_file, temporary
from eddyline.store.storage.segment.writer import write_segment
from eddyline.store.storage.wal.frame import FrameType, control_body
from eddyline.store.write.engine import settled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from eddyline.core.model.artifact import ArtifactProgress
    from eddyline.core.model.source import SourceDefinition
    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.runtime.fs import Fs
    from eddyline.store.artifacts.exporting import Turn
    from eddyline.store.artifacts.job import Job
    from eddyline.store.artifacts.manifest import Manifest
    from eddyline.store.artifacts.restore import FoldRestore
    from eddyline.store.artifacts.store import ArtifactSettings, ArtifactStore
    from eddyline.store.fold.fold import Tables
    from eddyline.store.log.sources import Sources
    from eddyline.store.log.topic import Topic
    from eddyline.store.read.fold_reader import FoldReader
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.storage.layout import Layout
    from eddyline.store.storage.segment.footer import Compression, SegmentSource
    from eddyline.store.write.engine import Engine

logger = logging.getLogger(__name__)

RETRY_AFTER_MS: Final = 60_000


class _Wanted(NamedTuple):
    """What is to be staged; `source` is that of the base's file."""

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
        sources: Sources,
        entries: FoldReader,
        place: ArtifactSettings | None,
        turn: Turn,
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
        self._place = place
        self._turn = turn
        self._compression: Compression = compression
        self._between_rounds = between_rounds
        self._restore = restore
        self._temporary: Path | None = None
        self._has_landed = False

    async def run(
        self, topic: Topic, *, from_topic: str, artifact: str, hold: Callable[[], AbstractAsyncContextManager[None]]
    ) -> AsyncGenerator[ArtifactProgress | FoldImported, None]:
        """Import an artifact ("" = the latest) of `from_topic`; `hold` gives the topic's lock, for the landing. What it
        became comes last. A fold that is lost takes only one of its own topic.

        Raises:
            NotKv, TopicNotEmpty, TopicNotFound (deleted meanwhile), ArtifactInvalid, ArtifactNotFound, ArtifactMismatch,
                ArtifactsNotConfigured, ArtifactsUnreachable, TooManyScans, DiskFloor, ReadOnly, CommitUnknown.
        """
        shelf = shelf_of(self._place)
        assert self._place is not None, "it has the shelf"
        if not topic.folds:
            raise NotKv(f"topic {topic.name} has no fold", topic=topic.name)
        if not topic.fold_lost:
            self._check_empty(topic)
        self._engine.gate.check_disk()
        staging = self._place.staging / "import"
        with self._turn:
            staged = list[StagedArtifact]()
            wanted = _Wanted(topic, next_source(topic), self._definition(topic), from_topic, artifact)
            work = partial(self._stage, shelf, wanted, staging)
            try:
                async with aclosing(watched(self._worker, self._clock, work, staged)) as steps:
                    async for progress in steps:
                        self._engine.gate.check_disk()
                        yield progress
                async with hold(), self._between_rounds, topic.gate:
                    is_new = not topic.fold_lost  # it may have been settled for meanwhile
                    if is_new:
                        await self._land(topic, staged[0])
                    else:
                        self._has_landed = await self._restore.run(topic, staged[0])
                yield self._outcome(topic, staged[0], is_new=is_new)
            except (FoldFailed, FoldStalled, OSError) as error:
                raise DiskFloor(f"the artifact cannot be staged: {error}", retryAfterMs=RETRY_AFTER_MS) from error
            finally:
                # After a commit whose fate is unknown the next start may need the base's file.
                self._has_landed |= bool(self._engine.read_only_reason)
                await settled(self._worker.submit(partial(self._clean, staging)))

    def _outcome(self, topic: Topic, staged: StagedArtifact, *, is_new: bool) -> FoldImported:
        manifest = staged.manifest
        logger.info("fold_imported", extra=fields(topic=topic.name, artifact=staged.name, entries=manifest.entry_count))
        return FoldImported(
            described(staged.name, manifest, is_latest=staged.is_latest),
            is_new and bool(topic.source and manifest.position),
            self._entries.state(topic, topic.head_seq),
        )

    # staged on a thread ------------------------------------------------------------------------------------------

    def _stage(self, shelf: ArtifactStore, wanted: _Wanted, staging: Path, job: Job) -> StagedArtifact:
        topic = wanted.topic
        found = ArtifactDownload(shelf, wanted.from_topic, wanted.artifact)
        manifest = found.manifest
        if not topic.fold_lost:
            check_source(topic.name, found.name, manifest, wanted.definition)
        shutil.rmtree(staging, ignore_errors=True)
        fetched, loaded = staging / DATA_NAME, staging / "tables"
        for directory in (fetched, loaded):
            directory.mkdir(parents=True, mode=0o700)
        paths = found.fetch(self._fs, fetched, job)
        tables = self._engine.fold.new_tables(topic.id, loaded)
        source = wanted.source._replace(is_base=True, base_seq=manifest.seq)
        self._layout.make_topic_dir(self._fs, topic.id)
        path = base_file(self._layout.topic_dir(topic.id), manifest.seq, source.generation)
        self._temporary = temporary(path)
        batches = _shared(found.batches(paths, staging / "scratch", job), tables)
        footer = write_segment(self._fs, self._temporary, source, batches, compression=self._compression)
        tables.finish()
        rows, file_bytes = (footer.summary.rows, footer.summary.file_bytes) if footer is not None else (0, 0)
        base = BaseEntry(manifest.seq, source.generation, rows, file_bytes)
        base_path = path if footer is not None else None
        return StagedArtifact(found.name, found.is_latest, manifest, tables, base, base_path, source.generation + 1)

    def _clean(self, staging: Path) -> None:
        """Remove what was staged; a base that landed has another name by now."""
        shutil.rmtree(staging, ignore_errors=True)
        if self._temporary is not None and not self._has_landed:
            with suppress(OSError):
                self._fs.unlink(self._temporary)
        self._temporary, self._has_landed = None, False

    # landed on the loop ------------------------------------------------------------------------------------------

    def _definition(self, topic: Topic) -> SourceDefinition | None:
        source = self._sources.find(topic.source) if topic.source else None
        return source.definition if source is not None else None

    def _check_empty(self, topic: Topic) -> None:
        if topic.closing or topic.deleted:
            raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
        position = topic.writers.get(topic.source).position if topic.source else b""
        if topic.staged_seq or topic.base is not None or position:
            had = "has had records" if topic.staged_seq else f"has source {topic.source}, which has a position already"
            raise TopicNotEmpty(f"topic {topic.name} {had}; an import needs a new topic", topic=topic.name)

    async def _land(self, topic: Topic, staged: StagedArtifact) -> None:
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
            self._has_landed = bool(committed)
            if committed:  # whoever is cancelled meanwhile: the log has it, and all the rest must
                await self._landed(topic, staged, change, writers, ts_ms)

    async def _landed(
        self,
        topic: Topic,
        staged: StagedArtifact,
        change: SegmentChange,
        writers: Sequence[tuple[str, WriterState]],
        ts_ms: int,
    ) -> None:
        """Name the base's file, take the tables over, then show both. A file that cannot be named is named by the next
        start, and a fold that fails is made of the base then."""
        engine, seq = self._engine, staged.manifest.seq
        naming = self._worker.submit(partial(self._name, staged.base_path))
        adopting = engine.fold_worker.submit(partial(engine.fold.adopt, topic.id, staged.tables, seq, writers))
        cancelled = await _both(naming, adopting)
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

    def _name(self, path: Path | None) -> None:
        if path is None:
            return
        try:
            rename_temporary(self._fs, path)
        except OSError as error:
            logger.warning("base_not_named", extra=fields(path=str(path), error=str(error)))


def check_source(topic: str, name: str, manifest: Manifest, definition: SourceDefinition | None) -> None:
    """Raises ArtifactMismatch where a topic with a source would get what is of another, or of none."""
    if definition is None:
        return
    if manifest.source is None or not manifest.position:
        raise ArtifactMismatch(
            f"topic {topic} has source {definition.name}, artifact {name} has none that it could go on from",
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


def _shared(batches: Iterator[Batch], tables: Tables) -> Iterator[Batch]:
    """The batches, each put into the tables on its way."""
    for batch in batches:
        tables.add(entries_of(batch))
        yield batch


async def _both(*jobs: asyncio.Future[None]) -> asyncio.CancelledError | None:
    """Wait until all are over, whatever comes; what came."""
    cancelled: asyncio.CancelledError | None = None
    for job in jobs:
        try:
            await settled(job)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            assert job.done()  # the caller looks at it
    return cancelled
