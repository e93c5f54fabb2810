"""Export of a role's spans: pushed each second if there are any, on a thread of its own.

A failed push is not repeated: its spans are dropped and counted, and the outage is one line in the log. While a push is in
flight further spans gather, within the tracer's bound. So a collector that is down costs only spans.
Failure: a defect in a push is logged, and costs its spans. At the end one more push is tried for at most `LAST_S`, unless
the one before failed.
Threading: event loop; the push runs on the thread.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.core.runtime.tasks import background_task
from eddyline.core.telemetry.otlp import instance_id
from eddyline.core.telemetry.otlp_push import OtlpPush, PushEvents
from eddyline.core.telemetry.trace_otlp import OtlpSpanExporter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.runtime.clock import Clock, Host
    from eddyline.core.runtime.settings import CommonSettings
    from eddyline.core.telemetry.tracing import Tracer

INTERVAL_S: Final = 1.0
"""OpenTelemetry: 5 s. Traces are mostly read right after they were made; an idle role pushes nothing."""
PUSH_SPANS_MAX: Final = 512
"""As in OpenTelemetry: 150 KB a message."""
LAST_S: Final = 1.0
EVENTS: Final = PushEvents(failing="traces are not taken", restored="traces are taken again", broke="traces broke")

_LOG: Final = logging.getLogger(__name__)


class TraceExport:
    """Export of one role's spans."""

    def __init__(
        self, role: str, tracer: Tracer, *, version: str, common: CommonSettings, clock: Clock, host: Host
    ) -> None:
        self._role = role
        self._tracer = tracer
        self._version = version
        self._url = common.otlp_url
        self._clock = clock
        self._instance = instance_id(host)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Push until left; without tracing or a collector do nothing."""
        if not self._tracer.is_on or not self._url:
            yield
            return
        exporter = OtlpSpanExporter(self._url, role=self._role, version=self._version, instance=self._instance)
        threads = ThreadPoolExecutor(1, thread_name_prefix="traces")
        otlp = OtlpPush(self._url, threads=threads, log=_LOG, events=EVENTS)
        push = partial(self._push, otlp, exporter)
        try:
            async with background_task(otlp.run(push, clock=self._clock, interval_s=INTERVAL_S), name="trace push"):
                yield
            if not otlp.is_failing:
                with suppress(TimeoutError):  # spans that do not arrive are lost, as the role's memory is
                    async with asyncio.timeout(LAST_S):
                        await otlp.once(push)
        finally:
            exporter.close()
            threads.shutdown(wait=False, cancel_futures=True)

    async def _push(self, otlp: OtlpPush, exporter: OtlpSpanExporter) -> None:
        """Push all waiting spans; after a failure drop those of that message, and leave the rest for the next push."""
        while spans := self._tracer.drain(PUSH_SPANS_MAX):
            try:
                is_taken = await otlp.export(partial(exporter.export, spans))
            except Exception:
                self._tracer.dropped_count += len(spans)
                raise
            if not is_taken:
                self._tracer.dropped_count += len(spans)
                return
            self._tracer.exported_count += len(spans)
