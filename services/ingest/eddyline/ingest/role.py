"""The ingest role: its parts, over any `StoreLink`.

`__main__` runs it over gRPC; tests and simulations over a store in process.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NoReturn

from eddyline.core.errors import EddylineError
from eddyline.core.forwarding.interceptor import ForwardingInterceptor
from eddyline.core.forwarding.routes import APPEND_CALLS, LOG_SERVICE, TOPIC_CALLS, TOPIC_SERVICE, methods_of
from eddyline.core.forwarding.services import add_forwarded
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep
from eddyline.core.server.append_limiter import AppendLimiter
from eddyline.core.server.cluster_service import SERVICE as CLUSTER_SERVICE
from eddyline.core.server.cluster_service import ClusterService
from eddyline.core.server.health import NATS_LEG
from eddyline.core.store_link.sharded import shards_of
from eddyline.core.telemetry.metrics import Histogram
from eddyline.core.telemetry.tracing import NOOP_TRACER
from eddyline.ingest.kv.writer import KvWriter
from eddyline.ingest.nats.connection import Connection
from eddyline.ingest.nats.jetstream import JetStream
from eddyline.ingest.nats.login import nats_access
from eddyline.ingest.readiness import Readiness
from eddyline.ingest.resync.stream_audit import AUDIT_INTERVAL_S
from eddyline.ingest.rpc.kv_service import SERVICE as KV_SERVICE
from eddyline.ingest.rpc.kv_service import KvServicer
from eddyline.ingest.rpc.source_service import SERVICE, SourceServicer
from eddyline.ingest.rpc.status import ingest_status
from eddyline.ingest.sources.context import SourceContext
from eddyline.ingest.sources.ownership import Ownership
from eddyline.ingest.sources.sources_file import RETRY_S, SourcesFile
from eddyline.ingest.verify.compare import Comparer
from eddyline.ingest.verify.schedule import VerifySchedule
from eddyline.ingest.verify.verify import Verifier
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc, kv_pb2_grpc, source_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    import grpc

    from eddyline.core.forwarding.shards import ShardForwarder
    from eddyline.core.runtime.clock import Clock, Host
    from eddyline.core.runtime.settings import CommonSettings
    from eddyline.core.server.health import HealthBoard
    from eddyline.core.server.server import RoleServer
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.core.telemetry.tracing import Tracer
    from eddyline.ingest.config import IngestSettings

FORWARDED: Final = methods_of(LOG_SERVICE, APPEND_CALLS) | methods_of(TOPIC_SERVICE, TOPIC_CALLS)
"""Calls of the stores that ingest accepts and forwards."""
SERVICES: Final = (SERVICE, KV_SERVICE, TOPIC_SERVICE, LOG_SERVICE, CLUSTER_SERVICE)
APPEND_BYTES: Final = 256 << 20
"""Default in gRPC: unbounded. Forwarded appends, from their receipt until they are answered: as much as a store has by
default, so that neither waits for the other."""
RESYNCS_AT_ONCE: Final = 4
"""Each holds the subjects of one bucket, 100 bytes a key, and a range scan of the store."""


class IngestRole:
    """Parts of one ingest process; `run` runs them.

    The constructor reads the files that the settings name; a malformed file is a SettingsError.
    """

    def __init__(
        self,
        link: StoreLink,
        *,
        settings: IngestSettings,
        common: CommonSettings,
        clock: Clock,
        rng: Random,
        host: Host,
        health: HealthBoard,
        audit_interval_s: float = AUDIT_INTERVAL_S,
        tracer: Tracer = NOOP_TRACER,
        file: SourcesFile | None = None,
    ) -> None:
        self.tracer = tracer
        self.file = file if file is not None else SourcesFile()
        self._clock = clock
        self._rng = rng
        self._link = link
        self._health = health
        self._cluster_id = common.cluster_id
        holder = settings.holder_on(host.name())
        self.readiness = Readiness(len(shards_of(link)))
        self.connection = Connection(
            nats_access(settings),
            name=f"eddyline ingest {holder}",
            clock=clock,
            rng=rng,
            on_change=lambda: self.readiness.set_nats(self.connection.connected, refused=self.connection.refused),
        )
        jetstream = self.jetstream = JetStream(self.connection, domain=settings.nats_domain)
        self.apply_s = Histogram()
        context = SourceContext(
            link=link,
            connection=self.connection,
            jetstream=jetstream,
            clock=clock,
            rng=rng,
            cluster_id=common.cluster_id,
            resyncs=asyncio.Semaphore(RESYNCS_AT_ONCE),
            heartbeat_s=settings.heartbeat_ms / 1000,
            audit_interval_s=audit_interval_s,
            apply_s=self.apply_s,
            tracer=tracer,
        )
        self.ownership = Ownership(
            context,
            holder=holder,
            lease_ms=settings.lease_ms,
            readiness=self.readiness,
            set_source=health.set_source,
            forget_source=health.forget_source,
            file=self.file,
        )
        self.comparer = Comparer(link, self.connection, jetstream, clock)
        self.writer = KvWriter(link, self.connection, jetstream, clock=clock, rng=rng)
        self.verifier = Verifier(self.comparer, link, jetstream, owner=self.ownership, clock=clock)
        self._schedule = (
            VerifySchedule(
                self.verifier,
                held=self.ownership.held,
                new_name=self.new_compare_name,
                interval_s=settings.verify_interval_ms / 1000,
                repair=settings.verify_repair,
                clock=clock,
                rng=rng,
            )
            if settings.verify_interval_ms
            else None
        )

    async def run(self) -> None:
        """Copy until cancelled: sources end first, so that their consumers are deleted before the connection closes."""
        async with asyncio.TaskGroup() as outer:
            connection = outer.create_task(self.connection.run(), name="nats connection")
            health = outer.create_task(self._keep_health(), name="health")
            try:
                async with asyncio.TaskGroup() as sources:
                    sources.create_task(self.ownership.run(), name="ownership")
                    sources.create_task(self._keep_file(), name="sources file")
                    if self._schedule is not None:
                        sources.create_task(self._schedule.run(), name="verify schedule")
            finally:
                connection.cancel()
                health.cancel()

    async def ensure(self) -> None:
        """Create the sources of the file; waits for the store without end."""
        backoff = Backoff(self._rng)
        while True:
            try:
                await self.file.ensure(self._link)
                return
            except EddylineError as error:
                await sleep(self._clock, backoff.next_delay_s(minimum_s=self.readiness.store_failed(error)))

    async def _keep_file(self) -> None:
        """Retry the refused sources of the file as long as there are any."""
        while self.file.has_refused:
            await sleep(self._clock, RETRY_S)
            with suppress(EddylineError):  # the store is away; sources handle that themselves
                await self.file.retry(self._link)
            self.ownership.list_now()

    def new_compare_name(self) -> str:
        """A name for one comparison's consumer."""
        return f"eddyline-compare-{self._rng.getrandbits(64):016x}"

    async def _keep_health(self) -> NoReturn:
        while True:
            self.readiness.changed.clear()
            await self._health.set_leg(NATS_LEG, self.readiness.nats_connected)
            await self._health.set_stores(self.readiness.stores_reached)
            await self._health.set_ready(self.readiness.ready)
            await self.readiness.changed.wait()


def gates_of(shards: ShardForwarder) -> tuple[grpc.aio.ServerInterceptor, ...]:
    """Interceptors of ingest: bound of appends in flight, and forwarding to the shards."""
    return AppendLimiter(APPEND_BYTES), ForwardingInterceptor(shards, methods=FORWARDED)


def add_services(
    server: RoleServer,
    role: IngestRole,
    *,
    link: StoreLink,
    common: CommonSettings,
    clock: Clock,
    host: Host,
    metrics_address: Callable[[], str] = str,
) -> None:
    """Add every service of ingest to `server`. `metrics_address` = address of its metrics; default: none."""
    sources = SourceServicer(
        link,
        owner=role.ownership,
        comparer=role.comparer,
        verifier=role.verifier,
        new_name=role.new_compare_name,
        file=role.file,
        jetstream=role.jetstream,
    )
    source_pb2_grpc.add_SourceServiceServicer_to_server(sources, server.grpc)
    kv_pb2_grpc.add_KvServiceServicer_to_server(KvServicer(role.writer, role.tracer), server.grpc)
    add_forwarded(server, FORWARDED, role="ingest")
    cluster = ClusterService(
        cluster_pb2.ROLE_INGEST,
        version=version("eddyline-ingest"),
        common=common,
        status=partial(ingest_status, role.readiness, role.ownership, role.verifier),
        clock=clock,
        host=host,
        address=lambda: server.address,
        metrics_address=metrics_address,
    )
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(cluster, server.grpc)
