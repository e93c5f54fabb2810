"""ExportFold: a topic's fold, as it is now, as an artifact.

    view of the fold, with its applied seq and its writers     (one step of the fold's thread, between two writes)
    tables written                                             (a reader thread from here on; the view is of one moment)
    tables hashed, opened again and counted
    kept where artifacts go, pointed to, older ones pruned     (`local.py`, `remote.py`)

I1: the source's position is of the view's moment: everything up to it is in the artifact. I2: memory is that of one batch
and of one table's index. I3: one export or import at a time, a store; whoever breaks off leaves nothing.
Failure: as the shelf's; nothing of the store is changed, whatever happens.
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
from eddyline.store.artifacts.job import watched
from eddyline.store.artifacts.manifest import (
    DATA_NAME,
    ArtifactFile,
    Manifest,
    artifact_name,
    described,
    encode_manifest,
    source_body,
)
from eddyline.store.artifacts.store import CHUNK_BYTES, shelf_of
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
    from eddyline.store.artifacts.job import Job
    from eddyline.store.artifacts.store import ArtifactSettings, ArtifactStore
    from eddyline.store.fold.fold import Fold, FoldView
    from eddyline.store.log.sources import Sources
    from eddyline.store.log.topic import Topic
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.write.admission import AdmissionControl

logger = logging.getLogger(__name__)

RETRY_AFTER_MS: Final = 60_000


class Turn:
    """One export or import at a time."""

    def __init__(self) -> None:
        self._is_taken = False

    def __enter__(self) -> None:
        """Raises TooManyScans: another one runs."""
        if self._is_taken:
            raise TooManyScans("another fold is being exported or imported", scansMax=1, retryAfterMs=RETRY_AFTER_MS)
        self._is_taken = True

    def __exit__(self, *_: object) -> None:
        self._is_taken = False


class _Taken(NamedTuple):
    """A moment of the fold."""

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
        sources: Sources,
        store_id: str,
        place: ArtifactSettings | None,
        turn: Turn,
        gate: AdmissionControl,
    ) -> None:
        self._fold = fold
        self._fold_worker = fold_worker
        self._worker = worker
        self._clock = clock
        self._fs = fs
        self._sources = sources
        self._store_id = store_id
        self._place = place
        self._turn = turn
        self._gate = gate

    async def run(self, topic: Topic) -> AsyncGenerator[ArtifactProgress | FoldExported, None]:
        """Export a topic's fold; what was written comes last.

        Raises:
            NotKv, FoldLost, InvalidArgument (no record yet), TopicNotFound (deleted meanwhile), ArtifactsNotConfigured,
                ArtifactsUnreachable, TooManyScans, DiskFloor, DataCorrupt.
        """
        shelf = shelf_of(self._place)
        if not topic.folds:
            raise NotKv(f"topic {topic.name} has no fold", topic=topic.name)
        check_fold(topic)
        if not topic.head_seq:
            raise InvalidArgument(f"topic {topic.name} has had no record: there is nothing to export", field="topic")
        self._gate.check_disk()
        opening = PendingView(self._fold, topic.id)
        with self._turn:
            try:
                taken = await self._fold_worker.submit(partial(_take, self._fold, topic.id, opening))
                await topic.wait_head(taken.seq, self._clock, WAIT_S_MAX)
                if topic.deleted or topic.head_seq < taken.seq:
                    raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
                manifest = self._described(topic, taken)
                done = list[FoldExported]()
                work = partial(self._write, shelf, taken.view, manifest)
                async with aclosing(watched(self._worker, self._clock, work, done)) as steps:
                    async for progress in steps:
                        self._gate.check_disk()  # it may be this store's disk that it fills
                        yield progress
                yield done[0]
            finally:
                opening.close()

    def _described(self, topic: Topic, taken: _Taken) -> Manifest:
        """The manifest as far as it is known before the files are."""
        source = self._sources.find(topic.source) if topic.source else None
        state = taken.writers.get(topic.source, WriterState(0, b""))
        return Manifest(
            topic=topic.name,
            epoch=topic.id,
            seq=taken.seq,
            entry_count=0,
            created_ms=self._clock.now_ms(),
            last_ts_ms=topic.last_ts_ms,
            store_id=self._store_id,
            files=(),
            source=source_body(source.definition) if source is not None else None,
            position=state.position if source is not None else b"",
        )

    def _write(self, shelf: ArtifactStore, view: FoldView, described_so_far: Manifest, job: Job) -> FoldExported:
        assert self._place is not None, "it has the shelf"
        topic = described_so_far.topic
        try:
            with shelf.draft(topic) as draft:
                count, paths = _dump(view, draft / DATA_NAME, job)
                files = [self._hashed(path, job) for path in paths]
                _count_again(paths, draft / "scratch", count, job)
                manifest = replace(described_so_far, entry_count=count, files=tuple(files))
                encoded = encode_manifest(manifest)
                pointer = shelf.publish(topic, draft, manifest, encoded, job)
        except (FoldFailed, OSError) as error:
            raise ArtifactsUnreachable(f"artifacts: {error}", cause=type(error).__name__) from error
        name = artifact_name(manifest, encoded)
        try:
            shelf.prune(topic, keep=self._place.keep, now_ms=self._clock.now_ms())
        except ArtifactsUnreachable as error:  # the artifact is there; the next export prunes
            logger.warning("artifacts_not_pruned", extra=fields(topic=topic, error=error.message))
        is_latest = pointer.name == name
        logger.info("fold_exported", extra=fields(topic=topic, artifact=name, entries=count, latest=pointer.name))
        return FoldExported(described(name, manifest, is_latest=is_latest), not is_latest, pointer.name)

    def _hashed(self, path: Path, job: Job) -> ArtifactFile:
        """A file made durable and hashed."""
        hashed, offset = blake3(), 0
        file = self._fs.open(path)
        try:
            file.fsync()
            size = file.size()
            while chunk := file.pread(CHUNK_BYTES, offset):
                hashed.update(chunk)
                offset += len(chunk)
                job.tell("hash", offset, size)
        finally:
            file.close()
        return ArtifactFile(f"{DATA_NAME}/{path.name}", offset, hashed.hexdigest())


def _take(fold: Fold, topic_id: int, opening: PendingView) -> _Taken:
    view, seq = opening.run(b"", b"")
    return _Taken(view, seq, fold.writers(topic_id))


def _dump(view: FoldView, directory: Path, job: Job) -> tuple[int, list[Path]]:
    """Write a view's entries as tables; how many they are, and the tables."""
    tables, count = artifact_tables(directory), 0
    for batch in dump_batches(view):
        tables.add(entries_of(batch))
        count += batch.count
        job.tell("dump", count)
    tables.finish()
    return count, [directory / path.rpartition("/")[2] for path in tables.paths]


def _count_again(paths: list[Path], scratch: Path, count: int, job: Job) -> None:
    """Open what was written, and count.

    Raises:
        ArtifactsUnreachable: the disk gave back something else.
    """
    found = 0
    try:
        for entries in read_tables(paths, scratch):
            found += len(entries.keys)
            job.tell("verify", found, count)
    except DataCorrupt as error:
        raise ArtifactsUnreachable(f"artifacts: {error.message}", cause="DataCorrupt") from error
    if found != count:
        raise ArtifactsUnreachable(f"artifacts: of {count} entries {found} could be read back", cause="DataCorrupt")
