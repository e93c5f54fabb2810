"""Folds for Spark: the live value of each key at one point, made in tasks of what a fold is rebuilt from.

The store plans a base and the history after it up to the point (PlanSplits with `as_of_seq`). Each task reads all of it, of
its share of the keys, and keeps the newest row of each (`newest.py`): what is not a deletion is live. So a task's memory is
bounded by its share, nothing is shuffled, and a task that is tried again reads the same.
I1: for every key the result is what GetEntry gives at that point.
Cost: each share has the store go through everything, so there are as few as memory allows; one reads stored batches as they
lie on disk.
Rejected: one task a split and a window or `max_by` over all of it in Spark, which a data source cannot ask for.
Failure: HistoryGone where a later base took the place of the planned one: load it again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from eddyline.core.records.record import Gap
from eddyline.export.split.pieces import TopicSplit, filter_of
from eddyline.export.split.plan import PLAN_PAGE, plan_pages
from eddyline.spark.options.read import SHARES_MAX
from eddyline.spark.reader.newest import NewestByKey
from eddyline.spark.reader.plan import ReadPartition
from eddyline.v1 import segment_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from eddyline.export.split.calls import Cluster
    from eddyline.export.split.pull import SplitPull
    from eddyline.spark.options.read import ReadOptions
    from eddyline.spark.reader.plan import Cut

SHARE_RECORDS: Final = 2_000_000
SHARE_BYTES: Final = 128 << 20
"""Of the store's, compressed: some 400 MiB in a task, twice that while it settles. As Spark's executors have a core and one
or two GiB for each task."""


def plan_fold(cluster: Cluster, cut: Cut, options: ReadOptions) -> list[ReadPartition]:
    """A task for each share of a topic's keys.

    Raises:
        EddylineError: what PlanSplits ends with.
    """
    if not cut.as_of_seq:
        return []
    every = TopicSplit(cut.topic, cut.epoch, 0, 0)
    request = pb.PlanSplitsRequest(
        topic=cut.topic,
        epoch=cut.epoch,
        as_of_seq=cut.as_of_seq,
        filter=filter_of(options.records, every),
        max_records=options.records_per_partition,
        max_bytes=options.bytes_per_partition,
        page_size=PLAN_PAGE,
    )
    pieces = [
        replace(
            every,
            first=split.first,
            last=split.last,
            kind=split.kind,
            split=split.SerializeToString(),
            record_count=split.record_count,
            nbytes=split.size_bytes,
        )
        for page in plan_pages(cluster, request)
        for split in page.splits
    ]
    if not pieces:
        return []
    shares = options.as_of_partitions or shares_of(pieces)
    if shares == 1:
        return [ReadPartition(tuple(pieces), cluster.stores)]
    return [
        ReadPartition(tuple(replace(piece, share_count=shares, share=share) for piece in pieces), cluster.stores)
        for share in range(shares)
    ]


def shares_of(pieces: Iterable[TopicSplit]) -> int:
    """How many tasks a fold of these is read by."""
    held = list(pieces)
    by_records = -(-sum(piece.record_count for piece in held) // SHARE_RECORDS)
    by_bytes = -(-sum(piece.nbytes for piece in held) // SHARE_BYTES)
    return max(1, min(SHARES_MAX, max(by_records, by_bytes)))


def live_rows(pieces: Iterable[TopicSplit], pull_of: Callable[[TopicSplit], SplitPull]) -> Iterator[pa.RecordBatch]:
    """Yield the live rows of a share, as batches of the store's columns. Gaps are passed over: what a fold is at a point it
    is without what was lost, as GetEntry has it.

    Raises:
        EddylineError: what `SplitPull.items` raises.
    """
    newest = NewestByKey()
    for piece in pieces:
        for item in pull_of(piece).items():
            if not isinstance(item, Gap):
                newest.add(item)
    yield from newest.live()
