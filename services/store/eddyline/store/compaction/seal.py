"""Sealing: writes the oldest unsegmented frames of a topic to a segment, so that WAL files no longer need to hold them.

A segment is cut by records, bytes or age, and at a checkpoint if a topic has much unsegmented. Dead rows are not written:
deleted ones, and those below the floors; but a KV topic keeps the rows that its fold's base does not cover yet, since a lost
fold is rebuilt from base and log.
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
    """Rows of a topic's log that are still needed: those above `floors.trim` that are not in `deleted`."""

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
        """Return whether a whole segment is due by records or bytes."""
        index = topic.index
        return index.frame_bytes >= self._bytes_max or index.record_count >= self._records_max

    async def seal(self, topic: Topic, through_seq: int) -> None:
        """Seal every frame that begins at or below `through_seq`, in as many segments as the bounds require; nothing of a
        topic that is being deleted.

        Raises:
            as `SegmentSwap.write`; segments sealed before the error stay.
        """
        while topic.index.first_seq and topic.index.first_seq <= through_seq and not topic.closing:
            entries = topic.index.entries_through(through_seq, records_max=self._records_max, bytes_max=self._bytes_max)
            extent = LogExtent(topic.id, (), entries)
            batches = partial(iter_live_rows, self._files, extent, live_rows_of(topic))
            await self._swap.write(topic, batches, stage="seal", segmented_seq=entries[-1].last_seq)


def live_rows_of(topic: Topic) -> LiveRows:
    """Return the present set of needed rows, for a rewrite of the topic's files."""
    return LiveRows(Floors(delete=topic.retained_after_seq), topic.deleted_seqs.copy())


def iter_live_rows(files: LogFiles, extent: LogExtent, live: LiveRows) -> Iterator[Batch]:
    """Iterate the needed rows of an extent, batch by batch. Blocking.

    Raises:
        DataCorrupt.
    """
    for stored in files.batches(extent):
        batch = visible(stored, live.floors, live.deleted)
        if batch.count:
            yield batch
