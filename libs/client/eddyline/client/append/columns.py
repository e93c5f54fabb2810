"""Records of an append to columns, all at once: one pass a field, no object per record.

1 000 records cost 0.5 us each in place of 2.4 as rows, and the store 0.05 us in place of 0.7 (`make bench ROWS=P24`).
Below `COLUMNS_RECORDS_MIN` records an append travels as rows.

I1: an append as columns has the same content as the same records as rows: the store makes equal batches of both.
I2: columns are made only of records that need no second look. Wrong records (a type, a number, a text, a seq, an
unknown op, too many entries of meta) go as rows, so that the client or the store names the first of them as ever.
Threading: pure functions.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TYPE_CHECKING, Final

from eddyline.client.transport.checked import check_records, fill_rows_of
from eddyline.core.codec.records import fill_columns
from eddyline.core.errors import EddylineError
from eddyline.core.records.batch import Batch, RowFields
from eddyline.core.records.record import META_ENTRIES_MAX, OP_OF_TOPIC, MetaEntry, Op, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eddyline.v1 import log_pb2, types_pb2

COLUMNS_RECORDS_MIN: Final = 4
"""Both ends together: one record 10 us as rows and 14 as columns, four 34 and 26, 1 000 3 100 and 600."""

_KNOWN_OPS: Final = bytes([0, *Op])
_BYTES: Final[frozenset[type]] = frozenset({bytes})
_CELLS: Final[frozenset[type]] = frozenset({bytes, type(None)})
_TEXTS: Final[frozenset[type]] = frozenset({str, type(None)})
_OPS: Final[frozenset[type]] = frozenset({int, Op, type(OP_OF_TOPIC)})
_METAS: Final[frozenset[type]] = frozenset({tuple, list})
_ENTRIES: Final[frozenset[type]] = frozenset({MetaEntry, tuple})


def fill_records(append: log_pb2.AppendRecordsRequest | log_pb2.AppendBatch, records: Iterable[Record]) -> None:
    """Write the records into an append that has none.

    Raises:
        TypeError, ValueError: as `fill_rows_of`.
    """
    check_records(records)
    rows = records if isinstance(records, list | tuple) else list(records)
    if len(rows) < COLUMNS_RECORDS_MIN or not _fill_columns(append.columns, rows):
        fill_rows_of(append.rows, rows)


def _fill_columns(columns: types_pb2.ColumnarBatch, records: Sequence[Record]) -> bool:
    """Write the records as columns; False = they are to go as rows (I2)."""
    if set(map(type, records)) != {Record}:
        return False
    fields = RowFields.of(records)
    try:
        ops = _ops(fields.ops)
        if not _is_plain(fields) or ops.translate(None, _KNOWN_OPS):
            return False
        batch = Batch.from_fields(fields)
    except (EddylineError, TypeError, ValueError, OverflowError):
        return False
    fill_columns(columns, batch)
    columns.ops = ops
    return True


def _ops(ops: Sequence[int]) -> bytes:
    """Return the ops, 0 = that of the topic; empty if all are.

    A batch leaves out ops that are all APPEND; as columns of an append these would be those of the topic.
    """
    kinds = set(map(type, ops))
    if kinds == {type(OP_OF_TOPIC)}:
        return b""
    if not kinds <= _OPS:
        raise TypeError("an op is no int")
    if type(OP_OF_TOPIC) not in kinds:
        return bytes(ops)
    return bytes([0 if op is OP_OF_TOPIC else op for op in ops])


def _is_plain(fields: RowFields) -> bool:
    """Return True if all fields have their own types, and no record has a seq or a commit time.

    Raises:
        TypeError, ValueError, OverflowError: a number or an entry of meta is none.
    """
    if any(array("q", fields.seqs)) or any(array("q", fields.times)):
        return False
    array("q", fields.source_times)
    return (
        _CELLS.issuperset(map(type, fields.keys))
        and _CELLS.issuperset(map(type, fields.data))
        and _TEXTS.issuperset(map(type, fields.tags))
        and _TEXTS.issuperset(map(type, fields.nodes))
        and _BYTES.issuperset(map(type, fields.versions))
        and (fields.metas.count(()) == len(fields.metas) or _are_metas(fields.metas))
    )


def _are_metas(metas: Sequence[tuple[MetaEntry, ...]]) -> bool:
    if not _METAS.issuperset(map(type, metas)) or max(map(len, metas)) > META_ENTRIES_MAX:
        return False
    entries = list(chain.from_iterable(metas))
    if not _ENTRIES.issuperset(map(type, entries)):
        return False
    names, values = zip(*entries, strict=True) if entries else ((), ())
    return set(map(type, names)) <= {str} and set(map(type, values)) <= {bytes}
