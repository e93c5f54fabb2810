"""Delivery of batches to the store: in order, one in flight, each until it is resolved.

I1: a position is taken over only after the store acknowledged it, which means that everything up to it is applied.
I2: at most one batch is in flight; the next names its new position as the previous one.

While the store is away, busy or unsure, the batch is retried without end, with full jitter: its new position makes a
retry of an applied batch a repeated answer, not a second apply. A newer fence or a deleted source ends the work; another
stored position starts it over.
Threading: event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import Code, EddylineError
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
                await self._link.apply_batch(
                    self._source,
                    fence=self._fence,
                    previous=self.stored,
                    new=encoded,
                    batch=batch,
                    traceparent=span.traceparent if span is not None else "",
                )
                break
            except EddylineError as error:
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
        self.stored = encoded
        if span is not None:
            span.end()
        if batch is not None:
            self._apply_s.observe(self._clock.monotonic_s() - started_s)
            self.counts.applied += batch.count
            self.counts.gaps += bytes(batch.ops or b"").count(Op.GAP)
