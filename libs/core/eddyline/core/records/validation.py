"""Validation of foreign batches: checks columns from the network, puts them into canonical form, applies record limits.

A check costs per column, never per record: 1 000 records of 100 bytes take about 10 us. The cheap test comes first: if
all cells of a column together are within one cell's bound, the cells are not examined.

For any content of the buffers the result is a batch that keeps every invariant of `eddyline.core.records.batch`, or an
error of the contract: MalformedColumns if buffers do not fit together, RecordTooLarge with `index`, `field`, size and
limit, BatchTooLarge. Not checked here: whether a topic or caller may use an op, and whether a key is required.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.errors import BatchTooLarge, InvalidOp, MalformedColumns, RecordTooLarge
from eddyline.core.records.batch import Batch
from eddyline.core.records.column import (
    COLUMN_BYTES_END,
    UNRELEASED_CELLS,
    Column,
    canonical_column,
    offset_array,
    presence,
    size_array,
)
from eddyline.core.records.fixed import canonical_each, canonical_ops, canonical_seqs, canonical_times
from eddyline.core.records.gap import OF_SOURCE, gap_of
from eddyline.core.records.meta import check_meta_cells
from eddyline.core.records.record import (
    APPEND_RECORDS_MAX,
    DATA_META_BYTES_MAX,
    KEY_BYTES_MAX,
    META_BYTES_MAX,
    NODE_BYTES_MAX,
    SOURCE_DATA_META_BYTES_MAX,
    TAG_BYTES_MAX,
    VERSION_BYTES_MAX,
    Op,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eddyline.core.records.column import Buffer

_KNOWN_OPS: Final = bytes(Op)
_NO_BYTES: Final = bytes(4)
_TRUE: Final = b"\1"


def validated(batch: Batch, *, source: bool = False, default_op: int = 0) -> Batch:
    """Check an append's columns; return them in canonical form. A batch of 0 records is accepted.

    `source` = with the limits of records from a source; `default_op` = the meaning of an unset op (0 = an unset op is
    refused if others are set).

    Raises:
        MalformedColumns: columns do not fit together, or seqs or commit times are set.
        RecordTooLarge: a record breaks a bound.
        BatchTooLarge: more records than an append may carry.
    """
    if batch.first_seq or batch.seqs or batch.ts_ms or batch.ts_ms_each:
        raise MalformedColumns("an append must not set seqs or commit times", field="first_seq")
    check_count(batch.count)
    ops = batch.ops
    if ops and default_op:
        ops = bytes(ops).replace(b"\0", bytes([default_op]))
    elif default_op not in (0, Op.APPEND):
        ops = bytes([default_op]) * batch.count
    checked = _checked(batch, ops)
    _check_records(checked, source=source)
    return checked


def validated_answer(batch: Batch, *, later_ops: bool = False) -> Batch:
    """Check columns of a store's answer: seqs and commit times are set, and the largest limits of any writer apply.

    `later_ops` = ops that this version does not know pass: a client gives them to its caller as numbers.

    Raises:
        MalformedColumns: columns do not fit together, or an op is unknown.
        RecordTooLarge: a record breaks a bound.
    """
    for name, buffer in (("seqs", batch.seqs), ("ts_ms_each", batch.ts_ms_each)):
        if buffer and len(buffer) != 8 * batch.count:
            raise _wrong_length(name, len(buffer), 8 * batch.count)
    if not batch.seqs and batch.first_seq + batch.count > 1 << 64:
        raise MalformedColumns("seqs exceed the largest seq", field="first_seq")
    checked = _checked(batch, batch.ops, later_ops=later_ops)
    _check_records(checked, source=True)
    return checked


def check_limits(batch: Batch, *, source: bool = False) -> None:
    """Check the limits of an append that was packed from rows, whose columns therefore fit together.

    Raises:
        RecordTooLarge, BatchTooLarge: as `validated`.
        InvalidOp: an op is none of the contract's.
        MalformedColumns: a source's gap record has no gap in it, or one that a source may not report.
    """
    check_count(batch.count)
    check_ops(batch)
    _check_records(batch, source=source)


def check_count(count: int) -> None:
    """Check the number of an append's records.

    Raises:
        BatchTooLarge: it is above the limit.
    """
    if count > APPEND_RECORDS_MAX:
        message = f"{count} records in an append, at most {APPEND_RECORDS_MAX}"
        raise BatchTooLarge(message, count=count, limit=APPEND_RECORDS_MAX)


def check_ops(batch: Batch) -> None:
    """Check the ops of a batch that was packed from rows.

    Raises:
        InvalidOp: one is none of the contract's.
    """
    unknown = b"" if batch.ops is None else bytes(batch.ops).translate(None, _KNOWN_OPS)
    if unknown:
        raise InvalidOp(f"unknown op {unknown[0]}", field="op", op=unknown[0])


def _checked(batch: Batch, ops: Buffer | None, *, later_ops: bool = False) -> Batch:
    """Return the batch in canonical form, with these ops, if its buffers fit together."""
    count, times = batch.count, batch.source_ts_ns
    if ops:
        if len(ops) != count:
            raise _wrong_length("ops", len(ops), count)
        unknown = b"" if later_ops else bytes(ops).translate(None, _KNOWN_OPS)
        if unknown:
            raise MalformedColumns(f"ops has the unknown op {unknown[0]}", field="ops", op=unknown[0])
    if times and len(times) != 8 * count:
        raise _wrong_length("source_ts_ns", len(times), 8 * count)
    key = batch.key and _fitting(batch.key, count, "key")
    data = batch.data and _fitting(batch.data, count, "data")
    tag = batch.tag and _fitting_text(batch.tag, count, "tag")
    node = batch.node and _fitting_text(batch.node, count, "node")
    meta = batch.meta and _fitting(batch.meta, count, "meta", absence=False)
    version = batch.version and _fitting(batch.version, count, "version", absence=False)
    if count == 0:
        return Batch(0)
    first_seq, seqs = canonical_seqs(batch.first_seq, batch.seqs) if batch.seqs else (batch.first_seq, None)
    ts_ms, ts_ms_each = canonical_each(batch.ts_ms, batch.ts_ms_each) if batch.ts_ms_each else (batch.ts_ms, None)
    return Batch(
        count,
        first_seq=first_seq,
        seqs=seqs,
        ts_ms=ts_ms,
        ts_ms_each=ts_ms_each,
        ops=canonical_ops(ops) if ops else None,
        source_ts_ns=canonical_times(times) if times else None,
        key=key,
        data=data,
        tag=tag,
        node=node,
        meta=meta,
        version=version,
    )


def _fitting(column: Column, count: int, field: str, *, absence: bool = True) -> Column | None:
    """Return the column by I1 to I3 of `eddyline.core.records.column`, if its buffers fit together."""
    offsets, values, validity = column
    length = len(values)
    if not offsets:
        if values or validity:
            raise MalformedColumns(f"{field} has bytes but no offsets", field=field)
        return None
    if len(offsets) != 4 * count + 4:
        raise _wrong_length(f"{field}.offsets", len(offsets), 4 * count + 4)
    if length >= COLUMN_BYTES_END:
        raise MalformedColumns(
            f"{field} has {length} bytes, not below {COLUMN_BYTES_END}",
            field=field,
            lengthBytes=length,
            limitBytes=COLUMN_BYTES_END,
        )
    if offsets[:4] != _NO_BYTES or offsets[-4:] != length.to_bytes(4, "little") or not _ascend(offsets, count):
        message = f"{field}.offsets do not ascend from 0 to the values' length {length}"
        raise MalformedColumns(message, field=field, lengthBytes=length)
    if validity:
        return _fitting_validity(column, count, field, absence=absence)
    return canonical_column(Column(offsets, values, None), count, absence=absence)


def _ascend(offsets: Buffer, count: int) -> bool:
    """Return True if offsets never decrease.

    Compares in short runs: for longer ones numpy releases the interpreter's lock, and the event loop waits longer to
    get it back than the comparison takes.
    """
    if count < 2:
        return True  # the last is not below the first, which is 0
    bounds = offset_array(offsets)
    for start in range(0, count, UNRELEASED_CELLS):
        end = min(start + UNRELEASED_CELLS, count)
        if _TRUE in (bounds[start + 1 : end + 1] < bounds[start:end]).tobytes():
            return False
    return True


def _fitting_validity(column: Column, count: int, field: str, *, absence: bool) -> Column | None:
    assert column.validity is not None
    if not absence:
        raise MalformedColumns(f"{field} cannot be absent: its validity must be empty", field=field)
    if len(column.validity) != (count + 7) // 8:
        raise _wrong_length(f"{field}.validity", len(column.validity), (count + 7) // 8)
    bits = int.from_bytes(column.validity, "little") & ((1 << count) - 1)
    cleared = column._replace(validity=bits.to_bytes(len(column.validity), "little"))
    if column.values and np.diff(offset_array(column.offsets))[~presence(cleared, count)].any():
        raise MalformedColumns(f"{field} has an absent cell with a length", field=field)
    return canonical_column(cleared, count, absence=absence)


def _fitting_text(column: Column, count: int, field: str) -> Column | None:
    """Return the column as `_fitting`, if it is UTF-8 too."""
    fitting = _fitting(column, count, field)
    if fitting is None:
        return None
    try:
        length = len(str(fitting.values, "utf-8"))
    except UnicodeDecodeError as error:
        raise MalformedColumns(f"{field} is not UTF-8", field=field) from error
    size = len(fitting.values)
    if length != size:
        # The cells together are UTF-8; each of them is if none begins within a character.
        starts = offset_array(fitting.offsets)[:-1]
        first_bytes = np.frombuffer(fitting.values, dtype=np.uint8)[starts[starts < size]]
        if ((first_bytes & 0xC0) == 0x80).any():
            raise MalformedColumns(f"{field} is not UTF-8", field=field)
    return fitting


def _check_records(batch: Batch, *, source: bool) -> None:
    """Check the limits of a fitting batch's records, meta's grammar, and a source's gap payloads."""
    if batch.key is not None:
        _check_cells(batch.key, "key", KEY_BYTES_MAX)
    if batch.tag is not None:
        _check_cells(batch.tag, "tag", TAG_BYTES_MAX)
    if batch.node is not None:
        _check_cells(batch.node, "node", NODE_BYTES_MAX)
    if batch.version is not None:
        _check_cells(batch.version, "version", VERSION_BYTES_MAX)
    if batch.meta is not None:
        _check_cells(batch.meta, "meta", META_BYTES_MAX)
        check_meta_cells(batch.meta)
    limit = SOURCE_DATA_META_BYTES_MAX if source else DATA_META_BYTES_MAX
    total_bytes = (len(batch.data.values) if batch.data else 0) + (len(batch.meta.values) if batch.meta else 0)
    if total_bytes > limit:
        sizes = np.zeros(batch.count, dtype=np.int64)
        for column in (batch.data, batch.meta):
            if column is not None:
                sizes += size_array(column)
        _check_sizes(sizes, "data", limit)
    if source and batch.has_gaps:
        _check_gaps(batch)


def _check_cells(column: Column, field: str, limit: int) -> None:
    if len(column.values) > limit:
        _check_sizes(np.diff(offset_array(column.offsets)), field, limit)


def _check_sizes(sizes: NDArray[np.int64] | NDArray[np.uint32], field: str, limit: int) -> None:
    if sizes.max() <= limit:
        return
    index = int((sizes > limit).argmax())
    size = int(sizes[index])
    subject = "data and meta have" if field == "data" else f"{field} has"
    message = f"record {index}: {subject} {size} bytes, at most {limit}"
    raise RecordTooLarge(message, field=field, index=index, sizeBytes=size, limitBytes=limit)


def _check_gaps(batch: Batch) -> None:
    # Any other reason would report a range of seqs, by which readers move their cursors.
    for index in (batch.ops_array() == Op.GAP).nonzero()[0].tolist():
        gap = gap_of(0, batch.slice(index, index + 1).to_rows()[0].data or b"")
        if gap.reason not in OF_SOURCE:
            message = f"record {index}: a source may not report a gap of reason {gap.reason}"
            raise MalformedColumns(message, field="data", index=index, reason=gap.reason)


def _wrong_length(field: str, length: int, expected: int) -> MalformedColumns:
    message = f"{field} has {length} bytes where the count needs {expected}"
    return MalformedColumns(message, field=field, lengthBytes=length, expectedBytes=expected)
