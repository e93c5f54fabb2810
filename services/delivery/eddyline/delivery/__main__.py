"""The delivery role's process: settings, composition, signals. `python -m eddyline.delivery`.

Life: read the settings; listen; follow the store, whenever it is there; serve; on SIGTERM or SIGINT refuse new streams, tell
the open ones to go on elsewhere, end what is left after the grace, exit 0. Delivery keeps nothing, so that is all.
Standard output has one line, when the role serves, with its address; the log goes to stderr.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from random import Random
from typing import TYPE_CHECKING, Final

import uvloop

from eddyline.core.auth.role import RoleAccess
from eddyline.core.forwarding.shards import configured_shards
from eddyline.core.runtime.clock import SystemClock, SystemHost
from eddyline.core.runtime.logging import fields, set_up_logging
from eddyline.core.runtime.settings import COMMON_PREFIX, CommonSettings, SettingsError, changed, load, load_common
from eddyline.core.server.open_files import connections_within, raise_open_files
from eddyline.core.server.server import make_server
from eddyline.core.store_link.open import open_link, stores_text
from eddyline.core.telemetry.metrics_export import MetricsExport
from eddyline.core.telemetry.probes import Probes
from eddyline.core.telemetry.trace_export import TraceExport
from eddyline.core.telemetry.tracing import Tracer
from eddyline.delivery.config import PREFIX, DeliverySettings
from eddyline.delivery.metrics import delivery_metrics
from eddyline.delivery.role import SERVICES, DeliveryRole, add_services, gates_of, keep_health

if TYPE_CHECKING:
    from collections.abc import Mapping

ROLE: Final = "delivery"
LAST_WORDS_S: Final = 1.0
"""For the statuses of streams that have ended, which are on their way; as a rule it takes a millisecond."""

_LOG: Final = logging.getLogger(__name__)


def main(environ: Mapping[str, str]) -> int:
    """Run the role until it is told to stop; its exit code."""
    try:
        common = load_common(environ)
        settings = load(DeliverySettings, prefix=PREFIX, environ=environ)
        set_up_logging(ROLE, level=common.log_level, log_format=common.log_format)
        shown = changed(common, prefix=COMMON_PREFIX) | changed(settings, prefix=PREFIX)
        _LOG.info("starting", extra=fields(**shown))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, common))
    except SettingsError as error:
        sys.stderr.write(f"eddyline delivery: {error}\n")
        return 1
    return 0


async def serve(settings: DeliverySettings, common: CommonSettings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        SettingsError: it cannot listen.
    """
    clock, host = SystemClock(), SystemHost()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    access = RoleAccess(common)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(access.running(clock))
        tracer = Tracer(common.trace_ratio, clock=clock, rng=Random())
        traces = TraceExport(ROLE, tracer, version=version("eddyline-delivery"), common=common, clock=clock, host=host)
        link = await stack.enter_async_context(open_link(common, access.caller))
        role = DeliveryRole(link, clock=clock, random=Random(), settings=settings, tracer=tracer)
        shards = await stack.enter_async_context(configured_shards(common, access))
        server = make_server(
            settings.listen,
            interceptors=gates_of(shards),
            connection_age_ms_max=settings.stream_age_ms_max,
            connections_max=connections_within(raise_open_files()),
            access=access,
        )
        metrics = MetricsExport(
            ROLE,
            settings.metrics_listen,
            version=version("eddyline-delivery"),
            common=common,
            clock=clock,
            host=host,
            probes=Probes(server.health),
            tls=access.http_context,
        )
        add_services(server, role, common=common, clock=clock, host=host, metrics_address=metrics.address)
        await stack.enter_async_context(
            metrics.running(partial(delivery_metrics, role, shards.forwarded, access.certificate_expires_s))
        )
        await stack.enter_async_context(traces.running())
        address = await server.start(*SERVICES)
        stack.push_async_callback(server.stop, 0)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(role.run()), tasks.create_task(keep_health(server, role.tails))]
            sys.stdout.write(f"delivery ready at {address}, {stores_text(common)}\n")
            sys.stdout.flush()
            await stopping.wait()
            _LOG.info("stopping", extra=fields(watches=role.figures.watch_count))
            await server.health.stop()
            drained = await role.watches.drain(settings.stop_grace_ms / 1000)
            if not drained:
                _LOG.warning("streams are cut off", extra=fields(watches=role.figures.watch_count))
            shards.end_streams()
            await server.stop(LAST_WORDS_S if drained else 0)
            for task in running:
                task.cancel()
    _LOG.info("stopped")


if __name__ == "__main__":
    sys.exit(main(os.environ))
