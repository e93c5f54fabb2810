"""The copy loop of one attempt: applies the chunks that a consumer brings, and audits the stream once it has caught up.

While a batch is applied the next one is sent (`copy/pipeline.py`). All are settled before the loop compares, asks what is
missing at the end of a stream, or ends.

The loop ends by an exception alone: the consumer is lost, a policy stops the source, or the store refuses a batch. If key
sets or values have to be compared, the loop records that in `DueComparisons` and breaks the consumer off; chunks received
before are applied first, since the stream may no longer have them. The next attempt compares.

Rejected: audits in a task that runs while the loop copies. A comparison of values reads the newest message of every key and
then the fold; a batch applied in between would make keys differ that do not, and each such key costs a resync. So the loop
applies nothing while an audit compares, which takes at most a twentieth of the time (`stream_audit`).
Threading: event loop, in the source's task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eddyline.core.runtime.tasks import task_group
from eddyline.ingest.copy.gaps import find_gaps, tail_gap, with_unfit_gaps
from eddyline.ingest.copy.pipeline import Pipeline
from eddyline.ingest.copy.position import StreamPosition, revision_of, time_of
from eddyline.ingest.copy.stopped import expired
from eddyline.ingest.resync.adopt import only_changes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from eddyline.core.model.source import SourceDefinition
    from eddyline.core.records.batch import Batch
    from eddyline.ingest.copy.batch import Chunk, PlacedGap
    from eddyline.ingest.copy.consumer import Consumer
    from eddyline.ingest.copy.dead_letters import DeadLetters
    from eddyline.ingest.copy.forward import Forward
    from eddyline.ingest.copy.progress import CopyProgress
    from eddyline.ingest.nats.stream import Stream
    from eddyline.ingest.resync.stream_audit import StreamAudit
    from eddyline.ingest.sources.context import SourceContext
    from eddyline.ingest.sources.control import SourceControl


@dataclass(slots=True)
class DueComparisons:
    """Comparisons that the next attempt makes before it reads: of key sets, and of values for the reason given ("" = no)."""

    keys: bool = False
    values: str = ""


@dataclass(frozen=True, slots=True)
class AdoptedRange:
    """Revisions up to `through` of an adopted stream, of which only those are written that differ from the fold.

    `was_rolled_back` = the stream is the one copied before, so an entry with a later version than its message is rewritten.
    """

    through: int = 0
    was_rolled_back: bool = False


class CopyLoop:
    """Applies what one consumer brings. `run` ends by an exception, see the module."""

    def __init__(
        self,
        consumer: Consumer,
        stream: Stream,
        *,
        context: SourceContext,
        definition: SourceDefinition,
        control: SourceControl,
        forward: Forward,
        dead_letters: DeadLetters,
        progress: CopyProgress,
        audit: StreamAudit,
        due: DueComparisons,
        adopted: AdoptedRange,
    ) -> None:
        self._consumer = consumer
        self._stream = stream
        self._context = context
        self._definition = definition
        self._control = control
        self._forward = forward
        self._dead_letters = dead_letters
        self._progress = progress
        self._audit = audit
        self._due = due
        self._adopted = adopted

    async def run(self, position: StreamPosition | None) -> NoReturn:
        """Apply chunks behind `position`; report LIVE once the last revision of the start is applied.

        Raises:
            ConsumerLost. SourceStopped: CURSOR_EXPIRED or OVERSIZE. BucketNotFound, NatsUnreachable, and what the store's
                calls raise.
        """
        async with task_group() as tasks:
            pipeline = Pipeline(
                self._forward,
                self._context.clock,
                tasks,
                on_applied=self._on_applied,
                on_failed=self._consumer.wake,
            )
            try:
                await self._take_chunks(pipeline, position)
            except Exception:
                await pipeline.settle()  # a batch's own error comes first
                raise
            finally:
                pipeline.cancel()
        raise AssertionError("the loop ends by an exception")

    async def _take_chunks(self, pipeline: Pipeline, position: StreamPosition | None) -> NoReturn:
        consumer, stream = self._consumer, self._stream
        caught_up = False
        while True:
            if not (caught_up or consumer.failed):
                caught_up = await self._is_caught_up(pipeline, position)
            if caught_up and not consumer.failed and not self._audit.is_idle:
                await pipeline.settle()
                reason = await self._audit.check(self._progress.position_revision, drained=consumer.drained)
                if reason:
                    self._due.values = reason if self._audit.values_differ else ""
                    self._end_for_comparison(reason)
            await pipeline.room()
            chunk = await self._next_chunk(self._audit.wait_s if caught_up else self._context.audit_interval_s)
            if chunk is None:
                continue
            self._progress.set_head(max(chunk.last_revision, consumer.last_seen_revision))
            missing = await find_gaps(self._context.jetstream, stream, chunk)
            stop = missing.evicted if self._definition.on_expired == "STOP" else None
            if stop is not None:
                chunk.truncate(stop)
            if chunk.last_revision > revision_of(position):
                position = await self._apply(pipeline, chunk, missing.gaps, position)
            if stop is not None:
                expired_stop = expired(stream, stop.after_revision + 1, stop.revision - 1)
                raise expired_stop.until_resync(self._definition.name)
            if missing.overrun:
                self._end_for_comparison(f"{stream.origin} dropped revisions before they were read")

    async def _apply(
        self, pipeline: Pipeline, chunk: Chunk, gaps: Sequence[PlacedGap], position: StreamPosition | None
    ) -> StreamPosition:
        """Send a chunk with those of `gaps` that lie in it, and return the position that it moves to."""
        chunk_gaps = [placed for placed in gaps if placed.gap.source_first <= chunk.last_revision]
        await self._dead_letters.store(self._stream, chunk.unfit)
        serial = position.resync_serial if position is not None else self._control.resync_serial
        position = chunk.position(self._stream.created_ns, serial, time_of(position))
        batch = await self._batch(pipeline, chunk, chunk_gaps)
        await pipeline.send(batch, position, chunk.trace)
        return position

    def _on_applied(self, position: StreamPosition) -> None:
        self._progress.position_revision = position.revision

    async def _batch(self, pipeline: Pipeline, chunk: Chunk, gaps: Sequence[PlacedGap]) -> Batch | None:
        """The rows of a chunk that are written, with its gaps. Of an adopted range only rows that differ from the fold."""
        if chunk.revisions and chunk.revisions[0] <= self._adopted.through:
            await pipeline.settle()  # the fold has what was sent before
            changed = await only_changes(
                self._context.link, self._definition.topic, chunk, later_too=self._adopted.was_rolled_back
            )
            chunk.keep_rows(changed, self._adopted.through)
        return chunk.batch(with_unfit_gaps(self._stream, chunk, gaps))

    async def _next_chunk(self, wait_s: float) -> Chunk | None:
        """The next chunk; None = none came within `wait_s`, or the server has none."""
        timer = self._context.clock.call_later(wait_s, self._consumer.wake)
        try:
            return await self._consumer.next_chunk()
        finally:
            timer.cancel()

    def _end_for_comparison(self, reason: str) -> None:
        self._due.keys = True
        self._consumer.break_off(reason)

    async def _is_caught_up(self, pipeline: Pipeline, position: StreamPosition | None) -> bool:
        """Whether everything up to the last revision of the start is applied.

        The last revisions may be gone, so that no message ever reaches the target. If the consumer has nothing more, the
        loop asks NATS for the next message, and moves the position alone.
        """
        stream, consumer = self._stream, self._consumer
        target = stream.last_revision
        at_revision = revision_of(position)
        if at_revision < target:
            if not consumer.drained:
                return False
            following = await self._context.jetstream.next_message(stream, at_revision + 1)
            if following is not None:
                return False  # the consumer brings it, and its chunk shows which revisions before it are missing
            await pipeline.settle()
            if (await self._context.jetstream.refresh(stream)).first_revision > at_revision + 1:
                self._end_for_comparison(f"{stream.origin} was purged before it was read")
                return False
            if consumer.drained:  # nothing came during the two requests
                start = StreamPosition(stream.created_ns, 0, resync_serial=self._control.resync_serial)
                moved = (position or start).advanced_to(target, stream.server_ns)
                await self._forward.apply(tail_gap(stream, at_revision, target), moved)
                consumer.note_skipped(target)
                self._progress.position_revision = target
        await pipeline.settle()
        self._progress.set_state("LIVE", detail="caught up")
        return True
