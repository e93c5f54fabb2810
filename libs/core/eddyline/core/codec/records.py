"""Protobuf of records, batches, gaps and filters. Requests are checked here, once, at the edge.

Columns pass as buffers, without access to their records. Many rows are packed and unpacked as bytes, all at once
(`eddyline.core.codec.row_decode`, `row_encode`): one object per record costs 2 to 5 us. Messages are the generated
classes; an append's rows may be split off its message (`eddyline.core.codec.row_split`). In rows a version travels as
readers get it (the seq in 8 bytes if none was set, `effective_version`), in columns as it is stored.
Only the `rpc` and link modules import this: protobuf stays at the edge.
"""

from __future__ import annotations

from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from google.protobuf.message import DecodeError

from eddyline.core.codec.row_decode import batch_of_row, decode_rows
from eddyline.core.codec.row_encode import encode_rows
from eddyline.core.errors import InvalidArgument, MalformedColumns
from eddyline.core.model.read import ALL_RECORDS, EXAMINED_RECORDS_MAX, RecordFilter
from eddyline.core.model.topic import Kind
from eddyline.core.records.batch import Batch, Column, RowFields
from eddyline.core.records.meta import check_entry_counts
from eddyline.core.records.record import Gap, MetaEntry, Op, Record, gap_reason_of, op_of
from eddyline.core.records.validation import check_count, check_limits, check_ops, validated, validated_answer
from eddyline.v1 import log_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from eddyline.core.records.batch import Buffer

ROWS_AT_ONCE_MIN: Final = 128
"""Below this number of rows the byte codec gains nothing: it costs at least 50 us, and 500 us if rows have all ten
fields.
"""
ROWS_BY_FIELD_MIN: Final = 8
"""From this number on rows are packed field by field, in half the time of making a `Record` of each; below, it takes
longer.
"""

_COLUMNS: Final = ("key", "data", "tag", "node", "meta", "version")
"""In the order of `Batch.columns`."""

_PLAIN_FIELDS: Final = attrgetter("seq", "ts_ms", "source_ts_ns", "op", "version")
_KEY: Final[Callable[[types_pb2.Record], bytes]] = attrgetter("key")
_META: Final[Callable[[types_pb2.Record], Sequence[types_pb2.MetaEntry]]] = attrgetter("meta")
_DATA: Final[Callable[[types_pb2.Record], bytes]] = attrgetter("data")
_TAG: Final[Callable[[types_pb2.Record], str]] = attrgetter("tag")
_NODE: Final[Callable[[types_pb2.Record], str]] = attrgetter("node")
_Cell = TypeVar("_Cell", bytes, str)
_OptionalName = Literal["key", "data", "tag", "node"]


# --- batches ----------------------------------------------------------------------------------------------------------


def fill_columns(columns: types_pb2.ColumnarBatch, batch: Batch) -> None:
    """Write the batch as columns into an empty message.

    In place, because a message that is passed to another's constructor is copied.
    """
    columns.SetInParent()
    columns.count = batch.count
    columns.first_seq = batch.first_seq
    columns.seqs = _bytes(batch.seqs)
    columns.ts_ms = batch.ts_ms
    columns.ts_ms_each = _bytes(batch.ts_ms_each)
    columns.ops = _bytes(batch.ops)
    columns.source_ts_ns = _bytes(batch.source_ts_ns)
    for name, column in zip(_COLUMNS, batch.columns(), strict=True):
        if column is not None:
            target: types_pb2.BinaryColumn = getattr(columns, name)
            target.offsets = _bytes(column.offsets)
            target.values = _bytes(column.values)
            target.validity = _bytes(column.validity)


def fill_rows(rows: types_pb2.RecordBatch, batch: Batch) -> None:
    """Write the batch as rows into an empty message, versions as readers get them."""
    rows.SetInParent()
    if batch.count >= ROWS_AT_ONCE_MIN:
        rows.MergeFromString(encode_rows(batch))
    else:
        rows.records.extend(map(record_to_pb, batch.to_rows()))


def default_op(kind: Kind | None) -> Op:
    """Return the op of a record that has none, by its topic's kind; None = there is no such topic."""
    return Op.PUT if kind is Kind.KV else Op.APPEND


def batch_from_columns(columns: types_pb2.ColumnarBatch, *, source: bool = False, default_op: int = Op.APPEND) -> Batch:
    """Decode and check an append's columns; `default_op` is the meaning of an unset op on the topic.

    Raises:
        MalformedColumns, RecordTooLarge, BatchTooLarge: as `validated`.
    """
    return validated(_batch_of(columns), source=source, default_op=default_op)


def batch_from_rows(rows: types_pb2.RecordBatch, *, source: bool = False, default_op: int = Op.APPEND) -> Batch:
    """Decode and check an append's rows; `default_op` is the meaning of an unset op on the topic.

    Raises:
        RecordTooLarge, BatchTooLarge, InvalidOp: as `check_limits`.
        InvalidArgument: a row has a seq or a commit time.
    """
    check_count(len(rows.records))
    return _checked_append(_packed(rows, default_op), source=source)


def batch_from_row_bytes(data: bytes, *, default_op: int = Op.APPEND) -> Batch:
    """Decode and check a serialized RecordBatch.

    Raises:
        The errors of `batch_from_rows`. InvalidArgument: also if the bytes are not a RecordBatch.
    """
    batch = decode_rows(data, default_op=default_op, walked_min=ROWS_AT_ONCE_MIN)
    if batch is None:
        try:
            rows = types_pb2.RecordBatch.FromString(data)
        except DecodeError as error:
            raise InvalidArgument("the request cannot be decoded as this call's message") from error
        check_count(len(rows.records))
        batch = packed_by_objects(rows.records, default_op)
    check_count(batch.count)
    return _checked_append(batch, source=False)


def _checked_append(batch: Batch, *, source: bool) -> Batch:
    if batch.first_seq or batch.seqs or batch.ts_ms or batch.ts_ms_each:
        raise InvalidArgument("an append must not set seqs or commit times", field="seq")
    check_limits(batch, source=source)
    return batch


def answer_from_columns(columns: types_pb2.ColumnarBatch, *, later_ops: bool = False) -> Batch:
    """Decode the columns of a store's answer, with their seqs and commit times.

    Raises:
        MalformedColumns, RecordTooLarge: as `validated_answer`.
    """
    _check_answer_count(columns.count)
    return validated_answer(_batch_of(columns), later_ops=later_ops)


def record_of_columns(columns: types_pb2.ColumnarBatch) -> Record | None:
    """Decode the columns of one record of a store's answer, its version as readers get it: 2 us in place of 9 by a batch.

    None = left to `answer_from_columns`: another count, a meta, or columns that are not canonical.
    """
    has, ops, times = columns.HasField, columns.ops, columns.source_ts_ns
    if (
        columns.count != 1
        or columns.seqs
        or columns.ts_ms_each
        or len(ops) > 1
        or len(times) not in (0, 8)
        or has("meta")
    ):
        return None
    try:
        key = _lone_cell(columns.key) if has("key") else None
        data = _lone_cell(columns.data) if has("data") else None
        tag = _lone_cell(columns.tag).decode() if has("tag") else None
        node = _lone_cell(columns.node).decode() if has("node") else None
        version = _lone_cell(columns.version) if has("version") else b""
    except ValueError:
        return None
    seq = columns.first_seq
    return Record(
        seq,
        columns.ts_ms,
        int.from_bytes(times, "little", signed=True),
        op_of(ops[0]) if ops else Op.APPEND,
        key,
        data,
        tag,
        node,
        (),
        version or _seq_version(seq),
    )


def answer_from_rows(rows: types_pb2.RecordBatch) -> Batch:
    """Decode the rows of a store's answer, with their seqs and commit times.

    Raises:
        MalformedColumns: more rows than a read examines. RecordTooLarge: as `check_entry_counts`.
        InvalidOp: an op that this version does not know.
    """
    _check_answer_count(len(rows.records))
    batch = _packed(rows, default_op=0)
    check_ops(batch)
    return batch


def fill_item(message: log_pb2.BatchItem, item: Batch | Gap, *, as_columns: bool) -> None:
    """Write one item of a log into an empty message."""
    if isinstance(item, Gap):
        message.gap.CopyFrom(gap_to_pb(item))
    elif as_columns:
        fill_columns(message.columns, item)
    else:
        fill_rows(message.rows, item)


def items_from_pb(items: Iterable[log_pb2.BatchItem]) -> list[Batch | Gap]:
    """Decode the items of a log in a store's answer.

    Raises:
        MalformedColumns: columns do not fit together, or an item has no field that this version knows.
        InvalidOp: an op that this version does not know.
    """
    return [item_from_pb(item) for item in items]


def item_from_pb(item: log_pb2.BatchItem) -> Batch | Gap:
    """Decode one item of a log in a store's answer. Raises: as `items_from_pb`."""
    match item.WhichOneof("item"):
        case "columns":
            return answer_from_columns(item.columns)
        case "rows":
            return answer_from_rows(item.rows)
        case "gap":
            return gap_from_pb(item.gap)
        case _:
            raise MalformedColumns("an item has no field that this version knows", field="item")


def wants_columns(batch_format: int) -> bool:
    """Return True if a request's format means columns; UNSPECIFIED = rows.

    Raises:
        InvalidArgument: an unknown format.
    """
    if batch_format == types_pb2.BATCH_FORMAT_COLUMNS:
        return True
    if batch_format in (types_pb2.BATCH_FORMAT_UNSPECIFIED, types_pb2.BATCH_FORMAT_ROWS):
        return False
    raise InvalidArgument(f"unknown format {batch_format}", field="format", format=batch_format)


# --- records, gaps, filters -------------------------------------------------------------------------------------------


def record_to_pb(record: Record) -> types_pb2.Record:
    """Encode a row; once it has a seq its version is the one that readers get."""
    seq, ts_ms, source_ts_ns, op, key, data, tag, node, meta, version = record
    row = types_pb2.Record(
        seq=seq,
        ts_ms=ts_ms,
        source_ts_ns=source_ts_ns,
        op=op,  # type: ignore[arg-type]  # the stub asks for its own enum, the class takes numbers
        key=key,
        data=data,
        tag=tag,
        node=node,
        version=version or _seq_version(seq),
    )
    for name, value in meta:
        row.meta.add(name=name, value=value)
    return row


def record_from_pb(row: types_pb2.Record) -> Record:
    """Decode a row of a store's answer unchecked; its op is 0 if it is unset."""
    has = row.HasField
    return Record(
        row.seq,
        row.ts_ms,
        row.source_ts_ns,
        op_of(row.op),
        row.key if has("key") else None,
        row.data if has("data") else None,
        row.tag if has("tag") else None,
        row.node if has("node") else None,
        tuple([MetaEntry(entry.name, entry.value) for entry in row.meta]),
        row.version,
    )


def gap_to_pb(gap: Gap) -> types_pb2.Gap:
    """Encode a gap."""
    return types_pb2.Gap(
        first_seq=gap.first_seq,
        last_seq=gap.last_seq,
        reason=gap.reason,  # type: ignore[arg-type]  # the stub asks for its own enum, the class takes numbers
        seq=gap.seq,
        old_epoch=gap.old_epoch,
        new_epoch=gap.new_epoch,
        source_identity=gap.source_identity,
        source_first=gap.source_first,
        source_last=gap.source_last,
    )


def gap_from_pb(gap: types_pb2.Gap) -> Gap:
    """Decode a gap; its reason may be one that this version does not know."""
    return Gap(
        gap.first_seq,
        gap.last_seq,
        gap_reason_of(gap.reason),
        gap.seq,
        gap.old_epoch,
        gap.new_epoch,
        gap.source_identity,
        gap.source_first,
        gap.source_last,
    )


def filter_to_pb(record_filter: RecordFilter) -> log_pb2.RecordFilter:
    """Encode a reader's filter."""
    return log_pb2.RecordFilter(
        key_prefixes=record_filter.key_prefixes,
        tags=record_filter.tags,
        exclude_nodes=record_filter.exclude_nodes,
        ops=record_filter.ops,  # type: ignore[arg-type]  # the stub asks for its own enum, the class takes numbers
    )


def filter_from_pb(record_filter: log_pb2.RecordFilter) -> RecordFilter:
    """Decode a reader's filter.

    Raises:
        InvalidArgument: an op is none of the contract's.
    """
    ops = tuple(int(op) for op in record_filter.ops)
    unknown = set(ops).difference(Op)
    if unknown:
        raise InvalidArgument(f"unknown op {min(unknown)}", field="filter.ops", op=min(unknown))
    decoded = RecordFilter(
        tuple(record_filter.key_prefixes), tuple(record_filter.tags), tuple(record_filter.exclude_nodes), ops
    )
    return ALL_RECORDS if decoded.passes_all() else decoded


def _seq_version(seq: int) -> bytes:
    return seq.to_bytes(8, "big") if seq else b""


def _packed(batch: types_pb2.RecordBatch, default_op: int) -> Batch:
    if len(batch.records) >= ROWS_AT_ONCE_MIN:
        packed = decode_rows(batch.SerializeToString(), default_op=default_op, walked_min=ROWS_AT_ONCE_MIN)
        if packed is not None:
            return packed
    return packed_by_objects(batch.records, default_op)


def packed_by_objects(records: Sequence[types_pb2.Record], default_op: int) -> Batch:
    """Pack rows unchecked, through objects: for few rows, and for rows that `decode_rows` does not decode.

    Raises:
        RecordTooLarge, InvalidOp, MalformedColumns: a row cannot be packed.
    """
    rows = list(records)
    # The counts first: an entry on the wire may take 2 bytes, and as an object 100 times that.
    check_entry_counts(map(len, map(_META, rows)))
    if len(rows) == 1:
        return batch_of_row(rows[0], default_op)
    if len(rows) < ROWS_BY_FIELD_MIN:
        return Batch.from_rows([_with_op(record_from_pb(row), default_op) for row in rows])
    seqs, times, source_times, ops, versions = zip(*map(_PLAIN_FIELDS, rows), strict=True)
    return Batch.from_fields(
        RowFields(
            seqs,
            times,
            source_times,
            [op or default_op for op in ops] if 0 in ops else ops,
            _optional(rows, "key", _KEY),
            _optional(rows, "data", _DATA),
            _optional(rows, "tag", _TAG),
            _optional(rows, "node", _NODE),
            [tuple([MetaEntry(entry.name, entry.value) for entry in row.meta]) for row in rows],
            versions,
        )
    )


def _check_answer_count(count: int) -> None:
    if count > EXAMINED_RECORDS_MAX:
        raise MalformedColumns(
            f"{count} records in an answer, at most {EXAMINED_RECORDS_MAX}",
            field="count",
            count=count,
            limit=EXAMINED_RECORDS_MAX,
        )


def _with_op(record: Record, default_op: int) -> Record:
    return record if record.op else record._replace(op=default_op)


def _optional(
    rows: Sequence[types_pb2.Record], name: _OptionalName, get: Callable[[types_pb2.Record], _Cell]
) -> list[_Cell | None]:
    flags = list(map(types_pb2.Record.HasField, rows, repeat(name)))
    if not any(flags):
        return [None] * len(rows)
    return [get(row) if flag else None for row, flag in zip(rows, flags, strict=True)]


# --- columns ----------------------------------------------------------------------------------------------------------


def _batch_of(columns: types_pb2.ColumnarBatch) -> Batch:
    """Return the columns as received, unchecked."""
    has = columns.HasField
    return Batch(
        columns.count,
        first_seq=columns.first_seq,
        seqs=columns.seqs or None,
        ts_ms=columns.ts_ms,
        ts_ms_each=columns.ts_ms_each or None,
        ops=columns.ops or None,
        source_ts_ns=columns.source_ts_ns or None,
        key=_column_from_pb(columns.key) if has("key") else None,
        data=_column_from_pb(columns.data) if has("data") else None,
        tag=_column_from_pb(columns.tag) if has("tag") else None,
        node=_column_from_pb(columns.node) if has("node") else None,
        meta=_column_from_pb(columns.meta) if has("meta") else None,
        version=_column_from_pb(columns.version) if has("version") else None,
    )


def _lone_cell(column: types_pb2.BinaryColumn) -> bytes:
    """Return the cell of a canonical column of one, which is present. Raises ValueError: it is not such a column."""
    values = column.values
    if column.validity or column.offsets != b"\0\0\0\0" + len(values).to_bytes(4, "little"):
        raise ValueError("not a canonical column of one cell")
    return values


def _column_from_pb(column: types_pb2.BinaryColumn) -> Column:
    return Column(column.offsets, column.values, column.validity or None)


def _bytes(buffer: Buffer | None) -> bytes:
    return b"" if buffer is None else bytes(buffer)
