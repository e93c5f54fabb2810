"""Export of a role's metrics: the HTTP endpoint for scrapes, and pushes to an OTLP collector, each if it is set.

Both export the same list of metrics. The list is made on the event loop, which owns the counters; text and messages are made
from it on threads, so neither a large scrape nor a collector that does not answer delays the role.
Failure: an endpoint that cannot listen refuses the start. An outage of the collector is one line in the log, and pushes
continue.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from eddyline.core.runtime.tasks import background_task
from eddyline.core.telemetry.http_server import MetricsServer, no_tls, read_key
from eddyline.core.telemetry.metrics_otlp import OtlpExporter
from eddyline.core.telemetry.metrics_text import metrics_text
from eddyline.core.telemetry.otlp import instance_id
from eddyline.core.telemetry.otlp_push import OtlpPush, PushEvents

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from concurrent.futures import Executor

    from eddyline.core.runtime.clock import Clock, Host
    from eddyline.core.runtime.settings import CommonSettings
    from eddyline.core.telemetry.metrics import Metric
    from eddyline.core.telemetry.probes import Probes

    Collect = Callable[[], Awaitable[Sequence[Metric]]]
    """Makes all metrics on the event loop, with other tasks' turns in between if it takes long."""

THREADS: Final = 2
"""One for the text, one for the push."""
NS_A_MS: Final = 1_000_000
EVENTS: Final = PushEvents(failing="metrics are not taken", restored="metrics are taken again", broke="metrics broke")

_LOG: Final = logging.getLogger(__name__)


class MetricsExport:
    """Export of one role's metrics."""

    def __init__(
        self,
        role: str,
        listen: str,
        *,
        version: str,
        common: CommonSettings,
        clock: Clock,
        host: Host,
        probes: Probes | None = None,
        tls: Callable[[], ssl.SSLContext | None] = no_tls,
    ) -> None:
        self._role = role
        self._listen = listen
        self._version = version
        self._common = common
        self._clock = clock
        self._host = host
        self._probes = probes
        self._tls = tls
        self._address = ""

    def address(self) -> str:
        """Return the endpoint's `host:port`; empty = there is none."""
        return self._address

    @asynccontextmanager
    async def running(self, collect: Collect) -> AsyncIterator[None]:
        """Export the metrics that `collect` returns, until left.

        Raises:
            SettingsError: the endpoint cannot listen.
        """
        if not self._listen and not self._common.otlp_url:
            yield
            return
        key = read_key(self._common.metrics_key_file)
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="metrics")
        async with AsyncExitStack() as stack:
            stack.callback(threads.shutdown, wait=False, cancel_futures=True)
            if self._listen:
                server = MetricsServer(
                    self._listen,
                    text=partial(self._text, collect, threads),
                    clock=self._clock,
                    key=key,
                    probes=self._probes,
                    tls=self._tls,
                )
                await stack.enter_async_context(server.running())
                self._address = server.address
                stack.callback(setattr, self, "_address", "")
            if self._common.otlp_url:
                await stack.enter_async_context(background_task(self._push(collect, threads), name="metrics push"))
            yield

    async def _text(self, collect: Collect, threads: Executor) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(threads, metrics_text, await collect())

    async def _push(self, collect: Collect, threads: Executor) -> NoReturn:
        """Push after each interval, until cancelled."""
        instance = instance_id(self._host)
        exporter = OtlpExporter(self._common.otlp_url, role=self._role, version=self._version, instance=instance)
        start_ns = self._clock.now_ms() * NS_A_MS
        otlp = OtlpPush(self._common.otlp_url, threads=threads, log=_LOG, events=EVENTS)

        async def push() -> None:
            now_ns = self._clock.now_ms() * NS_A_MS
            await otlp.export(partial(exporter.export, await collect(), start_ns=start_ns, now_ns=now_ns))

        try:
            await otlp.run(push, clock=self._clock, interval_s=self._common.otlp_interval_ms / 1000)
        finally:
            exporter.close()
