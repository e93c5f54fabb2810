"""A source's life under one lease: check, resync, consume, recover.

Each attempt starts at the stored position and ends with a reason. The next one follows after a back-off, unless the
reason is a stop. Only the position survives an attempt.

    CONNECTING -> check -> [RESYNCING: key sets, gap] -> SNAPSHOT or CATCHING_UP, to the last revision of the start -> LIVE
    LIVE -> keys left without a message (found by an audit) -> RESYNCING      anything lost -> RECOVERING -> check ...
    another stream, or a requested resync -> RESYNCING: values, gap -> CATCHING_UP -> LIVE
    no such bucket -> SOURCE_LOST (polled)      message too large -> OVERSIZE (polled)
    STREAM_RECREATED, CURSOR_EXPIRED -> stopped until a resync is requested, the policies change, or the next lease
    CURSOR_AHEAD -> stopped until a resync is requested, also over leases: the store persists it, since a stream that was
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
from eddyline.ingest.copy.cap_split import exceeds_cap
from eddyline.ingest.copy.consumer import Consumer, ConsumerLost
from eddyline.ingest.copy.dead_letters import DeadLetters
from eddyline.ingest.copy.filter import Filter
from eddyline.ingest.copy.forward import Forward, retried
from eddyline.ingest.copy.position import StreamPosition, decode_position, revision_of
from eddyline.ingest.copy.stopped import SourceStopped
from eddyline.ingest.nats.consumer_names import consumer_name, delete_stale_consumers, name_prefix
from eddyline.ingest.resync.adopt import AdoptionRequest, adopt_stream, count_changed
from eddyline.ingest.resync.bootstrap import bootstrap
from eddyline.ingest.resync.resume_check import ResumeDecision, check_resume
from eddyline.ingest.resync.resync import resync
from eddyline.ingest.resync.stream_audit import ComparisonPace, StreamAudit
from eddyline.ingest.sources.copy_loop import AdoptedRange, CopyLoop, DueComparisons
from eddyline.ingest.sources.standstill import Standstill
from eddyline.ingest.sources.stream_warnings import StreamWarnings

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import NoReturn

    from eddyline.core.model.source import Lease
    from eddyline.ingest.copy.progress import CopyProgress
    from eddyline.ingest.nats.stream import Stream
    from eddyline.ingest.resync.resync import ResyncResult
    from eddyline.ingest.sources.context import SourceContext
    from eddyline.ingest.sources.control import SourceControl

log = logging.getLogger(__name__)

RETRY_S_MAX: Final = 5.0
"""Cap of the back-off between attempts, and the interval at which a missing bucket is polled."""
OVERSIZE_CHECK_S: Final = 30.0
"""Interval of attempts while a message does not fit: it bounds the delay until its removal is seen."""
GOOD_ATTEMPT_S: Final = 10.0
"""An attempt that ran at least this long counts as successful: its failure resets the retry back-off."""
SWEEP_S_MAX: Final = 2.0
"""Bound of the removal of stale consumers. NATS deletes one of a dead server only after its group has elected another
leader."""
RAISE_CAP: Final = "raise its cap (`eddyline topic update`)"
CONTROL_CHANGED: Final = "the control state changed"
"""Reason with which a consumer is broken off where the control state changes."""


class SourceRun:
    """One leased source. `run` is its task, which ends when the lease is lost, or by cancellation."""

    def __init__(self, lease: Lease, context: SourceContext, progress: CopyProgress, control: SourceControl) -> None:
        definition = lease.source.definition
        self._definition = definition
        self._fence = lease.fence
        self._context = context
        self.progress = progress
        self._control = control
        self._filter = Filter(definition)
        self._warnings = StreamWarnings(definition.name, progress)
        self._consumer: Consumer | None = None
        self._prefix = ""
        self._backoff = Backoff(context.rng, cap_s=RETRY_S_MAX)
        self._attempt_number = 0
        self._due = DueComparisons()
        self._values_pace = ComparisonPace(context.clock.monotonic_s(), context.audit_interval_s)
        self._adopted = AdoptedRange()
        self._stream_name = f"KV_{definition.bucket}" if definition.bucket else definition.stream
        self._lost_to = lease.source.report.last_revision
        """Last revision that the previous stream is known to have had, where the position is not of the present one."""
        self._forward = Forward(
            context.link,
            source=definition.name,
            fence=lease.fence,
            stored=lease.source.position,
            clock=context.clock,
            rng=context.rng,
            on_trouble=progress.set_reason,
            counts=progress.counts,
            apply_s=context.apply_s,
        )
        self._standstill = Standstill(
            lease.source.stop,
            jetstream=context.jetstream,
            forward=self._forward,
            progress=progress,
            control=control,
            warnings=self._warnings,
        )
        self._dead_letters = DeadLetters(
            context.link,
            definition,
            clock=context.clock,
            rng=context.rng,
            on_trouble=progress.set_reason,
            counts=progress.counts,
        )

    @property
    def stored(self) -> bytes:
        """The stored position, as this lease knows it: everything up to it is applied."""
        return self._forward.stored

    async def run(self) -> None:
        """Copy until the lease is lost.

        Raises:
            StaleFence, SourceNotFound, TopicNotFound: another replica has the source, or it was deleted.
        """
        self._control.on_change = self._on_control_change
        try:
            while True:
                if self._control.paused:
                    await self._pause()
                self._control.changed.clear()
                self._definition = self._dead_letters.definition = self._control.definition
                wait_s = await self._attempt()
                await wait_event(self._context.clock, self._control.changed, wait_s)
        finally:
            await self._delete_consumers()

    def _on_control_change(self) -> None:
        """End the attempt once the received messages are applied. A dead letter that could not be stored goes to the new
        topic."""
        if not self._control.paused and self.progress.state in ("PAUSED", "LIVE"):
            self.progress.set_state("CATCHING_UP", detail=self._control.reason)
        if self._control.definition.dead_letter_topic:
            self._dead_letters.definition = self._control.definition
        if self._consumer is not None:
            self._consumer.break_off(CONTROL_CHANGED)

    async def _pause(self) -> None:
        self.progress.set_state("PAUSED")
        while self._control.paused:
            self._control.changed.clear()
            await self._wait_polling()

    async def _attempt(self) -> float:
        """Make one attempt, and return the time to wait before the next."""
        self._attempt_number += 1
        started_s = self._context.clock.monotonic_s()
        try:
            await self._copy()
        except (StaleFence, SourceNotFound, TopicNotFound):
            raise
        except StalePosition as error:
            self._forward.stored = error.position
            self._recover("the stored position has changed")
        except BucketNotFound as error:
            self.progress.set_state("SOURCE_LOST", error.message)
        except SourceStopped as stopped:
            return await self._wait_after_stop(stopped)
        except RecordTooLarge as error:
            hint = f"; {RAISE_CAP}" if exceeds_cap(error) else ""
            return await self._wait_after_stop(SourceStopped("OVERSIZE", error.message + hint))
        except TopicFull as error:
            self._recover(f"{error.message}; {RAISE_CAP}, set `--discard old`, or delete records")
        except ConsumerLost as lost:
            if self._due.keys or self._control.changed.is_set():
                return 0.0
            self._recover(str(lost))
        except EddylineError as error:
            if not retried(error):
                log.error("source failed", extra=fields(source=self._definition.name, error=error.message))
            self._recover(error.message)
        except Exception as error:  # root of a source's work: one defect must not end the other sources
            log.exception("source broke", extra=fields(source=self._definition.name))
            self._recover(f"internal: {type(error).__name__}")
        if self._context.clock.monotonic_s() - started_s >= GOOD_ATTEMPT_S:
            self._backoff.reset()
        return self._backoff.next_delay_s()

    async def _copy(self) -> None:
        context = self._context
        self._standstill.check()
        if not context.connection.connected:
            trouble = context.connection.trouble
            reason = f"not connected to NATS: {trouble}" if trouble else "not connected to NATS"
            if self._attempt_number == 1:
                self.progress.set_reason(reason)
            else:
                self._recover(reason)
            await self._wait_connected()
            self.progress.set_reason("")
        position = decode_position(self._forward.stored)
        is_first = position is None
        import_text = await self._bootstrap() if is_first and self._attempt_number == 1 else ""
        position = await self._own_position()
        self.progress.position_revision = revision_of(position)
        resync_serial = self._control.resync_serial
        decision = await check_resume(
            context.jetstream, self._definition, position, resync_serial=resync_serial, stop=self._standstill.stop
        )
        stream = decision.stream
        self._warnings.warn_once(stream)
        if not decision.is_other:
            self.progress.set_head(stream.last_revision)
        if not self._prefix:
            topic = await context.link.get_topic(self._definition.topic)
            self._prefix = name_prefix(context.cluster_id, self._definition.name, topic)
        name = consumer_name(self._prefix, self._fence, self._attempt_number)
        await self._delete_stale(stream.name, keep=name)
        done = import_text
        if decision.adopt_reason and position is not None:
            position, done = await self._adopt(decision, position, resync_serial, name)
        elif self._due.values and position is not None:
            decision = replace(decision, adopt_reason=self._due.values)
            position, done = await self._adopt(decision, position, position.resync_serial, name)
        elif decision.resync or self._due.keys:
            position, resynced = await self._resync(decision, position)
            done = ", ".join(filter(None, (import_text, resynced)))
        start = revision_of(position) + 1
        self._set_reading_state(is_first, start, done, stream)
        async with Consumer(
            context.connection,
            context.jetstream,
            stream,
            name=name,
            start_revision=start,
            start_ns=stream.first_ns if start == stream.first_revision else 0,
            clock=context.clock,
            metadata={"eddyline_source": self._definition.name, "eddyline_cluster": context.cluster_id},
            on_lost=self._on_lost,
            heartbeat_s=context.heartbeat_s,
            key_filter=self._filter,
            unfit_policy="SET_ASIDE" if self._definition.dead_letter_topic else "STOP",
            tracer=context.tracer,
        ) as consumer:
            self._consumer = consumer
            self.progress.counts.consumers += 1
            if self._control.changed.is_set():  # it changed while the consumer was created
                self._on_control_change()
            try:
                await self._consume(consumer, stream, position, name)
            finally:
                self._consumer = None

    async def _bootstrap(self) -> str:
        """Import the newest artifact, where there is one, and return a description of it."""
        self.progress.set_state("SNAPSHOT")
        link, context = self._context.link, self._context
        import_text = await bootstrap(link, context.jetstream, self._definition, tell=self.progress.set_reason)
        if import_text:
            self._forward.stored = (await link.get_source(self._definition.name)).position
        return import_text

    async def _own_position(self) -> StreamPosition | None:
        """The stored position. One from an artifact may count resyncs that were never requested of this source."""
        position = decode_position(self._forward.stored)
        if position is not None and position.resync_serial > self._control.resync_serial:
            position = replace(position, resync_serial=self._control.resync_serial)
            await self._forward.apply(None, position)
        return position

    async def _wait_connected(self) -> None:
        """Wait for the connection to NATS. Raises ConsumerLost where the control state changes first."""
        await self._until_control_changes(self._context.connection.wait_connected())
        if not self._context.connection.connected:
            raise ConsumerLost(CONTROL_CHANGED)

    async def _until_control_changes(self, work: Coroutine[object, object, object]) -> None:
        """Run work that does not fail; cancel it where the control state changes first."""
        async with asyncio.TaskGroup() as group:
            work_task = group.create_task(work)
            control_changed = group.create_task(self._control.changed.wait())
            await asyncio.wait((work_task, control_changed), return_when=asyncio.FIRST_COMPLETED)
            work_task.cancel()
            control_changed.cancel()

    def _on_lost(self, reason: str) -> None:
        if reason != CONTROL_CHANGED:
            self.progress.set_state("RESYNCING" if self._due.keys else "RECOVERING", reason)

    def _set_reading_state(self, is_first: bool, start: int, done: str, stream: Stream) -> None:
        """Set the state while the backlog is read. A source that only compared goes straight to LIVE."""
        resumed = "from the beginning" if start == 1 else f"resumed at {start}"
        detail = ", ".join(filter(None, (done, resumed, stream.rule_note)))
        self.progress.set_state("SNAPSHOT" if is_first else "CATCHING_UP", detail=detail)

    async def _resync(self, decision: ResumeDecision, position: StreamPosition | None) -> ResyncResult:
        self.progress.set_state("RESYNCING", self.progress.reason if self._due.keys else "")
        async with self._context.resyncs:
            resynced = await resync(
                jetstream=self._context.jetstream,
                stream=decision.stream,
                link=self._context.link,
                topic=self._definition.topic,
                position=position,
                forward=self._forward,
                resync_serial=self._control.resync_serial,
            )
        self._due.keys = False
        self.progress.counts.resyncs += position is not None
        self.progress.position_revision = revision_of(resynced.position)
        return resynced

    async def _adopt(
        self, decision: ResumeDecision, position: StreamPosition, resync_serial: int, name: str
    ) -> ResyncResult:
        """Adopt the stream as it is now."""
        self.progress.set_state("RESYNCING", detail=decision.adopt_reason)
        async with self._context.resyncs:
            resynced = await adopt_stream(self._adoption_request(decision, name, resync_serial), position)
        self._due.keys, self._due.values = False, ""
        self.progress.counts.resyncs += 1
        if decision.is_other:
            self._lost_to = 0
            self._adopted = AdoptedRange(
                through=decision.stream.last_revision if decision.stream.bucket else 0,
                was_rolled_back=decision.stream.created_ns == position.created_ns,
            )
        self.progress.switch_stream(revision_of(resynced.position), decision.stream.last_revision)
        return resynced

    def _adoption_request(self, decision: ResumeDecision, name: str, resync_serial: int) -> AdoptionRequest:
        context = self._context
        return AdoptionRequest(
            self._definition,
            decision.stream,
            context.jetstream,
            context.connection,
            context.link,
            self._forward,
            self._dead_letters,
            context.clock,
            f"{name}-values",
            resync_serial,
            max(self._lost_to, self.progress.last_revision) if decision.is_other else 0,
            decision.is_other,
        )

    async def _consume(
        self, consumer: Consumer, stream: Stream, position: StreamPosition | None, name: str
    ) -> NoReturn:
        audit = StreamAudit(
            stream,
            jetstream=self._context.jetstream,
            link=self._context.link,
            topic=self._definition.topic,
            resyncs=self._context.resyncs,
            clock=self._context.clock,
            changed=lambda seen, through: count_changed(self._adoption_request(ResumeDecision(seen), name, 0), through),
            values=self._values_pace,
            resumed=position is not None,
            audit_interval_s=self._context.audit_interval_s,
            on_audit=self._warnings.warn_once,
        )
        loop = CopyLoop(
            consumer,
            stream,
            context=self._context,
            definition=self._definition,
            control=self._control,
            forward=self._forward,
            dead_letters=self._dead_letters,
            progress=self.progress,
            audit=audit,
            due=self._due,
            adopted=self._adopted,
        )
        await loop.run(position)

    async def _wait_after_stop(self, stopped: SourceStopped) -> float:
        self._standstill.record_stop(stopped)
        self.progress.set_state(stopped.state, stopped.reason)
        if stopped.state != "OVERSIZE":
            if stopped.state == "SOURCE_LOST":
                return RETRY_S_MAX
            while not self._control.changed.is_set():  # or until the lease ends
                await self._wait_polling()
            return 0.0
        await self._until_control_changes(self._standstill.update_head(self._definition))
        return OVERSIZE_CHECK_S

    async def _wait_polling(self) -> None:
        """Wait until the control state changes, or until the figures of a stopped source were read again. NATS may not
        answer."""
        await self._until_control_changes(self._poll_head_then_sleep())

    async def _poll_head_then_sleep(self) -> None:
        await self._standstill.update_head(self._definition)
        await sleep(self._context.clock, self._context.audit_interval_s)

    def _recover(self, reason: str) -> None:
        self.progress.set_state("RECOVERING", reason)

    async def _delete_consumers(self) -> None:
        """Delete the consumers that may be left at NATS."""
        if self._prefix and self._context.connection.connected:
            await self._delete_stale(self._stream_name)

    async def _delete_stale(self, stream_name: str, *, keep: str = "") -> None:
        """Delete consumers of earlier attempts, in bounded time, so that neither a start nor a stop waits for them."""
        jetstream = self._context.jetstream
        try:
            async with asyncio.timeout(SWEEP_S_MAX):
                await delete_stale_consumers(jetstream, stream_name, self._prefix, fence=self._fence, keep=keep)
        except (TimeoutError, NatsUnreachable):
            pass  # the server removes them after their inactive threshold
