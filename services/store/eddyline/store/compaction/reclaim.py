"""Taking off whole segments that nothing needs any more: those below a topic's floors.

A KV topic's are needed up to the fold's base, whatever the floors are: a lost fold is made of base and log. What the base
holds the fold has durably applied (`fold_base.py`).
I1: the SegmentChange is durable before a file goes. I2: files go when readers let go (`garbage.py`).
Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.store.log.control import SegmentChange

if TYPE_CHECKING:
    from eddyline.store.compaction.segment_swap import SegmentSwap
    from eddyline.store.log.segments import Segment
    from eddyline.store.log.topic import Topic


def obsolete_segments(topic: Topic) -> list[Segment]:
    """Segments that lie wholly below what is needed."""
    return [segment for segment in topic.segments.within(0, topic.retained_after_seq) if _is_below(segment, topic)]


def _is_below(segment: Segment, topic: Topic) -> bool:
    return segment.summary.last_seq <= topic.retained_after_seq


async def reclaim(swap: SegmentSwap, topic: Topic) -> None:
    """Remove segments and forget places of frames below what is needed.

    Raises:
        ReadOnly, CommitUnknown: as the engine's `control`.
    """
    topic.index.drop_through(topic.retained_after_seq)
    gone = obsolete_segments(topic)
    if gone:
        remove = tuple(segment.id for segment in gone)
        await swap.change(topic, SegmentChange("reclaim", topic.next_generation, remove=remove))
