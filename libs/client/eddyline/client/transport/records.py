"""Records of a role's answer: columns stay columns until a reader touches a record (`RecordSequence`).

Requests ask for columns; rows, of a role that knows no others, are decoded at once.
Threading: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.codec.records import answer_from_columns, record_from_pb, record_of_columns
from eddyline.core.errors import MalformedColumns
from eddyline.core.records.record_sequence import RecordSequence
from eddyline.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.records.record import Record

NO_DATA: Final = 0xFFFF_FFFF
"""In the lengths of data that was left out: the record has none."""


def decode_records(batch: types_pb2.ColumnarBatch | types_pb2.RecordBatch) -> Sequence[Record]:
    """Decode an answer's records.

    Raises:
        MalformedColumns, RecordTooLarge: columns do not fit together, or break the bounds of every writer.
    """
    if isinstance(batch, types_pb2.RecordBatch):
        return tuple(map(record_from_pb, batch.records))
    lone = record_of_columns(batch) if batch.count == 1 else None
    return RecordSequence(answer_from_columns(batch, later_ops=True)) if lone is None else (lone,)


def decode_data_bytes(batch: types_pb2.ColumnarBatch | types_pb2.RecordBatch) -> tuple[int | None, ...]:
    """Decode the length of each record's data that a watch of metadata left out; None = it has none.

    Raises:
        MalformedColumns: there are not as many as records.
    """
    if isinstance(batch, types_pb2.RecordBatch):
        return tuple([row.data_bytes if row.HasField("data_bytes") else None for row in batch.records])
    if not batch.data_bytes:
        return (None,) * batch.count
    if len(batch.data_bytes) != 4 * batch.count:
        raise MalformedColumns(
            f"data_bytes has {len(batch.data_bytes)} bytes where the count needs {4 * batch.count}",
            field="data_bytes",
            lengthBytes=len(batch.data_bytes),
            expectedBytes=4 * batch.count,
        )
    sizes: list[int] = np.frombuffer(batch.data_bytes, dtype="<u4").tolist()
    return tuple([None if size == NO_DATA else size for size in sizes])
