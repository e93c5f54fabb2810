"""P24: the Python client with `Record`s, against raw stubs that send ready columns and do not look at records.

Durable appends (FSYNC, LOG topic) of 1 000 records of a key and 100 bytes: `append` from 8 callers and `append_stream`
with 8 in flight; a watch whose reader touches each row; the same stream and watch by the blocking client; and one
record at a time. Rates are those of client and roles on the same cores; `_processor` is the processor time of the
client's process alone.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import grpc

from eddyline.client import Record, Records, connect
from eddyline.client.sync import connect as connect_blocking
from eddyline.core.records.batch import Batch
from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, log_pb2, log_pb2_grpc, types_pb2
from tests.bench.harness import ROUNDS, Figure, until_idle
from tests.bench.rows.p1_append import IN_FLIGHT, OPTIONS, RECORD_BYTES, RECORDS, TOPIC, create_topic
from tests.support.cluster.processes import delivery_at, free_address, store_process
from tests.support.models.batches import batch_to_columns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from eddyline.client import Client

BATCHES = 200
"""Of a round: 0.2 M records."""
LONE_APPENDS = 300
RATE_TARGET = 400_000
LONE_RATIO_MAX = 1.3


class Round(NamedTuple):
    """Records a second, and seconds of this process's processor time a million records."""

    rate: float
    processor_s: float


@dataclass(frozen=True, slots=True)
class Sides:
    """The client and raw stubs of one cluster, with the same records for both."""

    address: str
    client: Client
    store: grpc.aio.Channel
    delivery: grpc.aio.Channel
    records: list[Record]
    columns: types_pb2.ColumnarBatch

    async def append(self) -> None:
        """Append a round by 8 callers of `append`."""

        async def call() -> None:
            for _ in range(BATCHES // IN_FLIGHT):
                await self.client.append(TOPIC, self.records)

        await in_parallel(call)

    async def append_raw(self) -> None:
        """The same by AppendRecords."""
        stub = log_pb2_grpc.LogServiceStub(self.store)
        request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=self.columns)

        async def call() -> None:
            for _ in range(BATCHES // IN_FLIGHT):
                await stub.AppendRecords(request)

        await in_parallel(call)

    async def append_stream(self) -> None:
        """Append a round by one `append_stream`, 8 in flight."""
        async with self.client.append_stream(TOPIC) as stream:
            waiting = deque([await stream.append(self.records) for _ in range(IN_FLIGHT)])
            for _ in range(BATCHES - IN_FLIGHT):
                await waiting.popleft()
                waiting.append(await stream.append(self.records))

    async def append_stream_raw(self) -> None:
        """The same by AppendStream."""
        step = log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch(columns=self.columns))
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def steps() -> AsyncIterator[log_pb2.AppendStreamRequest]:
            yield log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic=TOPIC))
            for _ in range(BATCHES):
                await slots.acquire()
                yield step

        async for _ in log_pb2_grpc.LogServiceStub(self.store).AppendStream(steps()):
            slots.release()

    async def watch(self) -> None:
        """Watch the topic's first round of records, touching each."""
        left = BATCHES * RECORDS
        async with self.client.watch(TOPIC, start="earliest") as watch:
            async for event in watch:
                if isinstance(event, Records):
                    left -= touch(event.records)
                if left <= 0:
                    return

    async def watch_raw(self) -> None:
        """The same by WatchTopics, without a look at records."""
        wanted = delivery_pb2.WatchTopic(topic=TOPIC, point=delivery_pb2.START_POINT_EARLIEST)
        request = delivery_pb2.WatchTopicsRequest(topics=[wanted], format=types_pb2.BATCH_FORMAT_COLUMNS)
        call = delivery_pb2_grpc.DeliveryServiceStub(self.delivery).WatchTopics(request)
        left = BATCHES * RECORDS
        async for frame in call:
            left -= frame.columns.count
            if left <= 0:
                break
        call.cancel()

    def append_stream_blocking(self) -> None:
        """`append_stream` by the blocking client."""
        with connect_blocking(self.address) as client, client.append_stream(TOPIC) as stream:
            waiting = deque([stream.append(self.records) for _ in range(IN_FLIGHT)])
            for _ in range(BATCHES - IN_FLIGHT):
                waiting.popleft().wait()
                waiting.append(stream.append(self.records))

    def watch_blocking(self) -> None:
        """`watch` by the blocking client."""
        left = BATCHES * RECORDS
        with connect_blocking(self.address) as client, client.watch(TOPIC, start="earliest") as watch:
            for event in watch:
                if isinstance(event, Records):
                    left -= touch(event.records)
                if left <= 0:
                    return

    async def lone_appends(self) -> list[float]:
        """Times of `append` of one record after the other, in us."""
        one = self.records[:1]
        return await latencies(lambda: self.client.append(TOPIC, one))

    async def lone_appends_raw(self) -> list[float]:
        """The same of AppendRecords."""
        stub = log_pb2_grpc.LogServiceStub(self.store)
        columns = batch_to_columns(Batch.from_rows(self.records[:1]))
        request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=columns)
        return await latencies(lambda: stub.AppendRecords(request))


def touch(records: Iterable[Record]) -> int:
    """Look at each row; return their number."""
    return sum(1 for record in records if record.data is not None)


async def in_parallel(call: Callable[[], Awaitable[None]]) -> None:
    """Run 8 callers."""

    async def run() -> None:
        await call()

    async with asyncio.TaskGroup() as callers:
        for _ in range(IN_FLIGHT):
            callers.create_task(run())


async def latencies(append: Callable[[], Awaitable[object]]) -> list[float]:
    """Time one append after the other, in us."""
    seen = []
    for _ in range(LONE_APPENDS):
        started = time.perf_counter_ns()
        await append()
        seen.append((time.perf_counter_ns() - started) / 1e3)
    return seen


async def timed(work: Callable[[], Awaitable[None]]) -> Round:
    """Measure one round of `BATCHES`."""
    count = BATCHES * RECORDS
    started, used = time.perf_counter(), time.process_time()
    await work()
    return Round(count / (time.perf_counter() - started), (time.process_time() - used) * 1e6 / count)


async def compare(
    name: str, store: grpc.aio.Channel, ours: Callable[[], Awaitable[None]], raw: Callable[[], Awaitable[None]]
) -> list[Figure]:
    """Measure both in turn, one warm-up each first."""
    seen: list[Round] = []
    seen_raw: list[Round] = []
    for _ in range(ROUNDS + 1):
        for rounds, work in ((seen, ours), (seen_raw, raw)):
            await until_idle(store)
            rounds.append(await timed(work))
    rate, processor_s = (statistics.median(each) for each in zip(*seen[1:], strict=True))
    raw_rate, raw_processor_s = (statistics.median(each) for each in zip(*seen_raw[1:], strict=True))
    return [
        Figure("P24", name, rate, "records/s", rate / RATE_TARGET, 1),
        Figure("P24", f"{name}_raw", raw_rate, "records/s", rate / raw_rate),
        Figure("P24", f"{name}_processor", processor_s, "s/M", processor_s / raw_processor_s),
    ]


async def compare_lone(sides: Sides) -> list[Figure]:
    """Median times of single appends, in turn."""
    ours, raw = [], []
    for _ in range(ROUNDS + 1):
        ours.append(statistics.median(await sides.lone_appends()))
        raw.append(statistics.median(await sides.lone_appends_raw()))
    p50, raw_p50 = statistics.median(ours[1:]), statistics.median(raw[1:])
    return [
        Figure("P24", "lone_append_p50", p50, "us", p50 / raw_p50, LONE_RATIO_MAX, at_most=True),
        Figure("P24", "lone_append_raw_p50", raw_p50, "us"),
    ]


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Sides]:
    """A store with the topic, a delivery, and both sides' channels."""
    delivery = free_address()
    deliveries = {"EDDYLINE_COMMON_DELIVERY_ADDRESSES": delivery}
    records = [Record(key=b"sensor.%04d" % number, data=os.urandom(RECORD_BYTES)) for number in range(RECORDS)]
    async with (
        store_process(directory / "store", **deliveries) as (_, store),
        delivery_at(delivery, store, **deliveries),
        grpc.aio.insecure_channel(store, options=OPTIONS) as store_channel,
        grpc.aio.insecure_channel(delivery, options=OPTIONS) as delivery_channel,
        connect(store) as client,
    ):
        await create_topic(store_channel)
        columns = batch_to_columns(Batch.from_rows(records))
        yield Sides(store, client, store_channel, delivery_channel, records, columns)


async def measure() -> list[Figure]:
    """The row's figures."""
    with tempfile.TemporaryDirectory() as directory:
        async with cluster(Path(directory)) as sides:

            async def append_stream_blocking() -> None:
                await asyncio.to_thread(sides.append_stream_blocking)

            async def watch_blocking() -> None:
                await asyncio.to_thread(sides.watch_blocking)

            store = sides.store
            return [
                *await compare(f"append_{IN_FLIGHT}_callers", store, sides.append, sides.append_raw),
                *await compare("append_stream", store, sides.append_stream, sides.append_stream_raw),
                *await compare("watch", store, sides.watch, sides.watch_raw),
                *await compare("blocking_append_stream", store, append_stream_blocking, sides.append_stream_raw),
                *await compare("blocking_watch", store, watch_blocking, sides.watch_raw),
                *await compare_lone(sides),
            ]
