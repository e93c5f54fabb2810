"""Credit of FollowTopics: what an item takes of it. Both ends count alike, or a stream would come to a stop.

An item takes its bytes by the semantics: its cells and 32 a record; a gap takes 64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.records.record import Gap

if TYPE_CHECKING:
    from eddyline.core.records.batch import Batch

CREDIT_BYTES_MAX: Final = 64 << 20
"""Credit that may be outstanding on one stream."""
GAP_BYTES: Final = 64
RECORD_OVERHEAD_BYTES: Final = 32
"""What a record counts beside its cells: the semantics' own number."""


def item_bytes(item: Batch | Gap) -> int:
    """Bytes of credit that an item takes."""
    return GAP_BYTES if isinstance(item, Gap) else batch_bytes(item)


def batch_bytes(batch: Batch) -> int:
    """A batch's bytes by the semantics: its cells and 32 a record. What `max_bytes` of a read counts too."""
    cells = 0
    for column in batch.columns():
        if column is not None:
            cells += len(column.values)
    return cells + RECORD_OVERHEAD_BYTES * batch.count
