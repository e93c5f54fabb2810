"""A `Batch` to rows on the wire, one field of all records at a time; no object is made per record.

The bytes are those that protobuf makes of the same rows: fields in the order of their numbers, numbers of 0 and absent
cells left out. Versions are as readers get them (`effective_version`). The length of every field in every record is
computed first, which gives every position; then each field is written to its positions at once. Threading: pure
functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eddyline.core.codec.varint import scatter, varint_sizes, write_varints
from eddyline.core.records.column import Column, offset_array, presence
from eddyline.core.records.meta import entries_of_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from eddyline.core.codec.varint import Bytes
    from eddyline.core.records.batch import Batch

_RECORD_TAG: Final = 0x0A
_SEQ, _TS_MS, _SOURCE_TS_NS, _OP = 0x08, 0x10, 0x18, 0x20
_KEY, _DATA, _TAG, _NODE, _META, _VERSION = 0x2A, 0x32, 0x3A, 0x42, 0x4A, 0x52
_ENTRY_NAME, _ENTRY_VALUE = 0x0A, 0x12


class _Numbers(NamedTuple):
    """A number of each message; 0 is left out."""

    tag: int
    values: NDArray[np.uint64]


class _Cells(NamedTuple):
    """Bytes of each message, spans of `source`. `present` None = left out if empty."""

    tag: int
    source: Bytes
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    present: NDArray[np.bool_] | None = None


class _Fields(NamedTuple):
    """Whole fields of each message, with their tags: spans of `source`."""

    source: Bytes
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]


_Field = _Numbers | _Cells | _Fields


def encode_rows(batch: Batch) -> bytes:
    """Encode the batch as a serialized RecordBatch."""
    count = batch.count
    if count == 0:
        return b""
    seqs = batch.seq_array()
    fields: list[_Field] = []
    if batch.seqs is not None or batch.first_seq:
        fields.append(_Numbers(_SEQ, seqs))
    if batch.ts_ms_each is not None or batch.ts_ms:
        times = np.full(count, batch.ts_ms) if batch.ts_ms_each is None else np.frombuffer(batch.ts_ms_each, "<i8")
        fields.append(_Numbers(_TS_MS, times.view(np.uint64)))
    if batch.source_ts_ns is not None:
        fields.append(_Numbers(_SOURCE_TS_NS, np.frombuffer(batch.source_ts_ns, dtype="<u8")))
    fields.append(_Numbers(_OP, batch.ops_array().astype(np.uint64)))
    for tag, column in ((_KEY, batch.key), (_DATA, batch.data), (_TAG, batch.tag), (_NODE, batch.node)):
        if column is not None:
            fields.append(_Cells(tag, column.values, *_spans(column), present=presence(column, count)))
    if batch.meta is not None:
        fields.append(_meta(batch.meta))
    fields.append(_versions(batch.version, seqs))
    return bytes(_messages(_RECORD_TAG, fields, count).source)


def _spans(column: Column) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    bounds = offset_array(column.offsets).astype(np.int64)
    return bounds[:-1], np.diff(bounds)


def _versions(column: Column | None, seqs: NDArray[np.uint64]) -> _Cells:
    """Return versions as readers get them: the seq in 8 bytes if no version is stored and the record has a seq."""
    source: Bytes = seqs.astype(">u8").tobytes()
    starts = 8 * np.arange(len(seqs), dtype=np.int64)
    sizes = np.where(seqs == 0, 0, 8)
    if column is not None:
        stored, stored_sizes = _spans(column)
        starts = np.where(stored_sizes > 0, stored, starts + len(column.values))
        sizes = np.where(stored_sizes > 0, stored_sizes, sizes)
        source = bytes(column.values) + source
    return _Cells(_VERSION, source, starts, sizes)


def _meta(column: Column) -> _Fields:
    """Encode the entries of each record as fields."""
    entries = entries_of_cells(column)
    values_at = entries.name_ends + 4
    fields = (
        _Cells(_ENTRY_NAME, column.values, entries.name_starts, entries.name_ends - entries.name_starts),
        _Cells(_ENTRY_VALUE, column.values, values_at, entries.ends - values_at),
    )
    encoded = _messages(_META, fields, len(entries.cells))
    # Entries are in the order of their records, so those of one record are adjacent.
    bounds = np.concatenate((encoded.starts, [len(encoded.source)]))
    firsts = np.searchsorted(entries.cells, np.arange(len(column.offsets) // 4))
    return _Fields(encoded.source, bounds[firsts[:-1]], np.diff(bounds[firsts]))


def _messages(tag: int, fields: Sequence[_Field], count: int) -> _Fields:
    """Encode `count` messages of the given fields, each as a field of number `tag`."""
    sizes = np.zeros((len(fields), count), dtype=np.int64)
    for size, field in zip(sizes, fields, strict=True):
        size[:] = _sizes(field)
    bodies = sizes.sum(axis=0)
    lengths = bodies.astype(np.uint64)
    heads = 1 + varint_sizes(lengths)
    ends = np.cumsum(heads + bodies)
    starts = ends - heads - bodies
    target = bytearray(int(ends[-1]))
    out = np.frombuffer(target, dtype=np.uint8)
    out[starts] = tag
    write_varints(target, starts + 1, lengths)
    at = starts + heads
    for size, field in zip(sizes, fields, strict=True):
        _write(target, out, at, size, field)
        at = at + size
    return _Fields(target, starts, heads + bodies)


def _sizes(field: _Field) -> NDArray[np.int64]:
    """Return the field's size in each message, its tag included; 0 = left out."""
    match field:
        case _Numbers(_, values):
            return np.where(values == 0, 0, 1 + varint_sizes(values))
        case _Cells(_, _, _, sizes, present):
            whole = 1 + varint_sizes(sizes.astype(np.uint64)) + sizes
            return np.where(sizes > 0 if present is None else present, whole, 0)
        case _Fields(_, _, sizes):
            return sizes


def _write(
    target: bytearray, out: NDArray[np.uint8], at: NDArray[np.int64], whole: NDArray[np.int64], field: _Field
) -> None:
    """Write the field at its positions, into the messages that have it."""
    if isinstance(field, _Fields):
        scatter(target, at, field.source, field.starts, field.sizes)
        return
    has_field = whole > 0
    rows = slice(None) if has_field.all() else has_field
    positions = at[rows]
    out[positions] = field.tag
    if isinstance(field, _Numbers):
        write_varints(target, positions + 1, field.values[rows])
        return
    sizes = field.sizes[rows]
    write_varints(target, positions + 1, sizes.astype(np.uint64))
    scatter(target, positions + whole[rows] - sizes, field.source, field.starts[rows], sizes)
