"""P12: what a store's size costs: appends with more topics and with more bytes, memory and start with many topics.

Appends of 100 records of 100 bytes (FSYNC) by 8 callers to topics in turn, in one store as it grows: with 1, 10, 1 000 and
`EDDYLINE_BENCH_TOPICS` (20 000; the row is meant with 100 000) topics, each a ratio to the first; then with
`EDDYLINE_BENCH_MIB` (512) more of log. Memory an idle topic is what the process grows by when it has started anew, less what
one topic takes. `topics_start` is the time until such a store serves, `topics_list` all of them by ListTopics.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np

from eddyline.v1 import log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.bench.harness import Figure
from tests.bench.rows.p1_append import OPTIONS, RECORD_BYTES
from tests.bench.rows.p1_append import columns as large_columns
from tests.support.cluster.process_figures import processor_s, resident_bytes
from tests.support.cluster.processes import free_address, process, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPICS = int(os.environ.get("EDDYLINE_BENCH_TOPICS", "20000"))
MIB = int(os.environ.get("EDDYLINE_BENCH_MIB", "512"))
STEPS = (1, 10, 1_000, TOPICS)
RECORDS = 100
CALLERS = 8
CREATORS = 128
CALLS = 1_500
ROUNDS = 3
FLAT_MAX = 1.5
TOPIC_BYTES_MAX = 2_048
PAGE = 1_000


def columns() -> types_pb2.ColumnarBatch:
    """One batch."""
    offsets = np.arange(0, (RECORDS + 1) * RECORD_BYTES, RECORD_BYTES, dtype="<u4").tobytes()
    data = types_pb2.BinaryColumn(offsets=offsets, values=os.urandom(RECORDS * RECORD_BYTES))
    return types_pb2.ColumnarBatch(count=RECORDS, data=data)


def name_of(number: int) -> str:
    """A topic's name, of usual length."""
    return f"site.{number % 97:02d}.device.{number:07d}"


async def create(channel: grpc.aio.Channel, numbers: range) -> None:
    """Make topics, many at once."""
    stub, left = topic_pb2_grpc.TopicServiceStub(channel), iter(numbers)
    config = topic_pb2.TopicConfig(durability=topic_pb2.DURABILITY_FSYNC)

    async def creator() -> None:
        for number in left:
            topic = topic_pb2.Topic(name=name_of(number), kind=topic_pb2.TOPIC_KIND_LOG, config=config)
            await stub.CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))

    async with asyncio.TaskGroup() as creators:
        for _ in range(CREATORS):
            creators.create_task(creator())


async def append_us(channel: grpc.aio.Channel, topics: int) -> float:
    """Microseconds an append, over `CALLERS`: the median round."""
    stub, batch = log_pb2_grpc.LogServiceStub(channel), columns()

    async def caller(numbers: Iterator[int]) -> None:
        for number in numbers:
            await stub.AppendRecords(log_pb2.AppendRecordsRequest(topic=name_of(number), columns=batch))

    seen = []
    for _ in range(ROUNDS + 1):
        # a prime step: neighbours in time are no neighbours by name or id
        numbers = iter([call * 7919 % topics for call in range(CALLS)])
        started = time.perf_counter()
        async with asyncio.TaskGroup() as callers:
            for _ in range(CALLERS):
                callers.create_task(caller(numbers))
        seen.append((time.perf_counter() - started) / CALLS * 1e6)
    return sorted(seen[1:])[ROUNDS // 2]


async def fill(channel: grpc.aio.Channel) -> None:
    """More log, in one topic."""
    stub = log_pb2_grpc.LogServiceStub(channel)
    request = log_pb2.AppendRecordsRequest(topic=name_of(0), columns=large_columns())
    for _ in range((MIB << 20) // request.ByteSize()):
        await stub.AppendRecords(request)


async def list_s(channel: grpc.aio.Channel) -> float:
    """Seconds to list all."""
    stub, token, count = topic_pb2_grpc.TopicServiceStub(channel), "", 0
    started = time.perf_counter()
    while True:
        page = await stub.ListTopics(topic_pb2.ListTopicsRequest(page_size=PAGE, page_token=token))
        count += len(page.topics)
        token = page.next_page_token
        if not token:
            assert count == TOPICS
            return time.perf_counter() - started


async def measure() -> list[Figure]:
    """The row's figures."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        data_dir = Path(name) / "store"
        settings = {"EDDYLINE_STORE_DATA_DIR": str(data_dir)}
        address, made, first_us = free_address(), 0, 0.0
        async with (
            process("eddyline.store", EDDYLINE_STORE_LISTEN=address, **settings) as store,
            grpc.aio.insecure_channel(address, options=OPTIONS) as channel,
        ):
            await serving(address)
            idle_bytes = resident_bytes(store.pid)
            for topics in STEPS:
                await create(channel, range(made, topics))
                made = topics
                cost_us = await append_us(channel, topics)
                first_us = first_us or cost_us
                ratio = cost_us / first_us
                figures.append(Figure("P12", f"append_{topics}_topics", cost_us, "us", ratio, FLAT_MAX, at_most=True))
            await fill(channel)
            cost_us = await append_us(channel, TOPICS)
            ratio = cost_us / first_us
            figures.append(Figure("P12", f"append_{MIB}_mib", cost_us, "us", ratio, FLAT_MAX, at_most=True))
        address, started = free_address(), time.perf_counter()
        async with (
            process("eddyline.store", EDDYLINE_STORE_LISTEN=address, **settings) as store,
            grpc.aio.insecure_channel(address, options=OPTIONS) as channel,
        ):
            await serving(address)
            start_s = time.perf_counter() - started
            used_s = processor_s(store.pid)
            await asyncio.sleep(5)
            idle_share = (processor_s(store.pid) - used_s) / 5
            topic_bytes = (resident_bytes(store.pid) - idle_bytes) / TOPICS
            listed_s = await list_s(channel)
    ratio = topic_bytes / TOPIC_BYTES_MAX
    return [
        *figures,
        Figure("P12", "topic_memory", topic_bytes, "bytes", ratio, 1, at_most=True),
        Figure("P12", "topics_start", start_s, "s"),
        Figure("P12", "topics_idle", idle_share, "cores"),
        Figure("P12", "topics_list", listed_s, "s"),
    ]
