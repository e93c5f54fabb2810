"""Ingest's process: settings, composition, signals. `python -m eddyline.ingest`.

Life: read settings and sources file; listen; create the sources of the file; copy; on SIGTERM or SIGINT end the sources
(consumers deleted, leases released), refuse new calls, exit 0. Ingest keeps no state of its own: the positions are in the
store. An ingest that cannot start prints the reason in one line on stderr and exits 1. Standard output has one line, when
the role serves, with its address; the log goes to stderr.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from eddyline.core.forwarding.shards import configured_shards
from eddyline.core.runtime.settings import (
    SettingsError,
    masked,
)
from eddyline.core.server.open_files import connections_within, raise_open_files
from eddyline.core.server.process import RoleProcess, run_process
from eddyline.core.server.server import make_server
from eddyline.core.store_link.open import open_link, stores_text
from eddyline.ingest.config import PREFIX, IngestSettings
from eddyline.ingest.metrics import ingest_metrics
from eddyline.ingest.role import SERVICES, IngestRole, add_services, gates_of
from eddyline.ingest.sources.sources_file import SourcesFile, parse_sources

if TYPE_CHECKING:
    from collections.abc import Mapping

ROLE: Final = "ingest"

_LOG: Final = logging.getLogger(__name__)


def main(environ: Mapping[str, str]) -> int:
    """Run the role until a signal stops it; returns the exit code."""
    return run_process(ROLE, serve, IngestSettings, prefix=PREFIX, environ=environ, log=_LOG)


def read_sources(path: str) -> SourcesFile:
    """Read the sources file; an empty one if none is set.

    Raises:
        SettingsError: it cannot be read, or is malformed.
    """
    if not path:
        return SourcesFile()
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise SettingsError(f"{PREFIX}SOURCES_FILE {path} cannot be read: {error}") from error
    return SourcesFile(parse_sources(text, path), path)


async def serve(process: RoleProcess[IngestSettings]) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        SettingsError: it cannot listen, or the sources file is not right.
    """
    settings, common, access = process.settings, process.common, process.access
    clock, host, stopping = process.clock, process.host, process.stopping
    file = read_sources(settings.sources_file)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(access.running(clock))
        link = await stack.enter_async_context(open_link(common, access.caller))
        shards = await stack.enter_async_context(configured_shards(common, access))
        connections_max = connections_within(raise_open_files())
        server = make_server(
            settings.listen,
            interceptors=gates_of(shards),
            connections_max=connections_max,
            access=access,
            wire=common.wire,
        )
        role = IngestRole(
            link,
            settings=settings,
            common=common,
            clock=clock,
            rng=Random(),
            host=host,
            health=server.health,
            tracer=process.tracer,
            file=file,
        )
        metrics = process.metrics_export(server.health)
        add_services(server, role, link=link, common=common, clock=clock, host=host, metrics_address=metrics.address)
        await stack.enter_async_context(
            metrics.running(
                partial(ingest_metrics, role, shards.forwarded, access.certificate_expires_s, server.counts)
            )
        )
        await stack.enter_async_context(process.trace_export().running())
        address = await server.start(*SERVICES)
        stack.push_async_callback(server.stop, 0)
        if not await _ensure_sources(role, stopping):
            return
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(role.run())
            process.print_ready(f"{address}, NATS at {masked_url(settings)}, {stores_text(common)}")
            await stopping.wait()
            _LOG.info("stopping")
            running.cancel()
        shards.end_streams()
        await server.stop(settings.stop_grace_ms / 1000)
    _LOG.info("stopped")


def masked_url(settings: IngestSettings) -> str:
    """NATS's URL without its secrets."""
    return masked(settings, prefix="")["NATS_URL"]


async def _ensure_sources(role: IngestRole, stopping: asyncio.Event) -> bool:
    """Create the file's sources; False = a signal came first."""
    async with asyncio.TaskGroup() as tasks:
        ensuring = tasks.create_task(role.ensure())
        stop_task = tasks.create_task(stopping.wait())
        await asyncio.wait((ensuring, stop_task), return_when=asyncio.FIRST_COMPLETED)
        ensuring.cancel()
        stop_task.cancel()
    return not stopping.is_set()


if __name__ == "__main__":
    sys.exit(main(os.environ))
