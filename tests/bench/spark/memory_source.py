"""A data source that yields ready batches from memory: what Spark takes in from Python at most, P11's ceiling."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from eddyline.core.records.arrow import to_arrow
from eddyline.export.split.arrow_rows import RowMaker
from eddyline.spark.schema import SCHEMA
from tests.bench.spark.spark_rows import BATCH_ROWS, MADE_ROWS, device_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType


@cache
def ready_rows() -> pa.RecordBatch:
    """The batch, made once a worker: of few records, since making records takes longer than scanning them."""
    some = RowMaker("scanned").rows(to_arrow(device_batch(1, MADE_ROWS)))
    return pa.concat_batches([some] * (BATCH_ROWS // MADE_ROWS))


class MemorySource(DataSource):
    """`records` rows in `partitions` tasks, all of one batch made once a worker."""

    @classmethod
    def name(cls) -> str:
        return "memory_rows"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(int(self.options["records"]), int(self.options["partitions"]))


class MemoryReader(DataSourceReader):
    """Yields the batch again and again."""

    def __init__(self, records: int, partitions: int) -> None:
        self._records = records
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        each = -(-self._records // self._partitions)
        starts = range(0, self._records, each)
        return [InputPartition(min(each, self._records - start)) for start in starts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        ready = ready_rows()
        left = int(partition.value)
        while left > 0:
            yield ready.slice(0, min(left, BATCH_ROWS))
            left -= BATCH_ROWS
