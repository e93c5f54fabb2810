"""The rows of a batch that readers see: above the floors, and not deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from eddyline.core.records.batch import Batch
    from eddyline.store.log.floors import Floors
    from eddyline.store.log.seq_set import SeqSet


def visible(batch: Batch, floors: Floors, deleted: SeqSet) -> Batch:
    """The rows that are there, of a placed batch in seq order: the very batch where all of them are."""
    above = batch.slice(batch.index_after(floors.trim), batch.count)
    gone = deleted.mask(above) if above.count else None
    if gone is None:
        return above
    return above.select(np.flatnonzero(~gone))
