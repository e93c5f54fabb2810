"""ExportFold: writes a topic's present fold as an artifact.

    view of the fold, with its applied seq and its writers     (one step of the fold's thread, between two writes)
    tables written                                             (a reader thread from here on; the view is of one moment)
    tables hashed, opened again and counted
    artifact published, pointer replaced, older ones pruned    (`local_store.py`, `object_store.py`)

I1: the source's position is of the view's moment: everything up to it is in the artifact. I2: memory is that of one batch
and of one table's index. I3: one export or import at a time in a store; a cancelled one leaves no files.
Failure: as the artifact store's; an export never changes this store.
Threading: event loop; see above.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from blake3 import blake3

from eddyline.core.errors import (
    ArtifactsUnreachable,
    DataCorrupt,
    InvalidArgument,
    NotKv,
    TooManyScans,
    TopicNotFound,
)
from eddyline.core.model.artifact import FoldExported
from eddyline.core.runtime.logging import fields
from eddyline.store.artifacts.job import run_with_progress
from eddyline.store.artifacts.manifest import (
    DATA_NAME,
    ArtifactFile,
    ArtifactManifest,
    artifact_name,
    encode_manifest,
    source_body,
    to_artifact,
)
from eddyline.store.artifacts.store import CHUNK_BYTES, require_artifact_store
from eddyline.store.fold.dump import dump_batches
from eddyline.store.fold.entries import entries_of
from eddyline.store.fold.fold import FoldFailed, WriterState
from eddyline.store.fold.rocksdb_sst import artifact_tables, read_tables
from eddyline.store.read.fold_reader import WAIT_S_MAX, PendingView
from eddyline.store.write.validation import check_fold

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from eddyline.core.model.artifact import ArtifactProgress
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.runtime.fs import Fs
    from eddyline.store.artifacts.job import ArtifactJob
    from eddyline.store.artifacts.store import ArtifactSettings, ArtifactStore
    from eddyline.store.fold.fold import Fold, FoldView
    from eddyline.store.log.sources import SourceTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.write.admission import AdmissionControl

logger = logging.getLogger(__name__)

RETRY_AFTER_MS: Final = 60_000


class ExclusiveJob:
    """Guard that admits one export or import at a time."""

    def __init__(self) -> None:
        self._is_taken = False

    def __enter__(self) -> None:
        """Raise TooManyScans if another one runs."""
        if self._is_taken:
            raise TooManyScans(
                "another fold is being exported or imported; one at a time", scansMax=1, retryAfterMs=RETRY_AFTER_MS
            )
        self._is_taken = True

    def __exit__(self, *_: object) -> None:
        self._is_taken = False


class FoldMoment(NamedTuple):
    """A view of the fold, with the applied seq and the writers of the same moment."""

    view: FoldView
    seq: int
    writers: Mapping[str, WriterState]


class FoldExport:
    """Exports folds of one store."""

    def __init__(
        self,
        *,
        fold: Fold,
        fold_worker: Worker,
        worker: Worker,
        clock: Clock,
        fs: Fs,
        sources: SourceTable,
        store_id: str,
        settings: ArtifactSettings | None,
        exclusive_job: ExclusiveJob,
        gate: AdmissionControl,
    ) -> None:
        self._fold = fold
        self._fold_worker = fold_worker
        self._worker = worker
        self._clock = clock
        self._fs = fs
        self._sources = sources
        self._store_id = store_id
        self._settings = settings
        self._exclusive_job = exclusive_job
        self._gate = gate

    async def run(self, topic: Topic) -> AsyncGenerator[ArtifactProgress | FoldExported, None]:
        """Export a topic's fold; yield progress, then the result.

        Raises:
            NotKv, FoldLost, InvalidArgument (no record yet), TopicNotFound (deleted meanwhile), ArtifactsNotConfigured,
                ArtifactsUnreachable, TooManyScans, DiskFloor, DataCorrupt.
        """
        artifact_store = require_artifact_store(self._settings)
        if not topic.folds:
            raise NotKv(f"topic {topic.name} has no fold", topic=topic.name)
        check_fold(topic)
        if not topic.head_seq:
            raise InvalidArgument(
                f"topic {topic.name} has never had a record: there is nothing to export", field="topic"
            )
        self._gate.check_disk()
        pending = PendingView(self._fold, topic.id)
        with self._exclusive_job:
            try:
                moment = await self._fold_worker.submit(partial(_take_moment, self._fold, topic.id, pending))
                await topic.wait_head(moment.seq, self._clock, WAIT_S_MAX)
                if topic.deleted or topic.head_seq < moment.seq:
                    raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
                manifest = self._draft_manifest(topic, moment)
                done = list[FoldExported]()
                work = partial(self._write, artifact_store, moment.view, manifest)
                async with aclosing(run_with_progress(self._worker, self._clock, work, done)) as steps:
                    async for progress in steps:
                        self._gate.check_disk()  # the artifacts may be on this store's disk
                        yield progress
                yield done[0]
            finally:
                pending.close()

    def _draft_manifest(self, topic: Topic, moment: FoldMoment) -> ArtifactManifest:
        """Return the manifest without entry count and files."""
        source = self._sources.find(topic.source) if topic.source else None
        state = moment.writers.get(topic.source, WriterState(0, b""))
        return ArtifactManifest(
            topic=topic.name,
            epoch=topic.id,
            seq=moment.seq,
            entry_count=0,
            created_ms=self._clock.now_ms(),
            last_ts_ms=topic.last_ts_ms,
            store_id=self._store_id,
            files=(),
            source=source_body(source.definition) if source is not None else None,
            position=state.position if source is not None else b"",
        )

    def _write(
        self, artifact_store: ArtifactStore, view: FoldView, draft_manifest: ArtifactManifest, job: ArtifactJob
    ) -> FoldExported:
        assert self._settings is not None, "it has the artifact store"
        topic = draft_manifest.topic
        try:
            with artifact_store.draft(topic) as draft:
                count, paths = _dump(view, draft / DATA_NAME, job)
                files = [self._sync_and_hash(path, job) for path in paths]
                _verify_count(paths, draft / "scratch", count, job)
                manifest = replace(draft_manifest, entry_count=count, files=tuple(files))
                encoded = encode_manifest(manifest)
                pointer = artifact_store.publish(topic, draft, manifest, encoded, job)
        except (FoldFailed, OSError) as error:
            raise ArtifactsUnreachable(f"artifacts: {error}", cause=type(error).__name__) from error
        name = artifact_name(manifest, encoded)
        try:
            artifact_store.prune(topic, keep=self._settings.keep, now_ms=self._clock.now_ms())
        except ArtifactsUnreachable as error:  # the artifact is complete; the next export prunes
            logger.warning("artifacts_not_pruned", extra=fields(topic=topic, error=error.message))
        is_latest = pointer.name == name
        logger.info("fold_exported", extra=fields(topic=topic, artifact=name, entries=count, latest=pointer.name))
        return FoldExported(to_artifact(name, manifest, is_latest=is_latest), not is_latest, pointer.name)

    def _sync_and_hash(self, path: Path, job: ArtifactJob) -> ArtifactFile:
        """Sync a file and hash it."""
        digest, offset = blake3(), 0
        file = self._fs.open(path)
        try:
            file.fsync()
            size = file.size()
            while chunk := file.pread(CHUNK_BYTES, offset):
                digest.update(chunk)
                offset += len(chunk)
                job.report("hash", offset, size)
        finally:
            file.close()
        return ArtifactFile(f"{DATA_NAME}/{path.name}", offset, digest.hexdigest())


def _take_moment(fold: Fold, topic_id: int, pending: PendingView) -> FoldMoment:
    view, seq = pending.run(b"", b"")
    return FoldMoment(view, seq, fold.writers(topic_id))


def _dump(view: FoldView, directory: Path, job: ArtifactJob) -> tuple[int, list[Path]]:
    """Write a view's entries as tables; return their number and the tables."""
    tables, count = artifact_tables(directory), 0
    for batch in dump_batches(view):
        tables.add(entries_of(batch))
        count += batch.count
        job.report("dump", count)
    tables.finish()
    return count, [directory / path.rpartition("/")[2] for path in tables.paths]


def _verify_count(paths: list[Path], scratch: Path, count: int, job: ArtifactJob) -> None:
    """Read the written tables and count their entries.

    Raises:
        ArtifactsUnreachable: the disk returned other data.
    """
    read_count = 0
    try:
        for entries in read_tables(paths, scratch):
            read_count += len(entries.keys)
            job.report("verify", read_count, count)
    except DataCorrupt as error:
        raise ArtifactsUnreachable(f"artifacts: {error.message}", cause="DataCorrupt") from error
    if read_count != count:
        raise ArtifactsUnreachable(
            f"artifacts: {read_count} of {count} entries could be read back", cause="DataCorrupt"
        )
