"""Records as the rows of a data frame, in Arrow: the columns that a write takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from eddyline.core.records.record import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.records.record import Record

META: Final = pa.list_(pa.struct([pa.field("name", pa.utf8()), pa.field("value", pa.binary())]))
ROW_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("data", pa.binary()),
        pa.field("tag", pa.utf8()),
        pa.field("node", pa.utf8()),
        pa.field("op", pa.utf8()),
        pa.field("source_ts_ns", pa.int64()),
        pa.field("meta", META),
    ]
)


def rows_of(records: Sequence[Record]) -> pa.RecordBatch:
    """The rows; a time of 0 is null, as in what is read."""
    columns = {
        "key": [record.key for record in records],
        "data": [record.data for record in records],
        "tag": [record.tag for record in records],
        "node": [record.node for record in records],
        "op": [Op(record.op).name for record in records],
        "source_ts_ns": [record.source_ts_ns or None for record in records],
        "meta": [
            [{"name": entry.name, "value": entry.value} for entry in record.meta] if record.meta else None
            for record in records
        ],
    }
    return pa.RecordBatch.from_pydict(columns, schema=ROW_SCHEMA)
