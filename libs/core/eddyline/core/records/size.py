"""Sizes of records by the contract: their cells and a fixed overhead.

Limits of reads and frames, and the credit of FollowTopics, count every row, and 64 bytes for a gap; both ends of a
stream must compute the same sizes, otherwise the stream stalls. `cap_bytes` and a topic's `record_bytes` count 0 for a
record of op GAP.
Threading: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.records.column import size_array
from eddyline.core.records.record import RECORD_OVERHEAD_BYTES, Gap, Op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eddyline.core.records.batch import Batch


CREDIT_BYTES_MAX: Final = 64 << 20
"""Credit that may be outstanding on one stream."""
GAP_BYTES: Final = 64


def item_bytes(item: Batch | Gap) -> int:
    """Return the bytes of credit that an item takes."""
    return GAP_BYTES if isinstance(item, Gap) else item.content_bytes


def row_bytes(batch: Batch) -> NDArray[np.int64]:
    """Return the bytes of each row: data + key + tag + node + meta + version + 32. Their sum: `Batch.content_bytes`."""
    sizes = np.full(batch.count, RECORD_OVERHEAD_BYTES, dtype=np.int64)
    for column in batch.columns():
        if column is not None:
            sizes += size_array(column)
    return sizes


def counted_bytes(batch: Batch) -> NDArray[np.int64]:
    """Return the bytes of each record; 0 for records of op GAP. Their sum: `Batch.record_bytes`."""
    sizes = row_bytes(batch)
    if batch.has_gaps:
        sizes[batch.ops_array() == Op.GAP] = 0
    return sizes
