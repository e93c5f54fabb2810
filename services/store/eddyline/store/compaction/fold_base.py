"""Bases of folds: an ordered, verified dump of a KV topic's fold as of one seq; the log is needed only after that seq.

    view of the fold, with its applied seq     (one step of the fold's thread, between two writes)
    sync of the fold                           (the records that the base covers are durable in the fold, too)
    temporary written, fsynced, read back      (background thread)
    SegmentChange with the base                (commit: fdatasyncs all of the log that the base covers)
    rename; the old base to the garbage

A base is made once it would free as many bytes of segments as the last base has, so that dumps write at most as much as the
log itself; and by an erasure, since an old base holds records that were deleted after it was made.
I1: the log is trimmed only below a base that is durable and verified. I2: a base is a snapshot: its seq is its view's.
I3: no base is made of a lost fold.
Failure: the old base stays.
Threading: event loop; see above.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import FoldLost
from eddyline.store.fold.dump import dump_batches

if TYPE_CHECKING:
    from eddyline.store.compaction.segment_swap import SegmentSwap
    from eddyline.store.fold.fold import Fold, FoldView
    from eddyline.store.log.topic import Topic
    from eddyline.store.write.engine import Engine

FREED_BYTES_MIN: Final = 16 << 20
"""Bytes that a base must free at least: for less, writing and syncing a file of any size does not pay."""


class _Dump(NamedTuple):
    seq: int
    view: FoldView


class BaseMaker:
    """Makes bases of a store's folds."""

    def __init__(self, engine: Engine, swap: SegmentSwap, *, freed_bytes_min: int = FREED_BYTES_MIN) -> None:
        self._engine = engine
        self._swap = swap
        self._freed_bytes_min = freed_bytes_min

    def is_due(self, topic: Topic) -> bool:
        """Return whether a base would free enough bytes, or is needed since the log after the last one is incomplete."""
        if not topic.folds or topic.fold_lost:
            return False
        if topic.base_wanted:
            return True
        trim = topic.floors.trim
        below = [s.summary for s in topic.segments.within(0, trim) if s.summary.last_seq <= trim]
        if not below or below[-1].last_seq <= topic.retained_after_seq:
            return False
        last_bytes = topic.base.file_bytes if topic.base is not None else 0
        return sum(summary.file_bytes for summary in below) >= max(self._freed_bytes_min, last_bytes)

    async def make(self, topic: Topic) -> None:
        """Make a base of the fold's present state.

        Raises:
            FoldLost. FoldFailed, OSError, DataCorrupt: the old base stays. ReadOnly, CommitUnknown.
        """
        if topic.fold_lost:
            raise FoldLost(f"the fold of topic {topic.name} is lost", topic=topic.name)
        fold, worker = self._engine.fold, self._engine.fold_worker
        seq, view = await worker.submit(partial(_begin, fold, topic.id))
        try:
            if not seq:
                return
            await worker.submit(fold.sync)
            await self._swap.write_base(topic, seq, partial(dump_batches, view))
        finally:
            view.close()


def _begin(fold: Fold, topic_id: int) -> _Dump:
    return _Dump(fold.applied(topic_id), fold.view(topic_id, counted=False))
