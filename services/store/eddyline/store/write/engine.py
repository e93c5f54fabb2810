"""Write engine: takes every append and control frame of a shard through the commit order.

    stage      validate, assign seqs                  (event loop; refusals are definite)
    commit     group, write, fdatasync by class        (`group_commit`, writer thread)
    apply      KV: one WriteBatch with its cursor      (`fold_apply`, fold thread; event loop if it is small)
    publish    index, head, keys, writers: visible     (event loop)
    ack        the caller's future                     (event loop)

I1: no record is visible or acknowledged before its durability class is met and it is applied. I2: a topic's appends are
staged in order of arrival, and published in that order. I3: a retry found by its key or position is answered, never
repeated.
Threading: the engine runs on the event loop and owns all state; the only lock is a topic's gate, which keeps the order of
appends while keys are read for `expected_versions`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from eddyline.core.errors import CommitUnknown, EddylineError, TopicNotFound
from eddyline.core.model.topic import Durability, Kind
from eddyline.core.records.batch import Batch
from eddyline.core.runtime.tasks import noop
from eddyline.core.store_link.protocol import AppendResult
from eddyline.core.telemetry.tracing import NOOP_TRACER
from eddyline.store.log.append import Ack
from eddyline.store.log.idempotency_keys import KeyedAppend
from eddyline.store.log.memory_log import MemoryLog
from eddyline.store.log.topic import RESERVATION_SEQS
from eddyline.store.stats import ShardMetrics
from eddyline.store.storage.wal.columns import content_hash
from eddyline.store.storage.wal.frame import AppendMark, FrameType, control_body
from eddyline.store.write import deduplication, validation
from eddyline.store.write.admission import RetainedQuota
from eddyline.store.write.fold_apply import FoldApplier
from eddyline.store.write.group_commit import GroupCommitter
from eddyline.store.write.staged import STOPPED, CommitFrame, StagedAppend, StagedControl, fail_frames, read_only
from eddyline.store.write.traces import CommitTraces

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.telemetry.tracing import Tracer
    from eddyline.store.fold.fold import Fold
    from eddyline.store.log.append import AppendRequest, WriterPosition
    from eddyline.store.log.batch_cache import BatchCache
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.runtime.age_clock import AgeClock
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.storage.wal.frame import FrameBody
    from eddyline.store.storage.wal.wal import Location, Wal
    from eddyline.store.write.admission import AdmissionControl
    from eddyline.store.write.staged import Erasure

T = TypeVar("T")

_NO_RECORDS: Final = Batch.from_rows([])


class Engine:
    """Takes appends through stage, commit, apply, publish and ack; see the module's invariants."""

    def __init__(
        self,
        *,
        table: TopicTable,
        wals: Sequence[Wal],
        fold: Fold,
        clock: Clock,
        ages: AgeClock,
        cache: BatchCache,
        wal_workers: Sequence[Worker],
        fold_worker: Worker,
        gate: AdmissionControl,
        retained_bytes_max: int = 0,
        tracer: Tracer = NOOP_TRACER,
    ) -> None:
        self.table = table
        self.fold = fold
        self.fold_worker = fold_worker
        self.clock = clock
        self._ages = ages
        self._cache = cache
        self.gate = gate
        self._retained = RetainedQuota(retained_bytes_max, table=table, clock=clock)
        self.appended_count = 0
        self.measures = ShardMetrics()
        self.traces = CommitTraces(tracer, clock)
        self.on_published: Callable[[Topic], None] = noop
        """Called with each topic whose log has grown: retention checks whether it has work there."""
        self.enforce_retention: Callable[[Topic], Awaitable[None]] = _no_retention
        """Awaited before an append to a topic whose retention may make room for it (`Topic.may_get_room`)."""
        self.applier = FoldApplier(
            fold, fold_worker, clock, publish=self._publish, on_failure=self._fold_failed, measures=self.measures
        )
        self.committers = [
            GroupCommitter(wal, worker, clock, hand_on=self._hand_on, pressure=self._pressure, measures=self.measures)
            for wal, worker in zip(wals, wal_workers, strict=True)
        ]

    @property
    def read_only_reason(self) -> str:
        """Return why the shard is read-only; empty = it takes writes. A failure of any part precedes the stop of another."""
        stopped = ""
        for committer in self.committers:
            if reason := committer.failed_reason:
                if reason != STOPPED:
                    return reason
                stopped = STOPPED
        return self.gate.failed_reason or stopped

    async def drain(self) -> None:
        """Wait until every staged append is acknowledged or failed."""
        for committer in self.committers:
            await committer.drain()
        await self.applier.drain()

    def committer(self, topic_id: int) -> GroupCommitter:
        """Return the committer of a topic's frames: by the topic's id, modulo the WAL shards."""
        return self.committers[topic_id % len(self.committers)]

    def _pressure(self) -> float:
        return self.gate.pressure(self.committers, self.applier)

    # stage -------------------------------------------------------------------------------------------------------

    async def stage(self, topic: Topic, request: AppendRequest) -> Ack:
        """Stage an append; return when it has its place in the topic's order. The future is its acknowledgement.

        Raises:
            the errors of `validation`, Throttled, ApplyLag, ReadOnly, IdempotencyConflict: nothing was staged.
        """
        ack = self.stage_now(topic, request)
        if ack is not None:
            return ack
        async with topic.gate:
            if topic.may_get_room:
                await self.enforce_retention(topic)
            if not request.expected_versions:
                return self._stage(topic, request)
            return await self._stage_versioned(topic, request)

    def stage_now(self, topic: Topic, request: AppendRequest) -> Ack | None:
        """Stage an append in this step of the loop; None = it must wait for its topic's gate, and nothing was staged.

        Raises:
            as `stage`.
        """
        validation.check_request(topic, request)
        if request.expected_versions or topic.is_gated or topic.may_get_room:
            return None
        return self._stage(topic, request)

    async def _stage_versioned(self, topic: Topic, request: AppendRequest) -> Ack:
        """Read the keys on the fold's thread; then, in one step, check them with all appends staged since, and stage."""
        overlay = list(topic.unapplied)
        topic.overlays.append(overlay)
        try:
            keys = [key for key, _ in request.expected_versions]
            stored = await self.fold_worker.submit(lambda: self.fold.get(topic.id, keys))
            duplicate = self._duplicate_of(topic, request)
            if duplicate is not None:
                return duplicate
            validation.check_versions(request.expected_versions, stored, overlay)
            return self._stage(topic, request)
        finally:
            # by identity: two overlays of equal batches are two overlays
            topic.overlays[:] = [other for other in topic.overlays if other is not overlay]

    def _stage(self, topic: Topic, request: AppendRequest) -> Ack:
        duplicate = self._duplicate_of(topic, request)
        if duplicate is not None:
            return duplicate
        size = request.batch.record_bytes
        self._check_open(topic, request)
        validation.check_head(topic, request.expected_head_seq)
        validation.check_caps(topic, request.batch.count, size)
        self._take_room(size)
        ack = Ack()
        mark, writer = AppendMark(request.batch.count), request.writer
        if request.idempotency_key:
            key, digest = request.idempotency_key.encode(), content_hash(request.batch)
            topic.keys.stage(key, digest, ack)
            mark = mark._replace(idempotency_key=key, content_hash=digest)
        if writer is not None:
            mark = mark._replace(writer=writer.writer, fence=writer.fence, previous=writer.previous, new=writer.new)
            topic.writers.stage(writer, ack)
        first_seq = topic.stage(request.batch, size)
        sync = self._reserve(topic)
        staged = StagedAppend(
            topic=topic,
            batch=request.batch,
            first_seq=first_seq,
            record_bytes=size,
            mark=mark,
            ack=ack,
            sync=sync,
        )
        if self.traces.is_on:
            self.traces.staged(staged, request)
        self.committer(topic.id).stage(staged)
        return ack

    def check_new(self, topic: Topic, request: AppendRequest) -> None:
        """Check an append to a topic that it would create, before the topic is created.

        Raises:
            the errors of `stage`; the topic is not created then.
        """
        validation.check_new(topic, request)
        self._check_room(topic)

    def _duplicate_of(self, topic: Topic, request: AppendRequest) -> Ack | None:
        """Return the acknowledgement of the append that this one repeats, by key or position; None = it is a new one."""
        if request.writer is None and not request.idempotency_key:
            return None
        duplicate = deduplication.find_duplicate(topic, request, self._ages)
        move = request.writer
        if duplicate is None or move is None or not duplicate.raises_fence:
            return duplicate.ack if duplicate is not None else None
        return deduplication.follow_ack(self._raise_fence(topic, request, move), duplicate.ack)

    def _raise_fence(self, topic: Topic, request: AppendRequest, move: WriterPosition) -> Ack:
        """Stage a larger fence for a writer that is at its new position already: an append of no record, always
        fdatasynced."""
        self._check_open(topic, request)
        ack = Ack()
        topic.writers.stage(move, ack)
        mark = AppendMark(0, writer=move.writer, fence=move.fence, previous=move.new, new=move.new)
        self.committer(topic.id).stage(
            StagedAppend(
                topic=topic,
                batch=_NO_RECORDS,
                first_seq=topic.staged_seq + 1,
                record_bytes=0,
                mark=mark,
                ack=ack,
                sync=True,
            )
        )
        return ack

    def _check_open(self, topic: Topic, request: AppendRequest) -> None:
        self._check_room(topic)
        if topic.closing or topic.deleted:
            raise TopicNotFound(f"no topic {topic.name}", topic=topic.name)
        validation.check_author(
            topic, request
        )  # again: a source may have taken the topic while this append waited at the gate

    def _check_room(self, topic: Topic) -> None:
        try:
            if self.read_only_reason:
                raise read_only(self.read_only_reason)
            self.gate.check_append(topic, self.committer(topic.id), self.applier)
        except EddylineError as refusal:
            self.measures.refused[refusal.reason] += 1
            raise

    def _take_room(self, record_bytes: int) -> None:
        try:
            self._retained.take(record_bytes)
        except EddylineError as refusal:
            self.measures.refused[refusal.reason] += 1
            raise

    def _reserve(self, topic: Topic) -> bool:
        """Reserve seqs ahead once half are used. Return True if the append waits for a fdatasync: of a reservation, or its
        own."""
        if topic.config.durability is Durability.FSYNC:
            return True
        if topic.staged_seq > topic.staged_reserved_seq - RESERVATION_SEQS // 2:
            self.reserve(topic, topic.staged_seq + RESERVATION_SEQS)
        return topic.staged_seq > topic.reserved_seq

    def reserve(self, topic: Topic, bound: int) -> None:
        """Log that acknowledged seqs go up to `bound` at most; a bound lower than the previous one applies at once."""
        topic.staged_reserved_seq = bound
        self.table.reserved.add(topic)
        topic.reserved_seq = min(topic.reserved_seq, bound)

        def committed(_: Location) -> None:
            topic.reserved_seq = bound

        body = control_body(FrameType.HEAD_WATERMARK, topic.id, None, first_seq=bound, ts_ms=topic.last_ts_ms)
        done = asyncio.get_running_loop().create_future()
        self.committer(topic.id).stage(StagedControl(body, done=done, on_commit=committed, topic=topic))

    async def control(
        self,
        body: FrameBody,
        on_commit: Callable[[Location], None],
        topic: Topic | None = None,
        *,
        sync: bool = True,
        erase: Erasure | None = None,
    ) -> None:
        """Commit a control frame; return when it is fdatasynced (`sync`) and `on_commit` was called with its location.

        Raises:
            ReadOnly: refused. CommitUnknown: the disk failed under it.
        """
        await completed(self.stage_control(body, on_commit, topic, sync=sync, erase=erase))

    def stage_control(
        self,
        body: FrameBody,
        on_commit: Callable[[Location], None],
        topic: Topic | None = None,
        *,
        sync: bool = True,
        erase: Erasure | None = None,
    ) -> asyncio.Future[None]:
        """As `control`, but without waiting: the future is its acknowledgement.

        Raises:
            ReadOnly: refused.
        """
        if self.read_only_reason:
            raise read_only(self.read_only_reason)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        control = StagedControl(body, done=done, on_commit=on_commit, topic=topic, sync=sync, erase=erase)
        self.committer(body.topic_id).stage(control)
        return done

    # apply, publish, ack -----------------------------------------------------------------------------------------

    def _hand_on(self, frames: Sequence[CommitFrame]) -> None:
        """Publish the frames of LOG topics, whose class is met; pass those of KV topics to the fold first."""
        if self.traces.is_on:
            self.traces.durable(frames)
        folded: list[CommitFrame] = []
        for frame in frames:
            if frame.topic is not None and frame.topic.kind is Kind.KV and _touches_fold(frame):
                folded.append(frame)
            else:
                self._publish(frame)
        if folded:
            self.applier.add(folded)

    def _publish(self, frame: CommitFrame) -> None:
        if frame.control is not None:
            frame.control.on_commit(frame.location)
            if frame.topic is not None and not frame.topic.deleted:
                self.table.dirty.add(frame.topic)
            if not frame.control.done.done():
                frame.control.done.set_result(None)
            return
        topic, batch = frame.topic, frame.batch
        assert topic is not None
        assert batch is not None
        if batch.count:
            self._keep(topic, batch, frame)
            topic.head_seq = frame.last_seq
            self.appended_count += batch.count
            self.measures.appended_bytes += frame.record_bytes
        self.table.dirty.add(topic)
        topic.last_commit_s = self.clock.monotonic_s()
        for append in frame.appends:
            _remember(topic, append, frame.ts_ms)
        if topic.kind is Kind.KV:
            del topic.unapplied[: sum(1 for append in frame.appends if append.batch.count)]
        if self.traces.is_on:
            self.traces.visible(topic, frame)
        topic.moved()  # before the acknowledgements: followers wait for records, and a writer has its next append ready
        for append in frame.appends:
            if not append.ack.done():
                append.ack.set_result(_result(topic, append, frame.ts_ms))
        self.on_published(topic)

    def _keep(self, topic: Topic, batch: Batch, frame: CommitFrame) -> None:
        """Store where the records are: in the index and the cache, or in memory for an EPHEMERAL topic."""
        size = frame.record_bytes
        if batch.has_gaps:
            topic.note_gaps(batch)
        topic.record_bytes += size
        if not topic.oldest_ts_ms:
            topic.oldest_ts_ms = frame.ts_ms
        if frame.is_written:
            self.table.has_grown(topic)
            topic.index.put(batch.first_seq, frame.last_seq, frame.location, ts_ms=frame.ts_ms, record_bytes=size)
            joined = len(frame.appends) > 1  # joined appends: each has the columns that any of them has
            self._cache.add((topic.id, frame.location), batch, batch.nbytes if joined else frame.bytes)
        else:
            if topic.memory is None:
                topic.memory = MemoryLog(self.gate.count_memory)
            topic.memory.add(batch, size)

    def _fold_failed(self, frames: Sequence[CommitFrame], error: Exception) -> None:
        """Fail frames after the fold broke: they stay in the log, unacknowledged, until a restart applies them."""
        fail_frames(frames, self.fold_failed(error, "append"))

    def fold_failed(self, error: Exception, what: str) -> CommitUnknown:
        """Stop writes: the fold is broken until a restart. Return the error for `what`, which is in the log."""
        self.gate.failed_reason = "FOLD_FAILED"
        return CommitUnknown(
            f"the fold failed; the {what} is in the log, and a restart of the store applies it",
            cause=type(error).__name__,
        )


async def completed(commit: asyncio.Future[T]) -> None:
    """Await a commit in flight. A cancelled caller waits for it too, so that its locks are held until then."""
    try:
        await asyncio.shield(commit)
    except asyncio.CancelledError:
        while not commit.done():
            try:
                await asyncio.wait([commit])
            except asyncio.CancelledError:
                continue
        raise


def _touches_fold(frame: CommitFrame) -> bool:
    return frame.control is None or frame.control.body.type in (FrameType.TOPIC_DELETE, FrameType.DELETE)


async def _no_retention(topic: Topic) -> None:
    """Do nothing: no records have expired."""


def _remember(topic: Topic, append: StagedAppend, ts_ms: int) -> None:
    """Remember the append's key and writer position, so that a retry is found."""
    mark = append.mark
    if mark.idempotency_key:
        last_seq = append.first_seq + mark.count - 1
        topic.keys.commit(mark.idempotency_key, KeyedAppend(mark.content_hash, append.first_seq, last_seq, ts_ms))
    if mark.writer:
        topic.writers.commit(mark.writer, mark.fence, mark.new, append.ack, now_ms=ts_ms)


def _result(topic: Topic, append: StagedAppend, ts_ms: int) -> AppendResult:
    if append.batch.count == 0:
        return AppendResult(0, 0, topic.id, ts_ms)
    return AppendResult(append.first_seq, append.first_seq + append.batch.count - 1, topic.id, ts_ms)
