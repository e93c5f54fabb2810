"""Looking up keys in the base of a KV topic's fold: its entries as they were at one seq, in one file, in key order.

A base is an Arrow file as a segment is; its footer denies keys that it has not. A key is found by halving over its record
batches, a prefix from the first batch that may begin it. What was deleted since the base was made is still in the file: the
topic's deleted seqs name these entries, and they are left out here.
I1: a base that is replaced while it is read is looked up anew.
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
    """Reads the bases of any topic of a store."""

    def __init__(self, *, fs: Fs, layout: Layout, worker: Worker) -> None:
        self._fs = fs
        self._layout = layout
        self._worker = worker

    async def entry(self, topic: Topic, key: bytes) -> Record | None:
        """The base's entry of a key; None where it has none, or none any more.

        Raises:
            DataCorrupt.
        """
        found = await self._rows(topic, Match(MatchField.KEY, MatchKind.EQ, key))
        live = [row for batch in found for row in batch.to_rows() if row.seq not in topic.deleted_seqs]
        return live[0] if live else None

    async def seqs(self, topic: Topic, match: Match) -> NDArray[np.uint64]:
        """Seqs of the entries whose keys match.

        Raises:
            DataCorrupt.
        """
        found = await self._rows(topic, match)
        return np.concatenate([np.zeros(0, dtype="<u8"), *(batch.seq_array() for batch in found)])

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
    """The rows of a base that match; their seqs alone where they may be many. Blocking."""
    footer = read_footer(fs, path)
    exact = match.kind is MatchKind.EQ
    if not (footer.may_hold_key(match.value) if exact else footer.may_hold_key_prefix(match.value)):
        return []
    found: list[Batch] = []
    file = fs.open(path)
    try:
        # The last batch whose first key is not above the value: nothing before it can match.
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
                found.append(rows if exact else _seqs_alone(rows))
            elif found or _first_key(batch) > match.value:
                break
    finally:
        file.close()
    return found


def _first_key(batch: Batch) -> bytes:
    (key,) = batch.slice(0, 1).keys()
    return key or b""


def _seqs_alone(batch: Batch) -> Batch:
    return type(batch)(batch.count, first_seq=batch.first_seq, seqs=batch.seqs)
