"""P22: single records of 100 bytes to 10, 100 and 1 000 subscribers, each with a connection of its own.

Flat out: one client appends with 8 in flight. Paced: 5 000 deliveries a second; the latency is from before the append to a
frame at a subscriber. No system syncs before it delivers but etcd, which has no other way: ours is of class DISK, JetStream
and Redis have their defaults. `nats_core` delivers without storing. Processor time is that of store and delivery together.
`bare_grpc` and `bare_own` are one process each that sends an append on to all subscribers, and stores nothing
(`bare_fan_out`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.harness import SECONDS as LOAD_SECONDS
from tests.bench.harness import scaled
from tests.bench.peers.comparison import P50, P99, PROCESSOR, RATE, Cell, System, measure_row, our_systems
from tests.bench.sides import bare_sides

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.harness import Figure, Unmeasured

OURS = our_systems("eddyline", "eddyline-stream", "store", "delivery", durability="disk", with_before=True)
BARE = tuple(System(side.name, (f"bare-{side.wire}",), "eddyline-stream") for side in bare_sides())
JETSTREAM = System("jetstream", ("jetstream",), "jetstream")
NATS_CORE = System("nats_core", ("jetstream",), "nats-core")
REDIS = System("redis", ("redis-everysec",), "redis")
ETCD = System("etcd", ("etcd",), "etcd")
TOPICS = System("topics", ("topics",), "topics", "disk")
PIPELINED = (*OURS, *BARE, JETSTREAM, NATS_CORE, REDIS, ETCD)

DELIVERIES_PER_S = 5_000
PACED_S = LOAD_SECONDS
FLAT_RECORDS = {10: scaled(5_000), 100: scaled(1_000), 1_000: scaled(100)}
"""By subscribers: 50 000 and 100 000 deliveries a run."""
FLAT_RATE_MIN = 60_000.0
FLAT_PROCESSOR_US_MAX = 20.0
PACED_PROCESSOR_US_MAX = 80.0
PACED_P50_US_MAX = 10_000.0
TO_JETSTREAM_P50_MAX = 2.0
JUDGED = 100
"""Subscribers of the cells with goals."""


def cells() -> Iterator[Cell]:
    """Flat out and paced for each number of subscribers."""
    for subscribers, records in FLAT_RECORDS.items():
        is_judged = subscribers == JUDGED
        common = ("fan-out", "-subscribers", str(subscribers))
        yield Cell(
            f"flat_out_{subscribers}",
            (*common, "-records", str(records), "-in-flight", "8"),
            PIPELINED,
            (RATE, PROCESSOR),
            goals={RATE: FLAT_RATE_MIN, PROCESSOR: FLAT_PROCESSOR_US_MAX} if is_judged else {},
        )
        rate = DELIVERIES_PER_S // subscribers
        yield Cell(
            f"paced_{subscribers}",
            (*common, "-records", str(max(round(rate * PACED_S), 1)), "-rate", str(rate)),
            (*PIPELINED, TOPICS),
            (P50, P99, PROCESSOR),
            goals={P50: PACED_P50_US_MAX, PROCESSOR: PACED_PROCESSOR_US_MAX} if is_judged else {},
            rivals={"jetstream": TO_JETSTREAM_P50_MAX} if is_judged else {},
        )


async def measure() -> list[Figure | Unmeasured]:
    """The row's lines."""
    return await measure_row("P22", tuple(cells()))
