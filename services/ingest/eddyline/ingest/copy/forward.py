"""Delivery of batches to the store: in order, each until it is resolved.

I1: a position is taken over only after the store acknowledged it, which means that everything up to it is applied.
I2: each batch names the position of the one before it as the previous one, so the store applies none without those before
it. `Pipeline` sends one more while a batch is applied: by `try_behind`, once, and without effect if the store refuses it.

While the store is away, busy or unsure, the batch is retried without end, with full jitter: its new position makes a
retry of an applied batch a repeated answer, not a second apply. A newer fence or a deleted source ends the work; another
stored position starts it over.
Threading: event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import Code, EddylineError, StalePosition
from eddyline.core.records.record import Op
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.logging import fields
from eddyline.core.telemetry import names as telemetry

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.core.telemetry.metrics import Histogram
    from eddyline.core.telemetry.tracing import OpenSpan
    from eddyline.ingest.copy.position import StreamPosition
    from eddyline.ingest.copy.progress import SourceCounts

log = logging.getLogger(__name__)

_RETRIED: Final = frozenset((Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED))


def retried(error: EddylineError) -> bool:
    """True = the same call may succeed later."""
    return error.code in _RETRIED


class Forward:
    """Path of one leased source into its topic. `on_trouble` gets the reason for waiting, and "" when it ends; `apply_s`
    observes how long each batch took."""

    def __init__(
        self,
        link: StoreLink,
        *,
        source: str,
        fence: int,
        stored: bytes,
        clock: Clock,
        rng: Random,
        on_trouble: Callable[[str], None],
        counts: SourceCounts,
        apply_s: Histogram,
    ) -> None:
        self.counts = counts
        self._apply_s = apply_s
        self._link = link
        self._source = source
        self._fence = fence
        self._clock = clock
        self._backoff = Backoff(rng)
        self._on_trouble = on_trouble
        self.stored = stored
        self._behind = b""
        """Position of the batch sent behind the one that is applied; empty = there is none."""

    async def apply(self, batch: Batch | None, new: StreamPosition, trace: OpenSpan | None = None) -> None:
        """Apply a batch and move to `new`; None moves alone. `trace` = that of the messages in it.

        Raises:
            StaleFence, SourceNotFound, TopicNotFound: the lease or the source is gone. StalePosition: the store has
                another position than `stored`; the caller takes it over. Other domain errors if a retry is of no use.
        """
        encoded = new.encode()
        assert encoded != self.stored, "a position that follows differs"
        started_s = self._clock.monotonic_s()
        span = trace.end_and_start(telemetry.SPAN_INGEST_APPLY) if trace is not None else None
        while True:
            try:
                await self._send(batch, self.stored, encoded, span)
                break
            except EddylineError as error:
                if isinstance(error, StalePosition) and self._behind and error.position == self._behind:
                    break  # an earlier attempt was applied, and the batch behind it
                if not retried(error):
                    if span is not None:
                        span.end(error.reason)
                    raise
                if span is not None:
                    span.event(error.reason)
                if self._backoff.failures == 0:
                    log.warning("apply retried", extra=fields(source=self._source, error=error.message))
                self._on_trouble(f"store: {error.message}")
                wait_s = self._backoff.next_delay_s(minimum_s=int(error.metadata.get("retryAfterMs", "0")) / 1000)
            await sleep(self._clock, wait_s)
        if self._backoff.failures:
            self._backoff.reset()
            self._on_trouble("")
        if span is not None:
            span.end()
        self._take_over(batch, encoded, started_s)

    async def try_behind(
        self, batch: Batch | None, previous: StreamPosition, new: StreamPosition, trace: OpenSpan | None = None
    ) -> bool:
        """Send a batch behind the one that is being applied and moves to `previous`. Return True if the store applied it,
        and so the one before it; False = it did not, or that is unknown: `apply` decides, once the one before is applied."""
        span = trace.end_and_start(telemetry.SPAN_INGEST_APPLY) if trace is not None else None
        self._behind = new.encode()
        try:
            await self._send(batch, previous.encode(), self._behind, span)
        except EddylineError as error:
            if span is not None:
                span.end(error.reason)
            return False
        if span is not None:
            span.end()
        return True

    def forget_behind(self, new: StreamPosition) -> None:
        """The batch that moves to `new` is no longer behind another one."""
        if self._behind == new.encode():
            self._behind = b""

    def applied_behind(self, batch: Batch | None, new: StreamPosition, started_s: float) -> None:
        """Take over the position of a batch that `try_behind` applied, once the one before it is taken over."""
        self._take_over(batch, new.encode(), started_s)

    async def _send(self, batch: Batch | None, previous: bytes, new: bytes, span: OpenSpan | None) -> None:
        await self._link.apply_batch(
            self._source,
            fence=self._fence,
            previous=previous,
            new=new,
            batch=batch,
            traceparent=span.traceparent if span is not None else "",
        )

    def _take_over(self, batch: Batch | None, encoded: bytes, started_s: float) -> None:
        self.stored = encoded
        if batch is not None:
            self._apply_s.observe(self._clock.monotonic_s() - started_s)
            self.counts.applied += batch.count
            self.counts.gaps += bytes(batch.ops or b"").count(Op.GAP)
