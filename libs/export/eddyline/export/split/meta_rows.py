"""The store's meta cells as Spark's list of named values, a column at once.

The cells' bytes are cut where the entries' parts begin and end, without copying them, and names and values are taken from
those pieces: two copies of the bytes, and no work of Python's for an entry. The grammar is that of
`eddyline.core.records.meta`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.core.records.column import Column
from eddyline.core.records.meta import entries_of_cells
from eddyline.export.split.made_arrays import int64_array


def meta_lists(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of cells as one of `kind`, a list of structs of name and value.

    Raises:
        EddylineError: MalformedColumns, RecordTooLarge: cells that do not follow their grammar.
    """
    count = len(cells)
    _, offsets, values = cells.buffers()
    bounds = np.frombuffer(offsets, dtype="<u4", count=count + 1, offset=4 * cells.offset)
    first, last = int(bounds[0]), int(bounds[-1])
    if first == last:
        return _lists(np.zeros(count + 1, dtype=np.int32), pa.nulls(0, pa.binary()), pa.nulls(0, pa.binary()), kind)
    raw = memoryview(values)[first:last].cast("B")
    entries = entries_of_cells(Column((bounds - bounds[0]).tobytes(), raw, None))
    total = len(entries.cells)
    cuts = np.empty(4 * total + 1, dtype=np.int32)
    cuts[0:-1:4] = entries.name_starts - 2
    cuts[1::4] = entries.name_starts
    cuts[2::4] = entries.name_ends
    cuts[3::4] = entries.name_ends + 4
    cuts[-1] = last - first
    pieces = pa.Array.from_buffers(
        pa.binary(), 4 * total, [None, pa.py_buffer(cuts), values.slice(first, last - first)], 0
    )
    names = pc.take(pieces, int64_array(np.arange(1, 4 * total, 4)))
    held = pc.take(pieces, int64_array(np.arange(3, 4 * total, 4)))
    ends = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(entries.cells, minlength=count), out=ends[1:])
    return _lists(ends, names, held, kind)


def _lists(
    offsets: np.ndarray[tuple[int], np.dtype[np.int32]], names: pa.Array, held: pa.Array, kind: pa.DataType
) -> pa.Array:
    structs = pa.StructArray.from_arrays([names.cast(pa.utf8()), held], fields=list(kind.value_type))
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets)], 0, children=[structs])
