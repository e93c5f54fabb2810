"""The rows of a DataFrame, collected without blocking the event loop of the store's process and clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row = dict[str, Any]
"""A row by column: of as many types as there are columns."""


async def rows_of(frame: DataFrame) -> list[Row]:
    """Collect, times as microseconds, in the order in which Spark has them."""
    table = await asyncio.to_thread(frame.toArrow)
    for name in ("ts", "source_ts"):
        if name in table.schema.names:
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, table.column(name).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()))
    found: list[Row] = table.to_pylist()
    return found


async def count_of(frame: DataFrame) -> int:
    return await asyncio.to_thread(frame.count)
