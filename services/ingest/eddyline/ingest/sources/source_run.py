"""A source's life under one lease: judge, resync, consume, recover.

Each attempt starts at the stored position and ends with a reason; the next one follows by itself, after a backoff, unless
the reason is a stop. Nothing survives an attempt but the position.

    CONNECTING -> judge -> [RESYNCING: key sets, gap] -> SNAPSHOT or CATCHING_UP, to the last revision of the start -> LIVE
    LIVE -> keys left without a word (seen by a look) -> RESYNCING      anything lost -> RECOVERING -> judge ...
    another stream, or a resync asked for -> RESYNCING: values, gap -> CATCHING_UP -> LIVE
    none there -> SOURCE_LOST (looked for again)      too large -> OVERSIZE (looked at again)
    STREAM_RECREATED, CURSOR_EXPIRED -> nothing more until a resync is asked for, its policies are others, or the next lease
    CURSOR_AHEAD -> nothing more until a resync is asked for, also over leases: the store keeps it, since a stream that was
    rolled back looks right again once it has grown past the position
    paused -> PAUSED until it is resumed

Threading: event loop; one task a source.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import (
    BucketNotFound,
    EddylineError,
    NatsUnreachable,
    RecordTooLarge,
    SourceNotFound,
    StaleFence,
    StalePosition,
    TopicFull,
    TopicNotFound,
)
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep, wait_event
from eddyline.core.runtime.logging import fields
from eddyline.ingest.copy.cap_split import apply_within_cap, exceeds_cap
from eddyline.ingest.copy.consumer import Consumer, ConsumerLost
from eddyline.ingest.copy.dead_letters import DeadLetters
from eddyline.ingest.copy.filter import Filter
from eddyline.ingest.copy.forward import Forward, retried
from eddyline.ingest.copy.gaps import find_holes, tail_gap, with_misfits
from eddyline.ingest.copy.position import Position, decode_position, revision_of, time_of
from eddyline.ingest.copy.stopped import SourceStopped, expired
from eddyline.ingest.nats.consumer_names import consumer_name, delete_stale_consumers, name_prefix
from eddyline.ingest.resync.adopt import AdoptionRequest, adopt_stream, count_changed, only_changes
from eddyline.ingest.resync.bootstrap import bootstrap
from eddyline.ingest.resync.resume_check import ResumeDecision, check_resume
from eddyline.ingest.resync.resync import resync
from eddyline.ingest.resync.stream_audit import Audit, Pace
from eddyline.ingest.sources.standstill import Standstill
from eddyline.ingest.sources.stream_warnings import StreamWarnings

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from eddyline.core.model.source import Lease
    from eddyline.core.records.batch import Batch
    from eddyline.ingest.copy.batch import Chunk, PlacedGap
    from eddyline.ingest.copy.progress import Progress
    from eddyline.ingest.nats.stream import Stream
    from eddyline.ingest.resync.resync import ResyncResult
    from eddyline.ingest.sources.context import SourceContext
    from eddyline.ingest.sources.control import SourceControl

log = logging.getLogger(__name__)

LOOK_AGAIN_S_MAX: Final = 5.0
"""How long at most until a missing bucket is looked for again."""
OVERSIZE_LOOK_S: Final = 30.0
"""How long until it is seen that somebody removed a message that does not fit."""
GOOD_ATTEMPT_S: Final = 10.0
"""An attempt that was LIVE this long owes its end to something new: the backoff starts over."""
SWEEP_S_MAX: Final = 2.0
"""For consumers left behind: one whose NATS server is dead is not deleted before its group has another leader."""
RAISE_CAP: Final = "raise its cap (`eddyline topic update`)"
ORDERED: Final = "other orders came"
"""Why a consumer is left where a source is paused or is to resync."""


class SourceRun:
    """One leased source. `run` is its task: it ends when the source is no longer ours, or by cancellation."""

    def __init__(self, lease: Lease, surroundings: SourceContext, progress: Progress, orders: SourceControl) -> None:
        definition = lease.source.definition
        self._definition = definition
        self._fence = lease.fence
        self._context = surroundings
        self.progress = progress
        self._orders = orders
        self._filter = Filter(definition)
        self._cautions = StreamWarnings(definition.name, progress)
        self._consumer: Consumer | None = None
        self._prefix = ""
        self._backoff = Backoff(surroundings.rng, cap_s=LOOK_AGAIN_S_MAX)
        self._attempt_number = 0
        self._compare_due, self._values_due = False, ""
        """Whether key sets are compared before it is read on, and why values too, "" = they need not be."""
        self._values_pace = Pace(surroundings.clock.monotonic_s(), surroundings.look_s)
        self._compared_to, self._was_rolled_back = 0, False
        """Up to this revision of the stream only what differs from the fold is written."""
        self._stream_name = f"KV_{definition.bucket}" if definition.bucket else definition.stream
        self._lost_to = lease.source.report.last_revision
        """The last revision that the stream is known to have had, where it is another one now."""
        self._forward = Forward(
            surroundings.link,
            source=definition.name,
            fence=lease.fence,
            stored=lease.source.position,
            clock=surroundings.clock,
            rng=surroundings.rng,
            on_trouble=progress.explain,
            counts=progress.counts,
            apply_s=surroundings.apply_s,
        )
        self._standstill = Standstill(
            lease.source.stop,
            jetstream=surroundings.jetstream,
            forward=self._forward,
            progress=progress,
            orders=orders,
            cautions=self._cautions,
        )
        self._dead_letters = DeadLetters(
            surroundings.link,
            definition,
            clock=surroundings.clock,
            rng=surroundings.rng,
            on_trouble=progress.explain,
            counts=progress.counts,
        )

    @property
    def stored(self) -> bytes:
        """The position as the store has it, as far as this lease has heard: everything up to it is applied."""
        return self._forward.stored

    async def run(self) -> None:
        """Copy until the source is no longer ours.

        Raises:
            StaleFence, SourceNotFound, TopicNotFound: it is another replica's, or gone.
        """
        self._orders.on_change = self._on_control_change
        try:
            while True:
                if self._orders.paused:
                    await self._pause()
                self._orders.changed.clear()
                self._definition = self._dead_letters.definition = self._orders.definition
                wait_s = await self._attempt()
                await wait_event(self._context.clock, self._orders.changed, wait_s)
        finally:
            await self._leave()

    def _on_control_change(self) -> None:
        """Other orders came: what was received is applied, then the attempt ends. A letter that found no place goes to the
        new one."""
        if not self._orders.paused and self.progress.state in ("PAUSED", "LIVE"):
            self.progress.enter("CATCHING_UP", detail=self._orders.why)
        if self._orders.definition.dead_letter_topic:
            self._dead_letters.definition = self._orders.definition
        if self._consumer is not None:
            self._consumer.break_off(ORDERED)

    async def _pause(self) -> None:
        self.progress.enter("PAUSED")
        while self._orders.paused:
            self._orders.changed.clear()
            await self._wait_looking()

    async def _attempt(self) -> float:
        """One attempt; the time to wait before the next."""
        self._attempt_number += 1
        started_s = self._context.clock.monotonic_s()
        try:
            await self._copy()
        except (StaleFence, SourceNotFound, TopicNotFound):
            raise
        except StalePosition as error:
            self._forward.stored = error.position
            self._recover("the stored position is another one")
        except BucketNotFound as error:
            self.progress.enter("SOURCE_LOST", error.message)
        except SourceStopped as stopped:
            return await self._stopped(stopped)
        except RecordTooLarge as error:
            way_out = f"; {RAISE_CAP}" if exceeds_cap(error) else ""
            return await self._stopped(SourceStopped("OVERSIZE", error.message + way_out))
        except TopicFull as error:
            self._recover(f"{error.message}; {RAISE_CAP}, let it discard old, or delete records")
        except ConsumerLost as lost:
            if self._compare_due or self._orders.changed.is_set():
                return 0.0
            self._recover(str(lost))
        except EddylineError as error:
            if not retried(error):
                log.error("source failed", extra=fields(source=self._definition.name, error=error.message))
            self._recover(error.message)
        except Exception as error:  # the root of a source's work: one defect must not end the others
            log.exception("source broke", extra=fields(source=self._definition.name))
            self._recover(f"internal: {type(error).__name__}")
        if self._context.clock.monotonic_s() - started_s >= GOOD_ATTEMPT_S:
            self._backoff.reset()
        return self._backoff.next_delay_s()

    async def _copy(self) -> None:
        around = self._context
        self._standstill.check()
        if not around.connection.connected:
            trouble = around.connection.trouble
            reason = f"not connected to NATS: {trouble}" if trouble else "not connected to NATS"
            if self._attempt_number == 1:
                self.progress.explain(reason)
            else:
                self._recover(reason)
            await self._connected_or_ordered()
            self.progress.explain("")
        position = decode_position(self._forward.stored)
        is_first = position is None
        begun = await self._bootstrap() if is_first and self._attempt_number == 1 else ""
        position = await self._own_position()
        self.progress.position_revision = revision_of(position)
        resync_serial = self._orders.resync_serial
        verdict = await check_resume(
            around.jetstream, self._definition, position, resync_serial=resync_serial, stop=self._standstill.stop
        )
        stream = verdict.stream
        self._cautions.tell(stream)
        if not verdict.is_other:
            self.progress.set_head(stream.last_revision)
        if not self._prefix:
            topic = await around.link.get_topic(self._definition.topic)
            self._prefix = name_prefix(around.cluster_id, self._definition.name, topic)
        name = consumer_name(self._prefix, self._fence, self._attempt_number)
        await self._sweep(stream.name, keep=name)
        done = begun
        if verdict.accepts and position is not None:
            position, done = await self._accept(verdict, position, resync_serial, name)
        elif self._values_due and position is not None:
            verdict = replace(verdict, accepts=self._values_due)
            position, done = await self._accept(verdict, position, position.resync_serial, name)
        elif verdict.resync or self._compare_due:
            position, resynced = await self._resync(verdict, position)
            done = ", ".join(filter(None, (begun, resynced)))
        start = revision_of(position) + 1
        self._enter_reading(is_first, start, done, stream)
        async with Consumer(
            around.connection,
            around.jetstream,
            stream,
            name=name,
            start_revision=start,
            start_ns=stream.first_ns if start == stream.first_revision else 0,
            clock=around.clock,
            metadata={"eddyline_source": self._definition.name, "eddyline_cluster": around.cluster_id},
            on_lost=self._lost,
            heartbeat_s=around.heartbeat_s,
            takes=self._filter,
            misfits="SET_ASIDE" if self._definition.dead_letter_topic else "STOP",
            tracer=around.tracer,
        ) as consumer:
            self._consumer = consumer
            self.progress.counts.consumers += 1
            if self._orders.changed.is_set():  # they came while the consumer was made
                self._on_control_change()
            try:
                await self._consume(consumer, stream, position, name)
            finally:
                self._consumer = None

    async def _bootstrap(self) -> str:
        """Begin with the newest artifact, where there is one; what was done, in words."""
        self.progress.enter("SNAPSHOT")
        link, around = self._context.link, self._context
        begun = await bootstrap(link, around.jetstream, self._definition, tell=self.progress.explain)
        if begun:
            self._forward.stored = (await link.get_source(self._definition.name)).position
        return begun

    async def _own_position(self) -> Position | None:
        """The stored position. One of an artifact may tell of resyncs that nobody asked for here."""
        position = decode_position(self._forward.stored)
        if position is not None and position.resync_serial > self._orders.resync_serial:
            position = replace(position, resync_serial=self._orders.resync_serial)
            await self._forward.apply(None, position)
        return position

    async def _connected_or_ordered(self) -> None:
        """Wait until NATS is there. Raises ConsumerLost where other orders come before."""
        await self._unless_ordered(self._context.connection.wait_connected())
        if not self._context.connection.connected:
            raise ConsumerLost(ORDERED)

    async def _unless_ordered(self, work: Coroutine[object, object, object]) -> None:
        """Do something that does not fail, or leave it where other orders come before it is done."""
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work)
            ordered = group.create_task(self._orders.changed.wait())
            await asyncio.wait((working, ordered), return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            ordered.cancel()

    def _lost(self, reason: str) -> None:
        if reason != ORDERED:
            self.progress.enter("RESYNCING" if self._compare_due else "RECOVERING", reason)

    def _enter_reading(self, is_first: bool, start: int, done: str, stream: Stream) -> None:
        """State while what is there is read. A source that only compared goes straight to LIVE, which says it."""
        resumed = "from the beginning" if start == 1 else f"resumed at {start}"
        detail = ", ".join(filter(None, (done, resumed, stream.rule_note)))
        self.progress.enter("SNAPSHOT" if is_first else "CATCHING_UP", detail=detail)

    async def _resync(self, verdict: ResumeDecision, position: Position | None) -> ResyncResult:
        self.progress.enter("RESYNCING", self.progress.reason if self._compare_due else "")
        async with self._context.resyncs:
            resynced = await resync(
                jetstream=self._context.jetstream,
                stream=verdict.stream,
                link=self._context.link,
                topic=self._definition.topic,
                position=position,
                forward=self._forward,
                resync_serial=self._orders.resync_serial,
            )
        self._compare_due = False
        self.progress.counts.resyncs += position is not None
        self.progress.position_revision = revision_of(resynced.position)
        return resynced

    async def _accept(self, verdict: ResumeDecision, position: Position, resync_serial: int, name: str) -> ResyncResult:
        """Take the stream as it is."""
        self.progress.enter("RESYNCING", detail=verdict.accepts)
        async with self._context.resyncs:
            resynced = await adopt_stream(self._acceptance(verdict, name, resync_serial), position)
        self._compare_due, self._values_due = False, ""
        self.progress.counts.resyncs += 1
        if verdict.is_other:
            self._lost_to = 0
            self._compared_to = verdict.stream.last_revision if verdict.stream.bucket else 0
            self._was_rolled_back = verdict.stream.created_ns == position.created_ns
        self.progress.forget(revision_of(resynced.position), verdict.stream.last_revision)
        return resynced

    def _acceptance(self, verdict: ResumeDecision, name: str, resync_serial: int) -> AdoptionRequest:
        around = self._context
        return AdoptionRequest(
            self._definition,
            verdict.stream,
            around.jetstream,
            around.connection,
            around.link,
            self._forward,
            self._dead_letters,
            around.clock,
            f"{name}-values",
            resync_serial,
            max(self._lost_to, self.progress.last_revision) if verdict.is_other else 0,
            verdict.is_other,
        )

    async def _consume(self, consumer: Consumer, stream: Stream, position: Position | None, name: str) -> None:
        """Apply what comes. LIVE from the moment on that the last revision of the start is applied."""
        level = False
        audit = Audit(
            stream,
            jetstream=self._context.jetstream,
            link=self._context.link,
            topic=self._definition.topic,
            resyncs=self._context.resyncs,
            clock=self._context.clock,
            changed=lambda look, through: count_changed(self._acceptance(ResumeDecision(look), name, 0), through),
            values=self._values_pace,
            resumed=position is not None,
            look_s=self._context.look_s,
            on_look=self._cautions.tell,
        )
        while True:
            if not (level or consumer.failed):
                level = await self._is_level(consumer, stream, position)
            if level and not consumer.failed:
                reason = await audit.check(self.progress.position_revision, drained=consumer.drained)
                if reason:
                    self._values_due = reason if audit.values_differ else ""
                    self._resync_for(reason, consumer)
            chunk = await self._taken(consumer, audit.wait_s if level else self._context.look_s)
            if chunk is None:
                continue
            self.progress.set_head(max(chunk.last_revision, consumer.last_seen_revision))
            holes = await find_holes(self._context.jetstream, stream, chunk)
            stop = holes.evicted if self._definition.on_expired == "STOP" else None
            if stop is not None:
                chunk.cut(stop)
            if chunk.last_revision > revision_of(position):
                position = await self._apply(stream, chunk, holes.gaps, position)
            if stop is not None:
                gone = expired(stream, stop.after_revision + 1, stop.revision - 1)
                raise gone.until_resync(self._definition.name)
            if holes.overrun:
                self._resync_for(f"{stream.origin} dropped revisions before they were read", consumer)

    async def _apply(
        self, stream: Stream, chunk: Chunk, gaps: Sequence[PlacedGap], position: Position | None
    ) -> Position:
        """Apply a chunk with those of `gaps` that lie in it; the position then."""
        told = [placed for placed in gaps if placed.gap.source_first <= chunk.last_revision]
        await self._dead_letters.keep(stream, chunk.misfits)
        serial = position.resync_serial if position is not None else self._orders.resync_serial
        position = chunk.position(stream.created_ns, serial, time_of(position))
        batch = await self._batch(stream, chunk, told)
        await apply_within_cap(self._forward, batch, position, moves=True, trace=chunk.trace)
        self.progress.position_revision = position.revision
        return position

    async def _batch(self, stream: Stream, chunk: Chunk, gaps: Sequence[PlacedGap]) -> Batch | None:
        """What of a chunk is written; of what a resync takes from another stream only what differs from the fold."""
        if chunk.revisions and chunk.revisions[0] <= self._compared_to:
            changed = await only_changes(
                self._context.link, self._definition.topic, chunk, later_too=self._was_rolled_back
            )
            chunk.keep(changed, self._compared_to)
        return chunk.batch(with_misfits(stream, chunk, gaps))

    async def _taken(self, consumer: Consumer, wait_s: float) -> Chunk | None:
        """The next chunk; None = nothing is there, or none came within `wait_s`."""
        timer = self._context.clock.call_later(wait_s, consumer.wake)
        try:
            return await consumer.take()
        finally:
            timer.cancel()

    def _resync_for(self, reason: str, consumer: Consumer) -> None:
        # What was received is applied first: the stream may not have it any more.
        self._compare_due = True
        consumer.break_off(reason)

    async def _is_level(self, consumer: Consumer, stream: Stream, position: Position | None) -> bool:
        """Whether everything up to the last revision of the start is applied.

        Revisions at the end may be gone, so that no message ever reaches the target: where the consumer has nothing
        more, the stream is asked, and the position moved alone.
        """
        target = stream.last_revision
        at = revision_of(position)
        if at < target:
            if not consumer.drained:
                return False
            following = await self._context.jetstream.next_message(stream, at + 1)
            if following is not None:
                return False  # it comes, and what is missing before it is judged then
            if (await self._context.jetstream.again(stream)).first_revision > at + 1:
                self._resync_for(f"{stream.origin} was purged before it was read", consumer)
                return False
            if consumer.drained:  # nothing came while we asked
                begin = Position(stream.created_ns, 0, resync_serial=self._orders.resync_serial)
                moved = (position or begin).passed(target, stream.server_ns)
                await self._forward.apply(tail_gap(stream, at, target), moved)
                consumer.passed(target)
                self.progress.position_revision = target
        self.progress.enter("LIVE", detail="caught up")
        return True

    async def _stopped(self, stopped: SourceStopped) -> float:
        self._standstill.keep(stopped)
        self.progress.enter(stopped.state, stopped.reason)
        if stopped.state != "OVERSIZE":
            if stopped.state == "SOURCE_LOST":
                return LOOK_AGAIN_S_MAX
            while not self._orders.changed.is_set():  # or until the lease ends
                await self._wait_looking()
            return 0.0
        await self._unless_ordered(self._standstill.look(self._definition))
        return OVERSIZE_LOOK_S

    async def _wait_looking(self) -> None:
        """Wait for other orders, or until the figures of a stopped source were read; NATS may leave that unanswered."""
        await self._unless_ordered(self._look_and_rest())

    async def _look_and_rest(self) -> None:
        await self._standstill.look(self._definition)
        await sleep(self._context.clock, self._context.look_s)

    def _recover(self, reason: str) -> None:
        self.progress.enter("RECOVERING", reason)

    async def _leave(self) -> None:
        """Remove what may be left at NATS."""
        if self._prefix and self._context.connection.connected:
            await self._sweep(self._stream_name)

    async def _sweep(self, stream_name: str, *, keep: str = "") -> None:
        """Remove consumers of before; bounded, and never in the way of a beginning or an end."""
        jetstream = self._context.jetstream
        try:
            async with asyncio.timeout(SWEEP_S_MAX):
                await delete_stale_consumers(jetstream, stream_name, self._prefix, fence=self._fence, keep=keep)
        except (TimeoutError, NatsUnreachable):
            pass  # the server removes them after their threshold
