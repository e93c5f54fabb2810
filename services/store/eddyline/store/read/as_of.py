"""Point-in-time reads: the value of one key at a seq or a time, from the fold, the log and the fold's base.

    the fold's entry       written at or below the point: nothing has changed it since
    the log above floors   the key's last revision at or below the point
    base and log           a base at or below the point, and the records appended after it, which stay on disk until a later
                           base covers them, whatever the floors are (no base yet = an empty one at 0)

Deleted revisions are never returned: the topic's deleted seqs name single ones, those of the base included; below the floor
of a delete only the fold's own entries are valid. If no source has the revision, the history is gone, and the error names
the earliest point at which this key can be read.
I1: an answer equals the fold's entry at that point. I2: a point is final: no later append gets a seq at or below it.
Threading: event loop; files are read on the reader threads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eddyline.core.errors import CursorAhead, FoldBehind, HistoryGone, TimeNotReached
from eddyline.core.model.read import EntryPage
from eddyline.core.records.record import Op
from eddyline.store.log.deletion import visible
from eddyline.store.log.floors import Floors
from eddyline.store.read.find_seq import commit_times
from eddyline.store.read.fold_reader import WAIT_S_MAX
from eddyline.store.read.key_history import revisions_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.records.record import Record
    from eddyline.core.runtime.clock import Clock
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.base_lookup import BaseLookup
    from eddyline.store.log_io.pieces import StoredLog
    from eddyline.store.read.fold_reader import FoldReader
    from eddyline.store.retention.retention import Retention
    from eddyline.store.storage.segment.footer import BatchEntry, Footer, SegmentSummary


class _AsOfPoint(NamedTuple):
    """The seq to read at. Not `exact`: the true one may lie below it, where the log is gone."""

    seq: int
    exact: bool = True


class AsOf:
    """Point-in-time reads of any topic of a shard."""

    def __init__(
        self, *, log: StoredLog, fold_reader: FoldReader, bases: BaseLookup, retention: Retention, clock: Clock
    ) -> None:
        self._log = log
        self._fold_reader = fold_reader
        self._bases = bases
        self._retention = retention
        self._clock = clock

    async def at_seq(self, topic: Topic, key: bytes, seq: int) -> EntryPage:
        """Read the key as of the record of `seq`, which is included.

        Raises:
            NotKv, CursorAhead, HistoryGone, TopicNotFound (deleted meanwhile), FoldLost, DataCorrupt.
        """
        page = await self._fold_reader.get(topic, [key])
        if seq > topic.head_seq:
            raise CursorAhead(
                f"the head of topic {topic.name} is {topic.head_seq}, below seq {seq}",
                topic=topic.name,
                headSeq=topic.head_seq,
                atSeq=seq,
            )
        await self._retention.enforce(topic)
        return await self._answer(topic, key, page, _AsOfPoint(seq))

    async def at_time(self, topic: Topic, key: bytes, time_ms: int) -> EntryPage:
        """Read the key as of the last record committed at or before `time_ms`, milliseconds since the Unix epoch.

        Raises:
            as `at_seq`; TimeNotReached: an append may still be committed at that time. FoldBehind: records committed by then
                are not applied yet, after 30 s.
        """
        now_ms = self._clock.now_ms()
        if time_ms >= max(now_ms, topic.last_ts_ms):
            raise TimeNotReached(
                f"at {time_ms} topic {topic.name} may still change: now is {now_ms}",
                topic=topic.name,
                nowMs=now_ms,
                headSeq=topic.head_seq,
            )
        staged_seq = topic.staged_seq
        if not await topic.wait_head(staged_seq, self._clock, WAIT_S_MAX) and not topic.deleted:
            raise FoldBehind(
                f"topic {topic.name} is at {topic.head_seq}, not at {staged_seq}",
                topic=topic.name,
                foldSeq=topic.head_seq,
            )
        page = await self._fold_reader.get(topic, [key])
        await self._retention.enforce(topic)
        point = await self._point_of(topic, time_ms)
        entry = page.entries[0]
        if not point.exact and not (entry is not None and entry.ts_ms <= time_ms):
            raise self._gone(topic, await self._earliest(topic, key, entry, point.seq - 1))
        return await self._answer(topic, key, page, point)

    async def _answer(self, topic: Topic, key: bytes, page: EntryPage, point: _AsOfPoint) -> EntryPage:
        entry, seq = page.entries[0], point.seq
        if seq < page.state.fold_seq and (entry is None or entry.seq > seq):
            newer, entry = entry, await self._last_revision(topic, key, seq)
            if entry is None and topic.floors.trim:
                entry = await self._below_floors(topic, key, seq, newer)
        live = entry if entry is not None and entry.op == Op.PUT else None
        return EntryPage(replace(page.state, fold_seq=seq), (live,))

    async def _below_floors(self, topic: Topic, key: bytes, seq: int, newer: Record | None) -> Record | None:
        """Return the key's last revision at or below `seq`; the log above the floors has none.

        Raises:
            HistoryGone.
        """
        while True:
            base = topic.base
            base_seq = base.seq if base is not None else 0
            if base_seq > seq:
                raise self._gone(topic, await self._earliest(topic, key, newer, seq))
            entry = await self._last_revision(topic, key, seq, Floors(delete=base_seq))
            if entry is None:
                entry = await self._bases.entry(topic, key)
            if topic.base is not base:
                continue
            if entry is not None and not _may_show(topic, entry):
                raise self._gone(topic, await self._earliest(topic, key, newer, seq))
            return entry

    async def _last_revision(self, topic: Topic, key: bytes, seq: int, floors: Floors | None = None) -> Record | None:
        """Return the key's last revision at or below `seq` and above `floors` (None = the topic's, which may move
        meanwhile)."""
        may_hold = key_check(key)
        while (
            seq > (floors or topic.floors).trim
            and (piece := await self._log.through(topic, seq, may_hold=may_hold)) is not None
        ):
            if piece.batch is not None:
                batch = visible(piece.batch, floors or topic.floors, topic.deleted_seqs)
                revisions = revisions_of(batch.slice(0, batch.index_after(seq)), key)
                if revisions.count:
                    return revisions.slice(revisions.count - 1, revisions.count).to_rows()[0]
            seq = piece.first_seq - 1
        return None

    async def _earliest(self, topic: Topic, key: bytes, newer: Record | None, after_seq: int) -> int:
        """Return the earliest readable point above `after_seq`: a base's seq, or the key's next revision."""
        base = topic.base
        base_seq = base.seq if base is not None else 0
        points = [topic.head_seq] if newer is None else [newer.seq]
        if base_seq > after_seq:
            entry = await self._bases.entry(topic, key)
            if entry is None or _may_show(topic, entry):
                points.append(base_seq)
        cursor, may_hold = max(after_seq, topic.retained_after_seq), key_check(key)
        while cursor < min(points):
            piece = await self._log.after(topic, cursor, may_hold=may_hold)
            if piece is None:
                break
            if piece.batch is not None:
                batch = visible(piece.batch, Floors(delete=cursor), topic.deleted_seqs)
                rows = revisions_of(batch, key).to_rows()
                points += [row.seq for row in rows if row.seq > topic.floors.trim or _may_show(topic, row)][:1]
            cursor = piece.last_seq
        return min(points)

    async def _point_of(self, topic: Topic, time_ms: int) -> _AsOfPoint:
        """Return the seq of the last record committed at or previous a time that no later commit can have."""

        def may_match(part: SegmentSummary | BatchEntry) -> bool:
            return part.last_ts_ms > time_ms

        head_seq, lowest = topic.head_seq, topic.retained_after_seq
        cursor, seq = lowest, head_seq
        while cursor < head_seq:
            if cursor >= topic.segments.last_seq:
                cursor = max(cursor, topic.index.seq_before_time(time_ms + 1))
            piece = await self._log.after(topic, cursor, may_match=may_match)
            if piece is None:
                break
            if piece.batch is not None:
                batch = piece.batch.slice(piece.batch.index_after(lowest), piece.batch.count)
                later = np.flatnonzero(commit_times(batch) > time_ms)
                if len(later):
                    seq = min(batch.seq_at(int(later[0])) - 1, head_seq)
                    break
            cursor = piece.last_seq
        if not lowest:
            return _AsOfPoint(seq)
        previous = await self._log.through(topic, seq)
        rows = previous.batch if previous is not None else None
        return _AsOfPoint(seq, exact=rows is not None and rows.index_after(seq) > rows.index_after(lowest))

    def _gone(self, topic: Topic, earliest_seq: int) -> HistoryGone:
        return HistoryGone(
            f"topic {topic.name} has no history of this key at that point: it begins at seq {earliest_seq}",
            topic=topic.name,
            earliestSeq=earliest_seq,
        )


def key_check(key: bytes) -> Callable[[Footer], bool]:
    """Return a footer check: may the segment hold a revision of the key?"""
    return lambda footer: footer.may_hold_key(key)


def _may_show(topic: Topic, revision: Record) -> bool:
    """Values below the floor of a delete are deleted, whichever file still has them; a delete marker may be returned."""
    return revision.op != Op.PUT or revision.seq > topic.floors.delete
