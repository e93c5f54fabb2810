"""What a record counts towards `cap_bytes` and a topic's `record_bytes`: its cells and a fixed overhead; a gap nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eddyline.core.column import size_array
from eddyline.core.follow_credit import RECORD_OVERHEAD_BYTES
from eddyline.core.record import Op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eddyline.core.batch import Batch


def counted_bytes(batch: Batch) -> NDArray[np.int64]:
    """Bytes of each record: data + key + tag + node + meta + version + 32; 0 for records of op GAP."""
    sizes = np.full(batch.count, RECORD_OVERHEAD_BYTES, dtype=np.int64)
    for column in batch.columns():
        if column is not None:
            sizes += size_array(column)
    if batch.ops is not None and Op.GAP in batch.ops:
        sizes[batch.ops_array() == Op.GAP] = 0
    return sizes
