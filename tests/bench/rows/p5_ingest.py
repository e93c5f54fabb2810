"""P5: ingest of a bucket from nothing to caught up, against nats-py alone that gets the same messages by callback.

A bucket of `KEYS` keys (EDDYLINE_BENCH_KEYS) is filled once. A round of ours is a topic and a source made anew, from its
creation to its last revision being applied in the store (DISK class): four processes on these cores with the server. A round
of the baseline is an ordered push consumer of nats-py's with a callback that counts, in a process of its own
(`bare_receive`). Printed beside them: the most that ingest held of the machine's memory.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import nats
from nats.js.api import KeyValueConfig

from eddyline.core.store_link.grpc import GrpcLink
from eddyline.core.transport.channel import open_channel
from eddyline.v1 import apply_pb2, source_pb2, source_pb2_grpc
from tests.bench.harness import Figure, alternate, until_idle
from tests.support.cluster.process_figures import peak_bytes
from tests.support.cluster.processes import ingest_process, nats_server, process, store_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

BUCKET = "bench"
KEYS = int(os.environ.get("EDDYLINE_BENCH_KEYS") or 200_000)
VALUE = b"x" * 100
ROUNDS = 3
FLUSH = 1_000
POLL_S = 0.02
ROUND_S_MAX = 600
RATIO_MIN = 0.6


@dataclass
class Bench:
    """The fixtures of the rounds."""

    url: str
    link: GrpcLink
    channel: grpc.aio.Channel
    sources: source_pb2_grpc.SourceServiceStub
    ingest_pid: int
    rounds: int = 0

    async def ours(self) -> float:
        """Records a second from the source's creation on."""
        self.rounds += 1
        name = f"round-{self.rounds}"
        definition = apply_pb2.SourceDefinition(name=name, topic=name, bucket=BUCKET)
        started = time.perf_counter()
        await self.sources.CreateSource(source_pb2.CreateSourceRequest(definition=definition))
        async with asyncio.timeout(ROUND_S_MAX):
            while True:
                if (await self.link.get_topic(name)).head_seq >= KEYS:
                    break
                await asyncio.sleep(POLL_S)
        seconds = time.perf_counter() - started
        await self.sources.DeleteSource(source_pb2.DeleteSourceRequest(source=name))
        return KEYS / seconds

    async def bare(self) -> float:
        """Messages a second by nats-py alone."""
        async with process("tests.bench.baselines.bare_receive", self.url, BUCKET, str(KEYS)) as started:
            assert started.stdout is not None
            async with asyncio.timeout(ROUND_S_MAX):
                return float(await started.stdout.readline())

    async def prepare(self) -> None:
        """The store's own work after a round is no part of the next."""
        await until_idle(self.channel)


async def fill(url: str) -> None:
    """Put every key once."""
    client = await nats.connect(url)
    try:
        js = client.jetstream()
        await js.create_key_value(KeyValueConfig(bucket=BUCKET, history=1))
        for number in range(KEYS):
            await client.publish(f"$KV.{BUCKET}.key-{number:08}", VALUE)
            if number % FLUSH == 0:
                await client.flush()
        while True:
            if (await js.stream_info(f"KV_{BUCKET}")).state.last_seq >= KEYS:
                break
            await asyncio.sleep(POLL_S)
    finally:
        await client.close()


@asynccontextmanager
async def bench(directory: Path) -> AsyncIterator[Bench]:
    """NATS with the filled bucket, a store and an ingest."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(nats_server(directory))
        await fill(url)
        store = await stack.enter_async_context(store_server(directory / "store"))
        ingest, address = await stack.enter_async_context(ingest_process(store, url, directory, "other"))
        channel = await stack.enter_async_context(open_channel(store))
        sources = source_pb2_grpc.SourceServiceStub(await stack.enter_async_context(open_channel(address)))
        yield Bench(url, GrpcLink(channel), channel, sources, ingest.pid)


async def measure() -> list[Figure]:
    """The row's figures."""
    with tempfile.TemporaryDirectory() as directory:
        async with bench(Path(directory)) as made:
            ours, bare = await alternate(made.ours, made.bare, rounds=ROUNDS, prepare=made.prepare)
            peak = peak_bytes(made.ingest_pid)
    return [
        Figure("P5", f"ingest_{KEYS}_keys", ours, "records/s", ours / bare, RATIO_MIN),
        Figure("P5", "nats_py_callback", bare, "records/s"),
        Figure("P5", "ingest_peak_memory", peak / (1 << 20), "MiB"),
    ]
