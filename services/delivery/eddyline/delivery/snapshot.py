"""Snapshots: a topic's current values at one point, as the store's fold has them.

One range scan of the fold, which the store serves from a view at one seq: each key once, whatever is written meanwhile;
the log after that seq follows without gap or double. With several key prefixes the scan runs over what they have in
common and the rest is filtered here. Rejected: a scan a prefix, each at a point of its own, which no single seq
describes.
A scan that the store gives up (it lasted too long, or the store went away) cannot go on at the same point: the
subscriber begins a new snapshot, which replaces all of the unfinished one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eddyline.core.select import matching

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.batch import Batch
    from eddyline.core.read import RangePage, RecordFilter
    from eddyline.core.store_link import StoreLink


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """A piece: the first begins it, the last ends it. `values` None = none in this piece."""

    epoch: int
    fold_seq: int
    begins: bool
    ends: bool
    values: Batch | None


class Snapshot:
    """One pass over a fold. The reader closes it."""

    def __init__(self, link: StoreLink, topic: str, record_filter: RecordFilter) -> None:
        self._filter = record_filter
        self._pages: AsyncIterator[RangePage] = link.range_entries(
            topic, key_prefix=_common(record_filter.key_prefixes)
        )
        self._epoch = 0
        self._fold_seq = 0
        self.count = 0

    async def read(self) -> SnapshotPart:
        """The next piece. Raises what `StoreLink.range_entries` does."""
        try:
            page = await anext(self._pages)
        except StopAsyncIteration:
            assert self._epoch, "a range has at least one page"
            return SnapshotPart(self._epoch, self._fold_seq, begins=False, ends=True, values=None)
        begins = self._epoch == 0
        self._epoch, self._fold_seq = page.state.epoch, page.state.fold_seq
        values = page.batch
        if values is not None and not self._filter.passes_all():
            indices = matching(values, self._filter)
            values = values if indices is None else values.select(indices)
        if values is not None:
            self.count += values.count
        return SnapshotPart(self._epoch, self._fold_seq, begins=begins, ends=False, values=values)

    async def close(self) -> None:
        """Let the store give up its view."""
        if isinstance(self._pages, AsyncGenerator):
            await self._pages.aclose()


def _common(key_prefixes: tuple[bytes, ...]) -> bytes:
    """What all prefixes begin with. They are sorted, so the first and the last differ the most."""
    if not key_prefixes:
        return b""
    first, last = key_prefixes[0], key_prefixes[-1]
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return first[:length]
