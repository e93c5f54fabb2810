"""Reading one split: stored batches passed on as they lie on disk where nothing of them is to be hidden, else made anew.

    whole batch in the split, no gap record, nothing deleted, above the floors, no filter, all columns    passed on
    else                                                             decoded, hidden, filtered, projected, encoded

The same split gives the same rows each time, but what was deleted meanwhile is gone, and what retention took meanwhile is a
gap: each batch is judged at the moment when it is read, by the floors and deleted seqs of that moment.
I1: rows, gaps, deleted and hidden records add up to the split's range: a seq that is none of them is DataCorrupt.
I2: nothing is kept between two batches, no file is held: a log may be sealed, merged and trimmed while it is read.
I3: a split of a fold is read as a fold is rebuilt: the floors of retention hide nothing; what a later base replaced is
HistoryGone, since nobody knows any more what of it was deleted.
Memory: one stored batch, or one large append, and what is made of 8 MiB of it.
Threading: event loop; files are read and batches made on reader threads.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.errors import CursorAhead, DataCorrupt, NotKv, TopicNotFound
from eddyline.store.splits.base_reader import history_gone
from eddyline.store.splits.encoder import SplitRows, encoded, schema_message
from eddyline.store.splits.filter import of_topic
from eddyline.store.splits.model import (
    ArrowMessage,
    SchemaMessage,
    SplitKind,
    SplitScan,
    SplitTally,
    check_filter,
    check_split,
)
from eddyline.store.write.validation import check_fold

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from eddyline.core.records.batch import Batch
    from eddyline.store.log.topic import Topic
    from eddyline.store.retention.retention import Retention
    from eddyline.store.splits.base_reader import BaseSplitReader
    from eddyline.store.splits.hidden_values import HiddenValues
    from eddyline.store.splits.model import Split, SplitFrame, SplitItem, SplitRead
    from eddyline.store.splits.scan import ScanPiece, ScanPieces
    from eddyline.store.splits.slots import SplitSlots


class _Range(NamedTuple):
    """Seqs above `after_seq` and up to `through_seq`, of which so many are live records."""

    after_seq: int
    through_seq: int
    live_count: int


class _ToEncode(NamedTuple):
    """Decoded batches that hold all live records of a range."""

    within: _Range
    parts: tuple[SplitRows, ...]


class _Step(NamedTuple):
    """All up to `cursor`: as it is sent, or to be encoded."""

    cursor: int
    items: tuple[SplitItem, ...] = ()
    to_encode: _ToEncode | None = None


class SplitReader:
    """Reads splits of any topic of a store."""

    def __init__(
        self,
        *,
        pieces: ScanPieces,
        base: BaseSplitReader,
        hidden_values: HiddenValues,
        retention: Retention,
        slots: SplitSlots,
        on_corrupt: Callable[[DataCorrupt], None],
    ) -> None:
        """`on_corrupt` is told every damaged piece that a read meets."""
        self._pieces = pieces
        self._base = base
        self._hidden_values = hidden_values
        self._retention = retention
        self._slots = slots
        self._on_corrupt = on_corrupt

    async def read(self, topic: Topic, asked: SplitRead) -> AsyncGenerator[SplitFrame, None]:
        """The schema, then batches and gaps in order, then the counts.

        Raises:
            InvalidArgument, CursorAhead, TopicNotFound (deleted meanwhile), TooManyScans, DataCorrupt; of a split of a fold
                NotKv, FoldLost, HistoryGone.
        """
        split = asked.split
        check_split(split)
        check_filter(asked.split_filter)
        _check_topic(topic, split)
        async with self._slots.place():
            yield SchemaMessage(schema_message(asked.columns))
            split_filter = of_topic(asked.split_filter, topic.config)
            scan = SplitScan(topic, split, split_filter, asked.columns, asked.pack, SplitTally())
            frames = self._base.read(scan) if split.kind is SplitKind.BASE else self._log(scan)
            async with aclosing(frames):
                try:
                    async for frame in frames:
                        yield frame
                except DataCorrupt as error:
                    self._on_corrupt(error)
                    raise
            _check_there(topic, split)
            counts = scan.tally.counts()
            assert sum(counts) == split.last - split.first + 1, "every seq of a split is accounted for"
            yield counts

    async def _log(self, scan: SplitScan) -> AsyncGenerator[SplitItem, None]:
        topic, split, tally = scan.topic, scan.split, scan.tally
        cursor = split.first - 1
        await self._retention.enforce(topic, cursor if split.kind is SplitKind.LOG else 0)
        while cursor < split.last:
            _check_there(topic, split)
            if split.kind is SplitKind.LOG:
                lost = topic.floors.gap_after(cursor)
                if lost is not None:
                    lost = lost._replace(last_seq=min(lost.last_seq, split.last))
                    tally.gaps += lost.last_seq - cursor
                    cursor = lost.last_seq
                    yield lost
                    continue
                if topic.floors.trim > cursor:
                    through_seq = min(topic.floors.trim, split.last)
                    tally.deleted += through_seq - cursor
                    cursor = through_seq
                    continue
            async with self._slots.job():
                step = await self._step(scan, cursor)
            cursor = step.cursor
            for item in step.items:
                yield item
            if step.to_encode is not None:
                async with aclosing(self._made(scan, step.to_encode)) as items:
                    async for item in items:
                        yield item

    async def _step(self, scan: SplitScan, cursor: int) -> _Step:
        """The next piece; nothing, and the same cursor, where what it is judged by has moved meanwhile."""
        topic, split, tally = scan.topic, scan.split, scan.tally
        piece = await self._pieces.after(topic, cursor, split.last, scan.split_filter)
        through_seq = min(piece.last_seq, split.last) if piece is not None else split.last
        if piece is not None and piece.stored is not None:
            entry = piece.stored.entry
            untouched = (
                scan.takes_all
                and not entry.gap_count
                and entry.first_seq > cursor
                and entry.last_seq <= split.last
                and not topic.deleted_seqs.count(entry.first_seq, entry.last_seq)
                and entry.first_seq > topic.floors.delete
            )
            if not untouched:
                batch = await self._pieces.run(piece.stored.batch)
                piece = piece._replace(stored=None, batches=(batch,))
        if _has_moved(topic, split, cursor):
            return _Step(cursor)
        # From here to the next wait all is of one moment.
        deleted_count = topic.deleted_seqs.count(cursor + 1, through_seq)
        gap_count = topic.uncounted.count(cursor + 1, through_seq) - deleted_count
        live_count = through_seq - cursor - deleted_count - gap_count
        tally.deleted += deleted_count
        tally.gaps += gap_count
        if piece is not None and piece.stored is not None:
            message, entry, _ = piece.stored
            _check_whole(entry.rows, live_count, cursor, through_seq)
            tally.rows += entry.rows
            passed = ArrowMessage(message, entry.checksum, entry.rows)
            return _Step(through_seq, (await self._pieces.run(partial(scan.packed, passed)),))
        if piece is None or not piece.batches:
            if piece is None or scan.split_filter.passes_all():
                _check_whole(0, live_count, cursor, through_seq)
            tally.hidden += live_count
            return _Step(through_seq)
        return await self._judged(scan, piece, _Range(cursor, through_seq, live_count))

    async def _judged(self, scan: SplitScan, piece: ScanPiece, within: _Range) -> _Step:
        """What is decoded, and what of it may be seen."""
        topic, split = scan.topic, scan.split
        shown = [_shown(topic, batch, within) for batch in piece.batches]
        hidden_count = 0
        if split.kind is SplitKind.HISTORY:
            shown, hidden_count = await self._hidden_values.filter(topic, shown, as_of_seq=split.as_of_seq)
        scan.tally.deleted += hidden_count
        left = within._replace(live_count=within.live_count - hidden_count)
        return _Step(within.through_seq, to_encode=_ToEncode(left, tuple(shown)))

    async def _made(self, scan: SplitScan, to_encode: _ToEncode) -> AsyncGenerator[SplitItem, None]:
        """Messages of what is decoded, one batch at a time: a large append is many."""
        within, parts = to_encode
        live_count = 0
        for part in parts:
            async with self._slots.job():
                found = await self._pieces.run(partial(encoded, [part], scan))
            live_count += found.live_count
            scan.tally.rows += found.row_count
            scan.tally.hidden += found.live_count - found.row_count
            for item in found.items:
                yield item
        _check_whole(live_count, within.live_count, within.after_seq, within.through_seq)


def _shown(topic: Topic, batch: Batch, within: _Range) -> SplitRows:
    start, stop = batch.index_after(within.after_seq), batch.index_after(within.through_seq)
    gone = topic.deleted_seqs.mask(batch.slice(start, stop)) if stop > start else None
    return SplitRows(batch, start, stop, gone)


def _has_moved(topic: Topic, split: Split, cursor: int) -> bool:
    """Whether what is read next is to be told otherwise than by its rows."""
    if split.kind is SplitKind.LOG:
        return topic.deleted or topic.floors.trim > cursor
    return topic.deleted or split.base_seq < topic.retained_after_seq


def _check_topic(topic: Topic, split: Split) -> None:
    last_seq = split.last if split.kind is SplitKind.LOG else split.as_of_seq
    if last_seq > topic.head_seq:
        raise CursorAhead(
            f"the head of topic {topic.name} is {topic.head_seq}, below the split's end {last_seq}",
            topic=topic.name,
            headSeq=topic.head_seq,
            lastSeq=last_seq,
        )
    if split.kind is not SplitKind.LOG:
        if not topic.folds:
            raise NotKv(f"topic {topic.name} has no fold", topic=topic.name)
        check_fold(topic)
    _check_there(topic, split)


def _check_there(topic: Topic, split: Split) -> None:
    """Raises TopicNotFound where the topic was deleted, HistoryGone where what a split was planned by is replaced."""
    if topic.deleted:
        raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
    if split.kind is SplitKind.HISTORY and split.base_seq < topic.retained_after_seq:
        raise history_gone(topic)


def _check_whole(found_count: int, live_count: int, after_seq: int, through_seq: int) -> None:
    """Raises DataCorrupt where a seq that is live is in no file."""
    if found_count != live_count:
        raise DataCorrupt(
            f"of seqs {after_seq + 1} to {through_seq} {live_count} are records, and {found_count} are in files",
            file="log",
            offset=after_seq + 1,
        )
