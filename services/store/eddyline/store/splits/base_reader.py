"""Reads splits of a fold's base: rows by number, from 0, in the order of the base file.

A base is identified by seq and generation: a base made again at the same seq, after a delete, has other rows.
I1: rows of a base are returned only while it is the topic's current base: only so long do the topic's deleted seqs list
every row that was deleted since the base was made.
Failure: a base that was replaced is HistoryGone, also if its file was removed during the read.
Threading: event loop; files are read and batches made on reader threads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from eddyline.core.errors import DataCorrupt, HistoryGone, InvalidArgument
from eddyline.store.log_io.pieces import unless_deleted
from eddyline.store.splits.encoder import SplitRows, encoded
from eddyline.store.splits.filter import may_hold, may_hold_passing
from eddyline.store.splits.model import ArrowMessage
from eddyline.store.splits.scan import StoredBatch
from eddyline.store.storage.layout import base_file
from eddyline.store.storage.segment.reader import open_segment, read_footer, read_message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from eddyline.core.runtime.fs import Fs
    from eddyline.store.catalog.catalog import BaseEntry
    from eddyline.store.log.topic import Topic
    from eddyline.store.splits.hidden_values import HiddenValues
    from eddyline.store.splits.model import SplitItem, SplitScan
    from eddyline.store.splits.scan import ScanPieces
    from eddyline.store.splits.slots import SplitSlots
    from eddyline.store.storage.layout import Layout
    from eddyline.store.storage.segment.footer import BatchEntry, Footer

T = TypeVar("T")


class BaseSplitReader:
    """Reads splits of the base of any topic of a store."""

    def __init__(
        self, *, fs: Fs, layout: Layout, pieces: ScanPieces, hidden_values: HiddenValues, slots: SplitSlots
    ) -> None:
        self._fs = fs
        self._layout = layout
        self._pieces = pieces
        self._hidden_values = hidden_values
        self._slots = slots

    async def footer(self, topic: Topic, base: BaseEntry) -> Footer:
        """Return the footer of the topic's base, which has rows.

        Raises:
            HistoryGone: the base was replaced. TopicNotFound, DataCorrupt.
        """
        return await self._run(topic, base, partial(read_footer, self._fs, self._path(topic, base)))

    async def read(self, scan: SplitScan) -> AsyncGenerator[SplitItem, None]:
        """Yield the rows of a split.

        Raises:
            HistoryGone, InvalidArgument (row numbers above the base's), TopicNotFound, FoldLost, DataCorrupt.
        """
        topic, split, split_filter = scan.topic, scan.split, scan.split_filter
        base = base_at(topic, split.base_seq, split.base_generation)
        if split.last >= base.rows:
            raise InvalidArgument(
                f"the base of topic {topic.name} has {base.rows} rows, the split ends at row {split.last}",
                field="split.last",
                last=split.last,
                rows=base.rows,
            )
        footer = await self.footer(topic, base)
        denied = not may_hold(footer, split_filter)
        end = 0
        for entry in footer.batches:
            begin, end = end, end + entry.rows
            start, stop = max(split.first - begin, 0), min(split.last + 1 - begin, entry.rows)
            if start >= stop:
                continue
            if denied or not may_hold_passing(entry, split_filter):
                scan.tally.hidden += stop - start
                continue
            async with self._slots.job():
                items = await self._items(scan, _RowRange(base, entry, start, stop))
            for item in items:
                yield item

    async def _items(self, scan: SplitScan, rows: _RowRange) -> tuple[SplitItem, ...]:
        topic, tally = scan.topic, scan.tally
        base, entry, start, stop = rows
        path = self._path(topic, base)
        message = await self._run(topic, base, partial(_message, self._fs, path, entry))
        stored = StoredBatch(message, entry, path)
        untouched = (
            scan.takes_all
            and stop - start == entry.rows
            and not topic.deleted_seqs.count(entry.first_seq, entry.last_seq)
            and entry.first_seq > topic.floors.delete
        )
        if untouched:
            tally.rows += entry.rows
            unchanged = ArrowMessage(message, entry.checksum, entry.rows)
            return (await self._pieces.run(partial(scan.packed, unchanged)),)
        batch = await self._run(topic, base, stored.batch)
        seqs = batch.slice(start, stop).seq_array()
        hidden = topic.deleted_seqs.mask_each(seqs)
        parts = [SplitRows(batch, start, stop, hidden if hidden.any() else None)]
        parts, hidden_count = await self._hidden_values.filter(topic, parts, as_of_seq=scan.split.as_of_seq)
        result = await self._run(topic, base, partial(encoded, parts, scan))
        deleted_count = int(np.count_nonzero(hidden)) + hidden_count
        tally.rows += result.row_count
        tally.deleted += deleted_count
        tally.hidden += stop - start - deleted_count - result.row_count
        return result.items

    async def _run(self, topic: Topic, base: BaseEntry, job: Callable[[], T]) -> T:
        """Run a job over a base. Raises HistoryGone if the base was replaced by the end of the job."""
        try:
            with unless_deleted(topic):
                result = await self._pieces.run(job)
        except DataCorrupt:
            if topic.base != base:
                raise history_gone(topic) from None
            raise
        if topic.base != base and not topic.deleted:
            raise history_gone(topic)
        return result

    def _path(self, topic: Topic, base: BaseEntry) -> Path:
        return base_file(self._layout.topic_dir(topic.id), base.seq, base.generation)


class _RowRange(NamedTuple):
    """Rows `start` (inclusive) to `stop` (exclusive) of a record batch of a base."""

    base: BaseEntry
    entry: BatchEntry
    start: int
    stop: int


def base_at(topic: Topic, seq: int, generation: int) -> BaseEntry:
    """Return the topic's base, which must have this seq and generation.

    Raises:
        HistoryGone: the topic has another base, or none.
    """
    base = topic.base
    if base is None or (base.seq, base.generation) != (seq, generation):
        raise history_gone(topic)
    return base


def history_gone(topic: Topic) -> HistoryGone:
    """Make the error for a fold at a point that a later base has replaced the data of."""
    earliest_seq = topic.base.seq if topic.base is not None else topic.head_seq
    return HistoryGone(
        f"topic {topic.name} has its whole fold only from seq {earliest_seq} on: plan again",
        topic=topic.name,
        earliestSeq=earliest_seq,
    )


def _message(fs: Fs, path: Path, entry: BatchEntry) -> bytes:
    file = open_segment(fs, path)
    try:
        return read_message(file, path, entry)
    finally:
        file.close()
