"""P4: from a NATS put to a gRPC subscriber, at 1 000/s and 20 000/s, on each wire against the same hops bare (`bare_chain`).

Every value begins with the time it was sent, by the clock of this process, which also receives. Puts go to the bucket's
subjects as plain publishes, so that the writer keeps its pace. Each chain has a bucket of its own and is idle in the others'
rounds, which are taken in turn. Sides: `tests.bench.sides`. With `EDDYLINE_BENCH_HOPS=1` the row also shows where the time
goes (`hop_times`).
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import nats
from nats.js.api import KeyValueConfig

from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, types_pb2
from tests.bench import hop_times
from tests.bench.baselines.bare_chain import WATCH
from tests.bench.harness import SECONDS as LOAD_SECONDS
from tests.bench.harness import SECONDS_USUAL, Figure, in_turn
from tests.bench.sides import bare_sides, our_sides, side_figures
from tests.support.cluster.processes import (
    bare_chain,
    delivery_at,
    free_address,
    ingest_process,
    nats_server,
    store_process,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from nats.aio.client import Client

    from tests.bench.sides import Side

KEYS = 1_000
HISTORY = 64
"""Versions of a key that buckets keep: with one alone, a chain 50 ms late at 20 000/s misses what was overwritten."""
VALUE_BYTES = 100
SECONDS = 3 * LOAD_SECONDS / SECONDS_USUAL
TICK_S = 0.002
RATES = (1_000, 20_000)
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


async def watched_values(bucket: str, address: str) -> AsyncIterator[bytes]:
    async with grpc.aio.insecure_channel(address) as channel:
        topic = delivery_pb2.WatchTopic(topic=bucket, point=delivery_pb2.START_POINT_TAIL)
        request = delivery_pb2.WatchTopicsRequest(topics=[topic], format=types_pb2.BATCH_FORMAT_COLUMNS)
        async for frame in delivery_pb2_grpc.DeliveryServiceStub(channel).WatchTopics(request):
            if frame.WhichOneof("frame") == "columns":
                yield frame.columns.data.values


@asynccontextmanager
async def chains(directory: Path) -> AsyncIterator[tuple[Client, dict[Side, str]]]:
    """NATS, and for each side its roles or bare hops and a bucket of its name: the client, the address of each last hop."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(nats_server(directory))
        client = await nats.connect(url)
        stack.push_async_callback(client.close)
        ends: dict[Side, str] = {}
        for side in (*our_sides(), *bare_sides()):
            (directory / side.name).mkdir()
            await client.jetstream().create_key_value(KeyValueConfig(bucket=side.name, history=HISTORY))
            if side.is_bare:
                ends[side] = await stack.enter_async_context(bare_chain(side.wire, url, f"$KV.{side.name}.>"))
            else:
                ends[side] = await stack.enter_async_context(roles(side, url, directory / side.name))
        yield client, ends


@asynccontextmanager
async def roles(side: Side, url: str, folder: Path) -> AsyncIterator[str]:
    """A store, an ingest of the bucket of the side's name, and a delivery; the delivery's address."""
    settings, watched = side.settings, free_address()
    async with (
        store_process(folder / "store", python=side.python, **settings) as (_, store),
        ingest_process(store, url, folder, side.name, python=side.python, **settings),
        delivery_at(watched, store, python=side.python, **settings),
    ):
        yield watched


async def measure() -> list[Figure]:
    """The row's figures."""
    figures = []
    with tempfile.TemporaryDirectory() as directory:
        async with chains(Path(directory)) as (client, ends):
            for rate in RATES:
                works: dict[Side, Callable[[], Awaitable[list[float]]]] = {
                    side: partial(_latencies, client, side, address, rate) for side, address in ends.items()
                }
                seen = await in_turn(works)
                p50 = {side: _percentile(rounds, 50) for side, rounds in seen.items()}
                p99 = {side: _percentile(rounds, 99) for side, rounds in seen.items()}
                figures += side_figures("P4", f"p50_at_{rate}", "ms", p50, target=P50_RATIO_MAX, at_most=True)
                figures += [
                    Figure(
                        *("P4", f"p99_to_p50_at_{rate}_{side.name}", p99[side], "ms", p99[side] / p50[side]),
                        target=None if side.is_bare else P99_RATIO_MAX,
                        at_most=True,
                    )
                    for side in p99
                ]
    if hop_times.IS_WANTED:
        with tempfile.TemporaryDirectory() as directory:
            figures += await hop_times.measure_hops(Path(directory), RATES)
    return figures


async def _latencies(client: Client, side: Side, address: str, rate: int) -> list[float]:
    values = bare_values(address) if side.is_bare else watched_values(side.name, address)
    return await round_of(client, side.name, rate, values)


def _percentile(rounds: list[list[float]], per_100: int) -> float:
    """Median over rounds, each ascending, of one percentile, in ms."""
    return statistics.median(seen[len(seen) * per_100 // 100] for seen in rounds)
