"""Batches that were just written or read, in memory, bounded in bytes: WAL frames and segments' record batches alike.

Followers and readers at the tail get their batches from here without touching the disk. Least recently used goes first.
A key is where the batch lies (a topic's id and a frame's place, or a segment and a number): what is there never changes.
Threading: event loop only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

    from eddyline.core.records.batch import Batch

ENTRY_OVERHEAD_BYTES: Final = 512
"""What a cached batch costs beside its buffers (objects, keys); seen with tracemalloc, rounded up."""


class _Kept(NamedTuple):
    batch: Batch
    bytes: int


class BatchCache:
    """Batches by their place."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self.bytes = 0

    def add(self, key: Hashable, batch: Batch, batch_bytes: int | None = None) -> None:
        """Keep a batch, of which its bytes may be known; the oldest go where the bound is passed. One that is larger than
        the bound is not kept."""
        if key in self._kept:
            return
        size = (batch.nbytes if batch_bytes is None else batch_bytes) + ENTRY_OVERHEAD_BYTES
        if size > self._bytes_max:
            return  # it would push out all others, and then itself
        self._kept[key] = _Kept(batch, size)
        self.bytes += size
        while self.bytes > self._bytes_max:
            _, evicted = self._kept.popitem(last=False)
            self.bytes -= evicted.bytes

    def get(self, key: Hashable) -> Batch | None:
        """The batch at this place, if it is here."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        self._kept.move_to_end(key)
        return kept.batch
