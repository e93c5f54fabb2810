"""Parts of a topic, in order, joined to splits of at most so many records and bytes.

I1: a part is in one split, whole; one that is larger than a split may be is a split of its own. I2: splits ascend; between
two of them lies only what was passed over.
Threading: pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eddyline.store.splits.model import Split, SplitKind


class SplitCutter:
    """Makes up to `limit` splits. Rows are those of the kind at hand: seqs, or numbers of a base's rows."""

    def __init__(self, template: Split, *, records_max: int, bytes_max: int, limit: int) -> None:
        """Begins at the template's `first`."""
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._limit = limit
        self._template = template
        self._open: Split | None = None
        self.splits: list[Split] = []
        self.at = template.first - 1
        """The last row that was added or passed over."""

    @property
    def kind(self) -> SplitKind:
        """What is being cut."""
        return self._template.kind

    def begin(self, template: Split) -> None:
        """Go on with rows of another kind, from the template's `first` on."""
        self._close()
        self._template = template
        self.at = template.first - 1

    def fits(self, records: int, size_bytes: int) -> bool:
        """True = a part of this size goes whole into the split at hand, or into a new one where there is none."""
        if self._open is not None:
            records, size_bytes = records + self._open.record_count, size_bytes + self._open.size_bytes
        return records <= self._records_max and size_bytes <= self._bytes_max

    def add(self, last: int, records: int, size_bytes: int) -> bool:
        """The next part, up to row `last`. False = it was not taken: there are as many splits as were asked for."""
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
                first=self.at + 1, last=last, record_count=records, size_bytes=size_bytes
            )
        self.at = last
        return True

    def skip(self, last: int) -> None:
        """Pass over all up to row `last`: it is in no split that does not go on behind it."""
        self.at = max(self.at, last)

    def finish(self, last: int, *, covers: bool) -> bool:
        """There is nothing more up to row `last`, the end. `covers` = what holds no record is in a split too. False = as
        `add`."""
        if self.at < last and (self._open is not None or covers) and not self.add(last, 0, 0):
            return False
        self._close()
        return True

    def _close(self) -> None:
        if self._open is not None:
            self.splits.append(self._open)
            self._open = None
