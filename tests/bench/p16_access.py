"""P16: what access and telemetry cost: appends and the way from NATS to a subscriber (P1 and P4) with keys, and with all
there is (keys, TLS on every connection, metrics by OTLP, one record in a hundred traced), against the same without.

The clusters run side by side and are measured in turn, each of the two beside the open one.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import nats
from nats.js.api import KeyValueConfig

from eddyline.core.caller_channel import CallerAccess
from eddyline.core.tls import ClientTls
from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, log_pb2, log_pb2_grpc, types_pb2
from tests.bench.harness import Figure, alternate, until_idle
from tests.bench.p1_append import TOPIC, columns, create_topic, stream_round, unary_round
from tests.bench.p4_latency import RATES, round_of
from tests.support.access import Keys, secret_of
from tests.support.certificates import Authority
from tests.support.processes import delivery_at, free_address, ingest_process, nats_server, store_process
from tests.support.trace_collector import trace_collector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc
    from nats.aio.client import Client

LATENCY_ROUNDS = 5
PART_MIN = 0.85
PART_MAX = 1.15
TRACE_RATIO = "0.01"
OPEN, KEYED, ALL = "open", "keyed", "all"


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


def prepared(folder: Path, kind: str, collector: str) -> tuple[CallerAccess, dict[str, str]]:
    """Make the folder, with what the kind asks for in it: what callers show, and the roles' settings."""
    folder.mkdir()
    if kind == OPEN:
        return CallerAccess(), {}
    keys, own = Keys(folder), folder / "roles.key"
    access = keys.add("bench", "read", "write", "admin")
    keys.add("roles", "role")
    own.write_text(secret_of("roles"), encoding="utf-8")
    settings = {"KEYS_FILE": str(keys.path), "KEY_FILE": str(own)}
    if kind == ALL:
        authority = Authority(folder / "certificates")
        role = authority.sign("role")
        settings |= {"TLS_CERT": str(role.certificate), "TLS_KEY": str(role.key)}
        settings |= {"TLS_CA": str(authority.own.certificate), "OTLP_URL": collector, "TRACE_RATIO": TRACE_RATIO}
        access = replace(access, tls=ClientTls(authority.own.certificate.read_bytes()))
    return access, {f"EDDYLINE_COMMON_{name}": value for name, value in settings.items()}


@asynccontextmanager
async def cluster(url: str, folder: Path, kind: str, collector: str) -> AsyncIterator[Cluster]:
    """Bring one up; its bucket is there."""
    access, environment = prepared(folder, kind, collector)
    async with AsyncExitStack() as stack:
        _, store = await stack.enter_async_context(store_process(folder / "store", **environment))
        await stack.enter_async_context(ingest_process(store, url, folder, kind, **environment))
        delivery = free_address()
        await stack.enter_async_context(delivery_at(delivery, store, **environment))
        channels = [await stack.enter_async_context(access.open_channel(address)) for address in (store, delivery)]
        await create_topic(channels[0])
        yield Cluster(channels[0], channels[1], kind)


async def appends(ours: Cluster, other: Cluster) -> list[Figure]:
    """P1 in both."""
    log, other_log = log_pb2_grpc.LogServiceStub(ours.store), log_pb2_grpc.LogServiceStub(other.store)
    append = log_pb2.AppendBatch(columns=columns())
    request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=columns())
    idle = partial(until_idle, ours.store)
    stream = await alternate(
        lambda: stream_round(log, TOPIC, append), lambda: stream_round(other_log, TOPIC, append), prepare=idle
    )
    unary = await alternate(lambda: unary_round(log, request), lambda: unary_round(other_log, request), prepare=idle)
    return [
        Figure("P16", f"{ours.bucket}_append_stream", stream[0], "records/s", stream[0] / stream[1], PART_MIN),
        Figure("P16", f"{ours.bucket}_append_records", unary[0], "records/s", unary[0] / unary[1], PART_MIN),
    ]


async def latencies(client: Client, ours: Cluster, other: Cluster) -> list[Figure]:
    """P4 in both."""
    figures = []
    for rate in RATES:
        medians: dict[str, list[float]] = {ours.bucket: [], other.bucket: []}
        for _ in range(LATENCY_ROUNDS):
            for one in (ours, other):
                seen = await round_of(client, one.bucket, rate, one.values())
                medians[one.bucket].append(seen[len(seen) // 2])
        p50, other_p50 = statistics.median(medians[ours.bucket]), statistics.median(medians[other.bucket])
        name = f"{ours.bucket}_p50_at_{rate}"
        figures.append(Figure("P16", name, p50, "ms", p50 / other_p50, PART_MAX, at_most=True))
    return figures


async def measure() -> list[Figure]:
    """The row's figures."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(nats_server(folder))
            collector = await stack.enter_async_context(trace_collector())
            client = await nats.connect(url)
            stack.push_async_callback(client.close)
            for bucket in (OPEN, KEYED, ALL):
                await client.jetstream().create_key_value(KeyValueConfig(bucket=bucket, history=1))
            other = await stack.enter_async_context(cluster(url, folder / OPEN, OPEN, ""))
            for kind in (KEYED, ALL):
                async with cluster(url, folder / kind, kind, collector.url) as ours:
                    figures += await appends(ours, other)
                    figures += await latencies(client, ours, other)
    return figures
