"""The pieces that a store plans for a range of a topic's log, checked.

I1: pieces are disjoint, in order, and cover their range, but for what a filter hides by whole segments.
I2: a requested range below the earliest live record is in the plan, though the store's plan leaves it out: reading it
reports the outcome.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import EpochMismatch, HistoryGone, Internal, TopicNotFound
from eddyline.export.split.pieces import filter_of, gone, point_gone
from eddyline.v1 import segment_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.core.model.read import RecordFilter
    from eddyline.export.split.calls import Cluster
    from eddyline.export.split.pieces import TopicSplit

PLAN_PAGE: Final = 10_000
RECORDS_PER_SPLIT: Final = 1_000_000
"""Elsewhere 128 MiB of a file, whatever is in them. The contract's own: about a second of a task's work, far above what
starting it costs."""
BYTES_PER_SPLIT: Final = 256 << 20


def plan_pieces(
    cluster: Cluster, whole: TopicSplit, *, records: RecordFilter, records_max: int, bytes_max: int
) -> list[TopicSplit]:
    """The pieces of `whole`, each of at most `records_max` records or `bytes_max` bytes at the store.

    Raises:
        EddylineError: what PlanSplits ends with; EpochMismatch, TopicNotFound with what it means.
    """
    if whole.length < 1:
        return []
    request = pb.PlanSplitsRequest(
        topic=whole.topic,
        epoch=whole.epoch,
        after_seq=whole.first - 1,
        end_seq=whole.last + 1,
        filter=filter_of(records, whole),
        max_records=records_max,
        max_bytes=bytes_max,
        page_size=PLAN_PAGE,
    )
    return list(_covering(whole, plan_pages(cluster, request), hides=request.filter.ByteSize() > 0))


def plan_pages(cluster: Cluster, request: pb.PlanSplitsRequest) -> Iterator[pb.PlanSplitsResponse]:
    """Yield a plan, page by page.

    Raises:
        EddylineError: as `plan_pieces`.
    """
    while True:
        try:
            page = cluster.plan_splits(request)
        except (EpochMismatch, TopicNotFound) as error:
            raise gone(error, request.topic, request.epoch) from error
        except HistoryGone as error:
            raise point_gone(error, request.topic) from error
        yield page
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def _covering(whole: TopicSplit, pages: Iterator[pb.PlanSplitsResponse], *, hides: bool) -> Iterator[TopicSplit]:
    """The plan's splits as pieces, checked (I1), with what it left out at its beginning (I2)."""
    at = whole.first
    for page in pages:
        if page.end_seq != whole.last + 1:
            raise Internal(f"topic {whole.topic}: a plan up to {page.end_seq}, requested up to {whole.last + 1}")
        if at < page.first_seq:
            yield replace(whole, last=min(page.first_seq - 1, whole.last))
            at = page.first_seq
        for split in page.splits:
            if split.first < at or split.last > whole.last or (split.first > at and not hides):
                raise Internal(f"topic {whole.topic}: a plan with {split.first} to {split.last}, but {at} is next")
            yield replace(
                whole,
                first=split.first,
                last=split.last,
                split=split.SerializeToString(),
                record_count=split.record_count,
                nbytes=split.size_bytes,
            )
            at = split.last + 1
    if at <= whole.last and not hides:
        raise Internal(f"topic {whole.topic}: a plan that ends at {at}, before {whole.last}")
