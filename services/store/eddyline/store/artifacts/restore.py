"""A lost fold made whole by an artifact of its own topic: the artifact becomes its base, and the log after it is applied.

    the artifact is staged, as for any import           (`importing.py`)
    at the topic's gate, between two jobs of maintenance, once all appends under way are applied:
        the log behind the artifact's seq is whole?      else nothing changes
        SegmentChange with the base                      (commit; the fold is still lost)
        the base has its name; the fold is made of both  (the fold's thread, step by step)
        SegmentChange: not lost                          (commit; from here on it is served)

I1: only this store's artifact of this very topic, taken no earlier than the topic's last base: what was deleted and erased
since then is not in it, and what was deleted and not yet erased is left out. I2: a fold that is made in part is never served
nor settled for: whoever breaks off waits for its end, a failure makes the store read-only, and each start makes it anew.
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
from eddyline.store.write.engine import settled

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
        """Raises ArtifactMismatch where an artifact cannot be the base of a topic's fold."""
        manifest = staged.manifest
        base_seq = topic.base.seq if topic.base is not None else 0
        if (manifest.store_id, manifest.epoch) != (self._store_id, topic.id):
            why = "it is of another topic: import it into a new one"
        elif not base_seq <= manifest.seq <= topic.head_seq:
            why = f"it is of seq {manifest.seq}, and the topic needs one from {base_seq} to {topic.head_seq}"
        else:
            return
        raise _mismatch(topic, staged, why)

    async def run(self, topic: Topic, staged: StagedArtifact) -> bool:
        """Restore a topic's fold; the caller holds its gate. True = the base is named in the log.

        Raises:
            ArtifactMismatch: the log behind the artifact is not whole. ReadOnly, CommitUnknown.
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
            await settled(self._worker.submit(partial(_read, source)))
        except DataCorrupt as error:
            raise _mismatch(topic, staged, f"the log behind its seq {seq} is damaged too: {error.message}") from error
        finally:
            source.close()
        change = SegmentChange("import", staged.next_generation, base=staged.base)
        committed = list[object]()
        try:
            await engine.control(_frame(topic, change), committed.append, topic)
        finally:
            if committed:  # whoever is cancelled meanwhile: half a fold is none
                await self._made(topic, staged, change)
        return True

    async def _made(self, topic: Topic, staged: StagedArtifact, change: SegmentChange) -> None:
        engine, cancelled = self._engine, list[asyncio.CancelledError]()
        source: FoldSource | None = None
        try:
            if staged.base_path is not None:
                await _over(self._worker.submit(partial(rename_temporary, self._files.fs, staged.base_path)), cancelled)
            self._garbage.add_segments(apply_segment_change(topic, change, self._layout.topic_dir(topic.id)))
            engine.table.dirty.add(topic)
            source = FoldSource(self._files, self._layout, topic, through_seq=topic.head_seq)
            writers = [(name, WriterState(known.fence, known.stored)) for name, known in topic.stored_writers()]
            steps = rebuild(engine.fold, topic.id, source, writers=writers)
            while await _over(engine.fold_worker.submit(partial(_step, steps)), cancelled):
                pass
            await _over(engine.fold_worker.submit(engine.fold.sync), cancelled)
        except Exception as error:
            raise engine.fold_failed(error, "import") from error
        finally:
            if source is not None:
                source.close()
        found = SegmentChange("import", topic.next_generation, fold_lost=False)
        directory = self._layout.topic_dir(topic.id)
        await engine.control(_frame(topic, found), lambda _: _apply(topic, found, directory), topic)
        if cancelled:
            raise cancelled[0]


def _frame(topic: Topic, change: SegmentChange) -> FrameBody:
    return control_body(FrameType.SEGMENT_CHANGE, topic.id, segment_change_body(change), ts_ms=topic.last_ts_ms)


def _apply(topic: Topic, change: SegmentChange, directory: Path) -> None:
    apply_segment_change(topic, change, directory)


async def _over(job: asyncio.Future[T], cancelled: list[asyncio.CancelledError]) -> T:
    """A job's outcome; a cancellation is kept for later."""
    try:
        await settled(job)
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
