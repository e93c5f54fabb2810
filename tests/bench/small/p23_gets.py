"""P23: reads of the fold over gRPC: GetEntry, and BatchGetEntries of 100 keys as rows and as columns, by 1 and 16 clients.

What counts is the store's processor time a call, since the clients share its cores; from it the keys a second of one core.
The baseline `bare_get` answers as many bytes by a bare handler. A client has a connection of its own and one call at a time.
`EDDYLINE_BENCH_BEFORE`, the Python of another checkout, adds a store of that one, measured in turn.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import grpc

from eddyline.v1 import fold_pb2, log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.bench.baselines.bare_get import GET
from tests.bench.harness import Figure, until_idle
from tests.support.cluster.process_figures import fine_processor_s
from tests.support.cluster.processes import free_address, process, serving, store_process

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC = "bench"
KEYS = 100_000
APPEND_KEYS = 5_000
DATA_BYTES = 100
BATCH_KEYS = 100
CLIENTS = (1, 16)
ROUNDS = 21
"""Short ones in turn, so that what else runs on the machine meets all servers alike."""
CALLS = 192
"""Of all clients in a round; a quarter of it for calls of many keys."""
BARE_RATIO_MAX = 1.3
KEYS_PER_CORE_MIN = 100_000
LOCAL_POOL = [("grpc.use_local_subchannel_pool", 1)]


class Call(NamedTuple):
    """A kind of call: its method, and a request of random keys."""

    name: str
    method: str
    key_count: int
    request: Callable[[random.Random], bytes]


def _key(rng: random.Random) -> bytes:
    return b"user/%012d/state" % rng.randrange(KEYS)


def _get(rng: random.Random) -> bytes:
    return fold_pb2.GetEntryRequest(topic=TOPIC, key=_key(rng)).SerializeToString()


def _batch(batch_format: types_pb2.BatchFormat.ValueType) -> Callable[[random.Random], bytes]:
    def request(rng: random.Random) -> bytes:
        keys = [_key(rng) for _ in range(BATCH_KEYS)]
        return fold_pb2.BatchGetEntriesRequest(topic=TOPIC, keys=keys, format=batch_format).SerializeToString()

    return request


CALLED = (
    Call("get", "GetEntry", 1, _get),
    Call("rows", "BatchGetEntries", BATCH_KEYS, _batch(types_pb2.BATCH_FORMAT_ROWS)),
    Call("columns", "BatchGetEntries", BATCH_KEYS, _batch(types_pb2.BATCH_FORMAT_COLUMNS)),
)


@dataclass(frozen=True, slots=True)
class Server:
    """A process and the connections of all clients to it."""

    name: str
    pid: int
    channels: list[grpc.aio.Channel]

    async def spent_us(self, method: str, requests: list[bytes], clients: int) -> float:
        """Processor time of the process a call, of one round."""
        share = len(requests) // clients

        async def client(number: int) -> None:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channels[number].unary_unary(method)
            for request in requests[number * share : (number + 1) * share]:
                await call(request)

        before_s = fine_processor_s(self.pid)
        async with asyncio.TaskGroup() as tasks:
            for number in range(clients):
                tasks.create_task(client(number))
        return (fine_processor_s(self.pid) - before_s) / (share * clients) * 1e6


async def _server(stack: AsyncExitStack, name: str, pid: int, address: str) -> Server:
    channels = [
        await stack.enter_async_context(grpc.aio.insecure_channel(address, options=LOCAL_POOL))
        for _ in range(max(CLIENTS))
    ]
    return Server(name, pid, channels)


async def _fill(channel: grpc.aio.Channel) -> None:
    topic = topic_pb2.Topic(name=TOPIC, kind=topic_pb2.TOPIC_KIND_KV)
    await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
    log, rng = log_pb2_grpc.LogServiceStub(channel), random.Random(23)
    for first in range(0, KEYS, APPEND_KEYS):
        keys = [b"user/%012d/state" % number for number in range(first, first + APPEND_KEYS)]
        rows = [types_pb2.Record(key=key, data=rng.randbytes(DATA_BYTES)) for key in keys]
        await log.AppendRecords(log_pb2.AppendRecordsRequest(topic=TOPIC, rows=types_pb2.RecordBatch(records=rows)))
    await until_idle(channel)


async def _stores(stack: AsyncExitStack, folder: Path) -> list[Server]:
    """The store, and the one of before if a checkout is named, filled alike."""
    started, address = await stack.enter_async_context(store_process(folder / "store"))
    stores = [await _server(stack, "", started.pid, address)]
    if python := os.environ.get("EDDYLINE_BENCH_BEFORE"):
        address = free_address()
        settings = {"EDDYLINE_STORE_LISTEN": address, "EDDYLINE_STORE_DATA_DIR": str(folder / "before")}
        started = await stack.enter_async_context(
            process("eddyline.store", python=python, EDDYLINE_COMMON_STORE_ADDRESSES=address, **settings)
        )
        await serving(address)
        stores.append(await _server(stack, "_before", started.pid, address))
    for store in stores:
        await _fill(store.channels[0])
    return stores


async def measure() -> list[Figure]:
    """The row's figures: medians over the rounds, which are taken in turn."""
    figures: list[Figure] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stores = await _stores(stack, folder)
        started = await stack.enter_async_context(process("tests.bench.baselines.bare_get"))
        assert started.stdout is not None
        port = int(await started.stdout.readline())
        bare = await _server(stack, "_bare", started.pid, f"127.0.0.1:{port}")
        for call in CALLED:
            for clients in CLIENTS:
                figures += await _figures(stores, bare, call, clients)
    return figures


async def _figures(stores: list[Server], bare: Server, call: Call, clients: int) -> list[Figure]:
    rng, calls = random.Random(clients), CALLS if call.key_count == 1 else CALLS // 4
    method = f"/eddyline.v1.FoldService/{call.method}"
    sample: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = stores[0].channels[0].unary_unary(method)
    answer_bytes = len(await sample(call.request(rng)))
    seen: dict[str, list[float]] = {}
    for _ in range(ROUNDS + 1):
        requests = [call.request(rng) for _ in range(calls)]
        for store in stores:
            seen.setdefault(store.name, []).append(await store.spent_us(method, requests, clients))
        size = answer_bytes.to_bytes(4, "little")
        bare_requests = [size + request[4:] for request in requests]
        seen.setdefault(bare.name, []).append(await bare.spent_us(GET, bare_requests, clients))
    median = {name: statistics.median(rounds[1:]) for name, rounds in seen.items()}
    bare_us = median[bare.name]
    figures = []
    for name, spent_us in median.items():
        figure_name = f"{call.name}_{clients}{name}"
        target = BARE_RATIO_MAX if not name and call.key_count == 1 else None
        ratio = None if name == bare.name else spent_us / bare_us
        figures.append(Figure("P23", figure_name, spent_us, "us/call", ratio, target, at_most=True))
        if call.key_count > 1 and name != bare.name:
            rate = call.key_count / spent_us * 1e6
            target = None if name else 1.0
            figures.append(Figure("P23", f"{figure_name}_core", rate, "keys/s", rate / KEYS_PER_CORE_MIN, target))
    return figures
