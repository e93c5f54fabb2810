"""A store's own entries of a fold, as a DataFrame: what RangeEntries gives, all at one point, read by one task.

A first row without a key says which point that is (`fold_seq`), for a fold without entries too. The frame is kept on the
executors' disks when it is made: a stream cannot be read a second time at the same point. An executor that goes away takes
its part with it, and what needs it fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import grpc
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql.types import LongType, StructField, StructType

from eddyline.core.codec.records import answer_from_columns
from eddyline.core.errors import EpochMismatch, NotReady
from eddyline.core.records.arrow import to_arrow
from eddyline.export.split.arrow_rows import RowMaker
from eddyline.export.split.channels import NO_ACCESS, domain_error, open_channel
from eddyline.spark.reader.batch_sizes import merge_small_batches
from eddyline.spark.schema import SCHEMA, arrow_schema_of
from eddyline.v1 import fold_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.export.split.calls import Cluster

RANGE_TIMEOUT_S: Final = 310.0
"""A store gives a range 300 s."""
FOLD_SEQ: Final = "fold_seq"
ENTRIES: Final = StructType([StructField(FOLD_SEQ, LongType()), *SCHEMA])


@dataclass(frozen=True, slots=True)
class StoreEntries:
    """Reads one topic's entries from the store at `address`."""

    address: str
    topic: str
    epoch: int
    access: CallerAccess = field(default=NO_ACCESS, repr=False)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The entries, as of now. Lazy: it is of another point each time it is computed."""

        def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                if batch.num_rows:
                    yield from merge_small_batches(self.batches())

        return spark.range(0, 1, 1, 1).mapInArrow(read, ENTRIES)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the marker, then the entries.

        Raises:
            EddylineError: EpochMismatch, NotReady, FoldLost, and what else the store says.
        """
        request = fold_pb2.RangeEntriesRequest(topic=self.topic, format=types_pb2.BATCH_FORMAT_COLUMNS)
        maker = RowMaker(self.topic)
        schema = arrow_schema_of(ENTRIES)
        fold_seq: int | None = None
        with open_channel(self.address, self.access) as channel:
            method = channel.unary_stream(
                "/eddyline.v1.FoldService/RangeEntries",
                request_serializer=fold_pb2.RangeEntriesRequest.SerializeToString,
                response_deserializer=fold_pb2.RangeEntriesResponse.FromString,
            )
            for answer in _told(method(request, timeout=RANGE_TIMEOUT_S, wait_for_ready=True)):
                if answer.state.epoch != self.epoch:
                    raise EpochMismatch(f"topic {self.topic} was recreated", epoch=answer.state.epoch)
                if fold_seq is None:
                    fold_seq = answer.state.fold_seq
                    yield pa.RecordBatch.from_pylist([{FOLD_SEQ: fold_seq}], schema=schema)
                if answer.columns.count:
                    rows = maker.rows(to_arrow(answer_from_columns(answer.columns)))
                    points = pa.repeat(pa.scalar(fold_seq, pa.int64()), rows.num_rows)
                    yield pa.RecordBatch.from_arrays([points, *rows.columns], schema=schema)
        if fold_seq is None:
            raise NotReady(f"the store ended the range of topic {self.topic} without an answer")


def _told(answers: Iterator[fold_pb2.RangeEntriesResponse]) -> Iterator[fold_pb2.RangeEntriesResponse]:
    try:
        yield from answers
    except grpc.RpcError as error:
        raise domain_error(error) from None


def kept(entries: DataFrame) -> DataFrame:
    """The frame as it is now, on disk."""
    return entries.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)


def open_entries(cluster: Cluster, topic: str, epoch: int) -> StoreEntries:
    """The entries of a topic, at the store that owns it."""
    return StoreEntries(cluster.store_of(topic), topic, epoch, cluster.access)
