"""A role's spans on their way out: pushed each second, where there are any, on a thread of their own.

A push that fails is not repeated: its spans are dropped, and counted, and the outage is one line in the log. While one is
under way the next gather, within the tracer's bound. So a collector that is away costs nothing but its spans.
Failure: a defect of the push is logged, and costs what it held. At the end one more push is tried for at most `LAST_S`, if
the one before it arrived.
Threading: event loop; the push runs on the thread.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.logging import fields
from eddyline.core.runtime.tasks import background_task
from eddyline.core.telemetry.otlp import instance_id
from eddyline.core.telemetry.trace_otlp import OtlpSpanExporter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from concurrent.futures import Executor

    from eddyline.core.runtime.clock import Clock, Host
    from eddyline.core.runtime.settings import CommonSettings
    from eddyline.core.telemetry.tracing import Tracer

INTERVAL_S: Final = 1.0
"""Elsewhere 5 s. A trace is looked at by who has just made it; an idle role pushes nothing."""
PUSH_SPANS_MAX: Final = 512
"""Elsewhere likewise: 150 KB a message."""
LAST_S: Final = 1.0

_LOG: Final = logging.getLogger(__name__)


class TraceExport:
    """How one role exports its spans."""

    def __init__(
        self, role: str, tracer: Tracer, *, version: str, common: CommonSettings, clock: Clock, host: Host
    ) -> None:
        self._role = role
        self._tracer = tracer
        self._version = version
        self._url = common.otlp_url
        self._clock = clock
        self._instance = instance_id(host)
        self._is_failing = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Push until left; where nothing is traced, or goes nowhere, do nothing."""
        if not self._tracer.is_on or not self._url:
            yield
            return
        exporter = OtlpSpanExporter(self._url, role=self._role, version=self._version, instance=self._instance)
        threads = ThreadPoolExecutor(1, thread_name_prefix="traces")
        try:
            async with background_task(self._push_ever(exporter, threads), name="trace push"):
                yield
            if not self._is_failing:
                await self._push_last(exporter, threads)
        finally:
            exporter.close()
            threads.shutdown(wait=False, cancel_futures=True)

    async def _push_ever(self, exporter: OtlpSpanExporter, threads: Executor) -> NoReturn:
        while True:
            await sleep(self._clock, INTERVAL_S)
            await self._push(exporter, threads)

    async def _push_last(self, exporter: OtlpSpanExporter, threads: Executor) -> None:
        with suppress(TimeoutError):  # what did not arrive is lost, as the role's memory is
            async with asyncio.timeout(LAST_S):
                await self._push(exporter, threads)

    async def _push(self, exporter: OtlpSpanExporter, threads: Executor) -> None:
        """Everything that waits."""
        while spans := self._tracer.take(PUSH_SPANS_MAX):
            try:
                pushed = asyncio.get_running_loop().run_in_executor(threads, partial(exporter.export, spans))
                failure = await pushed
            except Exception:  # the root of the push: a defect of it must not end the role
                _LOG.exception("traces broke")
                self._tracer.dropped_count += len(spans)
                return
            if failure:
                self._tracer.dropped_count += len(spans)
                if not self._is_failing:
                    _LOG.warning("traces are not taken", extra=fields(url=self._url, reason=failure))
            else:
                self._tracer.exported_count += len(spans)
                if self._is_failing:
                    _LOG.info("traces are taken again", extra=fields(url=self._url))
            self._is_failing = bool(failure)
            if failure:
                return
