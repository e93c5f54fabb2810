"""The writers of the data source: what is checked once on the driver, and what each task does.

    DataSource.writer(schema, overwrite)       -> batch_writer(options, schema, overwrite)
    DataSource.streamWriter(schema, overwrite) -> stream_writer(options, schema, overwrite)

Writer ids: of a batch `spark-<writeId or a new UUID>-<partition>`; of a stream `spark-<writeId or query id>-<partition>`,
with the micro-batch's number in the position. Both come with each task of a stream: the query's id is in the checkpoint,
so a query that is started again from it goes on under the same names.
The guarantee: each row at least once; exactly once if the rows of a partition, their order and the partitions themselves are
equal in every attempt. Rows are visible as they are written, before the job ends; `abort` takes
nothing back.
"""

from __future__ import annotations

import logging
import os
import random
import uuid
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from eddyline.core.errors import EddylineError, InvalidArgument, TopicHasSource, TopicNotFound
from eddyline.core.records.record import APPEND_RECORDS_MAX
from eddyline.core.runtime.clock import SystemClock
from eddyline.export.split.calls import RetryBudget
from eddyline.spark.options.access import read_access
from eddyline.spark.options.write import parse_write_options
from eddyline.spark.writer.partition import PartitionWriter, Target
from eddyline.spark.writer.replay import ReplayableRows
from eddyline.spark.writer.rows import check_columns, rows_to_batch
from eddyline.spark.writer.store_channel import open_store_channel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from eddyline.core.model.topic import Kind, TopicInfo
    from eddyline.core.records.batch import Batch
    from eddyline.spark.options.write import WriteOptions

QUERY_ID_KEY: Final = "sql.streaming.queryId"
BATCH_ID_KEY: Final = "streaming.sql.batchId"
"""Spark's own local properties, which each task of a micro-batch has."""

_LOG: Final = logging.getLogger("eddyline.spark.writer.writer")


@dataclass(frozen=True, slots=True)
class PartitionWritten(WriterCommitMessage):
    """The message of one task to the driver. `known` of the records were there from an earlier attempt, or from another
    one."""

    partition: int
    records: int
    known: int
    took_over: bool


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The parameters of every task: nothing in them is bound to a process."""

    options: WriteOptions
    kind: Kind
    epoch: int


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicWriter:
    """The writer of a batch.

    Raises:
        EddylineError: InvalidArgument, InvalidName, TopicNotFound, TopicHasSource, NotReady.
    """
    plan = _plan(options, schema, overwrite)
    return TopicWriter(plan, plan.options.write_id or str(uuid.uuid4()))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicStreamWriter:
    """The writer of a stream's micro-batches; Spark makes one for each. Raises: as `batch_writer`."""
    return TopicStreamWriter(_plan(options, schema, overwrite))


class TopicWriter(DataSourceArrowWriter):
    """Writes a batch under one id."""

    def __init__(self, plan: WritePlan, write_id: str) -> None:
        self._plan = plan
        self._write_id = write_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(iterator, self._plan, write_id=self._write_id, run=0, partition=_task().partitionId())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _tell(f"write {self._write_id}", self._plan, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _tell(f"write {self._write_id}, which failed", self._plan, messages)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches, each under the query's id and its own number."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, number = task.getLocalProperty(QUERY_ID_KEY), task.getLocalProperty(BATCH_ID_KEY)
        if query is None or number is None:
            raise InvalidArgument(
                f"this Spark does not pass {QUERY_ID_KEY} and {BATCH_ID_KEY} to its tasks; without them a repeated "
                "micro-batch would be written twice",
                field="task",
            )
        write_id = self._plan.options.write_id or query
        return write_rows(iterator, self._plan, write_id=write_id, run=int(number), partition=task.partitionId())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _tell(f"micro-batch {batchId}", self._plan, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _tell(f"micro-batch {batchId}, which failed", self._plan, messages)


def write_rows(
    rows: Iterable[pa.RecordBatch], plan: WritePlan, *, write_id: str, run: int, partition: int
) -> PartitionWritten:
    """Write one partition.

    Raises:
        EddylineError: as `PartitionWriter.write`, and as `rows_to_batch`.
    """
    options = plan.options
    target = Target(
        stores=options.stores,
        topic=options.topic,
        kind=plan.kind,
        epoch=plan.epoch,
        writer=f"spark-{write_id}-{partition}",
        run=run,
        patience_s=options.patience_s,
        access=options.access,
    )
    content = ReplayableRows(
        _batches(rows, plan.kind),
        run=run,
        records_max=options.batch_records,
        bytes_max=options.batch_bytes,
        on_different=options.on_different_rows,
    )
    with closing(content):
        # Jitter alone is random.
        written = PartitionWriter(content, target, clock=SystemClock(), random_source=random.Random()).write()
    if written.took_over:
        _LOG.warning("%s: rows differ from those of an earlier attempt, which stay in the topic", target.writer)
    return PartitionWritten(partition, content.ordinal, content.ordinal - written.appended, written.took_over)


def find_topic(options: WriteOptions) -> TopicInfo:
    """The topic of a write, created first if the options say so; waits for a store that is unreachable.

    Raises:
        EddylineError: TopicNotFound, TopicHasSource, NotReady; InvalidArgument: it is of another kind than it is to be.
    """
    patience = RetryBudget(options.patience_s, clock=SystemClock(), random_source=random.Random())
    while True:
        try:
            topic = _find_or_make(options)
            break
        except EddylineError as error:
            patience.wait(error)
    if options.create is not None and topic.kind is not options.create:
        raise InvalidArgument(
            f"option createTopic: topic {topic.name} exists with kind {topic.kind.name}", field="createTopic"
        )
    if topic.source:
        raise TopicHasSource(
            f"topic {topic.name} is written by its source {topic.source} only", topic=topic.name, source=topic.source
        )
    return topic


def _find_or_make(options: WriteOptions) -> TopicInfo:
    with open_store_channel(options.stores, options.topic, options.access) as link:
        try:
            return link.get_topic()
        except TopicNotFound:
            if options.create is not None:
                return link.create_topic(options.create)
            raise TopicNotFound(
                f"topic {options.topic} does not exist: create it first, or give option createTopic=LOG or KV",
                topic=options.topic,
            ) from None


def _plan(given: Mapping[str, str], schema: StructType, overwrite: bool) -> WritePlan:
    options = parse_write_options(given)
    if overwrite:
        raise InvalidArgument(
            "mode overwrite (output mode complete): rows are only appended to a topic; use append, and delete old "
            "records with the client first",
            field="mode",
        )
    options = replace(options, access=read_access(options.asked, os.environ))
    topic = find_topic(options)
    check_columns(to_arrow_schema(schema, timezone="UTC"), topic.kind, topic.name)
    return WritePlan(replace(options, create=None), topic.kind, topic.epoch)


def _batches(rows: Iterable[pa.RecordBatch], kind: Kind) -> Iterator[Batch]:
    ordinal = 0
    for some in rows:
        for start in range(0, some.num_rows, APPEND_RECORDS_MAX):
            part = some.slice(start, APPEND_RECORDS_MAX)
            yield rows_to_batch(part, kind, ordinal)
            ordinal += part.num_rows


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise InvalidArgument("a topic can be written only in a Spark task", field="task")
    return task


def _tell(what: str, plan: WritePlan, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, PartitionWritten)]
    over = sum(message.took_over for message in written)
    _LOG.info(
        "topic %s, %s: %d records in %d of %d partitions, %d of them from earlier attempts; %d partitions written again",
        plan.options.topic,
        what,
        sum(message.records for message in written),
        len(written),
        len(messages),
        sum(message.known for message in written),
        over,
    )
