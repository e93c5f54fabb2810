"""A role's metrics on their way out: the endpoint that is scraped, and the push to a collector, each where it is set.

Both take the same list of metrics, which is made on the loop, since that owns the figures; what is made of it is made on
threads of their own, so neither a large scrape nor a collector that does not answer holds anything up.
Failure: an endpoint that cannot listen refuses the start; a push that fails is one line in the log an outage, and goes on.
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
    """Makes all metrics, on the loop; where that takes long others have turns between."""

THREADS: Final = 2
"""One for the text, one for the push."""
NS_A_MS: Final = 1_000_000
EVENTS: Final = PushEvents(failing="metrics are not taken", restored="metrics are taken again", broke="metrics broke")

_LOG: Final = logging.getLogger(__name__)


class MetricsExport:
    """How one role exports."""

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
        """Where it is scraped, `host:port`; empty = nowhere."""
        return self._address

    @asynccontextmanager
    async def running(self, collect: Collect) -> AsyncIterator[None]:
        """Export what `collect` gives until left.

        Raises:
            SettingsError: the endpoint cannot listen. And what is raised inside, as it is.
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
        """Push each interval, the first time after one."""
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
