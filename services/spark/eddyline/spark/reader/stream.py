"""The stream reader: where topics stand, how far a micro-batch goes, and what its tasks read.

An offset is `{topic: {"epoch": e, "seq": s}}`: all up to `s`, inclusive, is behind. The checkpoint wins over every option.
Options give the start of topics that the checkpoint does not have: at the first run, or a topic that matched a prefix later,
which starts at its earliest record.
I1: an offset has its topics in order, so that Spark sees that nothing came; the same two offsets give the same rows.
I2: of each topic a micro-batch accounts for every seq between its offsets (see `task.py`): rows + gaps + deleted + hidden.
I3: nothing depends on `commit`, which Spark does not call for every micro-batch.
Failure: a topic that was deleted or made again ends the query, with what to do; so does one whose head lies behind the
checkpoint. A store that is away is waited for.
Memory: one channel to each store, the topics as they were last heard of, nothing a trigger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from eddyline.core.errors import CursorAhead, EpochMismatch, TopicNotFound
from eddyline.export.split.calls import Cluster
from eddyline.export.split.pieces import gone
from eddyline.spark.reader.plan import Cut, ReadPartition, find_topics, partitions_of, pin, plan_log
from eddyline.spark.reader.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from eddyline.spark.options.read import ReadOptions
    from eddyline.v1 import topic_pb2


class TopicOffset(TypedDict):
    """A stream's position in one topic."""

    epoch: int
    seq: int


Offset = dict[str, TopicOffset]
_NO_TARGETS: Final[Mapping[str, TopicOffset] | None] = None


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow. Its calls are Spark's, one at a time."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._task = Task(options, schema)
        self._cluster = Cluster.of(options)
        self._targets = _NO_TARGETS
        self._heads: Offset = {}

    def initialOffset(self) -> Offset:
        return _ordered({cut.topic: TopicOffset(epoch=cut.epoch, seq=cut.first_seq - 1) for cut in self._pin()})

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.records_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = _heads_of(self._topics())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        topics = self._topics()
        self._heads = _heads_of(topics)
        ends = self._heads if self._targets is None else self._targets
        places: Offset = {}
        backlogs: dict[str, int] = {}
        for name, topic in topics.items():
            place = start.get(name)
            if place is None:
                places[name] = TopicOffset(epoch=topic.epoch, seq=topic.earliest_seq - 1)
                continue
            _check_place(place, topic)
            places[name] = place
            if name in ends:
                backlogs[name] = max(0, ends[name]["seq"] - place["seq"])
        for name in start:
            if name not in topics and self._options.topic_prefix is not None:
                raise gone(TopicNotFound(f"no topic {name}"), name, start[name]["epoch"])
        taken = shared_out(backlogs, limit.max_rows) if isinstance(limit, ReadMaxRows) else backlogs
        for name, count in taken.items():
            places[name] = TopicOffset(epoch=places[name]["epoch"], seq=places[name]["seq"] + count)
        return _ordered(places)

    def reportLatestOffset(self) -> Offset | None:
        return _ordered(self._heads) or None

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        pieces = []
        for name, place in end.items():
            behind = start.get(name)
            if behind is not None and behind["seq"] < place["seq"]:
                cut = Cut(name, place["epoch"], behind["seq"] + 1, place["seq"] + 1)
                pieces += plan_log(self._cluster, cut, self._options)
        return partitions_of(pieces, self._cluster, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._task.read(partition) if isinstance(partition, ReadPartition) else iter(())

    def stop(self) -> None:
        self._cluster.close()

    def __getstate__(self) -> dict[str, object]:
        """Without channels: what Spark sends to tasks opens its own."""
        return {**self.__dict__, "_cluster": Cluster.of(self._options)}

    def _pin(self) -> tuple[Cut, ...]:
        return pin(self._cluster, self._options)

    def _topics(self) -> dict[str, topic_pb2.Topic]:
        return {topic.name: topic for topic in find_topics(self._cluster, self._options)}


def shared_out(backlogs: Mapping[str, int], most: int) -> dict[str, int]:
    """How much of each backlog is taken, `most` together: what is small as a whole, the rest in equal parts; where there is
    less than one for each, the longest backlogs first.
    """
    taken = {}
    left = most
    for place, name in enumerate(sorted(backlogs, key=lambda name: (backlogs[name], name))):
        taken[name] = min(backlogs[name], left // (len(backlogs) - place))
        left -= taken[name]
    return taken


def _heads_of(topics: Mapping[str, topic_pb2.Topic]) -> Offset:
    return {name: TopicOffset(epoch=topic.epoch, seq=topic.head_seq) for name, topic in topics.items()}


def _ordered(offset: Offset) -> Offset:
    return {name: offset[name] for name in sorted(offset)}


def _check_place(place: TopicOffset, topic: topic_pb2.Topic) -> None:
    if place["epoch"] != topic.epoch:
        raise gone(EpochMismatch(f"its epoch is {topic.epoch}", epoch=topic.epoch), topic.name, place["epoch"])
    if place["seq"] > topic.head_seq:
        raise CursorAhead(
            f"topic {topic.name}: the checkpoint is at seq {place['seq']}, above the head {topic.head_seq}: the store"
            " has an older state than was read. Start with a new checkpoint and a startingSeq up to the head",
            headSeq=topic.head_seq,
        )
