"""One key as it was at a seq or a time: from the fold, the log, and the fold's base.

    the fold's entry       written at or below the point: nothing has changed it since
    the log above floors   the key's last revision at or below the point
    base and log           a base at or below the point, and what was appended after it, which stays on disk until a later
                           base covers it, whatever the floors say (none yet = an empty one at 0)

A revision that was deleted is not shown, from whichever of them: single ones are in the topic's deleted seqs, the base's
among them; below the floor of a delete only what the fold still has is. Where none of them knows, the history is gone,
and the error names the earliest point from which on this key is answered.
I1: an answer is what the fold showed at that point. I2: a point is settled: no append comes at or below it any more.
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


class _Point(NamedTuple):
    """A seq to answer for. Not `exact`: the true one may lie below it, where the log is gone."""

    seq: int
    exact: bool = True


class AsOf:
    """Reads keys as they were, in any topic of a shard."""

    def __init__(
        self, *, log: StoredLog, entries: FoldReader, bases: BaseLookup, retention: Retention, clock: Clock
    ) -> None:
        self._log = log
        self._entries = entries
        self._bases = bases
        self._retention = retention
        self._clock = clock

    async def at_seq(self, topic: Topic, key: bytes, seq: int) -> EntryPage:
        """The key as it was after the record of `seq`.

        Raises:
            NotKv, CursorAhead, HistoryGone, TopicNotFound (deleted meanwhile), FoldLost, DataCorrupt.
        """
        page = await self._entries.get(topic, [key])
        if seq > topic.head_seq:
            raise CursorAhead(
                f"the head of topic {topic.name} is {topic.head_seq}, below seq {seq}",
                topic=topic.name,
                headSeq=topic.head_seq,
                atSeq=seq,
            )
        await self._retention.enforce(topic)
        return await self._answer(topic, key, page, _Point(seq))

    async def at_time(self, topic: Topic, key: bytes, time_ms: int) -> EntryPage:
        """The key as it was after the last record committed at or before `time_ms`, since the Unix epoch.

        Raises:
            as `at_seq`; TimeNotReached: an append may still be committed at that time. FoldBehind: what was committed until
                then is not applied yet, after 30 s.
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
        page = await self._entries.get(topic, [key])
        await self._retention.enforce(topic)
        point = await self._point_of(topic, time_ms)
        entry = page.entries[0]
        if not point.exact and not (entry is not None and entry.ts_ms <= time_ms):
            raise self._gone(topic, await self._earliest(topic, key, entry, point.seq - 1))
        return await self._answer(topic, key, page, point)

    async def _answer(self, topic: Topic, key: bytes, page: EntryPage, point: _Point) -> EntryPage:
        entry, seq = page.entries[0], point.seq
        if seq < page.state.fold_seq and (entry is None or entry.seq > seq):
            newer, entry = entry, await self._last_revision(topic, key, seq)
            if entry is None and topic.floors.trim:
                entry = await self._below_floors(topic, key, seq, newer)
        live = entry if entry is not None and entry.op == Op.PUT else None
        return EntryPage(replace(page.state, fold_seq=seq), (live,))

    async def _below_floors(self, topic: Topic, key: bytes, seq: int, newer: Record | None) -> Record | None:
        """The key's last revision at or below `seq`, of which the log above the floors has none.

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
        """The key's last revision at or below `seq` and above floors; None = the topic's, which may move meanwhile."""
        may_hold = may_hold_of(key)
        while (
            seq > (floors or topic.floors).trim
            and (piece := await self._log.through(topic, seq, may_hold=may_hold)) is not None
        ):
            if piece.batch is not None:
                batch = visible(piece.batch, floors or topic.floors, topic.deleted_seqs)
                found = revisions_of(batch.slice(0, batch.index_after(seq)), key)
                if found.count:
                    return found.slice(found.count - 1, found.count).to_rows()[0]
            seq = piece.first_seq - 1
        return None

    async def _earliest(self, topic: Topic, key: bytes, newer: Record | None, after_seq: int) -> int:
        """The earliest point above `after_seq` that is answered: where a base begins, or the key was written next."""
        base = topic.base
        base_seq = base.seq if base is not None else 0
        points = [topic.head_seq] if newer is None else [newer.seq]
        if base_seq > after_seq:
            entry = await self._bases.entry(topic, key)
            if entry is None or _may_show(topic, entry):
                points.append(base_seq)
        cursor, may_hold = max(after_seq, topic.retained_after_seq), may_hold_of(key)
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

    async def _point_of(self, topic: Topic, time_ms: int) -> _Point:
        """The seq of the last record committed at or before a time that is settled."""

        def wanted(part: SegmentSummary | BatchEntry) -> bool:
            return part.last_ts_ms > time_ms

        head_seq, lowest = topic.head_seq, topic.retained_after_seq
        cursor, seq = lowest, head_seq
        while cursor < head_seq:
            if cursor >= topic.segments.last_seq:
                cursor = max(cursor, topic.index.seq_before_time(time_ms + 1))
            piece = await self._log.after(topic, cursor, wanted=wanted)
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
            return _Point(seq)
        before = await self._log.through(topic, seq)
        rows = before.batch if before is not None else None
        return _Point(seq, exact=rows is not None and rows.index_after(seq) > rows.index_after(lowest))

    def _gone(self, topic: Topic, earliest_seq: int) -> HistoryGone:
        return HistoryGone(
            f"what topic {topic.name} had of this key then is gone; it is answered for from seq {earliest_seq} on",
            topic=topic.name,
            earliestSeq=earliest_seq,
        )


def may_hold_of(key: bytes) -> Callable[[Footer], bool]:
    """Whether a segment may hold a revision of the key."""
    return lambda footer: footer.may_hold_key(key)


def _may_show(topic: Topic, revision: Record) -> bool:
    """A value below the floor of a delete was deleted, whatever still holds it; that a key was gone is no secret."""
    return revision.op != Op.PUT or revision.seq > topic.floors.delete
