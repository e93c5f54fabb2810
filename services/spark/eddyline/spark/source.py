"""The data source `eddyline`: topics for Spark.

    from eddyline.spark.source import register

    register(spark)
    spark.read.format("eddyline").option("store", "127.0.0.1:7701").option("topic", "routes").load()

I1: what is read is pinned when a read is loaded: every action on the DataFrame, and both sides of a join with itself, see
one cut of each topic. Load again to see what came since. (Spark Connect may load anew for an action: give `endingSeq`
where it must not.)
`pushFilters` is not defined: Spark 4.3 lets filters that one query pushed leak into later ones on the same DataFrame.
Ranges, filters and columns are options.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from eddyline.export.split.calls import Cluster
from eddyline.spark.options.read import check_stream, parse_options, with_access
from eddyline.spark.reader.batch import BatchReader
from eddyline.spark.reader.plan import pin
from eddyline.spark.reader.stream import StreamReader
from eddyline.spark.schema import check_schema, schema_of
from eddyline.spark.writer.writer import batch_writer, stream_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from eddyline.spark.options.read import ReadOptions
    from eddyline.spark.reader.plan import Cut


def register(spark: SparkSession) -> None:
    """Make the format `eddyline` known to a session, classic or Connect."""
    spark.dataSource.register(EddylineDataSource)


class EddylineDataSource(DataSource):
    """Made by Spark, one for each `load` or `save`, on the driver."""

    _cuts: tuple[Cut, ...] | None = None
    _options: ReadOptions | None = None

    @classmethod
    def name(cls) -> str:
        return "eddyline"

    def schema(self) -> StructType:
        options = self._read_options()
        found = schema_of(options.columns)
        with Cluster.of(options) as cluster:
            self._cuts = pin(cluster, options)
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        check_schema(schema)
        return BatchReader(self._read_options(), schema, self._cuts)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        check_stream(self.options)
        check_schema(schema)
        return StreamReader(self._read_options(), schema)

    def _read_options(self) -> ReadOptions:
        # Kept, as the cuts are: the files that they name are read once.
        if self._options is None:
            self._options = with_access(parse_options(self.options), os.environ)
        return self._options

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(self.options, schema, overwrite)
