"""Snapshot scan: a topic's current values at one point, from the store's fold.

One range scan of the fold, which the store serves from a view at one seq: each key once, whatever is written meanwhile;
the log after that seq follows without gap or duplicate. With several key prefixes the scan covers their common prefix,
and the rest is filtered here. Rejected: a scan per prefix, each at a point of its own, which no single seq describes.
A scan that the store ends (it lasted too long, or the store stopped), or whose slot was revoked, cannot continue at the
same point: `snapshot_phase.py` defines how its snapshot continues.

I1: a scan is open only while its slot is held. I2: at most one page is kept, split into parts of a frame's size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.model.record_filter import matching
from eddyline.delivery.feed.frame_split import split_batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.model.read import RangePage, RecordFilter
    from eddyline.core.records.batch import Batch
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.delivery.fetch.scan_slots import ScanSlot


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Part of a snapshot: the first has `begins`, the last `ends`. `values` None = none in this part."""

    epoch: int
    fold_seq: int
    begins: bool
    ends: bool
    values: Batch | None


class FoldPoint(NamedTuple):
    """A fold at one seq of one epoch."""

    epoch: int
    seq: int


class Snapshot:
    """One scan of a fold, which begins when its slot is held. The reader closes it, unless it reached its end."""

    def __init__(
        self,
        link: StoreLink,
        topic: str,
        record_filter: RecordFilter,
        slot: ScanSlot,
        *,
        after_key: bytes = b"",
        min_seq: int = 0,
    ) -> None:
        self.slot = slot
        self._filter = record_filter
        self._pages: AsyncIterator[RangePage] = link.range_entries(
            topic, key_prefix=_common(record_filter.key_prefixes), after_key=after_key, min_seq=min_seq
        )
        self._parts: deque[SnapshotPart] = deque()
        self._epoch = 0
        self._fold_seq = 0
        self.started = False
        self.count = 0

    @property
    def point(self) -> FoldPoint | None:
        """Point of its entries; None = not known yet."""
        return FoldPoint(self._epoch, self._fold_seq) if self._epoch else None

    def take(self) -> SnapshotPart | None:
        """Return the next part, if there is one; None = call `read`."""
        self.slot.start_idle()
        return self._parts.popleft() if self._parts else None

    async def read(self) -> None:
        """Read until there is a part to take. Raises: as `StoreLink.range_entries`."""
        assert self.slot.held, "a scan is opened by who holds a slot"
        self.started = True
        self.slot.pause_idle()
        try:
            page = await anext(self._pages)
        except StopAsyncIteration:
            assert self._epoch, "a range has at least one page"
            self._parts.append(SnapshotPart(self._epoch, self._fold_seq, begins=False, ends=True, values=None))
            self.slot.release()
            return
        begins = self._epoch == 0
        self._epoch, self._fold_seq = page.state.epoch, page.state.fold_seq
        values = page.batch
        if values is not None and not self._filter.passes_all():
            indices = matching(values, self._filter)
            values = values if indices is None else values.select(indices)
        if begins or values is None:
            self._parts.append(SnapshotPart(self._epoch, self._fold_seq, begins=begins, ends=False, values=None))
        if values is not None:
            self.count += values.count
            self._parts += (
                SnapshotPart(self._epoch, self._fold_seq, begins=False, ends=False, values=piece)
                for piece in split_batch(values)
            )
        self.slot.start_idle()

    async def close(self) -> None:
        """Close the store's view, then release the slot."""
        try:
            if self.started and isinstance(self._pages, AsyncGenerator):
                await self._pages.aclose()
        finally:
            self.slot.release()


def _common(key_prefixes: tuple[bytes, ...]) -> bytes:
    """Return the common prefix of all prefixes. They are sorted, so the first and the last differ the most."""
    if not key_prefixes:
        return b""
    first, last = key_prefixes[0], key_prefixes[-1]
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return first[:length]
