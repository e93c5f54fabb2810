"""Values of a fold's base and history that lie below the floor of a delete: what of them may still be shown.

Such a value was deleted, whatever still holds it, but for what the fold itself still has (`as_of.py`). One that the fold has
no more is left out where the key was written again up to the point that is asked for; where it was not, the key is
one that is not answered for at that point, and neither is the fold.
I1: what is left out changes nothing of what `AsOf.at_seq` says of any key.
Cost: nothing where no prefix was deleted; else a look-up in the fold for each value below it, and of those that the fold
has no more, one in the log for each.
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
"""Keys that are looked up in one job of the fold's thread, which applies appends: under 1 ms."""


class HiddenValues:
    """Judges values of any topic of a store."""

    def __init__(self, *, fold: Fold, fold_worker: Worker, as_of: AsOf) -> None:
        self._fold = fold
        self._fold_worker = fold_worker
        self._as_of = as_of

    async def filter(self, topic: Topic, parts: Sequence[SplitRows], *, as_of_seq: int) -> tuple[list[SplitRows], int]:
        """The parts without what may not be shown, and how many rows that is.

        Raises:
            HistoryGone: a key is not answered for at `as_of_seq`. FoldLost, TopicNotFound, DataCorrupt.
        """
        found: list[SplitRows] = []
        count = 0
        for part in parts:
            gone = await self._gone(topic, part, as_of_seq)
            if gone is None:
                found.append(part)
            else:
                count += int(gone.sum())
                found.append(part._replace(gone=gone if part.gone is None else part.gone | gone))
        return found, count

    async def _gone(self, topic: Topic, part: SplitRows, as_of_seq: int) -> NDArray[np.bool_] | None:
        """Rows of the part that may not be shown, and were not hidden yet; None = none."""
        floor = topic.floors.delete
        batch = part.batch.slice(part.start, part.stop)
        if not floor or not batch.count:
            return None
        below = (batch.seq_array() <= floor) & (batch.ops_array() == Op.PUT)
        if part.gone is not None:
            below &= ~part.gone
        rows = np.flatnonzero(below)
        gone = np.zeros(batch.count, dtype=np.bool_)
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
                gone[row] = True
        return gone if gone.any() else None
