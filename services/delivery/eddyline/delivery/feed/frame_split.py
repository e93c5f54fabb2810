"""Pieces: a batch cut to frames of a comfortable size.

A stream that does not read holds one frame in its send buffer, so the frame's size times the streams is what slow readers
can make a process hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.records.size import item_bytes, row_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.core.records.batch import Batch

FRAME_BYTES: Final = 64 << 10
"""Elsewhere a message as large as the writer made it. 64 KiB: 640 MiB for 10 000 streams that all stand still; 25 000 frames
a second out of one process are 1.6 GB/s, so nothing is lost by it. A larger record goes alone."""


def pieces(batch: Batch) -> Iterator[Batch]:
    """Cut a batch into consecutive pieces of at most `FRAME_BYTES`, each of at least one record."""
    if item_bytes(batch) <= FRAME_BYTES:
        yield batch
        return
    ends = np.cumsum(row_bytes(batch))
    start = taken = 0
    while start < batch.count:
        stop = max(start + 1, int(np.searchsorted(ends, taken + FRAME_BYTES, side="right")))
        yield batch.slice(start, stop)
        taken = int(ends[stop - 1])
        start = stop
