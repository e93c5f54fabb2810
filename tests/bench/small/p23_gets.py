"""P23: reads of the fold over gRPC: GetEntry, and BatchGetEntries of 100 keys as rows and as columns, by 1 and 16 clients.

What counts is the store's processor time a call, since the clients share its cores; from it the keys a second of one core.
The baseline `bare_get` answers as many bytes by a bare handler. A client has a connection of its own and one call at a time.
Sides: `tests.bench.sides`.
"""

from __future__ import annotations

import asyncio
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
from tests.bench.harness import ROUNDS, Figure, in_turn, until_idle
from tests.bench.sides import bare_processes, our_sides, side_figures
from tests.support.cluster.process_figures import fine_processor_s
from tests.support.cluster.processes import store_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.bench.sides import Side

TOPIC = "bench"
KEYS = 100_000
APPEND_KEYS = 5_000
DATA_BYTES = 100
BATCH_KEYS = 100
CLIENTS = (1, 16)
TURNS = 4 * ROUNDS + 1
"""Short rounds in turn, so that what else runs on the machine meets all servers alike."""
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


async def _server(stack: AsyncExitStack, pid: int, address: str) -> Server:
    channels = [
        await stack.enter_async_context(grpc.aio.insecure_channel(address, options=LOCAL_POOL))
        for _ in range(max(CLIENTS))
    ]
    return Server(pid, channels)


async def _fill(channel: grpc.aio.Channel) -> None:
    topic = topic_pb2.Topic(name=TOPIC, kind=topic_pb2.TOPIC_KIND_KV)
    await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
    log, rng = log_pb2_grpc.LogServiceStub(channel), random.Random(23)
    for first in range(0, KEYS, APPEND_KEYS):
        keys = [b"user/%012d/state" % number for number in range(first, first + APPEND_KEYS)]
        rows = [types_pb2.Record(key=key, data=rng.randbytes(DATA_BYTES)) for key in keys]
        await log.AppendRecords(log_pb2.AppendRecordsRequest(topic=TOPIC, rows=types_pb2.RecordBatch(records=rows)))
    await until_idle(channel)


async def _servers(stack: AsyncExitStack, folder: Path) -> dict[Side, Server]:
    """The stores, filled alike, and the baselines."""
    servers: dict[Side, Server] = {}
    for side in our_sides():
        started, address = await stack.enter_async_context(
            store_process(folder / side.name, python=side.python, **side.settings)
        )
        servers[side] = await _server(stack, started.pid, address)
        await _fill(servers[side].channels[0])
    for side, bare in (await stack.enter_async_context(bare_processes("tests.bench.baselines.bare_get"))).items():
        servers[side] = await _server(stack, bare.pid, bare.address)
    return servers


async def measure() -> list[Figure]:
    """The row's figures: medians over the rounds, which are taken in turn."""
    figures: list[Figure] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = await _servers(stack, folder)
        for call in CALLED:
            for clients in CLIENTS:
                figures += await _figures(servers, call, clients)
    return figures


async def _figures(servers: dict[Side, Server], call: Call, clients: int) -> list[Figure]:
    rng, calls = random.Random(clients), CALLS if call.key_count == 1 else CALLS // 4
    method = f"/eddyline.v1.FoldService/{call.method}"
    sample: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    sample = next(iter(servers.values())).channels[0].unary_unary(method)
    size = len(await sample(call.request(rng))).to_bytes(4, "little")

    def work_of(side: Side) -> Callable[[], Awaitable[float]]:
        async def work() -> float:
            requests = [call.request(rng) for _ in range(calls)]
            if side.is_bare:
                return await servers[side].spent_us(GET, [size + request[4:] for request in requests], clients)
            return await servers[side].spent_us(method, requests, clients)

        return work

    seen = await in_turn({side: work_of(side) for side in servers}, rounds=TURNS)
    spent_us = {side: statistics.median(rounds) for side, rounds in seen.items()}
    name = f"{call.name}_{clients}"
    target = BARE_RATIO_MAX if call.key_count == 1 else None
    figures = side_figures("P23", name, "us/call", spent_us, target=target, at_most=True)
    if call.key_count > 1:
        rates = {side: call.key_count / us * 1e6 for side, us in spent_us.items() if not side.is_bare}
        figures += [
            Figure(
                *("P23", f"{name}_core_{side.name}", rate, "keys/s", rate / KEYS_PER_CORE_MIN),
                target=None if side.is_before else 1.0,
            )
            for side, rate in rates.items()
        ]
    return figures
