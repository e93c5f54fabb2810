"""The batch reader: the driver plans what was pinned, tasks read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from eddyline.export.split.calls import Cluster
from eddyline.spark.reader.fold import plan_fold
from eddyline.spark.reader.plan import ReadPartition, partitions_of, pin, plan_log
from eddyline.spark.reader.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from eddyline.spark.options.read import ReadOptions
    from eddyline.spark.reader.plan import Cut


class BatchReader(DataSourceReader):
    """Reads cuts of topics. `cuts` None = they are pinned when it is planned."""

    def __init__(self, options: ReadOptions, schema: StructType, cuts: tuple[Cut, ...] | None) -> None:
        self._options = options
        self._task = Task(options, schema)
        self._cuts = cuts

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with Cluster.of(options) as cluster:
            cuts = self._cuts if self._cuts is not None else pin(cluster, options)
            if options.folds:
                return [task for cut in cuts for task in plan_fold(cluster, cut, options)]
            pieces = [piece for cut in cuts for piece in plan_log(cluster, cut, options)]
            return partitions_of(pieces, cluster, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition of its own where there is none.
        return self._task.read(partition) if isinstance(partition, ReadPartition) else iter(())
