"""P15: what access costs: appends and the way from NATS to a subscriber (P1 and P4) with keys, against the same without.

Both clusters run side by side and are measured in turn. Connections are without TLS in both: what encrypting costs is the
library's, and the same for everybody.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import nats
from nats.js.api import KeyValueConfig

from eddyline.core.caller_channel import CallerAccess
from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, log_pb2, log_pb2_grpc, types_pb2
from tests.bench.harness import Figure, alternate, until_idle
from tests.bench.p1_append import TOPIC, columns, create_topic, stream_round, unary_round
from tests.bench.p4_latency import RATES, round_of
from tests.support.access import Keys, secret_of
from tests.support.processes import delivery_at, free_address, ingest_process, nats_server, store_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc
    from nats.aio.client import Client

LATENCY_ROUNDS = 5
PART_MIN = 0.85
PART_MAX = 1.15


@dataclass(frozen=True, slots=True)
class Cluster:
    """One of each role, and what its callers show."""

    store: grpc.aio.Channel
    delivery: grpc.aio.Channel
    bucket: str

    async def values(self) -> AsyncIterator[bytes]:
        """What a watch brings from now on."""
        topic = delivery_pb2.WatchTopic(topic=self.bucket, point=delivery_pb2.START_POINT_TAIL)
        request = delivery_pb2.WatchTopicsRequest(topics=[topic], format=types_pb2.BATCH_FORMAT_COLUMNS)
        async for frame in delivery_pb2_grpc.DeliveryServiceStub(self.delivery).WatchTopics(request):
            if frame.WhichOneof("frame") == "columns":
                yield frame.columns.data.values


def prepared(folder: Path, *, keyed: bool) -> tuple[CallerAccess, dict[str, str]]:
    """Make the folder, with keys in it where they are wanted: what callers show, and the roles' settings."""
    folder.mkdir()
    if not keyed:
        return CallerAccess(), {}
    keys, own = Keys(folder), folder / "roles.key"
    access = keys.add("bench", "read", "write", "admin")
    keys.add("roles", "role")
    own.write_text(secret_of("roles"), encoding="utf-8")
    return access, {"EDDYLINE_COMMON_KEYS_FILE": str(keys.path), "EDDYLINE_COMMON_KEY_FILE": str(own)}


@asynccontextmanager
async def cluster(url: str, folder: Path, *, keyed: bool) -> AsyncIterator[Cluster]:
    """Bring one up; its bucket is there."""
    bucket = "keyed" if keyed else "open"
    access, environment = prepared(folder, keyed=keyed)
    async with AsyncExitStack() as stack:
        _, store = await stack.enter_async_context(store_process(folder / "store", **environment))
        await stack.enter_async_context(ingest_process(store, url, folder, bucket, **environment))
        delivery = free_address()
        await stack.enter_async_context(delivery_at(delivery, store, **environment))
        channels = [await stack.enter_async_context(access.open_channel(address)) for address in (store, delivery)]
        await create_topic(channels[0])
        yield Cluster(channels[0], channels[1], bucket)


async def appends(keyed: Cluster, unkeyed: Cluster) -> list[Figure]:
    """P1 in both."""
    ours, other = log_pb2_grpc.LogServiceStub(keyed.store), log_pb2_grpc.LogServiceStub(unkeyed.store)
    append = log_pb2.AppendBatch(columns=columns())
    request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=columns())
    idle = partial(until_idle, keyed.store)
    stream = await alternate(
        lambda: stream_round(ours, TOPIC, append), lambda: stream_round(other, TOPIC, append), prepare=idle
    )
    unary = await alternate(lambda: unary_round(ours, request), lambda: unary_round(other, request), prepare=idle)
    return [
        Figure("P15", "append_stream", stream[0], "records/s", stream[0] / stream[1], PART_MIN),
        Figure("P15", "append_records", unary[0], "records/s", unary[0] / unary[1], PART_MIN),
    ]


async def latencies(client: Client, keyed: Cluster, unkeyed: Cluster) -> list[Figure]:
    """P4 in both."""
    figures = []
    for rate in RATES:
        medians: dict[str, list[float]] = {"keyed": [], "open": []}
        for _ in range(LATENCY_ROUNDS):
            for one in (keyed, unkeyed):
                seen = await round_of(client, one.bucket, rate, one.values())
                medians[one.bucket].append(seen[len(seen) // 2])
        ours, other = statistics.median(medians["keyed"]), statistics.median(medians["open"])
        figures.append(Figure("P15", f"p50_at_{rate}", ours, "ms", ours / other, PART_MAX, at_most=True))
    return figures


async def measure() -> list[Figure]:
    """The row's figures."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(nats_server(folder))
            client = await nats.connect(url)
            stack.push_async_callback(client.close)
            for bucket in ("keyed", "open"):
                await client.jetstream().create_key_value(KeyValueConfig(bucket=bucket, history=1))
            keyed = await stack.enter_async_context(cluster(url, folder / "keyed", keyed=True))
            unkeyed = await stack.enter_async_context(cluster(url, folder / "open", keyed=False))
            return [*await appends(keyed, unkeyed), *await latencies(client, keyed, unkeyed)]
