"""Rows on the wire to a `Batch`, one field of all records at a time; no object is made per record.

    RecordBatch = (0x0A length Record)*        Record, MetaEntry = (tag value)*, by protobuf's rules

Records of one shape are read as a grid (`eddyline.core.codec.row_grid`). All others are walked in parallel: of the
records' next tags the smallest is read in every record that has it, so that records in serializers' order take one
round a field, and one round an entry of meta. By protobuf's rules the last of a repeated scalar wins and unknown fields
are skipped.

I1: the result equals that of protobuf's objects, in canonical form.
I2: None = not decoded here; the caller continues with protobuf's objects, which raise the errors: malformed bytes, tags
    of two bytes and more, groups, repeated texts, ops beyond a byte, too many entries, too many rounds.
I3: more records than any batch has are refused while they are counted: an empty one takes 2 bytes, and 147 as an
    object.
Threading: pure functions.

`batch_of_row` packs a single row, which most appends of services that do not batch are. Compared with `Batch.from_rows`
it does not transpose the row: 7 us for a request with one row in place of 12.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eddyline.core.codec.row_grid import read_grid
from eddyline.core.codec.varint import Undecodable, gather, padded, read_varints, scatter
from eddyline.core.errors import BatchTooLarge
from eddyline.core.model.read import EXAMINED_RECORDS_MAX
from eddyline.core.records.batch import Batch
from eddyline.core.records.column import COLUMN_BYTES_END, Column, sizes_to_offsets
from eddyline.core.records.fixed import pack_ops
from eddyline.core.records.meta import encode_meta
from eddyline.core.records.record import APPEND_RECORDS_MAX, META_ENTRIES_MAX, MetaEntry, Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from eddyline.core.codec.row_grid import Grid
    from eddyline.v1 import types_pb2


ROUNDS_MAX: Final = 2 * META_ENTRIES_MAX
"""Ten fields, one of them with up to 64 entries.

A round takes about 20 us: without a bound a record of a million tiny fields would block the event loop for 20 s.
"""

_RECORD_TAG: Final = 0x0A
_SEQ, _TS_MS, _SOURCE_TS_NS, _OP = 0x08, 0x10, 0x18, 0x20
_KEY, _DATA, _TAG, _NODE, _META, _VERSION = 0x2A, 0x32, 0x3A, 0x42, 0x4A, 0x52
_NUMBERS: Final = (_SEQ, _TS_MS, _SOURCE_TS_NS, _OP)
_CELLS: Final = (_KEY, _DATA, _TAG, _NODE, _VERSION)
_TEXTS: Final = (_TAG, _NODE)
_ENTRY_NAME, _ENTRY_VALUE = 0x0A, 0x12
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FIXED_SIZES: Final = {_FIXED_64: 8, _FIXED_32: 4}
_NAME_BYTES_MAX: Final = 0xFFFF
_LENGTH_BYTES_MAX: Final = 5
"""Protobuf refuses lengths of more bytes, even if the number is small."""


class _FieldValues(NamedTuple):
    """One field of the messages `rows`: its numbers, or its lengths and the positions of its bytes."""

    tag: int
    rows: NDArray[np.int64]
    numbers: NDArray[np.uint64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class _Parts(NamedTuple):
    """Fields of all records by their tags; columns by I1 and I2 of `eddyline.core.records.column`."""

    record_count: int
    numbers: dict[int, NDArray[np.uint64]]
    columns: dict[int, Column]


class _Spans(NamedTuple):
    """Positions of one field of bytes in every message."""

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    present: NDArray[np.bool_]


def decode_rows(data: bytes, *, default_op: int, walked_min: int = 0) -> Batch | None:
    """Decode a serialized RecordBatch; an unset op becomes `default_op`.

    Returns None by I2, and if fewer than `walked_min` records are not of one shape.

    Raises:
        BatchTooLarge: by I3.
    """
    if not data:
        return Batch(0)
    try:
        grid = read_grid(data, number_tags=_NUMBERS, cell_tags=_CELLS)
        return _batch(_walked(data, walked_min) if grid is None else _of_grid(grid), default_op)
    except Undecodable:
        return None


def _batch(parts: _Parts, default_op: int) -> Batch:
    numbers, columns = parts.numbers, parts.columns
    return Batch(
        parts.record_count,
        seqs=_fixed(numbers.get(_SEQ)),
        ts_ms_each=_fixed(numbers.get(_TS_MS)),
        ops=_ops(numbers.get(_OP), parts.record_count, default_op),
        source_ts_ns=_fixed(numbers.get(_SOURCE_TS_NS)),
        key=columns.get(_KEY),
        data=columns.get(_DATA),
        tag=_text(columns.get(_TAG)),
        node=_text(columns.get(_NODE)),
        meta=columns.get(_META),
        version=columns.get(_VERSION),
    ).canonical()


def _of_grid(grid: Grid) -> _Parts:
    columns = {
        tag: Column((np.arange(grid.record_count + 1, dtype="<u4") * np.uint32(size)).tobytes(), values)
        for tag, (size, values) in grid.cells.items()
    }
    return _Parts(grid.record_count, grid.numbers, columns)


def _walked(data: bytes, walked_min: int) -> _Parts:
    starts, ends = _records(data)
    count = len(starts)
    if count < walked_min:
        raise Undecodable
    numbers: dict[int, NDArray[np.uint64]] = {}
    spans: dict[int, _Spans] = {}
    metas: list[_FieldValues] = []
    for field in _fields(data, starts, ends):
        if field.tag in _NUMBERS:
            numbers.setdefault(field.tag, np.zeros(count, dtype=np.uint64))[field.rows] = field.numbers
        elif field.tag in _CELLS:
            _put(spans.setdefault(field.tag, _no_spans(count)), field, text=field.tag in _TEXTS)
        elif field.tag == _META:
            metas.append(field)
    columns = {tag: _column(data, spans[tag], absence=tag != _VERSION) for tag in spans}
    if metas:
        columns[_META] = _meta(data, metas, count)
    return _Parts(count, numbers, columns)


def _records(data: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return start and end of each record, without its tag and length."""
    total = len(data)
    starts: list[int] = []
    sizes: list[int] = []
    at = 0
    try:
        for _ in range(EXAMINED_RECORDS_MAX):
            if at == total:
                break
            if data[at] != _RECORD_TAG:
                raise Undecodable
            size, at = data[at + 1], at + 2
            if size >= 0x80:
                if data[at] < 0x80:
                    size, at = size & 0x7F | data[at] << 7, at + 1
                else:
                    size, at = _long_size(data, at, size)
            starts.append(at)
            sizes.append(size)
            at += size
    except IndexError as error:
        raise Undecodable from error
    if at < total:
        raise BatchTooLarge(
            f"more than {EXAMINED_RECORDS_MAX} records in an append, at most {APPEND_RECORDS_MAX}",
            count=EXAMINED_RECORDS_MAX,
            limit=APPEND_RECORDS_MAX,
        )
    if at > total:
        raise Undecodable
    begin = np.array(starts, dtype=np.int64)
    return begin, begin + np.array(sizes, dtype=np.int64)


def _long_size(data: bytes, at: int, size: int) -> tuple[int, int]:
    """Return a size of 2 to 4 bytes, whose first is read already, and the offset after it. No record has a longer one."""
    size &= 0x7F
    for shift in (7, 14, 21):
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, at
    raise Undecodable


def _fields(data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[_FieldValues]:
    """Yield the fields of all messages, one tag a round, in each message in its order."""
    raw = padded(data)
    rows, at = np.arange(len(starts)), starts
    for _ in range(ROUNDS_MAX):
        unfinished = at < ends
        if not unfinished.all():
            rows, at, ends = rows[unfinished], at[unfinished], ends[unfinished]
            if not len(rows):
                return
        tags = raw[at]
        tag = int(tags[0])
        chosen = None
        if (tags == tag).all():
            field = _field(raw, tag, rows, at + 1, ends)
        else:
            tag = int(tags.min())
            chosen = np.flatnonzero(tags == tag)
            field = _field(raw, tag, rows[chosen], at[chosen] + 1, ends[chosen])
        yield field
        if chosen is None:
            at = field.ends
        else:
            at = at.copy()
            at[chosen] = field.ends
    if (at < ends).any():
        raise Undecodable


def _field(
    raw: NDArray[np.uint8], tag: int, rows: NDArray[np.int64], at: NDArray[np.int64], limits: NDArray[np.int64]
) -> _FieldValues:
    """Read the field of this tag that comes next in each message; `at` = offset of its value."""
    if not 0x08 <= tag < 0x80:
        raise Undecodable
    wire_type = tag & 7
    if wire_type == _VARINT:
        numbers, at = read_varints(raw, at)
    elif wire_type == _BYTES:
        numbers, at = read_varints(raw, at, bytes_max=_LENGTH_BYTES_MAX)
    elif wire_type in _FIXED_SIZES:
        numbers = np.full(len(rows), _FIXED_SIZES[wire_type], dtype=np.uint64)
    else:
        raise Undecodable
    ends = at
    if wire_type != _VARINT:
        if numbers.max() >= COLUMN_BYTES_END:
            raise Undecodable
        ends = at + numbers.view(np.int64)
    if (ends > limits).any():
        raise Undecodable
    return _FieldValues(tag, rows, numbers, at, ends)


def _no_spans(count: int) -> _Spans:
    zeros = np.zeros((2, count), dtype=np.int64)
    return _Spans(zeros[0], zeros[1], np.zeros(count, dtype=np.bool_))


def _put(spans: _Spans, field: _FieldValues, *, text: bool) -> None:
    if text and spans.present[field.rows].any():
        raise Undecodable  # the earlier one would have to be UTF-8 too
    spans.starts[field.rows] = field.starts
    spans.sizes[field.rows] = field.numbers.view(np.int64)
    spans.present[field.rows] = True


def _fixed(numbers: NDArray[np.uint64] | None) -> bytes | None:
    return None if numbers is None else numbers.tobytes()


def _ops(numbers: NDArray[np.uint64] | None, count: int, default_op: int) -> bytes:
    if numbers is None:
        return bytes([default_op]) * count
    if (numbers > 0xFF).any():
        raise Undecodable
    return np.where(numbers == 0, default_op, numbers).astype(np.uint8).tobytes()


def _column(data: bytes, spans: _Spans, *, absence: bool) -> Column:
    offsets = sizes_to_offsets(spans.sizes.astype(np.uint32))
    validity = np.packbits(spans.present, bitorder="little").tobytes() if absence else None
    return Column(offsets, gather(data, spans.starts, spans.sizes), validity)


def _text(column: Column | None) -> Column | None:
    if column is not None:
        _check_text(bytes(column.values), np.frombuffer(column.offsets, dtype="<u4")[:-1])
    return column


def _check_text(values: bytes, starts: NDArray[np.uint32]) -> None:
    """Check cells all at once: together they are UTF-8 and none begins within a character, so each is."""
    try:
        length = len(str(values, "utf-8"))
    except UnicodeDecodeError as error:
        raise Undecodable from error
    if length != len(values):
        raw = np.frombuffer(values, dtype=np.uint8)
        if ((raw[starts[starts < len(raw)]] & 0xC0) == 0x80).any():
            raise Undecodable


def _meta(data: bytes, metas: list[_FieldValues], count: int) -> Column:
    """Return the entries of all records as cells of `eddyline.core.records.meta`."""
    owners = np.concatenate([part.rows for part in metas])
    order = np.argsort(owners, kind="stable")
    starts = np.concatenate([part.starts for part in metas])[order]
    ends = np.concatenate([part.ends for part in metas])[order]
    entries_each = np.bincount(owners, minlength=count)
    if entries_each.max() > META_ENTRIES_MAX:
        raise Undecodable
    names, values = _no_spans(len(order)), _no_spans(len(order))
    for part in _fields(data, starts, ends):
        if part.tag == _ENTRY_NAME:
            _put(names, part, text=True)
        elif part.tag == _ENTRY_VALUE:
            _put(values, part, text=False)
    if names.sizes.max() > _NAME_BYTES_MAX:
        raise Undecodable
    name_starts = (np.cumsum(names.sizes) - names.sizes).astype(np.uint32)
    _check_text(gather(data, names.starts, names.sizes), name_starts)
    sizes = names.sizes + values.sizes + 6
    bounds = np.concatenate(([0], np.cumsum(sizes)))
    starts_of_cells = bounds[:-1]
    cells = bytearray(int(bounds[-1]))
    out = np.frombuffer(cells, dtype=np.uint8)
    _write_little_endian(out, starts_of_cells, names.sizes, 2)
    scatter(cells, starts_of_cells + 2, data, names.starts, names.sizes)
    _write_little_endian(out, starts_of_cells + 2 + names.sizes, values.sizes, 4)
    scatter(cells, starts_of_cells + 6 + names.sizes, data, values.starts, values.sizes)
    ends_of_cells = np.concatenate(([0], np.cumsum(entries_each)))
    return Column(bounds[ends_of_cells].astype("<u4").tobytes(), bytes(cells), None)


def _write_little_endian(out: NDArray[np.uint8], at: NDArray[np.int64], numbers: NDArray[np.int64], width: int) -> None:
    for byte in range(width):
        out[at + byte] = (numbers >> (8 * byte)) & 0xFF


_ZERO: Final = bytes(4)


def batch_of_row(row: types_pb2.Record, default_op: int) -> Batch:
    """Pack one row unchecked, with `default_op` in place of an unset op.

    Raises:
        InvalidOp, RecordTooLarge: as `Batch.from_rows`.
    """
    has, op = row.HasField, row.op or default_op
    return Batch(
        1,
        first_seq=row.seq,
        ts_ms=row.ts_ms,
        ops=None if op == Op.APPEND else pack_ops((op,)),
        source_ts_ns=row.source_ts_ns.to_bytes(8, "little", signed=True) if row.source_ts_ns else None,
        key=_one_cell(row.key) if has("key") else None,
        data=_one_cell(row.data) if has("data") else None,
        tag=_one_cell(row.tag.encode()) if has("tag") else None,
        node=_one_cell(row.node.encode()) if has("node") else None,
        meta=_one_cell(encode_meta([MetaEntry(entry.name, entry.value) for entry in row.meta])) if row.meta else None,
        version=_one_cell(row.version) if row.version else None,
    )


def _one_cell(cell: bytes) -> Column:
    return Column(_ZERO + len(cell).to_bytes(4, "little"), cell, None)
