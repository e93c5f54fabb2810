"""P4: from a NATS put to a gRPC subscriber, at 1 000/s and 20 000/s, against the same hops bare (`bare_chain`).

Every value begins with the time it was sent, by the clock of this process, which also receives. Puts go to the bucket's
subjects as plain publishes, so that the writer keeps its pace. Each chain has a bucket of its own and is idle in the other's
rounds, which are taken in turn. With `EDDYLINE_BENCH_HOPS=1` the row also shows where the time goes (`hop_times`).
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import nats
from nats.js.api import KeyValueConfig

from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, types_pb2
from tests.bench import hop_times
from tests.bench.baselines.bare_chain import WATCH
from tests.bench.harness import Figure
from tests.support.cluster.processes import bare_chain, delivery_server, ingest_server, nats_server, store_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.client import Client

BUCKET = "bench"
BARE_BUCKET = "bare"
KEYS = 1_000
HISTORY = 64
"""Versions of a key that buckets keep: with one alone, a chain 50 ms late at 20 000/s misses what was overwritten."""
VALUE_BYTES = 100
SECONDS = 3
TICK_S = 0.002
RATES = (1_000, 20_000)
ROUNDS = 5
DRAIN_S = 10
STAMP = struct.Struct("<q")
P50_RATIO_MAX = 1.5
P99_RATIO_MAX = 5.0


async def write(client: Client, bucket: str, rate: int) -> int:
    """Publish at `rate` for `SECONDS`; the number sent."""
    pad = bytes(VALUE_BYTES - STAMP.size)
    started = time.perf_counter()
    sent = 0
    while (passed := time.perf_counter() - started) < SECONDS:
        while sent < passed * rate:
            stamp = STAMP.pack(time.perf_counter_ns())
            await client.publish(f"$KV.{bucket}.k{sent % KEYS}", stamp + pad)
            sent += 1
        await client.flush()
        await asyncio.sleep(TICK_S)
    return sent


async def round_of(client: Client, bucket: str, rate: int, values: AsyncIterator[bytes]) -> list[float]:
    """Latencies in ms of one round, ascending. `values` yields each value received, in any grouping."""
    seen: list[float] = []
    expected = asyncio.Event()
    total = -1

    async def receive() -> None:
        async for value in values:
            now = time.perf_counter_ns()
            seen.extend((now - STAMP.unpack_from(value, at)[0]) / 1e6 for at in range(0, len(value), VALUE_BYTES))
            if len(seen) == total:
                expected.set()

    async with asyncio.TaskGroup() as tasks:
        receiving = tasks.create_task(receive())
        await asyncio.sleep(0.5)
        total = await write(client, bucket, rate)
        if len(seen) < total:
            async with asyncio.timeout(DRAIN_S):
                await expected.wait()
        receiving.cancel()
    return sorted(seen)


async def bare_values(address: str) -> AsyncIterator[bytes]:
    async with grpc.aio.insecure_channel(address) as channel:
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(WATCH)
        async for frame in watch(b""):
            yield frame


async def watched_values(address: str) -> AsyncIterator[bytes]:
    async with grpc.aio.insecure_channel(address) as channel:
        topic = delivery_pb2.WatchTopic(topic=BUCKET, point=delivery_pb2.START_POINT_TAIL)
        request = delivery_pb2.WatchTopicsRequest(topics=[topic], format=types_pb2.BATCH_FORMAT_COLUMNS)
        async for frame in delivery_pb2_grpc.DeliveryServiceStub(channel).WatchTopics(request):
            if frame.WhichOneof("frame") == "columns":
                yield frame.columns.data.values


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[tuple[Client, str, str]]:
    """NATS, our roles and the bare chain side by side: the client, our delivery's address, the bare one's."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(nats_server(directory))
        client = await nats.connect(url)
        stack.push_async_callback(client.close)
        for bucket in (BUCKET, BARE_BUCKET):
            await client.jetstream().create_key_value(KeyValueConfig(bucket=bucket, history=HISTORY))
        store = await stack.enter_async_context(store_server(directory / "store"))
        await stack.enter_async_context(ingest_server(store, url, directory, BUCKET))
        ours = await stack.enter_async_context(delivery_server(store))
        bare = await stack.enter_async_context(bare_chain(url, f"$KV.{BARE_BUCKET}.>"))
        yield client, ours, bare


async def measure() -> list[Figure]:
    """The row's figures."""
    figures = []
    with tempfile.TemporaryDirectory() as directory:
        async with cluster(Path(directory)) as (client, ours, bare):
            for rate in RATES:
                ours_seen, bare_seen = [], []
                for _ in range(ROUNDS):
                    ours_seen.append(await round_of(client, BUCKET, rate, watched_values(ours)))
                    bare_seen.append(await round_of(client, BARE_BUCKET, rate, bare_values(bare)))
                p50, p99 = _medians(ours_seen)
                bare_p50, bare_p99 = _medians(bare_seen)
                figures += [
                    Figure("P4", f"p50_at_{rate}", p50, "ms", p50 / bare_p50, P50_RATIO_MAX, at_most=True),
                    Figure("P4", f"p99_to_p50_at_{rate}", p99, "ms", p99 / p50, P99_RATIO_MAX, at_most=True),
                    Figure("P4", f"bare_p50_at_{rate}", bare_p50, "ms"),
                    Figure("P4", f"bare_p99_at_{rate}", bare_p99, "ms", bare_p99 / bare_p50),
                ]
    if hop_times.IS_WANTED:
        with tempfile.TemporaryDirectory() as directory:
            figures += await hop_times.measure_hops(Path(directory), RATES)
    return figures


def _medians(rounds: list[list[float]]) -> tuple[float, float]:
    """Median over rounds of p50 and p99, in ms."""
    halves = [seen[len(seen) // 2] for seen in rounds]
    tails = [seen[len(seen) * 99 // 100] for seen in rounds]
    return statistics.median(halves), statistics.median(tails)
