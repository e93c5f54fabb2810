"""Snapshots: a topic's current values at one point, as the store's fold has them.

One range scan of the fold, which the store serves from a view at one seq: each key once, whatever is written meanwhile;
the log after that seq follows without gap or double. With several key prefixes the scan runs over what they have in
common and the rest is filtered here. Rejected: a scan a prefix, each at a point of its own, which no single seq
describes.
A scan that the store gives up (it lasted too long, or the store went away), or whose slot was taken back, cannot go on
at the same point: `snapshot_pass.py` says what becomes of its snapshot.

I1: a scan is open only while its slot is held. I2: at most one page is kept, cut to parts the size of a frame.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.model.record_filter import matching
from eddyline.delivery.feed.frame_split import pieces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.model.read import RangePage, RecordFilter
    from eddyline.core.records.batch import Batch
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.delivery.fetch.scan_slots import ScanSlot


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """A piece: the first begins it, the last ends it. `values` None = none in this piece."""

    epoch: int
    fold_seq: int
    begins: bool
    ends: bool
    values: Batch | None


class Point(NamedTuple):
    """A fold at one seq of one epoch."""

    epoch: int
    seq: int


class Snapshot:
    """One scan of a fold, which begins when its slot is held. The reader closes it, unless it came to its end."""

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
    def point(self) -> Point | None:
        """What its entries are of; None = not known yet."""
        return Point(self._epoch, self._fold_seq) if self._epoch else None

    def take(self) -> SnapshotPart | None:
        """The next part, if it is there; None = `read`."""
        self.slot.offered()
        return self._parts.popleft() if self._parts else None

    async def read(self) -> None:
        """Read until there is a part to take. Raises what `StoreLink.range_entries` does."""
        assert self.slot.held, "a scan is opened by who holds a slot"
        self.started = True
        self.slot.reading()
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
                for piece in pieces(values)
            )
        self.slot.offered()

    async def close(self) -> None:
        """Let the store give up its view, then give the slot back."""
        try:
            if self.started and isinstance(self._pages, AsyncGenerator):
                await self._pages.aclose()
        finally:
            self.slot.release()


def _common(key_prefixes: tuple[bytes, ...]) -> bytes:
    """What all prefixes begin with. They are sorted, so the first and the last differ the most."""
    if not key_prefixes:
        return b""
    first, last = key_prefixes[0], key_prefixes[-1]
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return first[:length]
