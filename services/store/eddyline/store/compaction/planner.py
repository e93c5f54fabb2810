"""Keeping each topic's segments few and live: what reclaims, bases, rewrites and merges are due, topic after topic.

Topics are looked at in turn, some a round, so that 100 000 of them cost a round no more than a few; and a round ends when it
has read enough, so that sealing and checkpoints, which cannot wait, come in between.
Failure: a topic whose job failed is let alone for a while that grows (`resting.py`); the others go on.
Threading: event loop; one round at a time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.store.compaction.merge import merge_due
from eddyline.store.compaction.reclaim import obsolete_segments, reclaim
from eddyline.store.compaction.rewrite import is_partly_dead
from eddyline.store.stats import Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from eddyline.store.compaction.fold_base import BaseMaker
    from eddyline.store.compaction.rewrite import Rewriter
    from eddyline.store.compaction.segment_swap import SegmentSwap
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log.topic import Topic

    Job = Callable[[], Awaitable[None]]
    Attempt = Callable[[Stage, Topic, Job], Awaitable[bool]]

LOOKS_MAX: Final = 256
"""Topics looked at in a round: a few milliseconds. 100 000 topics with segments have their turn every two minutes."""
ROUND_BYTES: Final = 64 << 20
"""Bytes of segments read in a round, and the job that passes it: a second of a slow disk."""


class _Due(NamedTuple):
    stage: Stage
    job: Job
    read_bytes: int


class CompactionPlanner:
    """The jobs on segments, in their order."""

    def __init__(
        self,
        *,
        table: TopicTable,
        swap: SegmentSwap,
        rewriter: Rewriter,
        bases: BaseMaker,
        records_max: int,
        bytes_max: int,
    ) -> None:
        self._table = table
        self._swap = swap
        self._rewriter = rewriter
        self._bases = bases
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._turn: list[Topic] = []
        self._read_bytes = 0

    @property
    def has_more(self) -> bool:
        """True = the round ended with work left."""
        return self._read_bytes >= ROUND_BYTES

    async def round(self, attempt: Attempt, rests: Callable[[Topic], bool]) -> bool:
        """Look at the next topics, but those that rest after a failure, and do what is due; False = something failed."""
        self._turn = self._turn or self._table.with_segments()
        looked, self._turn = self._turn[:LOOKS_MAX], self._turn[LOOKS_MAX:]
        self._read_bytes = 0
        good = True
        for position, topic in enumerate(looked):
            if self.has_more:
                self._turn = looked[position:] + self._turn
                break
            if not rests(topic):
                good = await self._tidy(topic, attempt) and good
        return good

    async def _tidy(self, topic: Topic, attempt: Attempt) -> bool:
        while not topic.closing and not self.has_more:
            due = self._next(topic)
            if due is None:
                return True
            self._read_bytes += due.read_bytes
            if not await attempt(due.stage, topic, due.job):
                return False
        return True

    def _next(self, topic: Topic) -> _Due | None:
        """The most urgent job that is due."""
        if obsolete_segments(topic):
            return _Due(Stage.RECLAIM, partial(reclaim, self._swap, topic), 0)
        if self._bases.is_due(topic):
            last_bytes = topic.base.file_bytes if topic.base is not None else 0
            return _Due(Stage.BASE, partial(self._bases.make, topic), last_bytes)
        segments = list(topic.segments)
        for segment in segments:
            if is_partly_dead(topic, segment):
                rewrite = partial(self._rewriter.rewrite, topic, [segment], stage="rewrite")
                return _Due(Stage.REWRITE, rewrite, segment.summary.file_bytes)
        summaries = [segment.summary for segment in segments]
        run = merge_due(summaries, records_max=self._records_max, bytes_max=self._bytes_max)
        if run is None:
            return None
        merged = segments[run.start : run.stop]
        read_bytes = sum(segment.summary.file_bytes for segment in merged)
        return _Due(Stage.MERGE, partial(self._rewriter.rewrite, topic, merged, stage="merge"), read_bytes)
