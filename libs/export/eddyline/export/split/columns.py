"""The columns of a row, as Arrow has them: of reads by Spark and of exported files.

    topic string, seq int64, ts timestamp[us, UTC], source_ts timestamp[us, UTC], source_ts_ns int64, op string, key binary,
    key_text string, tag string, node string, meta list<struct<name string, value binary>>, data binary, version binary

and on request, last: data_text string, the data where it is UTF-8, else null.

Every column is nullable. I1: names, types and order are stable; a column that comes later comes last.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

ROW_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("seq", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("source_ts", pa.timestamp("us", tz="UTC")),
        ("source_ts_ns", pa.int64()),
        ("op", pa.string()),
        ("key", pa.binary()),
        ("key_text", pa.string()),
        ("tag", pa.string()),
        ("node", pa.string()),
        ("meta", pa.list_(pa.field("element", pa.struct([("name", pa.string()), ("value", pa.binary())])))),
        ("data", pa.binary()),
        ("version", pa.binary()),
    ]
)
DATA_TEXT: Final = pa.field("data_text", pa.string())
"""Not among the others: where values are no text each of them costs a decoder of its own, and where they are, the value is
sent twice."""
