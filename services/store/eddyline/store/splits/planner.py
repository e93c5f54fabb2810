"""Split planner: cuts a topic's log, or base and log of its fold at one point, into splits at the ends of stored batches.

    log          above the first seq and up to the present head, or an end below it
    fold at S    the rows of a base at or below S, then the log after it up to S; no base: the log from 1 on

Whole segments that fit a split are added by their summaries; for the others, and with a filter that may rule batches out,
footers are read. WAL frames follow, or batches in memory. A finished plan holds no resources.
I1: the splits of a plan are disjoint and ascend; without a filter they cover its range. Ranges that a filter rules out lie
between two splits, or inside one that continues after them. I2: all pages of a plan have the first page's head.
Threading: event loop, which it yields now and then; footers are read on the reader threads.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import CursorAhead, DataCorrupt, InvalidArgument, NotKv, TopicNotFound
from eddyline.store.log.floors import live_count
from eddyline.store.log.topic import NO_FLOORS
from eddyline.store.log_io.pieces import unless_deleted
from eddyline.store.splits.base_reader import base_at, history_gone
from eddyline.store.splits.cutter import SplitCutter
from eddyline.store.splits.filter import may_hold, may_hold_passing, of_topic
from eddyline.store.splits.model import (
    SPLIT_BYTES_DEFAULT,
    SPLIT_RECORDS_DEFAULT,
    SPLITS_DEFAULT,
    SPLITS_MAX,
    PlanMark,
    Split,
    SplitKind,
    SplitPlan,
    check_filter,
)
from eddyline.store.splits.scan import frames_after
from eddyline.store.write.validation import check_epoch, check_fold

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.store.log.segments import Segment
    from eddyline.store.log.topic import Topic
    from eddyline.store.retention.retention import Retention
    from eddyline.store.splits.base_reader import BaseSplitReader
    from eddyline.store.splits.model import PlanRequest, SplitFilter
    from eddyline.store.splits.scan import ScanPieces

PARTS_A_TURN: Final = 64
"""Segments planned before the planner yields the event loop: 0.5 ms."""


class SplitPlanner:
    """Plans splits of any topic of a store."""

    def __init__(
        self,
        *,
        pieces: ScanPieces,
        base: BaseSplitReader,
        retention: Retention,
        on_corrupt: Callable[[DataCorrupt], None],
    ) -> None:
        """`on_corrupt` is called with every damaged footer that a plan hits."""
        self._pieces = pieces
        self._base = base
        self._retention = retention
        self._on_corrupt = on_corrupt

    async def plan(self, topic: Topic, request: PlanRequest) -> SplitPlan:
        """Make one page of splits.

        Raises:
            InvalidArgument, EpochMismatch, CursorAhead, TopicNotFound (deleted meanwhile), DataCorrupt; with `as_of_seq`
                NotKv, FoldLost, HistoryGone.
        """
        check_filter(request.split_filter)
        mark = await self._mark(topic, request)
        cutter = SplitCutter(
            _template(mark, request),
            records_max=request.max_records or SPLIT_RECORDS_DEFAULT,
            bytes_max=request.max_bytes or SPLIT_BYTES_DEFAULT,
            limit=min(request.limit, SPLITS_MAX) or SPLITS_DEFAULT,
        )
        try:
            done = await self._cut(topic, mark, request, cutter)
        except DataCorrupt as error:
            self._on_corrupt(error)
            raise
        if topic.deleted:
            raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
        if not done:
            mark = mark._replace(kind=cutter.kind, next_first=cutter.last_row + 1)
        splits = tuple(cutter.splits)
        return SplitPlan(splits, None if done else mark, topic.id, mark.first_seq, mark.end_seq, mark.head_seq)

    async def _mark(self, topic: Topic, request: PlanRequest) -> PlanMark:
        """Return where the page begins, and the range of its plan."""
        if request.mark is not None:
            check_epoch(topic.name, topic.id, request.mark.epoch)
            await self._retention.enforce(topic)
            if request.as_of_seq is not None and request.mark.base_seq < topic.retained_after_seq:
                raise history_gone(topic)
            return request.mark
        if request.as_of_seq is not None:
            await self._retention.enforce(topic)
            return _fold_range(topic, request.as_of_seq, request)
        head_seq = topic.head_seq
        for seq, name in ((request.after_seq, "afterSeq"), (request.end_seq - 1, "lastSeq")):
            if seq > head_seq:
                raise CursorAhead(
                    f"the head of topic {topic.name} is {head_seq}, below {seq}",
                    topic=topic.name,
                    headSeq=head_seq,
                    **{name: seq},
                )
        await self._retention.enforce(topic, request.after_seq)
        first_seq = request.after_seq + 1 if request.after_seq else min(topic.earliest_seq, head_seq + 1)
        end_seq = max(request.end_seq or head_seq + 1, first_seq)
        return PlanMark(topic.id, first_seq, end_seq, head_seq, 0, 0, SplitKind.LOG, first_seq)

    async def _cut(self, topic: Topic, mark: PlanMark, request: PlanRequest, cutter: SplitCutter) -> bool:
        """Cut up to the end of the range; False = the page is full before it."""
        split_filter = of_topic(request.split_filter, topic.config)
        if cutter.kind is SplitKind.BASE:
            if not await self._cut_base(topic, mark, split_filter, cutter):
                return False
            cutter.begin(_template(mark._replace(kind=SplitKind.HISTORY, next_first=mark.base_seq + 1), request))
        return await self._cut_log(topic, mark.end_seq - 1, split_filter, cutter)

    async def _cut_base(self, topic: Topic, mark: PlanMark, split_filter: SplitFilter, cutter: SplitCutter) -> bool:
        base = base_at(topic, mark.base_seq, mark.base_generation)
        footer = await self._base.footer(topic, base)
        if not may_hold(footer, split_filter):
            return True
        end = 0
        for entry in footer.batches:
            end += entry.rows
            if end - 1 <= cutter.last_row:
                continue
            if not may_hold_passing(entry, split_filter):
                cutter.skip(end - 1)
            elif not cutter.add(end - 1, entry.rows, entry.length):
                return False
        return True

    async def _cut_log(self, topic: Topic, last_seq: int, split_filter: SplitFilter, cutter: SplitCutter) -> bool:
        steps = 0
        if cutter.kind is SplitKind.LOG and topic.floors.evict > cutter.last_row < last_seq:
            # Evicted records are a gap, which passes every filter; at the front, where no page is full.
            cutter.add(min(topic.floors.evict, last_seq), 0, 0)
        while cutter.last_row < last_seq and not topic.deleted:
            steps += 1
            if steps % PARTS_A_TURN == 0:
                await asyncio.sleep(0)
            segment = topic.segments.after(cutter.last_row)
            if segment is not None and segment.summary.first_seq <= last_seq:
                if not await self._cut_segment(topic, segment, last_seq, split_filter, cutter):
                    return False
                continue
            parts = (
                _memory_part(topic, cutter.last_row)
                if topic.memory is not None
                else _frame_parts(topic, cutter.last_row, last_seq)
            )
            if not parts or parts[0].first_seq > last_seq:
                break
            steps += len(parts) // PARTS_A_TURN
            for part in parts:
                last = min(part.last_seq, last_seq)
                if not cutter.add(last, _count(topic, cutter, last), part.size_bytes):
                    return False
        return cutter.finish(last_seq, covers=split_filter.passes_all())

    async def _cut_segment(
        self, topic: Topic, segment: Segment, last_seq: int, split_filter: SplitFilter, cutter: SplitCutter
    ) -> bool:
        summary = segment.summary
        last = min(summary.last_seq, last_seq)
        if not may_hold_passing(summary, split_filter):
            cutter.skip(last)
            return True
        if split_filter.passes_all() and cutter.last_row < summary.first_seq and last == summary.last_seq:
            count = _count(topic, cutter, last)
            if cutter.fits(count, summary.file_bytes):
                return cutter.add(last, count, summary.file_bytes)
        segment.hold()
        try:
            with unless_deleted(topic):
                footer = await self._pieces.footer(segment)
        finally:
            segment.let_go()
        if not may_hold(footer, split_filter):
            cutter.skip(last)
            return True
        for entry in footer.batches[footer.batch_after(cutter.last_row) :]:
            last = min(entry.last_seq, last_seq)
            if entry.first_seq > last_seq:
                return cutter.finish(last_seq, covers=split_filter.passes_all())
            if not may_hold_passing(entry, split_filter):
                cutter.skip(last)
            elif not cutter.add(last, _count(topic, cutter, last), entry.length):
                return False
        return True


class _StoredPart(NamedTuple):
    first_seq: int
    last_seq: int
    size_bytes: int


def _memory_part(topic: Topic, seq: int) -> list[_StoredPart]:
    assert topic.memory is not None
    batch = topic.memory.after(seq)
    return [] if batch is None else [_StoredPart(batch.first_seq, batch.last_seq, batch.nbytes)]


def _frame_parts(topic: Topic, seq: int, last_seq: int) -> list[_StoredPart]:
    return [
        _StoredPart(each.first_seq, each.last_seq, each.location.length) for each in frames_after(topic, seq, last_seq)
    ]


def _count(topic: Topic, cutter: SplitCutter, last_seq: int) -> int:
    """Return an upper bound of the records between the cutter's last row and `last_seq`."""
    floors = topic.floors if cutter.kind is SplitKind.LOG else NO_FLOORS
    return live_count(max(cutter.last_row, floors.trim), last_seq, topic.uncounted)


def _template(mark: PlanMark, request: PlanRequest) -> Split:
    return Split(
        SplitKind(mark.kind),
        mark.next_first,
        mark.next_first,
        base_seq=mark.base_seq,
        base_generation=mark.base_generation,
        as_of_seq=request.as_of_seq or 0,
    )


def _fold_range(topic: Topic, as_of_seq: int, request: PlanRequest) -> PlanMark:
    """Return the range of base and log that the fold at a point consists of.

    Raises:
        InvalidArgument, NotKv, FoldLost, CursorAhead, HistoryGone.
    """
    if request.after_seq or request.end_seq:
        raise InvalidArgument("as_of_seq excludes after_seq and end_seq", field="as_of_seq")
    if not topic.folds:
        raise NotKv(f"topic {topic.name} has no fold", topic=topic.name)
    check_fold(topic)
    head_seq = topic.head_seq
    if as_of_seq > head_seq:
        raise CursorAhead(
            f"the head of topic {topic.name} is {head_seq}, below seq {as_of_seq}",
            topic=topic.name,
            headSeq=head_seq,
            atSeq=as_of_seq,
        )
    base = topic.base
    if base is not None and base.seq <= as_of_seq:
        kind, first = (SplitKind.BASE, 0) if base.rows else (SplitKind.HISTORY, base.seq + 1)
        seq, generation = base.seq, base.generation
    elif topic.retained_after_seq == 0:
        kind, first, seq, generation = SplitKind.HISTORY, 1, 0, 0
    else:
        raise history_gone(topic)
    return PlanMark(topic.id, seq + 1, as_of_seq + 1, head_seq, seq, generation, kind, first)
