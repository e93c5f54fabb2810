"""Deleting records: what a delete removes is found, logged with its result, and gone from every read when it is answered.

A prefix is a floor's move: its counts are arithmetic. A match is looked for piece by piece, without holding anything up;
segments that cannot hold it are not read. What was found is judged again, against floors and deletes that came meanwhile, in
one step with the logging of a frame that names the removed seqs: replay looks at no row. More rows than a frame is to name
are several deletes, each complete, of ever larger bounds.

On a KV topic a match also takes what is below the floors and not off the disk yet, and the base's entries: a fold that is
made anew from base and log must not have them again. The fold's own entries are erased by the frame, in order with appends,
which wait meanwhile: none is judged by an entry that is on its way out.

I1: nothing above the head at the call is touched. I2: a delete is judged after all that retention owed (`retention.py`).
I3: a delete done again finds nothing, and counts nothing. I4: the topic's `delete_mark` is another one before the answer.
Failure: between two frames of one delete a crash leaves the first done; the same delete again does the rest.
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
"""Rows that one frame names: 2 bytes each where they are scattered, so 11 MB of text, and 64 MiB while they are gathered."""
CHECKED_AT_ONCE: Final = 65_536
"""Rows judged in one go: 7 ms of the loop's time."""
SCANS_AT_ONCE: Final = 4
"""Deletes that look for rows at once: each holds what a frame names at most, and one piece of a log."""

_NO_SEQS: Final = np.zeros(0, dtype="<u8")
_NO_SIZES: Final = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class _Found:
    """Rows found so far: seqs ascending, and what each counts."""

    seqs: list[NDArray[np.uint64]] = field(default_factory=list)
    sizes: list[NDArray[np.int64]] = field(default_factory=list)
    count: int = 0

    def add(self, seqs: NDArray[np.uint64], sizes: NDArray[np.int64]) -> None:
        self.seqs.append(seqs)
        self.sizes.append(sizes)
        self.count += len(seqs)


class _Judged(NamedTuple):
    """What a frame says of rows found, at the moment of its logging."""

    seqs: SeqSet
    record_count: int
    record_bytes: int


class RecordDeleter:
    """Deletes records of any topic of a shard."""

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
        """Delete live records below `before_seq` (0 = any), that match (None = all), up to the head now.

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
            # Of a KV topic retention's floors leave what base and log on disk still tell of the past: a delete's do not.
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
            found = _Found()
            base = topic.base
            base_seqs = await self._bases.seqs(topic, match) if topic.folds else _NO_SEQS
            cursor = await self._scan(topic, cursor, deletion, found, may_hold)
            if topic.base is not base:
                # What the old base had and the new one has not is gone; what went from the log meanwhile is in the new one.
                base_seqs = np.concatenate([base_seqs, await self._bases.seqs(topic, match)])
            part = deletion._replace(bound_seq=min(cursor, deletion.bound_seq))
            count += await self._delete_found(topic, part, match, found, base_seqs)
            if cursor >= deletion.through_seq:
                return count

    async def _scan(
        self, topic: Topic, cursor: int, deletion: Deletion, found: _Found, may_hold: Callable[[Footer], bool]
    ) -> int:
        """Gather rows above `cursor`, as many as a frame names; the last seq looked at."""
        while cursor < deletion.through_seq and found.count < self._frame_rows_max:
            piece = await self._log.after(topic, cursor, may_hold=may_hold)
            if piece is None:
                return deletion.through_seq
            if piece.batch is not None:
                # A merge may have put rows that were looked at into the same batch.
                lowest_seq = max(cursor, topic.retained_after_seq)
                _take(piece.batch, deletion, found, trim_seq=lowest_seq, deleted=topic.deleted_seqs)
            cursor = piece.last_seq
        return min(cursor, deletion.through_seq)

    async def _delete_found(
        self, topic: Topic, deletion: Deletion, match: Match, found: _Found, base_seqs: NDArray[np.uint64]
    ) -> int:
        async with AsyncExitStack() as held:
            if topic.folds:  # before the floors' lock: an append at the gate may wait for that
                await held.enter_async_context(topic.gate)
            await held.enter_async_context(self._retention.hold_enforced(topic))
            judged = await _judge(topic, deletion, found, base_seqs)
            if len(judged.seqs) or (topic.folds and await self._folds(topic, match, deletion.through_seq)):
                body = DeleteBody(deletion, judged.seqs, judged.record_count, judged.record_bytes)
                erase = Erasure(match, deletion.through_seq) if topic.folds else None
                await self._log_delete(topic, body, erase)
            return judged.record_count

    async def _folds(self, topic: Topic, match: Match, through_seq: int) -> bool:
        """True = the fold may have an entry to erase, though no row of it is left."""
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
            topic.moved()  # who follows it is told

        if topic.is_ephemeral:
            committed(None)
            return
        frame = control_body(FrameType.DELETE, topic.id, encode_delete(body), ts_ms=ts_ms)
        await self._engine.control(frame, committed, topic, erase=erase)


def may_hold_match(match: Match) -> Callable[[Footer], bool]:
    """Whether a segment may hold a record that matches, by its footer."""
    if match.field is MatchField.KEY:
        if match.kind is MatchKind.EQ:
            return lambda footer: footer.may_hold_key(match.value)
        return lambda footer: footer.may_hold_key_prefix(match.value)
    # Bytes that are no UTF-8 are in no tag.
    if match.kind is MatchKind.EQ:
        return lambda footer: footer.tags.may_hold(match.value)
    return lambda footer: footer.tag_count > 0


def _take(batch: Batch, deletion: Deletion, found: _Found, *, trim_seq: int, deleted: SeqSet) -> None:
    removed = removed_rows(batch, deletion, trim_seq=trim_seq, deleted=deleted)
    if len(removed.indices):
        found.add(removed.seqs, row_bytes(batch)[removed.indices])


async def _judge(topic: Topic, deletion: Deletion, found: _Found, base_seqs: NDArray[np.uint64]) -> _Judged:
    """What of the rows found is still there, and what of it counts as a live record. The caller holds the topic's floors."""
    named, count, size = SeqSet(), 0, 0
    seq_each, size_each = np.concatenate([_NO_SEQS, *found.seqs]), np.concatenate([_NO_SIZES, *found.sizes])
    for start in range(0, found.count, CHECKED_AT_ONCE):
        seqs, sizes = seq_each[start : start + CHECKED_AT_ONCE], size_each[start : start + CHECKED_AT_ONCE]
        there = ~topic.deleted_seqs.mask_each(seqs)
        live = there & (seqs > np.uint64(topic.floors.trim))
        named.add_array(seqs[there if topic.folds else live])
        count, size = count + int(live.sum()), size + int(sizes[live].sum())
        await asyncio.sleep(0)  # others have their turn
    in_base = base_seqs[base_seqs <= np.uint64(deletion.through_seq)]
    for start in range(0, len(in_base), CHECKED_AT_ONCE):
        seqs = np.sort(in_base[start : start + CHECKED_AT_ONCE])  # in key order they take half as long again
        named.add_array(seqs[~topic.deleted_seqs.mask_each(seqs)])
        await asyncio.sleep(0)
    return _Judged(named, count, size)
