"""The store's record batches as rows of `columns.py`, a column at once. Bytes that are equal in both are not copied.

    topic, op        constants where a batch has one value, which is nearly always
    source_ts(_ns)   null where the store has 0, unknown; `source_ts` cut down to microseconds
    key_text, data_text   null where key or data are not UTF-8
    version          the seq in 8 bytes where the store has none, as every reader of Eddyline sees it

A gap as a row (`onGap` = `rows`): `seq` that of the gap's own record, else the last lost one, so that no two rows share a
seq; op GAP; no time, key, data or version; in `meta` `first_seq`, `last_seq`, `reason` as text, and what a source told of
its own: `source_first`, `source_last`, `source_identity`.
Failure: a batch that does not follow the contract's grammar is MalformedColumns.
Threading: one task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.core.errors import MalformedColumns
from eddyline.core.records.record import Gap, GapReason, Op
from eddyline.export.split.columns import ROW_SCHEMA
from eddyline.export.split.made_arrays import bool_array, int64_array, repeated_text, text_array
from eddyline.export.split.meta_rows import meta_lists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

_OP_NAMES: Final = [op.name if (op := Op._value2member_map_.get(number)) else str(number) for number in range(256)]
_US: Final = pa.timestamp("us", tz="UTC")
_MS: Final = pa.timestamp("ms", tz="UTC")
_NS_PER_US: Final = 1_000


class RowMaker:
    """Makes rows of one topic, with these columns of `ROW_SCHEMA` and perhaps `DATA_TEXT`."""

    def __init__(self, topic: str, schema: pa.Schema = ROW_SCHEMA) -> None:
        self._topic = topic
        self._schema = schema
        self._constants: dict[str, pa.Array] = {}
        makers: dict[str, Callable[[pa.RecordBatch], pa.Array]] = {
            "topic": lambda batch: self._constant(self._topic, batch.num_rows),
            "seq": lambda batch: batch.column("seq").view(pa.int64()),
            "ts": lambda batch: _microseconds(batch.column("ts")),
            "source_ts": _source_times,
            "source_ts_ns": _source_times_ns,
            "op": self._ops,
            "key": lambda batch: batch.column("key"),
            "key_text": lambda batch: valid_text(batch.column("key")),
            "tag": lambda batch: batch.column("tag"),
            "node": lambda batch: batch.column("node"),
            "meta": lambda batch: meta_lists(batch.column("meta"), self._schema.field("meta").type),
            "data": lambda batch: batch.column("data"),
            "data_text": lambda batch: valid_text(batch.column("data")),
            "version": _versions,
        }
        self._makers = [makers[name] for name in self._schema.names]

    @property
    def schema(self) -> pa.Schema:
        """Of what it makes."""
        return self._schema

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a store's batch, which has at least the columns that they are made from.

        Raises:
            MalformedColumns: meta cells that do not follow their grammar, or a column that is not there.
        """
        try:
            return pa.RecordBatch.from_arrays([make(batch) for make in self._makers], schema=self._schema)
        except (KeyError, pa.ArrowInvalid) as error:
            raise MalformedColumns(f"the store sent a batch that cannot be read: {error}") from error

    def gap_rows(self, gaps: Iterable[Gap]) -> pa.RecordBatch:
        """Return one row for each gap, with the op GAP and the gap's fields in `meta`."""
        rows = [
            {
                "topic": self._topic,
                "seq": gap.own_seq,
                "op": Op.GAP.name,
                "meta": [{"name": name, "value": value} for name, value in gap_meta(gap)],
            }
            for gap in gaps
        ]
        return pa.RecordBatch.from_pylist(rows, schema=self._schema)

    def _ops(self, batch: pa.RecordBatch) -> pa.Array:
        ops = batch.column("op")
        numbers = np.frombuffer(ops.buffers()[1], dtype=np.uint8, count=len(ops), offset=ops.offset)
        if len(numbers) and (numbers == numbers[0]).all():
            return self._constant(_OP_NAMES[int(numbers[0])], len(numbers))
        return pc.take(text_array(_OP_NAMES), ops)

    def _constant(self, text: str, count: int) -> pa.Array:
        made = self._constants.get(text)
        if made is None or len(made) < count:
            made = self._constants[text] = repeated_text(text, count)
        return made.slice(0, count)


def gap_meta(gap: Gap) -> list[tuple[str, bytes]]:
    """The columns of a gap's row, by name."""
    known = GapReason._value2member_map_.get(gap.reason)
    told = [
        ("first_seq", str(gap.first_seq).encode()),
        ("last_seq", str(gap.last_seq).encode()),
        ("reason", (known.name if known is not None else str(gap.reason)).encode()),
    ]
    if gap.source_first:
        told += [("source_first", str(gap.source_first).encode()), ("source_last", str(gap.source_last).encode())]
    if gap.source_identity:
        told.append(("source_identity", gap.source_identity))
    return told


def valid_text(column: pa.Array) -> pa.Array:
    """Bytes as text, null where they are not UTF-8."""
    try:
        return column.cast(pa.utf8())
    except pa.ArrowInvalid:
        return text_array([_text(value) for value in column.to_pylist()])


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _int64s(column: pa.Array) -> NDArray[np.int64]:
    return np.frombuffer(column.buffers()[1], dtype="<i8", count=len(column), offset=8 * column.offset)


def _microseconds(column: pa.Array) -> pa.Array:
    if column.type != _MS:
        raise MalformedColumns(f"the store's ts is {column.type}, not {_MS}", field="ts")
    return int64_array(_int64s(column) * 1_000, _US)


def _source_times_ns(batch: pa.RecordBatch) -> pa.Array:
    return _times(_int64s(batch.column("source_ts_ns")), pa.int64(), 1)


def _source_times(batch: pa.RecordBatch) -> pa.Array:
    return _times(_int64s(batch.column("source_ts_ns")), _US, _NS_PER_US)


def _times(nanoseconds: NDArray[np.int64], kind: pa.DataType, unit: int) -> pa.Array:
    known = nanoseconds != 0
    if not known.any():
        return pa.nulls(len(nanoseconds), kind)
    values = nanoseconds // unit if unit > 1 else nanoseconds
    if known.all():
        return int64_array(values, kind)
    bits = pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, len(nanoseconds), [bits, pa.py_buffer(values)], int(len(known) - known.sum()))


def _versions(batch: pa.RecordBatch) -> pa.Array:
    stored = batch.column("version")
    count = batch.num_rows
    bounds = np.frombuffer(stored.buffers()[1], dtype="<u4", count=count + 1, offset=4 * stored.offset)
    unset = bounds[1:] == bounds[:-1]
    if not unset.any():
        return stored
    seqs = np.frombuffer(
        batch.column("seq").buffers()[1], dtype="<u8", count=count, offset=8 * batch.column("seq").offset
    )
    of_seq = pa.Array.from_buffers(
        pa.binary(),
        count,
        [None, pa.py_buffer(np.arange(0, 8 * count + 1, 8, dtype=np.int32)), pa.py_buffer(seqs.astype(">u8"))],
        0,
    )
    return of_seq if unset.all() else pc.if_else(bool_array(unset), of_seq, stored)
