"""A batch as a `pyarrow.RecordBatch` with the contract's schema, over the batch's own bytes.

    seq uint64, ts timestamp[ms, UTC], source_ts_ns int64, op uint8, key binary, tag utf8, node utf8, meta binary, data
    binary, version binary

Columns of cells are wrapped in both directions, never copied. `to_arrow` fills in the columns that a batch leaves out
(ordinals, nulls, empty cells); `from_arrow` leaves them out again. `meta` is the cell of `eddyline.core.records.meta`;
an empty `version` stands for the seq in 8 bytes, as on the wire. Each result keeps the buffers of its source alive.

I1: `from_arrow(to_arrow(batch)) == batch`, also through Arrow's IPC, for canonical batches.

pyarrow is imported at the first call: it is an optional dependency of 100 MB that only Arrow's readers need, and its
import takes 35 MiB of memory and 55 ms of processor time (`make bench ROWS=P25`). A later call pays 0.1 us for the line.
`pa.array` of Python objects is not used: it imports pandas, where that is installed, for another 50 MiB and 0.9 s.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.errors import MalformedColumns
from eddyline.core.records.batch import Batch
from eddyline.core.records.column import Column, slice_column
from eddyline.core.records.fixed import canonical_each, canonical_ops, canonical_seqs, canonical_times
from eddyline.core.records.record import Op

if TYPE_CHECKING:
    import pyarrow as pa

    from eddyline.core.records.column import Buffer

COLUMN_NAMES: Final = ("seq", "ts", "source_ts_ns", "op", "key", "tag", "node", "meta", "data", "version")
"""Names of the schema's columns in their order, for callers that need no more of Arrow."""


def to_arrow(batch: Batch) -> pa.RecordBatch:
    """Return the batch as an Arrow batch. Takes about 30 us, whatever the size of the cells."""
    import pyarrow as pa

    count = batch.count
    times = np.full(count, batch.ts_ms, dtype="<i8") if batch.ts_ms_each is None else batch.ts_ms_each
    ops = np.full(count, Op.APPEND, dtype=np.uint8) if batch.ops is None else batch.ops
    source_times = bytes(8 * count) if batch.source_ts_ns is None else batch.source_ts_ns
    arrays = [
        _fixed(pa.uint64(), count, batch.seq_array()),
        _fixed(pa.timestamp("ms", tz="UTC"), count, times),
        _fixed(pa.int64(), count, source_times),
        _fixed(pa.uint8(), count, ops),
        _cells(pa.binary(), count, batch.key, absence=True),
        _cells(pa.utf8(), count, batch.tag, absence=True),
        _cells(pa.utf8(), count, batch.node, absence=True),
        _cells(pa.binary(), count, batch.meta, absence=False),
        _cells(pa.binary(), count, batch.data, absence=True),
        _cells(pa.binary(), count, batch.version, absence=False),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema())


def from_arrow(batch: pa.RecordBatch) -> Batch:
    """Return a canonical batch over Arrow's own buffers.

    A null cell must have no bytes, as in our columns; only the schema is checked.

    Raises:
        MalformedColumns: another schema.
    """
    if not batch.schema.equals(arrow_schema()):
        raise MalformedColumns("an Arrow batch of another schema", field="schema")
    count = batch.num_rows
    if count == 0:
        return Batch(0)
    seq, ts, source_ts_ns, op, key, tag, node, meta, data, version = batch.columns
    first_seq, seqs = canonical_seqs(0, _numbers(seq, 8))
    ts_ms, ts_ms_each = canonical_each(0, _numbers(ts, 8))
    return Batch(
        count,
        first_seq=first_seq,
        seqs=seqs,
        ts_ms=ts_ms,
        ts_ms_each=ts_ms_each,
        ops=canonical_ops(_numbers(op, 1)),
        source_ts_ns=canonical_times(_numbers(source_ts_ns, 8)),
        key=_column(key, absence=True),
        data=_column(data, absence=True),
        tag=_column(tag, absence=True),
        node=_column(node, absence=True),
        meta=_column(meta, absence=False),
        version=_column(version, absence=False),
    )


@cache
def arrow_schema() -> pa.Schema:
    """Return the schema of every batch and segment."""
    import pyarrow as pa

    schema = pa.schema(
        [
            pa.field("seq", pa.uint64(), nullable=False),
            pa.field("ts", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("source_ts_ns", pa.int64(), nullable=False),
            pa.field("op", pa.uint8(), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("tag", pa.utf8()),
            pa.field("node", pa.utf8()),
            pa.field("meta", pa.binary(), nullable=False),
            pa.field("data", pa.binary()),
            pa.field("version", pa.binary(), nullable=False),
        ]
    )
    assert tuple(schema.names) == COLUMN_NAMES
    return schema


def _fixed(kind: pa.DataType, count: int, buffer: Buffer | np.ndarray[tuple[int], np.dtype[np.generic]]) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(buffer)], null_count=0)


def _cells(kind: pa.DataType, count: int, column: Column | None, *, absence: bool) -> pa.Array:
    import pyarrow as pa

    if column is None:
        if absence:
            return pa.nulls(count, kind)
        empty = [None, pa.py_buffer(bytes(4 * count + 4)), pa.py_buffer(b"")]
        return pa.Array.from_buffers(kind, count, empty, null_count=0)
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.values)]
    return pa.Array.from_buffers(kind, count, buffers, null_count=0 if validity is None else -1)


def _numbers(array: pa.Array, width: int) -> memoryview:
    return _bytes(array.buffers()[1])[width * array.offset : width * (array.offset + len(array))]


def _column(array: pa.Array, *, absence: bool) -> Column | None:
    count, start = len(array), array.offset
    if array.null_count == count and absence:
        return None
    validity, offsets, values = array.buffers()
    whole = Column(
        _bytes(offsets)[: 4 * (start + count + 1)],
        b"" if values is None else _bytes(values),
        None if validity is None or array.null_count == 0 else _bytes(validity),
    )
    return slice_column(whole, start, start + count, absence=absence)


def _bytes(buffer: pa.Buffer) -> memoryview:
    # Arrow's bytes are signed, and a signed view of 0xff is not equal to that of a bytes.
    return memoryview(buffer).cast("B")
