"""P1: durable append (FSYNC, LOG topic, null keys), 1 000 records of 100 bytes a batch, over gRPC.

AppendStream with 8 in flight, and AppendRecords from 8 callers, on each wire against the same messages at a bare handler
that group-commits them (`bare_append`). Sides: `tests.bench.sides`. Beside it, for the eye: writev and fdatasync alone, and
JetStream's asynchronous publish of single messages of the same size with this language's client, which is what a producer
would do without us.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import nats
import numpy as np
from nats.js.api import StorageType, StreamConfig

from eddyline.v1 import log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.bench.harness import ROUNDS, Figure, in_turn, scaled, until_idle
from tests.bench.sides import NOT_WORSE_MIN, bare_processes, our_sides, side_figures
from tests.support.cluster.processes import nats_server, store_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from tests.bench.sides import Side

TOPIC = "bench"
RECORDS = 1_000
RECORD_BYTES = 100
IN_FLIGHT = 8
BATCHES = scaled(1_504, multiple_of=IN_FLIGHT)
TARGET = 0.7
BURST_ROUNDS = -(-12_000 // BATCHES)
"""Rounds, 1.2 GB together, after which a store no longer puts its own work off: from there on it seals as fast as it
appends."""
JETSTREAM_MESSAGES = scaled(40_000)
JETSTREAM_PENDING = 4_096
JETSTREAM_STALL_S = 5.0
OPTIONS = [("grpc.max_send_message_length", 64 << 20), ("grpc.max_receive_message_length", 64 << 20)]


async def create_topic(channel: grpc.aio.Channel) -> None:
    """A LOG topic of class FSYNC, named `TOPIC`."""
    config = topic_pb2.TopicConfig(durability=topic_pb2.DURABILITY_FSYNC)
    topic = topic_pb2.Topic(name=TOPIC, kind=topic_pb2.TOPIC_KIND_LOG, config=config)
    await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))


def columns() -> types_pb2.ColumnarBatch:
    """One batch: a data column, nothing else."""
    offsets = np.arange(0, (RECORDS + 1) * RECORD_BYTES, RECORD_BYTES, dtype="<u4").tobytes()
    values = os.urandom(RECORDS * RECORD_BYTES)
    return types_pb2.ColumnarBatch(count=RECORDS, data=types_pb2.BinaryColumn(offsets=offsets, values=values))


async def stream_round(stub: log_pb2_grpc.LogServiceStub, topic: str, append: log_pb2.AppendBatch) -> float:
    """Records a second over one AppendStream with 8 in flight."""
    step = log_pb2.AppendStreamRequest(append=append)
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def steps() -> AsyncIterator[log_pb2.AppendStreamRequest]:
        yield log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic=topic))
        for _ in range(BATCHES):
            await slots.acquire()
            yield step

    started = time.perf_counter()
    answered = 0
    async for _ in stub.AppendStream(steps()):
        slots.release()
        answered += 1
    assert answered == BATCHES
    return BATCHES * RECORDS / (time.perf_counter() - started)


async def unary_round(stub: log_pb2_grpc.LogServiceStub, request: log_pb2.AppendRecordsRequest) -> float:
    """Records a second from 8 callers of AppendRecords."""

    async def call() -> None:
        for _ in range(BATCHES // IN_FLIGHT):
            await stub.AppendRecords(request)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as callers:
        for _ in range(IN_FLIGHT):
            callers.create_task(call())
    return BATCHES // IN_FLIGHT * IN_FLIGHT * RECORDS / (time.perf_counter() - started)


def disk_alone(directory: str) -> float:
    """Records a second where the same bytes are written, 8 batches a writev, and fdatasynced, by nobody's request."""
    data = os.urandom(RECORDS * RECORD_BYTES)
    fd = os.open(os.path.join(directory, "alone"), os.O_CREAT | os.O_WRONLY)
    started = time.perf_counter()
    for group in range(BATCHES // IN_FLIGHT):
        os.pwritev(fd, [data] * IN_FLIGHT, group * IN_FLIGHT * len(data))
        os.fdatasync(fd)
    seconds = time.perf_counter() - started
    os.close(fd)
    return BATCHES * RECORDS / seconds


async def jetstream_publish(url: str) -> float:
    """Messages a second, asynchronously published to a stream on files, default sync."""
    client = await nats.connect(url)
    jetstream = client.jetstream(publish_async_max_pending=JETSTREAM_PENDING)
    await jetstream.add_stream(StreamConfig(name="bench", subjects=["bench"], storage=StorageType.FILE))
    data = os.urandom(RECORD_BYTES)
    started = time.perf_counter()
    for _ in range(JETSTREAM_MESSAGES):
        await jetstream.publish_async("bench", data, wait_stall=JETSTREAM_STALL_S)
    await jetstream.publish_async_completed()
    seconds = time.perf_counter() - started
    await client.close()
    return JETSTREAM_MESSAGES / seconds


async def measure() -> list[Figure]:
    """The row's figures."""
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncExitStack() as stack:
            channels: dict[Side, grpc.aio.Channel] = {}
            for side in our_sides():
                folder = Path(directory, side.name)
                opened = await stack.enter_async_context(store_process(folder, python=side.python, **side.settings))
                channels[side] = await stack.enter_async_context(grpc.aio.insecure_channel(opened[1], options=OPTIONS))
                await create_topic(channels[side])
            running = await stack.enter_async_context(bare_processes("tests.bench.baselines.bare_append", directory))
            for side, bare in running.items():
                channel = grpc.aio.insecure_channel(bare.address, options=OPTIONS)
                channels[side] = await stack.enter_async_context(channel)
            figures = await _measured(channels)
        alone = disk_alone(directory)
        async with nats_server(Path(directory)) as url:
            published = await jetstream_publish(url)
    return [
        *figures,
        Figure("P1", "disk_alone", alone, "records/s"),
        Figure("P1", "jetstream_publish_async", published, "records/s"),
    ]


async def idle(stores: Iterable[grpc.aio.Channel]) -> None:
    """Wait until all stores are."""
    async with asyncio.TaskGroup() as tasks:
        for store in stores:
            tasks.create_task(until_idle(store))


async def _measured(channels: dict[Side, grpc.aio.Channel]) -> list[Figure]:
    """Both calls on all sides in turn; then rates of our stream while every record is sealed."""
    stubs = {side: log_pb2_grpc.LogServiceStub(channel) for side, channel in channels.items()}
    append = log_pb2.AppendBatch(columns=columns())
    request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=append.columns)
    calls: dict[str, Callable[[log_pb2_grpc.LogServiceStub], Awaitable[float]]] = {
        "append_stream": lambda stub: stream_round(stub, TOPIC, append),
        "append_records": lambda stub: unary_round(stub, request),
    }
    stores = [channel for side, channel in channels.items() if not side.is_bare]
    figures: list[Figure] = []
    medians: dict[str, dict[Side, float]] = {}
    for name, call in calls.items():
        seen = await in_turn({side: partial(call, stub) for side, stub in stubs.items()}, prepare=partial(idle, stores))
        medians[name] = {side: statistics.median(rates) for side, rates in seen.items()}
        figures += side_figures("P1", name, "records/s", medians[name], target=TARGET, not_worse=NOT_WORSE_MIN)
    sustained = {side: rate for side, rate in medians["append_stream"].items() if side.is_bare}
    for side, stub in stubs.items():
        if not side.is_bare:
            for _ in range(BURST_ROUNDS):
                await stream_round(stub, TOPIC, append)
            sustained[side] = statistics.median([await stream_round(stub, TOPIC, append) for _ in range(ROUNDS)])
    sealing = side_figures("P1", "append_stream_sealing", "records/s", sustained, not_worse=NOT_WORSE_MIN)
    return [*figures, *(figure for figure in sealing if "bare" not in figure.name)]
