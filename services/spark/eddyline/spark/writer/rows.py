"""Rows of Spark, or of a Parquet file, as batches: Arrow's columns become ours, without a look at single rows.

Columns that are written, each by its name and any of them left out: `key`, `data` (binary or string), `tag`, `node`, `op`
(string), `source_ts` (timestamp with a zone) or `source_ts_ns` (bigint), `meta` (array of struct of name and value). Fields
that the store sets cannot be written. Empty and null are kept apart; a null `op` is the topic's own, a null time is
unknown, null `meta` is empty.

I1: what comes out is a batch that the store takes on a topic of this kind, or an error that names the row by its ordinal,
the column and the reason. I2: rows keep their order and their number. Threads: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.core.errors import EddylineError, InvalidArgument, InvalidOp, KeyRequired, MalformedColumns
from eddyline.core.model.topic import Kind
from eddyline.core.records.arrow import arrow_schema, from_arrow
from eddyline.core.records.record import Op
from eddyline.core.records.validation import check_limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.core.records.batch import Batch

WRITTEN: Final = ("key", "data", "tag", "node", "op", "source_ts", "source_ts_ns", "meta")
GIVEN_BY_THE_STORE: Final = ("topic", "seq", "ts", "key_text", "data_text", "version")
"""Columns of a read that a write ignores."""
_OPS_OF: Final = {Kind.LOG: (Op.APPEND,), Kind.KV: (Op.PUT, Op.DELETE, Op.PURGE)}
_EXPECTED: Final = {
    "key": "binary or string",
    "data": "binary or string",
    "tag": "string",
    "node": "string",
    "op": "string",
    "source_ts": "timestamp (with a zone)",
    "source_ts_ns": "bigint",
    "meta": "array<struct<name:string,value:binary>>",
}


def check_columns(schema: pa.Schema, kind: Kind, topic: str) -> None:
    """Judge the columns of a write to a topic of this kind.

    Raises:
        InvalidArgument: a column that is not written, is of another type, is there twice, or is missing.
    """
    names: list[str] = schema.names
    for name in names:
        if name in GIVEN_BY_THE_STORE:
            given = [given for given in names if given in GIVEN_BY_THE_STORE]
            raise _refused(name, f"the store sets it; leave out {', '.join(given)}")
        if name not in WRITTEN:
            raise _refused(name, f"it is unknown; allowed are {', '.join(WRITTEN)}")
        if names.count(name) > 1:
            raise _refused(name, "it occurs twice")
        if not _fits(name, schema.field(name).type):
            raise _refused(name, f"it has type {schema.field(name).type}, expected: {_EXPECTED[name]}")
    if "source_ts" in names and "source_ts_ns" in names:
        raise _refused("source_ts", "source_ts_ns is also given, with the same value: leave out one")
    if kind is Kind.KV and "key" not in names:
        raise _refused("key", f"it is missing: topic {topic} is of kind KV, and every record of it needs a key")
    if not {"key", "data"} & set(names):
        raise _refused("data", f"it is missing, and so is key; found: {', '.join(names) or 'no column'}")


def rows_to_batch(rows: pa.RecordBatch, kind: Kind, first_ordinal: int = 0) -> Batch:
    """Rows with checked columns, as a batch; `first_ordinal` is the first one's place in its partition or file.

    Raises:
        EddylineError: InvalidOp, KeyRequired, MalformedColumns, RecordTooLarge: of the first row that is wrong, by its
            ordinal.
    """
    try:
        return _batch(rows, kind)
    except EddylineError as error:
        raise at_ordinal(error, first_ordinal) from None


def at_ordinal(error: EddylineError, first_ordinal: int) -> EddylineError:
    """The error of a batch's row, told by the row's place among all."""
    index = error.metadata.get("index")
    if index is None:
        return error
    ordinal = first_ordinal + int(index)
    message = error.message.removeprefix(f"record {index}: ")
    metadata: dict[str, str | int] = {**error.metadata, "index": ordinal}
    return type(error)(f"row {ordinal}: {message}", **metadata)


def _batch(rows: pa.RecordBatch, kind: Kind) -> Batch:
    count = rows.num_rows
    columns = {name: rows.column(index) for index, name in enumerate(rows.schema.names)}
    arrays = [
        _zeros(pa.uint64(), count),
        _zeros(pa.timestamp("ms", tz="UTC"), count),
        _times(columns, count),
        _ops(columns.get("op"), kind, count),
        _cells(columns.get("key"), pa.binary(), count),
        _text(columns.get("tag"), "tag", count),
        _text(columns.get("node"), "node", count),
        _meta(columns.get("meta"), count),
        _cells(columns.get("data"), pa.binary(), count),
        _empty_cells(count),
    ]
    batch = from_arrow(pa.RecordBatch.from_arrays(arrays, schema=arrow_schema()))
    if kind is Kind.KV:
        _check_keys(arrays[4])
    check_limits(batch)
    return batch


def _fits(name: str, kind: pa.DataType) -> bool:
    types = pa.types
    if name in {"key", "data"}:
        return bool(_is_binary(kind) or _is_text(kind))
    if name in {"tag", "node", "op"}:
        return _is_text(kind)
    if name == "source_ts":
        return bool(types.is_timestamp(kind) and kind.tz is not None)
    if name == "source_ts_ns":
        return bool(types.is_integer(kind))
    if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_struct(kind.value_type):
        return False
    entry = kind.value_type
    fields = [entry.field(index) for index in range(entry.num_fields)]
    return (
        [field.name for field in fields] == ["name", "value"]
        and _is_text(fields[0].type)
        and _is_binary(fields[1].type)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _zeros(kind: pa.DataType, count: int) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(bytes(8 * count))], null_count=0)


def _empty_cells(count: int) -> pa.Array:
    buffers = [None, pa.py_buffer(bytes(4 * count + 4)), pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.binary(), count, buffers, null_count=0)


def _times(columns: Mapping[str, pa.Array], count: int) -> pa.Array:
    if (exact := columns.get("source_ts_ns")) is not None:
        return pc.fill_null(exact.cast(pa.int64()), 0)
    if (moment := columns.get("source_ts")) is None:
        return _zeros(pa.int64(), count)
    try:
        nanoseconds = moment.cast(pa.timestamp("ns", tz="UTC"))
    except pa.ArrowInvalid:
        # Of a day beyond 1677 or 2262: the first one is named.
        for index, one in enumerate(moment):
            try:
                one.cast(pa.timestamp("ns", tz="UTC"))
            except pa.ArrowInvalid:
                message = f"record {index}: source_ts is not within the years 1678 to 2261"
                raise MalformedColumns(message, field="source_ts", index=index) from None
        raise
    return pc.fill_null(nanoseconds.cast(pa.int64()), 0)


def _ops(names: pa.Array | None, kind: Kind, count: int) -> pa.Array:
    allowed = _OPS_OF[kind]
    default = np.full(count, allowed[0], dtype=np.uint8)
    if names is None or names.null_count == count:
        return pa.array(default)
    numbers = default
    unknown = np.asarray(names.is_valid())
    for op in allowed:
        here = np.asarray(pc.fill_null(pc.equal(names, op.name), False))
        numbers[here] = op
        unknown &= ~here
    if unknown.any():
        index = int(unknown.argmax())
        shown, expected = str(names[index])[:40], ", ".join(op.name for op in allowed)
        message = f"record {index}: op {shown!r} is not allowed in a topic of kind {kind.name}; use {expected}"
        raise InvalidOp(message, field="op", index=index)
    return pa.array(numbers)


def _cells(column: pa.Array | None, kind: pa.DataType, count: int) -> pa.Array:
    if column is None:
        return pa.nulls(count, kind)
    cells = column.cast(kind)
    if cells.null_count:
        # Arrow lets a null have bytes; ours have none.
        sizes = np.diff(np.frombuffer(cells.buffers()[1], dtype="<i4")[cells.offset : cells.offset + count + 1])
        if sizes[~np.asarray(cells.is_valid())].any():
            cells = pc.take(cells, pa.array(range(count)))
    return cells


def _text(column: pa.Array | None, name: str, count: int) -> pa.Array:
    cells = _cells(column, pa.utf8(), count)
    if (wrong := _not_utf8(cells)) is not None:
        raise MalformedColumns(f"record {wrong}: {name} is not UTF-8", field=name, index=wrong)
    return cells


def _not_utf8(cells: pa.Array) -> int | None:
    """The first cell that does not have its declared type: Spark takes any bytes for a string."""
    try:
        cells.validate(full=True)
    except pa.ArrowInvalid:
        for index, cell in enumerate(cells.cast(pa.binary()).to_pylist()):
            if cell is not None and cell != cell.decode("utf-8", "replace").encode():
                return index
    return None


def _check_keys(key: pa.Array) -> None:
    missing = pc.fill_null(pc.equal(pc.binary_length(key), 0), True)
    if pc.any(missing).as_py():
        index = int(np.asarray(missing).argmax())
        message = f"record {index}: a record of a KV topic needs a key of at least 1 byte"
        raise KeyRequired(message, field="key", index=index)


def _meta(column: pa.Array | None, count: int) -> pa.Array:
    """Cells of the grammar of `eddyline.core.records.meta`: all entries are encoded at once, and lie in the order of their
    rows.
    """
    if column is None or column.null_count == count:
        return _empty_cells(count)
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    ends = np.concatenate(([0], np.cumsum(np.asarray(lengths, dtype=np.int64))))
    entries = column.flatten()
    if entries.null_count:
        raise _null_entry(ends, entries, "an entry")
    texts, values = pc.struct_field(entries, 0).cast(pa.utf8()), pc.struct_field(entries, 1).cast(pa.binary())
    if (wrong := _not_utf8(texts)) is not None:
        row = _row_of(ends, wrong)
        raise MalformedColumns(f"record {row}: a name of meta is not UTF-8", field="meta", index=row)
    names = texts.cast(pa.binary())
    for part, what in ((names, "a name"), (values, "a value")):
        if part.null_count:
            raise _null_entry(ends, part, what)
    too_long = np.asarray(pc.greater(pc.binary_length(names), 0xFFFF))
    if too_long.any():
        row = _row_of(ends, int(too_long.argmax()))
        raise MalformedColumns(f"record {row}: a name of meta has more than 65535 bytes", field="meta", index=row)
    cells = pc.binary_join_element_wise(
        _lengths_of(names, "<u2"), names, _lengths_of(values, "<u4"), values, pa.scalar(b"", pa.binary())
    )
    starts = np.zeros(len(cells) + 1, dtype="<i4")
    np.cumsum(np.asarray(pc.binary_length(cells)), out=starts[1:])
    buffers = [None, pa.py_buffer(starts[ends].tobytes()), cells.buffers()[2] or pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.binary(), count, buffers, null_count=0)


def _lengths_of(cells: pa.Array, width: str) -> pa.Array:
    lengths = np.asarray(pc.binary_length(cells)).astype(width)
    return pa.Array.from_buffers(
        pa.binary(lengths.itemsize), len(lengths), [None, pa.py_buffer(lengths.tobytes())], null_count=0
    ).cast(pa.binary())


def _null_entry(ends: np.ndarray[tuple[int], np.dtype[np.int64]], part: pa.Array, what: str) -> EddylineError:
    row = _row_of(ends, int(np.asarray(part.is_null()).argmax()))
    return MalformedColumns(f"record {row}: {what} of meta is null", field="meta", index=row)


def _row_of(ends: np.ndarray[tuple[int], np.dtype[np.int64]], entry: int) -> int:
    return int(np.searchsorted(ends, entry, side="right")) - 1


def _refused(column: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"column {column}: {why}", field=column)
