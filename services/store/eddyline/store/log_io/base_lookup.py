"""Key lookup in the base of a KV topic's fold: the entries as of one seq, in one file, in key order.

A base is an Arrow file like a segment; its footer's filter rules keys out. A key is found by binary search over the record
batches, a prefix from the first batch that may hold it on. Entries deleted since the base was made are still in the file:
the topic's deleted seqs name them, and lookups leave them out.
I1: if the base is replaced during a lookup, the lookup is repeated in the new one.
Threading: event loop; files are read on the reader threads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from eddyline.core.errors import DataCorrupt
from eddyline.core.records.match import Match, MatchField, MatchKind, matched
from eddyline.store.log_io.pieces import unless_deleted
from eddyline.store.storage.layout import base_file
from eddyline.store.storage.segment.reader import read_batch, read_footer

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from eddyline.core.records.batch import Batch
    from eddyline.core.records.record import Record
    from eddyline.core.runtime.fs import Fs
    from eddyline.store.log.topic import Topic
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.storage.layout import Layout


class BaseLookup:
    """Key lookups in the base of any topic of a store."""

    def __init__(self, *, fs: Fs, layout: Layout, worker: Worker) -> None:
        self._fs = fs
        self._layout = layout
        self._worker = worker

    async def entry(self, topic: Topic, key: bytes) -> Record | None:
        """Return the base's entry of a key; None = no entry, or a deleted one.

        Raises:
            DataCorrupt.
        """
        batches = await self._rows(topic, Match(MatchField.KEY, MatchKind.EQ, key))
        live = [row for batch in batches for row in batch.to_rows() if row.seq not in topic.deleted_seqs]
        return live[0] if live else None

    async def seqs(self, topic: Topic, match: Match) -> NDArray[np.uint64]:
        """Return the seqs of the entries whose keys match, deleted ones included.

        Raises:
            DataCorrupt.
        """
        batches = await self._rows(topic, match)
        return np.concatenate([np.zeros(0, dtype="<u8"), *(batch.seq_array() for batch in batches)])

    async def _rows(self, topic: Topic, match: Match) -> list[Batch]:
        while (base := topic.base) is not None and base.rows:
            path = base_file(self._layout.topic_dir(topic.id), base.seq, base.generation)
            try:
                with unless_deleted(topic):
                    return await self._worker.submit(partial(_matching, self._fs, path, match))
            except DataCorrupt:
                if topic.base is base:
                    raise
        return []


def _matching(fs: Fs, path: Path, match: Match) -> list[Batch]:
    """Return the rows of a base that match; of a prefix match the seqs alone, since there may be many rows. Blocking."""
    footer = read_footer(fs, path)
    exact = match.kind is MatchKind.EQ
    if not (footer.may_hold_key(match.value) if exact else footer.may_hold_key_prefix(match.value)):
        return []
    batches: list[Batch] = []
    file = fs.open(path)
    try:
        # The last batch whose first key is not above the value: earlier batches cannot match.
        low, high = 0, len(footer.batches) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if _first_key(read_batch(file, path, footer.batches[middle])) <= match.value:
                low = middle
            else:
                high = middle - 1
        for entry in footer.batches[low:]:
            batch = read_batch(file, path, entry)
            rows = batch.select(matched(batch, match))
            if rows.count:
                batches.append(rows if exact else _seqs_alone(rows))
            elif batches or _first_key(batch) > match.value:
                break
    finally:
        file.close()
    return batches


def _first_key(batch: Batch) -> bytes:
    (key,) = batch.slice(0, 1).keys()
    return key or b""


def _seqs_alone(batch: Batch) -> Batch:
    return type(batch)(batch.count, first_seq=batch.first_seq, seqs=batch.seqs)
