"""Sealing: the oldest unsegmented frames of a topic become a segment, and the WAL's files are free of them.

A segment is cut by records, bytes or age, and at a checkpoint where a topic has much unsegmented. What is gone is not
written: deleted rows, and rows below the floors; but a KV topic keeps what its fold's base does not cover yet, since a fold
that is lost is made of base and log.
Threading: event loop; reading and writing on the background thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from eddyline.store.log.deletion import visible
from eddyline.store.log.floors import Floors
from eddyline.store.log_io.files import LogExtent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.core.records.batch import Batch
    from eddyline.store.compaction.segment_swap import SegmentSwap
    from eddyline.store.log.seq_set import SeqSet
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.files import LogFiles


class LiveRows(NamedTuple):
    """Which rows of a topic's log are still needed: those above `floors.trim` that are not in `deleted`."""

    floors: Floors
    deleted: SeqSet


class Sealer:
    """Seals any topic of a store."""

    def __init__(self, swap: SegmentSwap, files: LogFiles, *, records_max: int, bytes_max: int) -> None:
        self._swap = swap
        self._files = files
        self._records_max = records_max
        self._bytes_max = bytes_max

    def is_full(self, topic: Topic) -> bool:
        """True = a whole segment is due by records or bytes."""
        index = topic.index
        return index.frame_bytes >= self._bytes_max or index.record_count >= self._records_max

    async def seal(self, topic: Topic, through_seq: int) -> None:
        """Seal every frame that begins at or below `through_seq`, in as many segments as their bounds ask for; none of a
        topic whose deletion is under way.

        Raises:
            as `SegmentSwap.write`; what was sealed before stays so.
        """
        while topic.index.first_seq and topic.index.first_seq <= through_seq and not topic.closing:
            entries = topic.index.entries_through(through_seq, records_max=self._records_max, bytes_max=self._bytes_max)
            extent = LogExtent(topic.id, (), entries)
            batches = partial(iter_live_rows, self._files, extent, live_rows_of(topic))
            await self._swap.write(topic, batches, stage="seal", segmented_seq=entries[-1].last_seq)


def live_rows_of(topic: Topic) -> LiveRows:
    """What of a topic's rows must be written again when its files are."""
    return LiveRows(Floors(delete=topic.retained_after_seq), topic.deleted_seqs.copy())


def iter_live_rows(files: LogFiles, extent: LogExtent, kept: LiveRows) -> Iterator[Batch]:
    """The needed rows of an extent, batch by batch. Blocking.

    Raises:
        DataCorrupt.
    """
    for stored in files.batches(extent):
        batch = visible(stored, kept.floors, kept.deleted)
        if batch.count:
            yield batch
