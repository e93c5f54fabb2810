"""The plan of a read, made on the driver: topics with their epochs and ranges (`Cut`), and their pieces.

I1: a cut does not change: who plans it again gets pieces of the same seqs, so every action, and every task that is tried
again or twice, reads the same rows. Records deleted meanwhile are missing from them, and records removed by retention are a
gap.
Pieces are those of `eddyline.export.split.plan`, made of the splits of the store's `splits/planner.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from eddyline.core.errors import CursorAhead, NotKv, TopicNotFound
from eddyline.core.model.read import ALL_RECORDS
from eddyline.export.split.pieces import TopicSplit
from eddyline.export.split.plan import plan_pieces
from eddyline.spark.options.values import refused
from eddyline.v1 import log_pb2, topic_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.export.split.calls import Cluster
    from eddyline.spark.options.read import ReadOptions, TimeBy
    from eddyline.spark.options.values import SeqBound

TOPICS_MAX: Final = 10_000
"""Of one read. More is a slip of the prefix, or work for several reads."""
JOIN_RECORDS: Final = 100_000
"""Small pieces go into one task up to here: a task's start costs some 20 ms, as much as this many rows."""
NS_PER_MS: Final = 1_000_000
_ANY_SOURCE_TIME_NS: Final = -(1 << 62)


@dataclass(frozen=True, slots=True)
class Cut:
    """A range of one topic: `first_seq` inclusive, `end_seq` exclusive; source times as in the contract, 0 = no bound.

    With `as_of_seq` it is the fold after that record, and the range does not count.
    """

    topic: str
    epoch: int
    first_seq: int
    end_seq: int
    source_from_ns: int = 0
    source_end_ns: int = 0
    as_of_seq: int | None = None


class ReadPartition(InputPartition):
    """The work of one task. `stores` are the addresses of the shards by index, as they were when it was planned."""

    def __init__(self, pieces: tuple[TopicSplit, ...], stores: tuple[str, ...]) -> None:
        super().__init__(None)
        self.pieces = pieces
        self.stores = stores


def find_topics(cluster: Cluster, options: ReadOptions) -> list[topic_pb2.Topic]:
    """The topics that a read names.

    Raises:
        EddylineError: TopicNotFound: one of them, or of a prefix all; InvalidArgument: too many.
    """
    if options.topic_prefix is None:
        return [_find_topic(cluster, name) for name in options.topics]
    found = cluster.list_topics(options.topic_prefix)
    if not found:
        raise TopicNotFound(
            f"option topic: no topic name begins with {options.topic_prefix!r}; list topics with `eddyline topic list`",
            field="topic",
        )
    if len(found) > TOPICS_MAX:
        raise refused("topic", f"{len(found)} topics begin with {options.topic_prefix!r}; a read takes {TOPICS_MAX}")
    return found


def _find_topic(cluster: Cluster, name: str) -> topic_pb2.Topic:
    try:
        return cluster.get_topic(name)
    except TopicNotFound as error:
        raise TopicNotFound(
            f"option topic: topic {name} does not exist; list topics with `eddyline topic list`, or create it first",
            **{**error.metadata, "topic": name, "field": "topic"},
        ) from error


def pin(cluster: Cluster, options: ReadOptions) -> tuple[Cut, ...]:
    """Settle topics and ranges, each as its head is now.

    Raises:
        EddylineError: as `find_topics`; CursorAhead: a bound that lies above the head, by its option.
    """
    pin_one = pin_fold if options.folds else _pin_topic
    return tuple(pin_one(cluster, topic, options) for topic in find_topics(cluster, options))


def plan_log(cluster: Cluster, cut: Cut, options: ReadOptions) -> list[TopicSplit]:
    """The pieces of a cut of the log.

    Raises:
        EddylineError: what PlanSplits ends with; EpochMismatch, TopicNotFound with what it means.
    """
    whole = TopicSplit(
        cut.topic,
        cut.epoch,
        cut.first_seq,
        cut.end_seq - 1,
        source_from_ns=cut.source_from_ns,
        source_end_ns=cut.source_end_ns,
    )
    return plan_pieces(
        cluster,
        whole,
        # Gaps lie in segments that a filter would leave out.
        records=ALL_RECORDS if options.read == "gaps" else options.records,
        records_max=options.records_per_partition,
        bytes_max=options.bytes_per_partition,
    )


def partitions_of(pieces: Sequence[TopicSplit], cluster: Cluster, options: ReadOptions) -> list[ReadPartition]:
    """The pieces as tasks, in their order; small ones together."""
    most = min(options.records_per_partition, JOIN_RECORDS)
    groups: list[list[TopicSplit]] = []
    held = 0
    for piece in pieces:
        count = max(1, piece.record_count)
        if not groups or held + count > most:
            groups.append([])
            held = 0
        groups[-1].append(piece)
        held += count
    return [ReadPartition(tuple(group), cluster.stores) for group in groups]


def _pin_topic(cluster: Cluster, topic: topic_pb2.Topic, options: ReadOptions) -> Cut:
    time_by = _time_by(cluster, topic, options)
    first, end = topic.earliest_seq, topic.head_seq + 1
    source_from_ns = source_end_ns = 0
    asked = bound_of(options.starting_seq, topic.name)
    if asked is not None:
        first = resolve_seq(asked, topic, "startingSeq")
    elif options.starting_ns is not None:
        first = _find(cluster, topic, options.starting_ns, time_by)
        source_from_ns = (options.starting_ns or 1) if time_by == "source" else 0
    asked = bound_of(options.ending_seq, topic.name)
    if asked is not None:
        end = resolve_seq(asked, topic, "endingSeq")
    elif options.ending_ns is not None and time_by == "commit":
        end = min(end, _find(cluster, topic, options.ending_ns, time_by))
    elif options.ending_ns is not None:
        if options.ending_ns == 0:
            raise refused("endingTimestamp", "by source time it must be after 1970-01-01T00:00:00Z")
        source_end_ns = options.ending_ns
    return Cut(topic.name, topic.epoch, first, end, source_from_ns, source_end_ns)


def bound_of(given: SeqBound | dict[str, SeqBound] | None, topic: str) -> SeqBound | None:
    """The value given for a topic; None = none."""
    return given.get(topic) if isinstance(given, dict) else given


def resolve_seq(bound: SeqBound, topic: topic_pb2.Topic, option: str) -> int:
    """The seq that a bound means.

    Raises:
        CursorAhead: it is above the head, and not the next one.
    """
    if bound == "earliest":
        return int(topic.earliest_seq)
    if bound == "latest":
        return int(topic.head_seq) + 1
    if bound > topic.head_seq + 1:
        raise above_head(bound, topic, option)
    return bound


def above_head(seq: int, topic: topic_pb2.Topic, option: str) -> CursorAhead:
    """The error of an option that names what has not been written."""
    return CursorAhead(
        f"option {option}: {seq} is above the head of topic {topic.name}, {topic.head_seq}",
        headSeq=topic.head_seq,
        field=option,
    )


def pin_fold(cluster: Cluster, topic: topic_pb2.Topic, options: ReadOptions) -> Cut:
    """Settle the point that a fold is read at: the head, a seq, or the last record committed at or before a time.

    Raises:
        EddylineError: NotKv; CursorAhead: the seq is above the head; InvalidArgument: the time has not come.
    """
    if topic.kind != topic_pb2.TOPIC_KIND_KV:
        raise NotKv(f"topic {topic.name} is not a KV topic: it has no fold for read={options.read}")
    point = int(topic.head_seq)
    if options.as_of_seq is not None:
        if options.as_of_seq > point:
            raise above_head(options.as_of_seq, topic, "asOfSeq")
        point = options.as_of_seq
    elif options.as_of_ns is not None:
        moment_ms = options.as_of_ns // NS_PER_MS
        if moment_ms >= cluster.now_ms():
            raise refused("asOfTimestamp", "this time has not passed: records written until then would count")
        point = find_by_commit(cluster, topic, moment_ms + 1) - 1
    return Cut(topic.name, topic.epoch, 1, point + 1, as_of_seq=point)


def _time_by(cluster: Cluster, topic: topic_pb2.Topic, options: ReadOptions) -> TimeBy:
    if options.starting_ns is None and options.ending_ns is None:
        return "commit"
    if options.time_by is not None:
        return options.time_by
    request = log_pb2.FindSeqRequest(topic=topic.name, epoch=topic.epoch, source_time_ns=_ANY_SOURCE_TIME_NS)
    return "source" if cluster.find_seq(request).found else "commit"


def _find(cluster: Cluster, topic: topic_pb2.Topic, time_ns: int, time_by: TimeBy) -> int:
    request = log_pb2.FindSeqRequest(topic=topic.name, epoch=topic.epoch)
    if time_by == "source":
        request.source_time_ns = time_ns
        return int(cluster.find_seq(request).seq)
    return find_by_commit(cluster, topic, -(-time_ns // NS_PER_MS))


def find_by_commit(cluster: Cluster, topic: topic_pb2.Topic, time_ms: int) -> int:
    """The first record committed at or after a time; head + 1 where there is none."""
    request = log_pb2.FindSeqRequest(topic=topic.name, epoch=topic.epoch, commit_time_ms=time_ms)
    return int(cluster.find_seq(request).seq)
