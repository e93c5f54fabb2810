"""P21, against peers: durable appends (FSYNC) of one record of 100 bytes.

One client with 256 appends in flight, 16 clients with one each, and a lone client. `eddyline_gathered` sends all appends
that wait in one step of the stream. Peers sync each append too; JetStream in its default, which syncs every two minutes, is
measured with them. A client of etcd has its appends in flight as calls that share one connection. topics has HTTP/1.1 and
so one append in flight on each connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.peers.comparison import P50, P99, PROCESSOR, RATE, SECONDS, Cell, System, measure_row, our_systems

if TYPE_CHECKING:
    from tests.bench.harness import Figure, Unmeasured

GATHERED = our_systems("eddyline_gathered", "eddyline-gather", "store")
STREAM = our_systems("eddyline_stream", "eddyline-stream", "store")
UNARY = our_systems("eddyline_unary", "eddyline-unary", "store")
JETSTREAM_ALWAYS = System("jetstream_always", ("jetstream-always",), "jetstream")
JETSTREAM = System("jetstream", ("jetstream",), "jetstream")
REDIS = System("redis", ("redis-always",), "redis")
ETCD = System("etcd", ("etcd",), "etcd")
TOPICS = System("topics", ("topics",), "topics")
PEERS = (JETSTREAM_ALWAYS, JETSTREAM, REDIS, ETCD)
IN_FLIGHT_RATE_MIN = 30_000.0
CLIENTS_RATE_MIN = 10_000.0
AHEAD = 1.0

CELLS = (
    Cell(
        "in_flight_256",
        ("append", "-in-flight", "256", "-seconds", SECONDS),
        (*GATHERED, *STREAM, *UNARY, *PEERS),
        (RATE, PROCESSOR),
        goals={RATE: IN_FLIGHT_RATE_MIN},
        rivals={"etcd": AHEAD, "jetstream_always": AHEAD},
    ),
    Cell(
        "clients_16",
        ("append", "-clients", "16", "-seconds", SECONDS),
        (*STREAM, *UNARY, *PEERS, TOPICS),
        (RATE, PROCESSOR),
        goals={RATE: CLIENTS_RATE_MIN},
        rivals={"etcd": AHEAD, "jetstream_always": AHEAD},
    ),
    Cell(
        "lone",
        ("append", "-seconds", SECONDS),
        (*STREAM, *UNARY, *PEERS, TOPICS),
        (P50, P99, PROCESSOR),
        rivals={"etcd": AHEAD},
    ),
)


async def measure() -> list[Figure | Unmeasured]:
    """The row's lines against peers."""
    return await measure_row("P21", CELLS)
