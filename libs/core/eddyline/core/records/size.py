"""What rows count by the semantics: their cells and a fixed overhead. Towards a read's or a frame's bytes every row does, a
gap record too; towards `cap_bytes` and a topic's `record_bytes` a gap counts nothing.

Threads: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eddyline.core.records.column import size_array
from eddyline.core.records.follow_credit import RECORD_OVERHEAD_BYTES, batch_bytes
from eddyline.core.records.record import Op, has_gaps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eddyline.core.records.batch import Batch


def row_bytes(batch: Batch) -> NDArray[np.int64]:
    """Bytes of each row: data + key + tag + node + meta + version + 32. Their sum: `follow_credit.batch_bytes`."""
    sizes = np.full(batch.count, RECORD_OVERHEAD_BYTES, dtype=np.int64)
    for column in batch.columns():
        if column is not None:
            sizes += size_array(column)
    return sizes


def counted_bytes(batch: Batch) -> NDArray[np.int64]:
    """Bytes of each record; 0 for records of op GAP."""
    sizes = row_bytes(batch)
    if has_gaps(batch.ops):
        sizes[batch.ops_array() == Op.GAP] = 0
    return sizes


def counted_total(batch: Batch) -> int:
    """Bytes of all records: without a look at the rows where none is a gap."""
    return int(counted_bytes(batch).sum()) if has_gaps(batch.ops) else batch_bytes(batch)
