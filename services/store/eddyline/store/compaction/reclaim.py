"""Reclaim: removes whole segments below a topic's floors.

A KV topic's segments are needed down to the fold's base, whatever the floors are: a lost fold is rebuilt from base and log.
The fold has durably applied every record that the base covers (`fold_base.py`).
I1: the SegmentChange is durable before a file is removed. I2: files are removed when their readers release them
(`garbage.py`).
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
    """Return the segments that lie wholly below the topic's retained seqs."""
    return [segment for segment in topic.segments.within(0, topic.retained_after_seq) if _is_below(segment, topic)]


def _is_below(segment: Segment, topic: Topic) -> bool:
    return segment.summary.last_seq <= topic.retained_after_seq


async def reclaim(swap: SegmentSwap, topic: Topic) -> None:
    """Remove segments and index entries below the topic's retained seqs.

    Raises:
        ReadOnly, CommitUnknown: as the engine's `control`.
    """
    topic.index.drop_through(topic.retained_after_seq)
    obsolete = obsolete_segments(topic)
    if obsolete:
        remove = tuple(segment.id for segment in obsolete)
        await swap.change(topic, SegmentChange("reclaim", topic.next_generation, remove=remove))
