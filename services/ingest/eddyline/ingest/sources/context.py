"""Dependencies that all sources of a replica share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eddyline.core.telemetry.metrics import Histogram
from eddyline.core.telemetry.tracing import NOOP_TRACER
from eddyline.ingest.resync.stream_audit import AUDIT_INTERVAL_S

if TYPE_CHECKING:
    import asyncio
    from random import Random

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.core.telemetry.tracing import Tracer
    from eddyline.ingest.nats.connection import Connection
    from eddyline.ingest.nats.jetstream import JetStream


@dataclass(frozen=True, slots=True)
class SourceContext:
    """Dependencies of a source. `resyncs` bounds how many sources compare key sets at the same time."""

    link: StoreLink
    connection: Connection
    jetstream: JetStream
    clock: Clock
    rng: Random
    cluster_id: str
    resyncs: asyncio.Semaphore
    heartbeat_s: float
    audit_interval_s: float = AUDIT_INTERVAL_S
    apply_s: Histogram = field(default_factory=Histogram)
    tracer: Tracer = NOOP_TRACER
