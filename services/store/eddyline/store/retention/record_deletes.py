"""Record deletes: find the matching records, log their seqs with the result, and hide them from all reads before answering.

A delete by seq moves a floor; its counts are arithmetic. A delete by match searches piece by piece without blocking appends;
segments that cannot match are not read. The matched rows are checked again, against floors and deletes of the meantime, in
one step with the logging of a frame that names the removed seqs: replay reads no row. If there are more rows than a frame
may name, they are several deletes, each complete, with growing bounds.

On a KV topic a match also covers records below the floors that are still on disk, and the base's entries: a fold that is
rebuilt from base and log must not have them. The frame erases the fold's own entries, in order with appends, which wait
meanwhile: no append is checked against an entry that is being erased.

I1: records above the head at the call are not touched. I2: a delete is evaluated after retention is enforced
(`retention.py`).
I3: a repeated delete finds nothing, and counts nothing. I4: the topic's `delete_mark` changes before the answer.
Failure: a crash between two frames of one delete leaves the first one done; repeating the delete does the rest.
Threading: event loop; files are read on the reader threads.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eddyline.core.errors import FoldLost, TopicNotFound
from eddyline.core.model.deletion import DeleteResult
from eddyline.core.records.match import MatchField, MatchKind
from eddyline.core.records.size import row_bytes
from eddyline.store.log.control import apply_deletion
from eddyline.store.log.deletion import DeleteBody, Deletion, encode_delete, removed_rows
from eddyline.store.log.floors import live_count
from eddyline.store.log.front import LogStartWalk
from eddyline.store.log.seq_set import SeqSet
from eddyline.store.retention.retention import drop_below_floors
from eddyline.store.storage.wal.frame import FrameType, control_body
from eddyline.store.write.staged import Erasure

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from eddyline.core.records.batch import Batch
    from eddyline.core.records.match import Match
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.base_lookup import BaseLookup
    from eddyline.store.log_io.pieces import StoredLog
    from eddyline.store.retention.log_front import LogStart
    from eddyline.store.retention.retention import Retention
    from eddyline.store.storage.segment.footer import Footer
    from eddyline.store.write.engine import Engine

FRAME_ROWS_MAX: Final = 4 << 20
"""Rows that one frame names: 2 bytes each if they are scattered, so 11 MB of text, and 64 MiB while they are gathered."""
CHECKED_AT_ONCE: Final = 65_536
"""Rows checked before the event loop is yielded: 7 ms."""
SCANS_AT_ONCE: Final = 4
"""Concurrent searches of deletes: each holds at most the rows of one frame, and one piece of a log."""

_NO_SEQS: Final = np.zeros(0, dtype="<u8")
_NO_SIZES: Final = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class _MatchedRows:
    """Rows matched so far: ascending seqs, and each row's bytes."""

    seqs: list[NDArray[np.uint64]] = field(default_factory=list)
    sizes: list[NDArray[np.int64]] = field(default_factory=list)
    count: int = 0

    def add(self, seqs: NDArray[np.uint64], sizes: NDArray[np.int64]) -> None:
        self.seqs.append(seqs)
        self.sizes.append(sizes)
        self.count += len(seqs)


class _RemovedRows(NamedTuple):
    """Content of the delete's frame: removed seqs, and the count and bytes of the live records among them."""

    seqs: SeqSet
    record_count: int
    record_bytes: int


class RecordDeleter:
    """Record deletes of any topic of a shard."""

    def __init__(
        self,
        *,
        engine: Engine,
        log: StoredLog,
        log_start: LogStart,
        retention: Retention,
        bases: BaseLookup,
        erase_within_ms: int,
        frame_rows_max: int = FRAME_ROWS_MAX,
    ) -> None:
        self._engine = engine
        self._log = log
        self._log_start = log_start
        self._retention = retention
        self._bases = bases
        self._erase_within_ms = erase_within_ms
        self._frame_rows_max = frame_rows_max
        self._scans = asyncio.Semaphore(SCANS_AT_ONCE)

    async def delete(self, topic: Topic, *, before_seq: int = 0, match: Match | None = None) -> DeleteResult:
        """Delete live records below `before_seq` (0 = any) that match (None = all), up to the present head.

        Raises:
            TopicNotFound (deleted meanwhile), ReadOnly, CommitUnknown, FoldLost, DataCorrupt.
        """
        await self._retention.enforce(topic)
        deletion = Deletion(before_seq, topic.head_seq, match)
        if match is None:
            count = await self._delete_prefix(topic, deletion)
        else:
            if topic.folds and topic.fold_lost:
                raise FoldLost(f"the fold of topic {topic.name} is lost", topic=topic.name)
            async with self._scans:
                count = await self._delete_matching(topic, deletion, match)
        return DeleteResult(count, topic.earliest_seq, deletion.bound_seq, topic.id)

    async def _delete_prefix(self, topic: Topic, deletion: Deletion) -> int:
        async with self._retention.hold_enforced(topic):
            floors, through_seq = topic.floors, deletion.through_seq
            # Retention leaves a KV topic's history below its floors in base and log on disk; a delete must cover it too.
            if through_seq <= (floors.delete if topic.folds else floors.trim):
                return 0
            walk = LogStartWalk(floors, topic.uncounted, through_seq=through_seq)
            await self._log_start.walk(topic, walk)
            count = live_count(floors.trim, through_seq, topic.uncounted)
            await self._log_delete(topic, DeleteBody(deletion, SeqSet(), count, walk.removed_bytes))
            return count

    async def _delete_matching(self, topic: Topic, deletion: Deletion, match: Match) -> int:
        may_hold = may_hold_match(match)
        cursor, count = topic.retained_after_seq, 0
        while True:
            matched = _MatchedRows()
            base = topic.base
            base_seqs = await self._bases.seqs(topic, match) if topic.folds else _NO_SEQS
            cursor = await self._scan(topic, cursor, deletion, matched, may_hold)
            if topic.base is not base:
                # Entries that only the old base had are erased; records trimmed from the log meanwhile are in the new base.
                base_seqs = np.concatenate([base_seqs, await self._bases.seqs(topic, match)])
            part = deletion._replace(bound_seq=min(cursor, deletion.bound_seq))
            count += await self._delete_matched(topic, part, match, matched, base_seqs)
            if cursor >= deletion.through_seq:
                return count

    async def _scan(
        self, topic: Topic, cursor: int, deletion: Deletion, matched: _MatchedRows, may_hold: Callable[[Footer], bool]
    ) -> int:
        """Gather matching rows above `cursor`, as many as a frame names. Returns the last seq searched."""
        while cursor < deletion.through_seq and matched.count < self._frame_rows_max:
            piece = await self._log.after(topic, cursor, may_hold=may_hold)
            if piece is None:
                return deletion.through_seq
            if piece.batch is not None:
                # A merge may have put rows that were searched already into the same batch.
                lowest_seq = max(cursor, topic.retained_after_seq)
                _add_matches(piece.batch, deletion, matched, trim_seq=lowest_seq, deleted=topic.deleted_seqs)
            cursor = piece.last_seq
        return min(cursor, deletion.through_seq)

    async def _delete_matched(
        self, topic: Topic, deletion: Deletion, match: Match, matched: _MatchedRows, base_seqs: NDArray[np.uint64]
    ) -> int:
        async with AsyncExitStack() as held:
            if topic.folds:  # before the floors' lock: an append at the gate may wait for that
                await held.enter_async_context(topic.gate)
            await held.enter_async_context(self._retention.hold_enforced(topic))
            removed = await _check_rows(topic, deletion, matched, base_seqs)
            if len(removed.seqs) or (topic.folds and await self._may_fold(topic, match, deletion.through_seq)):
                body = DeleteBody(deletion, removed.seqs, removed.record_count, removed.record_bytes)
                erase = Erasure(match, deletion.through_seq) if topic.folds else None
                await self._log_delete(topic, body, erase)
            return removed.record_count

    async def _may_fold(self, topic: Topic, match: Match, through_seq: int) -> bool:
        """Return whether the fold may have an entry to erase, even if no row of it is left."""
        if match.kind is MatchKind.PREFIX:
            return True
        (entry,) = await self._engine.fold_worker.submit(lambda: self._engine.fold.get(topic.id, [match.value]))
        return entry is not None and entry.seq <= through_seq

    async def _log_delete(self, topic: Topic, body: DeleteBody, erase: Erasure | None = None) -> None:
        if topic.deleted or topic.closing:
            raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
        topic.last_ts_ms = max(topic.last_ts_ms, self._engine.clock.now_ms())
        ts_ms = topic.last_ts_ms

        def committed(_: object) -> None:
            due_ms = 0 if topic.is_ephemeral else ts_ms + self._erase_within_ms
            apply_deletion(topic, body, erase_due_ms=due_ms)
            self._engine.table.dirty.add(topic)
            if topic.memory is not None:
                topic.memory.remove(body.seqs)
            drop_below_floors(topic)
            topic.moved()  # notifies its followers

        if topic.is_ephemeral:
            committed(None)
            return
        frame = control_body(FrameType.DELETE, topic.id, encode_delete(body), ts_ms=ts_ms)
        await self._engine.control(frame, committed, topic, erase=erase)


def may_hold_match(match: Match) -> Callable[[Footer], bool]:
    """Return a footer check: may the segment hold a record that matches?"""
    if match.field is MatchField.KEY:
        if match.kind is MatchKind.EQ:
            return lambda footer: footer.may_hold_key(match.value)
        return lambda footer: footer.may_hold_key_prefix(match.value)
    # Tags are UTF-8: other bytes match none.
    if match.kind is MatchKind.EQ:
        return lambda footer: footer.tags.may_hold(match.value)
    return lambda footer: footer.tag_count > 0


def _add_matches(batch: Batch, deletion: Deletion, matched: _MatchedRows, *, trim_seq: int, deleted: SeqSet) -> None:
    removed = removed_rows(batch, deletion, trim_seq=trim_seq, deleted=deleted)
    if len(removed.indices):
        matched.add(removed.seqs, row_bytes(batch)[removed.indices])


async def _check_rows(
    topic: Topic, deletion: Deletion, matched: _MatchedRows, base_seqs: NDArray[np.uint64]
) -> _RemovedRows:
    """Return the matched rows that still exist, and those of them that are live. The caller holds the topic's floors."""
    removed, count, size = SeqSet(), 0, 0
    seq_each, size_each = np.concatenate([_NO_SEQS, *matched.seqs]), np.concatenate([_NO_SIZES, *matched.sizes])
    for start in range(0, matched.count, CHECKED_AT_ONCE):
        seqs, sizes = seq_each[start : start + CHECKED_AT_ONCE], size_each[start : start + CHECKED_AT_ONCE]
        existing = ~topic.deleted_seqs.mask_each(seqs)
        live = existing & (seqs > np.uint64(topic.floors.trim))
        removed.add_array(seqs[existing if topic.folds else live])
        count, size = count + int(live.sum()), size + int(sizes[live].sum())
        await asyncio.sleep(0)  # yield the event loop
    in_base = base_seqs[base_seqs <= np.uint64(deletion.through_seq)]
    for start in range(0, len(in_base), CHECKED_AT_ONCE):
        seqs = np.sort(in_base[start : start + CHECKED_AT_ONCE])  # in key order they take half as long again
        removed.add_array(seqs[~topic.deleted_seqs.mask_each(seqs)])
        await asyncio.sleep(0)
    return _RemovedRows(removed, count, size)
