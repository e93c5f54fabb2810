"""The delivery role's process: settings, composition, signals. `python -m eddyline.delivery`.

Life: read the settings; listen; follow the store when it is available; serve; on SIGTERM or SIGINT refuse new streams,
send going_away on the open ones, cancel the rest after the grace period, exit 0. Delivery stores nothing, so nothing
else has to be saved.
Standard output gets one line with the address when the role serves; the log goes to stderr.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from eddyline.core.forwarding.shards import configured_shards
from eddyline.core.runtime.logging import fields
from eddyline.core.server.open_files import connections_within, raise_open_files
from eddyline.core.server.process import RoleProcess, run_process
from eddyline.core.server.server import make_server
from eddyline.core.store_link.open import open_link, stores_text
from eddyline.delivery.config import PREFIX, DeliverySettings
from eddyline.delivery.metrics import delivery_metrics
from eddyline.delivery.role import SERVICES, DeliveryRole, add_services, interceptors_of, keep_health

if TYPE_CHECKING:
    from collections.abc import Mapping

ROLE: Final = "delivery"
STATUS_GRACE_S: Final = 1.0
"""Grace for the final statuses of ended streams, which usually take a millisecond."""

_LOG: Final = logging.getLogger(__name__)


def main(environ: Mapping[str, str]) -> int:
    """Run the role until SIGTERM or SIGINT; return its exit code."""
    return run_process(ROLE, serve, DeliverySettings, prefix=PREFIX, environ=environ, log=_LOG)


async def serve(process: RoleProcess[DeliverySettings]) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        SettingsError: it cannot listen.
    """
    settings, common, access = process.settings, process.common, process.access
    clock, host = process.clock, process.host
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(access.running(clock))
        link = await stack.enter_async_context(open_link(common, access.caller))
        role = DeliveryRole(link, clock=clock, random=Random(), settings=settings, tracer=process.tracer)
        shards = await stack.enter_async_context(configured_shards(common, access))
        server = make_server(
            settings.listen,
            interceptors=interceptors_of(shards),
            connection_age_ms_max=settings.stream_age_ms_max,
            connections_max=connections_within(raise_open_files()),
            access=access,
            wire=common.wire,
        )
        metrics = process.metrics_export(server.health)
        add_services(server, role, common=common, clock=clock, host=host, metrics_address=metrics.address)
        await stack.enter_async_context(
            metrics.running(
                partial(delivery_metrics, role, shards.forwarded, access.certificate_expires_s, server.counts)
            )
        )
        await stack.enter_async_context(process.trace_export().running())
        address = await server.start(*SERVICES)
        stack.push_async_callback(server.stop, 0)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(role.run()), tasks.create_task(keep_health(server, role.tails))]
            process.print_ready(f"{address}, {stores_text(common)}")
            await process.stopping.wait()
            _LOG.info("stopping", extra=fields(watches=role.stats.watch_count))
            await server.health.stop()
            drained = await role.watches.drain(settings.stop_grace_ms / 1000)
            if not drained:
                _LOG.warning("streams are cut off", extra=fields(watches=role.stats.watch_count))
            shards.end_streams()
            await server.stop(STATUS_GRACE_S if drained else 0)
            for task in running:
                task.cancel()
    _LOG.info("stopped")


if __name__ == "__main__":
    sys.exit(main(os.environ))
