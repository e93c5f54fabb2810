"""Credit of FollowTopics: what an item takes of it. Both ends count alike, or a stream would come to a stop.

An item takes its bytes by the semantics: its cells and 32 a record; a gap takes 64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.record import Gap

if TYPE_CHECKING:
    from eddyline.core.batch import Batch

CREDIT_BYTES_MAX: Final = 64 << 20
"""Credit that may be outstanding on one stream."""
GAP_BYTES: Final = 64
RECORD_OVERHEAD_BYTES: Final = 32


def item_bytes(item: Batch | Gap) -> int:
    """Bytes of credit that an item takes."""
    if isinstance(item, Gap):
        return GAP_BYTES
    cells = 0
    for column in (item.key, item.data, item.tag, item.node, item.meta, item.version):
        if column is not None:
            cells += len(column.values)
    return cells + RECORD_OVERHEAD_BYTES * item.count
