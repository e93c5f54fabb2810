"""`RecordSequence`: a batch's records as a sequence of rows, which are made when a reader touches them.

Length, slices and sizes cost nothing per record. The first record touched is made alone (the newest of a frame, say);
iteration and the second touch make all rows at once, in bulk, and keep them.

It stands in the place of a tuple of records: equal to, and hashed, added and printed as the tuple of its rows, and
pickled as that tuple. Versions are as readers get them (`effective_version`).
Threading: immutable to its readers; two threads that touch it at once may both make the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from eddyline.core.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.core.records.batch import Batch


class RecordSequence(Sequence[Record]):
    """The rows of a batch. The module's docstring has the semantics."""

    __slots__ = ("_rows", "_touched", "batch")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        """The records as columns."""
        self._rows: tuple[Record, ...] | None = None
        self._touched = False

    def rows(self) -> tuple[Record, ...]:
        """Return all rows; made at the first call."""
        rows = self._rows
        if rows is None:
            rows = self._rows = tuple(self.batch.to_rows(effective_versions=True))
        return rows

    def __len__(self) -> int:
        return self.batch.count

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        """Return one record, or a part as a sequence over the same columns."""
        if self._rows is not None:
            return self._rows[index]
        if isinstance(index, slice):
            start, stop, step = index.indices(self.batch.count)
            return RecordSequence(self.batch.slice(start, stop)) if step == 1 else self.rows()[index]
        if self._touched or self.batch.count == 1:
            return self.rows()[index]
        place = range(self.batch.count)[index]
        self._touched = True
        return self.batch.slice(place, place + 1).to_rows(effective_versions=True)[0]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.rows())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RecordSequence):
            return self.rows() == other.rows()
        return self.rows() == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.rows())

    def __add__(self, other: object) -> tuple[Record, ...]:
        if isinstance(other, tuple | RecordSequence):
            return self.rows() + tuple(other)
        return NotImplemented

    def __radd__(self, other: object) -> tuple[Record, ...]:
        return other + self.rows() if isinstance(other, tuple) else NotImplemented

    def __repr__(self) -> str:
        return repr(self.rows())

    def __reduce__(self) -> tuple[type[tuple[Record, ...]], tuple[tuple[Record, ...]]]:
        return tuple, (self.rows(),)


def key_data_bytes(records: Sequence[Record]) -> int:
    """Return the bytes of all keys and data; rows of a `RecordSequence` are not made for it."""
    if isinstance(records, RecordSequence):
        batch = records.batch
        return sum(len(column.values) for column in (batch.key, batch.data) if column is not None)
    return sum(len(record.key or b"") + len(record.data or b"") for record in records)
