"""Compaction planner: finds and runs the due reclaims, bases, rewrites and merges, topic after topic.

Each round examines a bounded number of topics in turn, so that a round costs the same with 100 000 topics; it ends after
`ROUND_BYTES` of reads, so that sealing and checkpoints, which are urgent, come in between.
Failure: a topic whose job failed is skipped until its cool-down ends (`cooldown.py`); the others go on.
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
"""Topics examined in a round: a few milliseconds. Each of 100 000 topics with segments is examined every two minutes."""
ROUND_BYTES: Final = 64 << 20
"""Bytes of segments read in a round; the job that passes it is the last: a second of a slow disk."""


class _DueJob(NamedTuple):
    stage: Stage
    job: Job
    read_bytes: int


class CompactionPlanner:
    """Runs the jobs on segments, most urgent first."""

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
        self._remaining: list[Topic] = []
        self._read_bytes = 0

    @property
    def has_more(self) -> bool:
        """True = the round ended with work left."""
        return self._read_bytes >= ROUND_BYTES

    async def round(self, attempt: Attempt, is_cooling: Callable[[Topic], bool]) -> bool:
        """Examine the next topics, except those in a cool-down after a failure, and run due jobs; False = a job failed."""
        self._remaining = self._remaining or self._table.with_segments()
        topics, self._remaining = self._remaining[:LOOKS_MAX], self._remaining[LOOKS_MAX:]
        self._read_bytes = 0
        good = True
        for position, topic in enumerate(topics):
            if self.has_more:
                self._remaining = topics[position:] + self._remaining
                break
            if not is_cooling(topic):
                good = await self._compact(topic, attempt) and good
        return good

    async def _compact(self, topic: Topic, attempt: Attempt) -> bool:
        while not topic.closing and not self.has_more:
            due = self._next(topic)
            if due is None:
                return True
            self._read_bytes += due.read_bytes
            if not await attempt(due.stage, topic, due.job):
                return False
        return True

    def _next(self, topic: Topic) -> _DueJob | None:
        """Return the most urgent due job."""
        if obsolete_segments(topic):
            return _DueJob(Stage.RECLAIM, partial(reclaim, self._swap, topic), 0)
        if self._bases.is_due(topic):
            last_bytes = topic.base.file_bytes if topic.base is not None else 0
            return _DueJob(Stage.BASE, partial(self._bases.make, topic), last_bytes)
        segments = list(topic.segments)
        for segment in segments:
            if is_partly_dead(topic, segment):
                rewrite = partial(self._rewriter.rewrite, topic, [segment], stage="rewrite")
                return _DueJob(Stage.REWRITE, rewrite, segment.summary.file_bytes)
        summaries = [segment.summary for segment in segments]
        run = merge_due(summaries, records_max=self._records_max, bytes_max=self._bytes_max)
        if run is None:
            return None
        merged = segments[run.start : run.stop]
        read_bytes = sum(segment.summary.file_bytes for segment in merged)
        return _DueJob(Stage.MERGE, partial(self._rewriter.rewrite, topic, merged, stage="merge"), read_bytes)
