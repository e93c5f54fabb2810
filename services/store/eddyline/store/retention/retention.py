"""Retention: caps and TTL move a topic's floors after commits; a move is logged before reads see it.

When a log grows past its cap, or its oldest record expires, a move of the topic's floors is due. A background task moves
them soon; a read of the topic moves them first, so that no reader sees a record that was due before the read began. A floor
counts once its EvictWatermark frame is fdatasynced; an EPHEMERAL topic needs no frame, since its records end with the
process. Files below a floor are removed later (`compaction/reclaim.py`).

I1: floors are exact by the semantics, and never decrease. I2: one move of a topic at a time, and none while its records are
being deleted (`hold`). I3: time is the earlier of the wall clock and the time measured since the process started
(`age_clock.py`): a clock set forward evicts nothing early, one set back restores nothing.
Failure: in a read-only shard no floor moves, and reads return the records that are there.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
import heapq
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import CommitUnknown, EddylineError, ReadOnly
from eddyline.core.model.topic import Discard
from eddyline.core.runtime.clock import wait_event
from eddyline.store.log.control import apply_eviction
from eddyline.store.log.deletion import EvictBody, encode_evict
from eddyline.store.log.floors import due_cap_records, due_ttl
from eddyline.store.log.front import LogStartWalk
from eddyline.store.runtime.keyed_locks import KeyedLocks
from eddyline.store.storage.wal.frame import FrameType, control_body
from eddyline.store.write.staged import read_only

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from eddyline.core.runtime.clock import Clock
    from eddyline.store.log.topic import Topic
    from eddyline.store.retention.log_front import LogStart
    from eddyline.store.runtime.age_clock import AgeClock
    from eddyline.store.write.engine import Engine

ROUND_S: Final = 1.0
"""Longest delay of a move without reads: expired records stay on disk so much longer, at most."""
MOVES_AT_ONCE: Final = 64
"""Floors moved concurrently: they share the group commit. Each may hold one record batch, 8 MiB, at most."""

FAILED_PAUSE_MS: Final = 60_000
"""Pause before a topic whose front could not be read is tried again: a damaged log costs one read a minute."""


class Retention:
    """Enforces caps and TTL of every topic of a store."""

    def __init__(self, *, engine: Engine, log_start: LogStart, clock: Clock, ages: AgeClock) -> None:
        self._engine = engine
        self._log_start = log_start
        self._clock = clock
        self._ages = ages
        self._locks = KeyedLocks()
        self._due: dict[Topic, None] = {}
        self._expiries: list[tuple[int, int]] = []
        self._timed: dict[int, int] = {}
        """Next check time by topic id: the only valid entry of the topic in `_expiries`."""
        self._wake = asyncio.Event()
        engine.on_published = self.on_topic_changed
        engine.enforce_retention = self.enforce

    def hold(self, topic: Topic) -> AbstractAsyncContextManager[None]:
        """Lock a topic's floors and deleted seqs while the context is open."""
        return self._locks.hold(str(topic.id))

    @asynccontextmanager
    async def hold_enforced(self, topic: Topic) -> AsyncIterator[None]:
        """As `hold`, after moving the floors for everything due at its start.

        Raises:
            ReadOnly, CommitUnknown: the floors cannot be moved. As `enforce`.
        """
        async with self.hold(topic):
            if self._is_due(topic, 0) and not topic.deleted:
                if self._engine.read_only_reason:
                    raise read_only(self._engine.read_only_reason)
                await self._move(topic)
            yield

    def on_topic_changed(self, topic: Topic) -> None:
        """Schedule the checks of a topic that has grown, was loaded, or has new settings."""
        if topic.deleted:
            return  # its floors never move again
        config = topic.config
        if config.ttl_ms and topic.head_seq > topic.floors.trim:
            self._schedule(topic, topic.oldest_ts_ms + config.ttl_ms)
        if (config.cap_records or config.cap_bytes) and self._is_over(topic, 0):
            self._due[topic] = None
            self._wake.set()

    def _schedule(self, topic: Topic, time_ms: int) -> None:
        """Check the topic at `time_ms`; an earlier time replaces a later one, since a TTL may have been shortened."""
        if time_ms < self._timed.get(topic.id, time_ms + 1):
            self._timed[topic.id] = time_ms
            heapq.heappush(self._expiries, (time_ms, topic.id))

    async def enforce(self, topic: Topic, after_seq: int = 0) -> None:
        """Move the floors for everything due at the call that a reader of the seqs above `after_seq` could see. Moves that
        become due meanwhile are left to later calls: appends are faster than moves, and a reader would wait without end. If
        the disk fails, nothing moves, and the reader sees the records that are there."""
        if not self._is_due(topic, after_seq) or topic.deleted:
            return
        async with self.hold(topic):
            # Another task may have moved them meanwhile.
            if self._is_due(topic, after_seq) and not self._engine.read_only_reason and not topic.deleted:
                with suppress(CommitUnknown, ReadOnly):
                    await self._move(topic)

    async def run(self) -> None:
        """Move floors as they become due, until cancelled."""
        while True:
            await wait_event(self._clock, self._wake, ROUND_S)
            self._wake.clear()
            self._pop_expired()
            while self._due and not self._engine.read_only_reason:
                async with asyncio.TaskGroup() as moves:
                    for topic in list(self._due)[:MOVES_AT_ONCE]:
                        del self._due[topic]
                        moves.create_task(self._enforce_quietly(topic))
                self._pop_expired()  # topics at their caps may keep it here as long as they are appended to

    async def _enforce_quietly(self, topic: Topic) -> None:
        try:
            await self.enforce(topic)
        except EddylineError:  # the next read of the topic gets the error and returns it to its caller
            if not topic.deleted:
                self._schedule(topic, self._ages.now_ms() + FAILED_PAUSE_MS)
        else:
            self.on_topic_changed(topic)

    def _pop_expired(self) -> None:
        now_ms = self._ages.now_ms()
        while self._expiries and self._expiries[0][0] < now_ms:
            time_ms, topic_id = heapq.heappop(self._expiries)
            if self._timed.get(topic_id) != time_ms:
                continue
            del self._timed[topic_id]
            topic = self._engine.table.by_id(topic_id)
            if topic is not None:
                self._due[topic] = None

    def _is_due(self, topic: Topic, after_seq: int) -> bool:
        config = topic.config
        if topic.head_seq <= topic.floors.trim:
            return False
        if config.ttl_ms and self._ages.now_ms() - topic.oldest_ts_ms > config.ttl_ms:
            return True
        return self._is_over(topic, after_seq)

    def _is_over(self, topic: Topic, after_seq: int) -> bool:
        config, floors = topic.config, topic.floors
        if config.discard is not Discard.OLD:
            return False
        if config.cap_records and due_cap_records(topic.head_seq, config.cap_records, floors, topic.uncounted) > max(
            floors.cap, after_seq
        ):
            return True
        if not config.cap_bytes or topic.record_bytes <= config.cap_bytes:
            return False
        if not after_seq or after_seq < topic.segmented_seq or topic.is_ephemeral:
            return True  # bytes by seq are known of indexed frames only
        return topic.index.bytes_after(after_seq) > config.cap_bytes

    async def _move(self, topic: Topic) -> None:
        """Move one topic's floors for everything due, in one frame; the caller holds them."""
        config, floors = topic.config, topic.floors
        moved, oldest_ts_ms = floors, 0
        if config.ttl_ms:
            expired = await self._log_start.expired(topic, now_ms=self._ages.now_ms(), ttl_ms=config.ttl_ms)
            oldest_ts_ms = expired.oldest_ts_ms
            moved = moved.raised(ttl=due_ttl(expired.through_seq, floors, topic.deleted_seqs))
        evicts = config.discard is Discard.OLD
        cap_records = config.cap_records if evicts else 0
        moved = moved.raised(cap=due_cap_records(topic.head_seq, cap_records, moved, topic.uncounted))
        excess = topic.record_bytes - config.cap_bytes if evicts and config.cap_bytes else 0
        walk = LogStartWalk(floors, topic.uncounted, through_seq=moved.trim, excess_bytes=max(excess, 0))
        await self._log_start.walk(topic, walk)
        moved = moved.raised(cap=walk.bytes_floor)
        if moved != floors and not topic.deleted:
            await self._log(topic, EvictBody(moved.cap, moved.ttl, walk.removed_bytes))
        if oldest_ts_ms:
            topic.oldest_ts_ms = oldest_ts_ms  # not before: concurrent reads wait for this move

    async def _log(self, topic: Topic, body: EvictBody) -> None:
        def committed(_: object) -> None:
            if topic.deleted:
                return  # its deletion precedes this frame in the log
            apply_eviction(topic, body)
            self._engine.table.dirty.add(topic)
            drop_below_floors(topic)

        if topic.is_ephemeral:
            committed(None)
            return
        frame = control_body(FrameType.EVICT_WATERMARK, topic.id, encode_evict(body), ts_ms=topic.last_ts_ms)
        await self._engine.control(frame, committed, topic)


def drop_below_floors(topic: Topic) -> None:
    """Drop index entries and seq sets below the floors. A KV topic's stay until its fold's base covers them."""
    trim = topic.floors.trim
    if topic.memory is not None:
        topic.memory.drop_through(trim)
    if topic.folds:
        # Deleted seqs stay: they also name the base's entries that were deleted since it was made (`record_deletes.py`).
        topic.uncounted.drop_through(min(trim, topic.base.seq if topic.base is not None else 0))
        return
    topic.index.drop_through(trim)
    topic.deleted_seqs.drop_through(trim)
    topic.uncounted.drop_through(trim)
