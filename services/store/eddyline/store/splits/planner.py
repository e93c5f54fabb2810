"""Plans of splits: a topic's log, or what its fold at one point is made of, cut where stored batches end.

    log          above the first seq and up to the head as it is now, or an end below it
    fold at S    the rows of a base at or below S, then the log after it up to S; no base: the log from 1 on

Whole segments are added by their numbers where they fit a split; where they do not, or where a filter may deny them, their
footers are read. Then come WAL frames, or batches in memory. Nothing is held when the plan is made.
I1: the splits of a plan are disjoint and ascend; without a filter they cover its range. What a filter denies lies between
two splits, or inside one that goes on behind it. I2: all pages of a plan have the first one's head.
Threading: event loop; footers are read on the reader threads, and others have turns.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import CursorAhead, DataCorrupt, InvalidArgument, NotKv, TopicNotFound
from eddyline.store.log.floors import live_count
from eddyline.store.log.topic import NO_FLOORS
from eddyline.store.log_io.pieces import unless_deleted
from eddyline.store.splits.base_reader import base_of, history_gone
from eddyline.store.splits.cutter import SplitCutter
from eddyline.store.splits.filter import may_hold, may_hold_of, of_topic
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
"""Segments that are looked at before others get the loop: 0.5 ms."""


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
        """`on_corrupt` is told every damaged footer that a plan meets."""
        self._pieces = pieces
        self._base = base
        self._retention = retention
        self._on_corrupt = on_corrupt

    async def plan(self, topic: Topic, asked: PlanRequest) -> SplitPlan:
        """One page of splits.

        Raises:
            InvalidArgument, EpochMismatch, CursorAhead, TopicNotFound (deleted meanwhile), DataCorrupt; with `as_of_seq`
                NotKv, FoldLost, HistoryGone.
        """
        check_filter(asked.split_filter)
        mark = await self._mark(topic, asked)
        cutter = SplitCutter(
            _template(mark, asked),
            records_max=asked.max_records or SPLIT_RECORDS_DEFAULT,
            bytes_max=asked.max_bytes or SPLIT_BYTES_DEFAULT,
            limit=min(asked.limit, SPLITS_MAX) or SPLITS_DEFAULT,
        )
        try:
            done = await self._cut(topic, mark, asked, cutter)
        except DataCorrupt as error:
            self._on_corrupt(error)
            raise
        if topic.deleted:
            raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
        if not done:
            mark = mark._replace(kind=cutter.kind, next_first=cutter.at + 1)
        splits = tuple(cutter.splits)
        return SplitPlan(splits, None if done else mark, topic.id, mark.first_seq, mark.end_seq, mark.head_seq)

    async def _mark(self, topic: Topic, asked: PlanRequest) -> PlanMark:
        """Where the page begins, and the range of its plan."""
        if asked.mark is not None:
            check_epoch(topic.name, topic.id, asked.mark.epoch)
            await self._retention.enforce(topic)
            if asked.as_of_seq is not None and asked.mark.base_seq < topic.retained_after_seq:
                raise history_gone(topic)
            return asked.mark
        if asked.as_of_seq is not None:
            await self._retention.enforce(topic)
            return _fold_range(topic, asked.as_of_seq, asked)
        head_seq = topic.head_seq
        for seq, name in ((asked.after_seq, "afterSeq"), (asked.end_seq - 1, "lastSeq")):
            if seq > head_seq:
                raise CursorAhead(
                    f"the head of topic {topic.name} is {head_seq}, below {seq}",
                    topic=topic.name,
                    headSeq=head_seq,
                    **{name: seq},
                )
        await self._retention.enforce(topic, asked.after_seq)
        first_seq = asked.after_seq + 1 if asked.after_seq else min(topic.earliest_seq, head_seq + 1)
        end_seq = max(asked.end_seq or head_seq + 1, first_seq)
        return PlanMark(topic.id, first_seq, end_seq, head_seq, 0, 0, SplitKind.LOG, first_seq)

    async def _cut(self, topic: Topic, mark: PlanMark, asked: PlanRequest, cutter: SplitCutter) -> bool:
        """True = to the end."""
        split_filter = of_topic(asked.split_filter, topic.config)
        if cutter.kind is SplitKind.BASE:
            if not await self._cut_base(topic, mark, split_filter, cutter):
                return False
            cutter.begin(_template(mark._replace(kind=SplitKind.HISTORY, next_first=mark.base_seq + 1), asked))
        return await self._cut_log(topic, mark.end_seq - 1, split_filter, cutter)

    async def _cut_base(self, topic: Topic, mark: PlanMark, split_filter: SplitFilter, cutter: SplitCutter) -> bool:
        base = base_of(topic, mark.base_seq, mark.base_generation)
        footer = await self._base.footer(topic, base)
        if not may_hold(footer, split_filter):
            return True
        end = 0
        for entry in footer.batches:
            end += entry.rows
            if end - 1 <= cutter.at:
                continue
            if not may_hold_of(entry, split_filter):
                cutter.skip(end - 1)
            elif not cutter.add(end - 1, entry.rows, entry.length):
                return False
        return True

    async def _cut_log(self, topic: Topic, last_seq: int, split_filter: SplitFilter, cutter: SplitCutter) -> bool:
        looks = 0
        if cutter.kind is SplitKind.LOG and topic.floors.evict > cutter.at < last_seq:
            # What retention took is told as a gap, whatever the filter; at the front, where no page is full.
            cutter.add(min(topic.floors.evict, last_seq), 0, 0)
        while cutter.at < last_seq and not topic.deleted:
            looks += 1
            if looks % PARTS_A_TURN == 0:
                await asyncio.sleep(0)
            segment = topic.segments.after(cutter.at)
            if segment is not None and segment.summary.first_seq <= last_seq:
                if not await self._cut_segment(topic, segment, last_seq, split_filter, cutter):
                    return False
                continue
            parts = (
                _memory_part(topic, cutter.at) if topic.memory is not None else _frame_parts(topic, cutter.at, last_seq)
            )
            if not parts or parts[0].first_seq > last_seq:
                break
            looks += len(parts) // PARTS_A_TURN
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
        if not may_hold_of(summary, split_filter):
            cutter.skip(last)
            return True
        if split_filter.passes_all() and cutter.at < summary.first_seq and last == summary.last_seq:
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
        for entry in footer.batches[footer.batch_after(cutter.at) :]:
            last = min(entry.last_seq, last_seq)
            if entry.first_seq > last_seq:
                return cutter.finish(last_seq, covers=split_filter.passes_all())
            if not may_hold_of(entry, split_filter):
                cutter.skip(last)
            elif not cutter.add(last, _count(topic, cutter, last), entry.length):
                return False
        return True


class _Part(NamedTuple):
    first_seq: int
    last_seq: int
    size_bytes: int


def _memory_part(topic: Topic, seq: int) -> list[_Part]:
    assert topic.memory is not None
    batch = topic.memory.after(seq)
    return [] if batch is None else [_Part(batch.first_seq, batch.last_seq, batch.nbytes)]


def _frame_parts(topic: Topic, seq: int, last_seq: int) -> list[_Part]:
    return [_Part(each.first_seq, each.last_seq, each.location.length) for each in frames_after(topic, seq, last_seq)]


def _count(topic: Topic, cutter: SplitCutter, last_seq: int) -> int:
    """Records from where the cutter is up to `last_seq`: a split's rows at most."""
    floors = topic.floors if cutter.kind is SplitKind.LOG else NO_FLOORS
    return live_count(max(cutter.at, floors.trim), last_seq, topic.uncounted)


def _template(mark: PlanMark, asked: PlanRequest) -> Split:
    return Split(
        SplitKind(mark.kind),
        mark.next_first,
        mark.next_first,
        base_seq=mark.base_seq,
        base_generation=mark.base_generation,
        as_of_seq=asked.as_of_seq or 0,
    )


def _fold_range(topic: Topic, as_of_seq: int, asked: PlanRequest) -> PlanMark:
    """What the fold at a point is made of.

    Raises:
        InvalidArgument, NotKv, FoldLost, CursorAhead, HistoryGone.
    """
    if asked.after_seq or asked.end_seq:
        raise InvalidArgument("as_of_seq goes without after_seq and end_seq", field="as_of_seq")
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
