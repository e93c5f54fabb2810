"""Writing segments again, as one, without the rows that are gone; and which segments are worth it by themselves.

Merges, rewrites of partly dead segments and erasures are all this. What was deleted while it runs is in the new file, and
hidden from reads as before: the topic's deleted seqs say so until the next time.
I1: what is read of a topic is the same before, meanwhile and after. I2: memory is what one segment's writing takes
(`storage/segment_write.py`).
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
"""[Bitcask 0.4, RocksDB's blobs 0.25] Deleted rows of a segment from which on it is rewritten. At a half each byte rewritten
frees one; a store of nothing but deletes takes twice its live bytes until they are erased."""


class Rewriter:
    """Rewrites segments of any topic of a store."""

    def __init__(self, swap: SegmentSwap, files: LogFiles) -> None:
        self._swap = swap
        self._files = files

    async def rewrite(self, topic: Topic, segments: Sequence[Segment], *, stage: str) -> None:
        """Put one segment, of what is still needed, in the place of `segments`, which are neighbours.

        Raises:
            as `SegmentSwap.write`; the old ones stay then.
        """
        extent = LogExtent(topic.id, segments, ())
        try:
            rows = partial(iter_live_rows, self._files, extent, live_rows_of(topic))
            await self._swap.write(topic, rows, stage=stage, remove=segments)
        finally:
            extent.close()


def dead_rows(topic: Topic, segment: Segment) -> int:
    """Rows in a segment's file that nothing needs."""
    return segment.summary.rows - topic.needed_rows(segment)


def is_partly_dead(topic: Topic, segment: Segment) -> bool:
    """True = deletes have made enough holes in it. What lies below the floor at its front does not count: the floor of a
    capped topic goes through each segment, and takes it off whole (`reclaim.py`) before long."""
    summary = segment.summary
    below = max(topic.retained_after_seq - summary.first_seq + 1, 0)
    return dead_rows(topic, segment) - below >= DEAD_SHARE * summary.rows
