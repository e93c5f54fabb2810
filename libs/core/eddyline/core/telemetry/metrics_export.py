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
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.logging import fields
from eddyline.core.telemetry.http_server import MetricsServer, no_tls, read_key
from eddyline.core.telemetry.metrics_otlp import OtlpExporter
from eddyline.core.telemetry.metrics_text import metrics_text
from eddyline.core.telemetry.otlp import instance_id

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
        raised: BaseException | None = None
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="metrics")
        server = MetricsServer(
            self._listen,
            text=partial(self._text, collect, threads),
            clock=self._clock,
            key=read_key(self._common.metrics_key_file),
            probes=self._probes,
            tls=self._tls,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                push: asyncio.Task[NoReturn] | None = None
                try:
                    if self._listen:
                        await server.start(tasks)
                        self._address = server.address
                    if self._common.otlp_url:
                        push = tasks.create_task(self._push(collect, threads), name="metrics push")
                    yield
                except BaseException as error:  # raised again as it is: a group would wrap it
                    raised = error
                self._address = ""
                server.close()
                if push is not None:
                    push.cancel()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
        if raised is not None:
            raise raised

    async def _text(self, collect: Collect, threads: Executor) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(threads, metrics_text, await collect())

    async def _push(self, collect: Collect, threads: Executor) -> NoReturn:
        """Push each interval, the first time after one."""
        instance = instance_id(self._host)
        exporter = OtlpExporter(self._common.otlp_url, role=self._role, version=self._version, instance=instance)
        start_ns = self._clock.now_ms() * NS_A_MS
        failing = False
        try:
            while True:
                await sleep(self._clock, self._common.otlp_interval_ms / 1000)
                try:
                    now_ns = self._clock.now_ms() * NS_A_MS
                    export = partial(exporter.export, await collect(), start_ns=start_ns, now_ns=now_ns)
                    failure = await asyncio.get_running_loop().run_in_executor(threads, export)
                except Exception:  # the root of the push: a defect of what is measured must not end the role
                    _LOG.exception("metrics broke")
                    continue
                if bool(failure) is not failing:
                    failing = bool(failure)
                    said = "metrics are not taken" if failing else "metrics are taken again"
                    told = {"url": self._common.otlp_url, **({"reason": failure} if failing else {})}
                    _LOG.log(logging.WARNING if failing else logging.INFO, said, extra=fields(**told))
        finally:
            exporter.close()
