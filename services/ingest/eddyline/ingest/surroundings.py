"""What every source of a replica works with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eddyline.core.metrics import Histogram
from eddyline.core.tracing import UNTRACED
from eddyline.ingest.audit import LOOK_S

if TYPE_CHECKING:
    import asyncio
    from random import Random

    from eddyline.core.clock import Clock
    from eddyline.core.store_link import StoreLink
    from eddyline.core.tracing import Tracer
    from eddyline.ingest.connection import Connection
    from eddyline.ingest.jetstream import JetStream


@dataclass(frozen=True, slots=True)
class Surroundings:
    """See the module. `resyncs` bounds how many compare key sets at once."""

    link: StoreLink
    connection: Connection
    jetstream: JetStream
    clock: Clock
    rng: Random
    cluster_id: str
    resyncs: asyncio.Semaphore
    heartbeat_s: float
    look_s: float = LOOK_S
    apply_s: Histogram = field(default_factory=Histogram)
    tracer: Tracer = UNTRACED
