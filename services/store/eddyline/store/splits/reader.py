"""Split reader: passes stored batches on as they are on disk if no row of them is hidden, else encodes new ones.

    whole batch in the split, no gap record, nothing deleted, above the floors, no filter, all columns    passed on
    else                                                             decoded, hidden, filtered, projected, encoded

Two reads of a split return the same rows, except that records deleted meanwhile are missing and records evicted meanwhile
are a gap: each batch is read with the floors and deleted seqs of that moment.
I1: rows, gaps, deleted and hidden records add up to the split's range: a seq that is none of them is DataCorrupt.
I2: no state is kept between two batches and no file is held: a log may be sealed, merged and trimmed during the read.
I3: a split of a fold is read as a fold is rebuilt: the floors of retention hide nothing; rows that a later base replaced are
HistoryGone, since the deleted seqs no longer list their deletes.
Memory: one stored batch, or one large append, and the messages made of 8 MiB of it.
Threading: event loop; files are read and batches encoded on reader threads.
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


class _SeqRange(NamedTuple):
    """Seqs above `after_seq` and up to `through_seq`, with their count of live records."""

    after_seq: int
    through_seq: int
    live_count: int


class _DecodedRange(NamedTuple):
    """Decoded batches that hold all live records of a range."""

    seq_range: _SeqRange
    parts: tuple[SplitRows, ...]


class _ReadStep(NamedTuple):
    """Items up to `cursor`: ready to send, or decoded rows to encode."""

    cursor: int
    items: tuple[SplitItem, ...] = ()
    decoded: _DecodedRange | None = None


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
        """`on_corrupt` is called with every damaged piece that a read hits."""
        self._pieces = pieces
        self._base = base
        self._hidden_values = hidden_values
        self._retention = retention
        self._slots = slots
        self._on_corrupt = on_corrupt

    async def read(self, topic: Topic, request: SplitRead) -> AsyncGenerator[SplitFrame, None]:
        """Yield the schema, then batches and gaps in order, then the counts.

        Raises:
            InvalidArgument, CursorAhead, TopicNotFound (deleted meanwhile), TooManyScans, DataCorrupt; of a split of a fold
                NotKv, FoldLost, HistoryGone.
        """
        split = request.split
        check_split(split)
        check_filter(request.split_filter)
        _check_topic(topic, split)
        async with self._slots.stream():
            yield SchemaMessage(schema_message(request.columns))
            split_filter = of_topic(request.split_filter, topic.config)
            scan = SplitScan(topic, split, split_filter, request.columns, request.pack, SplitTally())
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
                gap = topic.floors.gap_after(cursor)
                if gap is not None:
                    gap = gap._replace(last_seq=min(gap.last_seq, split.last))
                    tally.gaps += gap.last_seq - cursor
                    cursor = gap.last_seq
                    yield gap
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
            if step.decoded is not None:
                async with aclosing(self._encode(scan, step.decoded)) as items:
                    async for item in items:
                        yield item

    async def _step(self, scan: SplitScan, cursor: int) -> _ReadStep:
        """Read the next piece; no items and the same cursor if floors or base moved during the read."""
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
            return _ReadStep(cursor)
        # No await from here to the next one: counts and rows are of one moment.
        deleted_count = topic.deleted_seqs.count(cursor + 1, through_seq)
        gap_count = topic.uncounted.count(cursor + 1, through_seq) - deleted_count
        live_count = through_seq - cursor - deleted_count - gap_count
        tally.deleted += deleted_count
        tally.gaps += gap_count
        if piece is not None and piece.stored is not None:
            message, entry, _ = piece.stored
            _check_whole(entry.rows, live_count, cursor, through_seq)
            tally.rows += entry.rows
            unchanged = ArrowMessage(message, entry.checksum, entry.rows)
            return _ReadStep(through_seq, (await self._pieces.run(partial(scan.packed, unchanged)),))
        if piece is None or not piece.batches:
            if piece is None or scan.split_filter.passes_all():
                _check_whole(0, live_count, cursor, through_seq)
            tally.hidden += live_count
            return _ReadStep(through_seq)
        return await self._visible_step(scan, piece, _SeqRange(cursor, through_seq, live_count))

    async def _visible_step(self, scan: SplitScan, piece: ScanPiece, seq_range: _SeqRange) -> _ReadStep:
        """Return the decoded rows of a piece, with deleted rows hidden."""
        topic, split = scan.topic, scan.split
        rows = [_rows_in_range(topic, batch, seq_range) for batch in piece.batches]
        hidden_count = 0
        if split.kind is SplitKind.HISTORY:
            rows, hidden_count = await self._hidden_values.filter(topic, rows, as_of_seq=split.as_of_seq)
        scan.tally.deleted += hidden_count
        remaining = seq_range._replace(live_count=seq_range.live_count - hidden_count)
        return _ReadStep(seq_range.through_seq, decoded=_DecodedRange(remaining, tuple(rows)))

    async def _encode(self, scan: SplitScan, decoded: _DecodedRange) -> AsyncGenerator[SplitItem, None]:
        """Yield messages of decoded rows, one batch at a time: a large append has many."""
        seq_range, parts = decoded
        live_count = 0
        for part in parts:
            async with self._slots.job():
                result = await self._pieces.run(partial(encoded, [part], scan))
            live_count += result.live_count
            scan.tally.rows += result.row_count
            scan.tally.hidden += result.live_count - result.row_count
            for item in result.items:
                yield item
        _check_whole(live_count, seq_range.live_count, seq_range.after_seq, seq_range.through_seq)


def _rows_in_range(topic: Topic, batch: Batch, seq_range: _SeqRange) -> SplitRows:
    start, stop = batch.index_after(seq_range.after_seq), batch.index_after(seq_range.through_seq)
    hidden = topic.deleted_seqs.mask(batch.slice(start, stop)) if stop > start else None
    return SplitRows(batch, start, stop, hidden)


def _has_moved(topic: Topic, split: Split, cursor: int) -> bool:
    """Return whether the next rows are no longer readable: deleted, trimmed, or replaced by a later base."""
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
    """Raise TopicNotFound if the topic was deleted, HistoryGone if a later base replaced the split's base."""
    if topic.deleted:
        raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
    if split.kind is SplitKind.HISTORY and split.base_seq < topic.retained_after_seq:
        raise history_gone(topic)


def _check_whole(stored_count: int, live_count: int, after_seq: int, through_seq: int) -> None:
    """Raise DataCorrupt if a live seq is in no file."""
    if stored_count != live_count:
        raise DataCorrupt(
            f"seqs {after_seq + 1} to {through_seq} have {live_count} live records, and {stored_count} are in files",
            file="log",
            offset=after_seq + 1,
        )
