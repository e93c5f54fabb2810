"""Restore of a lost fold from an artifact of its own topic: the artifact becomes its base, and the log after it is
applied.

    the artifact is staged, as for any import           (`importing.py`)
    at the topic's gate, between two background jobs, once all pending appends are applied:
        the log after the artifact's seq is complete?    else nothing changes
        SegmentChange with the base                      (commit; the fold is still lost)
        base renamed; fold rebuilt from base and log     (the fold's thread, step by step)
        SegmentChange: not lost                          (commit; served from here on)

I1: only this store's artifact of this very topic, taken no earlier than the topic's last base: so it contains nothing that
was deleted and erased since then, and rows deleted but not yet erased are left out. I2: an incomplete fold is never served
or accepted: a cancelled caller waits for the end, a failure makes the store read-only, and each start rebuilds it.
Threading: event loop; see above.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from eddyline.core.errors import ArtifactMismatch, DataCorrupt, TopicNotFound
from eddyline.store.compaction.segment_swap import rename_temporary
from eddyline.store.fold.fold import WriterState
from eddyline.store.fold_repair.rebuild import rebuild
from eddyline.store.fold_repair.source import FoldSource
from eddyline.store.log.control import SegmentChange, apply_segment_change, segment_change_body
from eddyline.store.read.fold_reader import WAIT_S_MAX
from eddyline.store.storage.wal.frame import FrameType, control_body
from eddyline.store.write.engine import completed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eddyline.store.artifacts.download import StagedArtifact
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.files import LogFiles
    from eddyline.store.log_io.garbage import Garbage
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.storage.layout import Layout
    from eddyline.store.storage.wal.frame import FrameBody
    from eddyline.store.write.engine import Engine


T = TypeVar("T")


class FoldRestore:
    """Restores lost folds of one store."""

    def __init__(
        self, *, engine: Engine, worker: Worker, files: LogFiles, layout: Layout, garbage: Garbage, store_id: str
    ) -> None:
        self._engine = engine
        self._worker = worker
        self._files = files
        self._layout = layout
        self._garbage = garbage
        self._store_id = store_id

    def check(self, topic: Topic, staged: StagedArtifact) -> None:
        """Raise ArtifactMismatch if an artifact cannot be the base of a topic's fold."""
        manifest = staged.manifest
        base_seq = topic.base.seq if topic.base is not None else 0
        if (manifest.store_id, manifest.epoch) != (self._store_id, topic.id):
            why = "it belongs to another topic: import it into a new topic"
        elif not base_seq <= manifest.seq <= topic.head_seq:
            why = f"it is at seq {manifest.seq}, and the topic needs seq {base_seq} to {topic.head_seq}"
        else:
            return
        raise _mismatch(topic, staged, why)

    async def run(self, topic: Topic, staged: StagedArtifact) -> bool:
        """Restore a topic's fold; the caller holds its gate. Return True once the log names the base.

        Raises:
            ArtifactMismatch: the log after the artifact is incomplete. ReadOnly, CommitUnknown.
        """
        engine = self._engine
        await topic.wait_head(topic.staged_seq, engine.clock, WAIT_S_MAX)
        if topic.closing or topic.deleted:
            raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
        self.check(topic, staged)
        seq = staged.manifest.seq
        source = FoldSource(self._files, self._layout, topic, through_seq=topic.head_seq, applied_seq=seq)
        try:
            assert source.continues, "the artifact is no older than the base"
            await completed(self._worker.submit(partial(_read, source)))
        except DataCorrupt as error:
            raise _mismatch(topic, staged, f"the log after its seq {seq} is damaged too: {error.message}") from error
        finally:
            source.close()
        change = SegmentChange("import", staged.next_generation, base=staged.base)
        committed = list[object]()
        try:
            await engine.control(_frame(topic, change), committed.append, topic)
        finally:
            if committed:  # also on cancellation: an incomplete fold is useless
                await self._rebuild(topic, staged, change)
        return True

    async def _rebuild(self, topic: Topic, staged: StagedArtifact, change: SegmentChange) -> None:
        engine, cancelled = self._engine, list[asyncio.CancelledError]()
        source: FoldSource | None = None
        try:
            if staged.base_path is not None:
                await _finish(
                    self._worker.submit(partial(rename_temporary, self._files.fs, staged.base_path)), cancelled
                )
            self._garbage.add_segments(apply_segment_change(topic, change, self._layout.topic_dir(topic.id)))
            engine.table.dirty.add(topic)
            source = FoldSource(self._files, self._layout, topic, through_seq=topic.head_seq)
            writers = [(name, WriterState(writer.fence, writer.stored)) for name, writer in topic.stored_writers()]
            steps = rebuild(engine.fold, topic.id, source, writers=writers)
            while await _finish(engine.fold_worker.submit(partial(_step, steps)), cancelled):
                pass
            await _finish(engine.fold_worker.submit(engine.fold.sync), cancelled)
        except Exception as error:
            raise engine.fold_failed(error, "import") from error
        finally:
            if source is not None:
                source.close()
        restored = SegmentChange("import", topic.next_generation, fold_lost=False)
        directory = self._layout.topic_dir(topic.id)
        await engine.control(_frame(topic, restored), lambda _: _apply(topic, restored, directory), topic)
        if cancelled:
            raise cancelled[0]


def _frame(topic: Topic, change: SegmentChange) -> FrameBody:
    return control_body(FrameType.SEGMENT_CHANGE, topic.id, segment_change_body(change), ts_ms=topic.last_ts_ms)


def _apply(topic: Topic, change: SegmentChange, directory: Path) -> None:
    apply_segment_change(topic, change, directory)


async def _finish(job: asyncio.Future[T], cancelled: list[asyncio.CancelledError]) -> T:
    """Wait for a job and return its result; a cancellation is kept for later."""
    try:
        await completed(job)
    except asyncio.CancelledError as error:
        cancelled.append(error)
    return job.result()


def _read(source: FoldSource) -> None:
    for _ in source.log():
        pass


def _step(steps: Iterator[int]) -> bool:
    return next(steps, None) is not None


def _mismatch(topic: Topic, staged: StagedArtifact, why: str) -> ArtifactMismatch:
    return ArtifactMismatch(
        f"artifact {staged.name} cannot restore the lost fold of topic {topic.name}: {why}",
        topic=topic.name,
        artifact=staged.name,
    )
