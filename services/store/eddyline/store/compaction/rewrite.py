"""Rewrites: write neighbouring segments again as one, without dead rows; and which single segments are worth a rewrite.

Merges, rewrites of partly dead segments and erasures all use this. Records deleted during a rewrite are in the new file, and
stay hidden from reads: the topic's deleted seqs name them until the next rewrite.
I1: reads of a topic return the same before, during and after a rewrite. I2: memory is that of writing one segment
(`storage/segment/writer.py`).
Threading: event loop; reading and writing on the background thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.store.compaction.seal import iter_live_rows, live_rows_of
from eddyline.store.log_io.files import LogExtent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.store.compaction.segment_swap import SegmentSwap
    from eddyline.store.log.segments import Segment
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.files import LogFiles

DEAD_SHARE: Final = 0.5
"""[Bitcask 0.4, RocksDB's blobs 0.25] Share of dead rows from which on a segment is rewritten. At a half each byte rewritten
frees one; a store with many deletes takes up to twice its live bytes until they are erased."""


class Rewriter:
    """Rewrites segments of any topic of a store."""

    def __init__(self, swap: SegmentSwap, files: LogFiles) -> None:
        self._swap = swap
        self._files = files

    async def rewrite(self, topic: Topic, segments: Sequence[Segment], *, stage: str) -> None:
        """Replace `segments`, which are neighbours, by one segment of their live rows.

        Raises:
            as `SegmentSwap.write`; the old segments stay then.
        """
        extent = LogExtent(topic.id, segments, ())
        try:
            rows = partial(iter_live_rows, self._files, extent, live_rows_of(topic))
            await self._swap.write(topic, rows, stage=stage, remove=segments)
        finally:
            extent.close()


def dead_rows(topic: Topic, segment: Segment) -> int:
    """Count the rows in a segment's file that are not needed any more."""
    return segment.summary.rows - topic.needed_rows(segment)


def is_partly_dead(topic: Topic, segment: Segment) -> bool:
    """Return whether deletes reach `DEAD_SHARE` of the segment's rows. Rows below the floor at its front do not count: the
    floor of a capped topic moves through each segment, which is soon reclaimed whole (`reclaim.py`)."""
    summary = segment.summary
    below = max(topic.retained_after_seq - summary.first_seq + 1, 0)
    return dead_rows(topic, segment) - below >= DEAD_SHARE * summary.rows
