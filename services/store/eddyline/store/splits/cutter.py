"""Split cutter: joins parts of a topic, in order, to splits of at most so many records and bytes.

I1: a part is in one split, whole; a part above a split's bounds is a split of its own. I2: splits ascend; only skipped rows
lie between two of them.
Threading: pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eddyline.store.splits.model import Split, SplitKind


class SplitCutter:
    """Makes up to `limit` splits. Rows are counted as the split kind says: seqs, or row numbers of a base."""

    def __init__(self, template: Split, *, records_max: int, bytes_max: int, limit: int) -> None:
        """Begin at the template's `first`."""
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._limit = limit
        self._template = template
        self._open: Split | None = None
        self.splits: list[Split] = []
        self.last_row = template.first - 1
        """The last row that was added or skipped."""

    @property
    def kind(self) -> SplitKind:
        """Kind of the split being cut."""
        return self._template.kind

    def begin(self, template: Split) -> None:
        """Continue with rows of another kind, from the template's `first` on."""
        self._close()
        self._template = template
        self.last_row = template.first - 1

    def fits(self, records: int, size_bytes: int) -> bool:
        """Return whether a part of this size fits whole into the open split, or into a new one if none is open."""
        if self._open is not None:
            records, size_bytes = records + self._open.record_count, size_bytes + self._open.size_bytes
        return records <= self._records_max and size_bytes <= self._bytes_max

    def add(self, last: int, records: int, size_bytes: int) -> bool:
        """Add the next part, up to row `last`. False = not added: `limit` splits are made already."""
        if self._open is not None and self.fits(records, size_bytes):
            self._open = self._open._replace(
                last=last,
                record_count=self._open.record_count + records,
                size_bytes=self._open.size_bytes + size_bytes,
            )
        else:
            self._close()
            if len(self.splits) == self._limit:
                return False
            self._open = self._template._replace(
                first=self.last_row + 1, last=last, record_count=records, size_bytes=size_bytes
            )
        self.last_row = last
        return True

    def skip(self, last: int) -> None:
        """Skip all rows up to `last`: they are in a split only if that split continues after them."""
        self.last_row = max(self.last_row, last)

    def finish(self, last: int, *, covers: bool) -> bool:
        """End at row `last`, with no part left. `covers` = rows without records belong to a split too. False = as `add`."""
        if self.last_row < last and (self._open is not None or covers) and not self.add(last, 0, 0):
            return False
        self._close()
        return True

    def _close(self) -> None:
        if self._open is not None:
            self.splits.append(self._open)
            self._open = None
