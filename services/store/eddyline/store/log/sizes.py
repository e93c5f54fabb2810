"""What records count by the semantics: their cells and 32 bytes each; gap records count nothing.

Threading: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eddyline.core.follow_credit import RECORD_OVERHEAD_BYTES, batch_bytes
from eddyline.core.record import Op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eddyline.core.batch import Batch


def row_bytes(batch: Batch) -> NDArray[np.int64]:
    """Bytes of each row; those of a gap record are counted too, by whoever asks row by row."""
    sizes = np.full(batch.count, RECORD_OVERHEAD_BYTES, dtype=np.int64)
    for column in batch.columns():
        if column is not None:
            offsets = np.frombuffer(column.offsets, dtype="<u4").astype(np.int64)
            sizes += offsets[1:] - offsets[:-1]
    return sizes


def record_sizes(batch: Batch) -> NDArray[np.int64]:
    """Bytes of each record, 0 of a gap record."""
    sizes = row_bytes(batch)
    if batch.ops is not None and Op.GAP in batch.ops:
        sizes[batch.ops_array() == Op.GAP] = 0
    return sizes


def records_bytes(batch: Batch) -> int:
    """Bytes of all records."""
    if batch.ops is None or Op.GAP not in batch.ops:
        return batch_bytes(batch)
    return int(record_sizes(batch).sum())
