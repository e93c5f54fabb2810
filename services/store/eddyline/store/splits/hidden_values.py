"""Hides deleted values of a fold's base and history: those below the floor of a delete that the fold no longer has.

A value below that floor is deleted, whichever file still has it, unless the fold itself still has it (`as_of.py`). A deleted
value is left out if its key was written again at or below the requested point. If not, the key cannot be read at that point
(HistoryGone), and neither can the fold.
I1: leaving values out changes no answer of `AsOf.at_seq`.
Cost: nothing if no prefix was deleted; else a fold look-up for each value below the floor, and a log look-up for each value
that the fold no longer has.
Threading: event loop; the fold is read on its thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.records.record import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from eddyline.store.fold.fold import Fold
    from eddyline.store.log.topic import Topic
    from eddyline.store.read.as_of import AsOf
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.splits.encoder import SplitRows

KEYS_AT_ONCE: Final = 64
"""Keys looked up in one job of the fold's thread, which also applies appends: under 1 ms."""


class HiddenValues:
    """Finds deleted values in split rows of any topic of a store."""

    def __init__(self, *, fold: Fold, fold_worker: Worker, as_of: AsOf) -> None:
        self._fold = fold
        self._fold_worker = fold_worker
        self._as_of = as_of

    async def filter(self, topic: Topic, parts: Sequence[SplitRows], *, as_of_seq: int) -> tuple[list[SplitRows], int]:
        """Return the parts with deleted values hidden, and how many rows this hides.

        Raises:
            HistoryGone: a key cannot be read at `as_of_seq`. FoldLost, TopicNotFound, DataCorrupt.
        """
        filtered: list[SplitRows] = []
        count = 0
        for part in parts:
            hidden = await self._deleted_values(topic, part, as_of_seq)
            if hidden is None:
                filtered.append(part)
            else:
                count += int(hidden.sum())
                filtered.append(part._replace(hidden=hidden if part.hidden is None else part.hidden | hidden))
        return filtered, count

    async def _deleted_values(self, topic: Topic, part: SplitRows, as_of_seq: int) -> NDArray[np.bool_] | None:
        """Return a mask of the part's deleted values that are not hidden yet; None = none."""
        floor = topic.floors.delete
        batch = part.batch.slice(part.start, part.stop)
        if not floor or not batch.count:
            return None
        below = (batch.seq_array() <= floor) & (batch.ops_array() == Op.PUT)
        if part.hidden is not None:
            below &= ~part.hidden
        rows = np.flatnonzero(below)
        deleted = np.zeros(batch.count, dtype=np.bool_)
        for start in range(0, len(rows), KEYS_AT_ONCE):
            chunk = rows[start : start + KEYS_AT_ONCE]
            seqs = batch.seq_array()[chunk].tolist()
            chosen = batch.select(chunk).keys()
            keys = [key or b"" for key in chosen]
            entries = await self._fold_worker.submit(partial(self._fold.get, topic.id, keys))
            for row, seq, key, entry in zip(chunk.tolist(), seqs, keys, entries, strict=True):
                if entry is not None and entry.seq == seq:
                    continue
                if entry is None or entry.seq > as_of_seq:
                    await self._as_of.at_seq(topic, key, as_of_seq)
                deleted[row] = True
        return deleted if deleted.any() else None
