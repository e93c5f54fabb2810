"""One column of variable-length cells, and the operations on a whole column: slice, concat, select, canonical form.

Layout (Arrow's binary, and that of the write-ahead log): `offsets` u32 little-endian, count + 1 of them; `values` the
cells' bytes, concatenated; `validity` one bit a cell, least significant first, 1 = present, None = all present. Columns
of the first kind (key, data, tag, node) have absence: no column at all means that all cells are absent. Columns of the
second kind (meta, version) have none: no column means that all cells are empty.

Invariants of a canonical column:
    I1 the first offset is 0, offsets never decrease, the last is the length of `values`, below 2^31.
    I2 an absent cell has length 0; bits of `validity` beyond the count are 0.
    I3 redundant parts are left out: a bitmap of all ones, a column all absent (first kind) or all empty (second kind).

Every function here takes canonical columns and returns canonical ones, so columns of equal content are equal bytes.
Foreign bytes are checked by `eddyline.core.records.validation`, not here. Threading: pure functions.

Bitmaps are handled as whole Python integers: comparing, slicing or joining 1 000 bits takes about 0.1 us, a call of
numpy 1 us. For the same reason a column of one cell, the single-record append, never reaches numpy.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eddyline.core.errors import MalformedColumns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Buffer = bytes | memoryview

COLUMN_BYTES_END: Final = 1 << 31
"""Arrow's offsets are signed 32-bit."""

UNRELEASED_CELLS: Final = 500
"""numpy's own threshold: up to this length an operation keeps the interpreter's lock."""

_OFFSET: Final = np.dtype("<u4")

assert sys.byteorder == "little", "columns are little-endian and are never swapped"


class Column(NamedTuple):
    """Cells as buffers. The module's docstring has the layout."""

    offsets: Buffer
    values: Buffer
    validity: Buffer | None = None

    @property
    def nbytes(self) -> int:
        """Total length of the buffers."""
        offsets, values, validity = self
        return len(offsets) + len(values) + (len(validity) if validity is not None else 0)


class Runs(NamedTuple):
    """Selected rows as runs of neighbours: rows `starts[i]` to `ends[i]`, half-open, in their order."""

    indices: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def offset_array(offsets: Buffer) -> NDArray[np.uint32]:
    """Return the offsets as an array over the same bytes."""
    return np.frombuffer(offsets, _OFFSET)


def offset_list(offsets: Buffer) -> list[int]:
    """Return the offsets as numbers."""
    return array("I", bytes(offsets)).tolist()


def size_array(column: Column) -> NDArray[np.int64]:
    """Return the length of each cell."""
    return np.diff(offset_array(column.offsets)).astype(np.int64)


def presence(column: Column, count: int) -> NDArray[np.bool_]:
    """Return one flag a cell: True = present."""
    if column.validity is None:
        return np.ones(count, dtype=np.bool_)
    bits = np.frombuffer(column.validity, dtype=np.uint8)
    return np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)


def has_empty_cell(column: Column) -> bool:
    """Return True if a cell of a column in which all are present has no bytes."""
    if len(column.offsets) == 8:
        return not column.values
    bounds = offset_array(column.offsets)
    for start in range(0, len(bounds) - 1, UNRELEASED_CELLS):
        run = bounds[start : start + UNRELEASED_CELLS + 1]
        if np.count_nonzero(run[1:] == run[:-1]):
            return True
    return False


def canonical_column(column: Column | None, count: int, *, absence: bool) -> Column | None:
    """Drop the redundant parts: takes a column of I1 and I2, returns one of I3."""
    if column is None or count == 0 or not (absence or column.values):
        return None
    if column.validity is None:
        return column
    bits = int.from_bytes(column.validity, "little")
    return _with_bits(column.offsets, column.values, bits, count)


def slice_column(column: Column, start: int, stop: int, *, absence: bool) -> Column | None:
    """Return cells `start` to `stop` (half-open, not empty), over the same values."""
    offsets = memoryview(column.offsets)[4 * start : 4 * stop + 4]
    first, last = int.from_bytes(offsets[:4], "little"), int.from_bytes(offsets[-4:], "little")
    if not absence and first == last:
        return None
    values: Buffer = column.values
    if first != 0 or last != len(values):
        values = memoryview(values)[first:last]
    rebased: Buffer = offsets if first == 0 else (offset_array(offsets) - np.uint32(first)).tobytes()
    if column.validity is None:
        return Column(rebased, values, None)
    bits = (int.from_bytes(column.validity, "little") >> start) & _ones(stop - start)
    return _with_bits(rebased, values, bits, stop - start)


def concat_columns(columns: Sequence[Column | None], counts: Sequence[int], *, absence: bool) -> Column | None:
    """Join columns in order.

    The cost is low per column and none per cell: a frame joins thousands of single-record appends.

    Raises:
        MalformedColumns: the cells reach 2^31 bytes.
    """
    if columns.count(None) == len(columns):
        return None
    values = b"".join([column.values for column in columns if column is not None])
    check_length(len(values))
    parts = [
        column.offsets if column is not None else bytes(4 * count + 4)
        for column, count in zip(columns, counts, strict=True)
    ]
    ends = np.cumsum(np.asarray(counts, dtype=np.int64) + 1)[:-1]
    sizes = np.diff(offset_array(b"".join(parts)))
    # Between one column's offsets and the next one's there is no cell.
    offsets = sizes_to_offsets(np.delete(sizes, ends - 1))
    if not absence or all(column is not None and column.validity is None for column in columns):
        return Column(offsets, values, None)
    bits = position = 0
    for column, count in zip(columns, counts, strict=True):
        if column is not None:
            part = _ones(count) if column.validity is None else int.from_bytes(column.validity, "little")
            bits |= part << position
        position += count
    return _with_bits(offsets, values, bits, position)


def runs_of(indices: NDArray[np.int64]) -> Runs:
    """Group selected rows (at least one) into runs of neighbours."""
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    starts = indices[np.concatenate(([0], breaks))]
    ends = indices[np.concatenate((breaks - 1, [len(indices) - 1]))] + 1
    return Runs(indices, starts, ends)


def select_column(column: Column, count: int, runs: Runs, *, absence: bool) -> Column | None:
    """Return the cells of the selected rows, copied run by run."""
    bounds = offset_array(column.offsets)
    view = memoryview(column.values)
    pieces = zip(bounds[runs.starts].tolist(), bounds[runs.ends].tolist(), strict=True)
    values = b"".join([view[start:end] for start, end in pieces])
    if not (absence or values):
        return None
    check_length(len(values))
    offsets = sizes_to_offsets(np.diff(bounds)[runs.indices])
    if column.validity is None:
        return Column(offsets, values, None)
    packed = np.packbits(presence(column, count)[runs.indices], bitorder="little")
    return _with_bits(offsets, values, int.from_bytes(packed.tobytes(), "little"), len(runs.indices))


def sizes_to_offsets(sizes: NDArray[np.uint32]) -> bytes:
    """Return the offsets of cells of these lengths."""
    offsets = np.zeros(len(sizes) + 1, dtype="<u4")
    np.cumsum(sizes, out=offsets[1:])
    return offsets.tobytes()


def _with_bits(offsets: Buffer, values: Buffer, bits: int, count: int) -> Column | None:
    if bits == 0:
        return None
    if bits == _ones(count):
        return Column(offsets, values, None)
    return Column(offsets, values, bits.to_bytes((count + 7) // 8, "little"))


def _ones(count: int) -> int:
    return (1 << count) - 1


def check_length(length: int) -> None:
    """Check the total length of a column's cells.

    Raises:
        MalformedColumns: it reaches 2^31 bytes.
    """
    if length >= COLUMN_BYTES_END:
        raise MalformedColumns(f"a column of {length} bytes, not below {COLUMN_BYTES_END}", lengthBytes=length)
