"""P23, against peers: one key and 100 keys a call, by 1 and by 16 clients, of 100 000 keys with values of 100 bytes.

GetEntry and BatchGetEntries, against JetStream KV (direct get; its batched direct get), Redis (GET; MGET) and etcd (a range
of one key; a transaction of ranges). Processor time is that of the server for one key. topics has no keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.peers.comparison import P50, PROCESSOR, RATE, SECONDS, Cell, System, measure_row, our_systems

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.harness import Figure, Unmeasured

SYSTEMS = (
    *our_systems("eddyline", "eddyline-unary", "store"),
    System("jetstream", ("jetstream",), "jetstream"),
    System("redis", ("redis-everysec",), "redis"),
    System("etcd", ("etcd",), "etcd"),
)
TOPIC = "kv"
KEYS = 100_000
PROCESSOR_US_MAX = {1: 200.0, 100: 10.0}
"""By keys of a call, for one key: 0.2 ms a get, and 100 000 keys a second of a core."""


def cells() -> Iterator[Cell]:
    """One for each number of keys and of clients."""
    for keys, most_us in PROCESSOR_US_MAX.items():
        for clients in (1, 16):
            words = ("get", "-keys", str(KEYS), "-keys-per-get", str(keys), "-clients", str(clients))
            yield Cell(
                f"get_{keys}_clients_{clients}",
                (*words, "-seconds", SECONDS),
                SYSTEMS,
                (RATE, P50, PROCESSOR),
                goals={PROCESSOR: most_us},
                topic=TOPIC,
            )


async def measure() -> list[Figure | Unmeasured]:
    """The row's lines against peers."""
    return await measure_row("P23", tuple(cells()), keys=KEYS)
