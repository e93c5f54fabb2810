"""The schema that Spark sees, and which of the store's columns each of its columns is made from.

    topic string, seq bigint, ts timestamp, source_ts timestamp, source_ts_ns bigint, op string, key binary,
    key_text string, tag string, node string, meta array<struct<name:string,value:binary>>, data binary, version binary
    and where it is named data_text string

I1: names, types and order are stable; a column that comes later comes last.
Rejected: timestamps in nanoseconds, which Spark does not have: `ts` and `source_ts` are cut to microseconds, and
`source_ts_ns` is exact. An unsigned `seq`, which it does not have either: no topic reaches 2^63.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from eddyline.spark.options.values import refused
from eddyline.v1 import segment_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

META: Final = ArrayType(StructType([StructField("name", StringType()), StructField("value", BinaryType())]))
SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("seq", LongType()),
        StructField("ts", TimestampType()),
        StructField("source_ts", TimestampType()),
        StructField("source_ts_ns", LongType()),
        StructField("op", StringType()),
        StructField("key", BinaryType()),
        StructField("key_text", StringType()),
        StructField("tag", StringType()),
        StructField("node", StringType()),
        StructField("meta", META),
        StructField("data", BinaryType()),
        StructField("version", BinaryType()),
    ]
)
DATA_TEXT: Final = StructField("data_text", StringType())
"""Given only to a read that names it (`eddyline.export.split.columns.DATA_TEXT` says why)."""
_ALL: Final = StructType([*SCHEMA, DATA_TEXT])

_MADE_FROM: Final[dict[str, pb.SplitColumn.ValueType | None]] = {
    "topic": None,
    "seq": pb.SPLIT_COLUMN_SEQ,
    "ts": pb.SPLIT_COLUMN_TS,
    "source_ts": pb.SPLIT_COLUMN_SOURCE_TS_NS,
    "source_ts_ns": pb.SPLIT_COLUMN_SOURCE_TS_NS,
    "op": pb.SPLIT_COLUMN_OP,
    "key": pb.SPLIT_COLUMN_KEY,
    "key_text": pb.SPLIT_COLUMN_KEY,
    "tag": pb.SPLIT_COLUMN_TAG,
    "node": pb.SPLIT_COLUMN_NODE,
    "meta": pb.SPLIT_COLUMN_META,
    "data": pb.SPLIT_COLUMN_DATA,
    "data_text": pb.SPLIT_COLUMN_DATA,
    "version": pb.SPLIT_COLUMN_VERSION,
}


def schema_of(columns: Sequence[str]) -> StructType:
    """The schema with these columns alone (none named = all), in its own order.

    Raises:
        InvalidArgument: an unknown column.
    """
    wanted = {name.lower() for name in columns}
    if unknown := sorted(wanted - set(_ALL.fieldNames())):
        raise refused("columns", f"there is no {', '.join(unknown)}; there are {', '.join(_ALL.fieldNames())}")
    return StructType([field for field in _ALL if field.name in wanted]) if wanted else SCHEMA


def check_schema(given: StructType) -> tuple[str, ...]:
    """The columns of a schema that the reader is to give, which may be fewer than all, in any order.

    Raises:
        InvalidArgument: a column that does not exist, or is of another type.
    """
    for field in given:
        if field.name not in _ALL.fieldNames():
            raise refused("schema", f"there is no column {field.name}; there are {', '.join(_ALL.fieldNames())}")
        kind = _ALL[field.name].dataType
        if field.dataType.simpleString() != kind.simpleString():
            raise refused(
                "schema", f"column {field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}"
            )
    return tuple(given.fieldNames())


def arrow_schema_of(given: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects for a Spark schema."""
    return to_arrow_schema(given, timezone="UTC")


def store_columns(
    columns: Sequence[str], *, always: Sequence[pb.SplitColumn.ValueType]
) -> list[pb.SplitColumn.ValueType]:
    """The store's columns that these are made from, with those of `always`; empty = all of them, as the contract has it."""
    made_from = {_MADE_FROM[name] for name in columns} | set(always) | {pb.SPLIT_COLUMN_SEQ}
    wanted = sorted(column for column in made_from if column is not None)
    return [] if len(wanted) == len(pb.SplitColumn.values()) - 1 else wanted
