"""P24's loads as a process: the Python client with `Record`s, and raw stubs that send ready columns and look at no record.

`python -m tests.bench.small.client_loads STORE DELIVERY`, by the Python of any checkout whose client is measured. Each line
of input names a method of `Loads`; the answer is a line of JSON: records a second, seconds of this process's processor time
a million records, and of lone appends the median time in us.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from array import array
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import uvloop

from eddyline.client import Record, Records, connect
from eddyline.client.sync import connect as connect_blocking
from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, log_pb2, log_pb2_grpc, types_pb2
from tests.bench.harness import scaled
from tests.bench.rows.p1_append import IN_FLIGHT, OPTIONS, RECORD_BYTES, RECORDS, TOPIC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from eddyline.client import Client

BATCHES = scaled(200, multiple_of=IN_FLIGHT)
"""Of a round: 0.2 M records."""
LONE_APPENDS = scaled(300)


@dataclass(frozen=True, slots=True)
class Loads:
    """The client and raw stubs of one cluster, with the same records for both."""

    address: str
    client: Client
    store: grpc.aio.Channel
    delivery: grpc.aio.Channel
    records: list[Record]

    async def append(self) -> int:
        """Append a round by 8 callers of `append`."""

        async def call() -> None:
            for _ in range(BATCHES // IN_FLIGHT):
                await self.client.append(TOPIC, self.records)

        return await in_parallel(call)

    async def append_raw(self) -> int:
        """The same by AppendRecords."""
        stub = log_pb2_grpc.LogServiceStub(self.store)
        request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=columns_of(self.records))

        async def call() -> None:
            for _ in range(BATCHES // IN_FLIGHT):
                await stub.AppendRecords(request)

        return await in_parallel(call)

    async def append_stream(self) -> int:
        """Append a round by one `append_stream`, 8 in flight."""
        async with self.client.append_stream(TOPIC) as stream:
            waiting = deque([await stream.append(self.records) for _ in range(IN_FLIGHT)])
            for _ in range(BATCHES - IN_FLIGHT):
                await waiting.popleft()
                waiting.append(await stream.append(self.records))
        return BATCHES * RECORDS

    async def append_stream_raw(self) -> int:
        """The same by AppendStream."""
        step = log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch(columns=columns_of(self.records)))
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def steps() -> AsyncIterator[log_pb2.AppendStreamRequest]:
            yield log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic=TOPIC))
            for _ in range(BATCHES):
                await slots.acquire()
                yield step

        async for _ in log_pb2_grpc.LogServiceStub(self.store).AppendStream(steps()):
            slots.release()
        return BATCHES * RECORDS

    async def watch(self) -> int:
        """Watch the topic's first round of records, touching each."""
        left = BATCHES * RECORDS
        async with self.client.watch(TOPIC, start="earliest") as watch:
            async for event in watch:
                if isinstance(event, Records):
                    left -= touch(event.records)
                if left <= 0:
                    break
        return BATCHES * RECORDS

    async def watch_raw(self) -> int:
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
        return BATCHES * RECORDS

    async def blocking_append_stream(self) -> int:
        """`append_stream` by the blocking client."""

        def run() -> None:
            with connect_blocking(self.address) as client, client.append_stream(TOPIC) as stream:
                waiting = deque([stream.append(self.records) for _ in range(IN_FLIGHT)])
                for _ in range(BATCHES - IN_FLIGHT):
                    waiting.popleft().wait()
                    waiting.append(stream.append(self.records))

        await asyncio.to_thread(run)
        return BATCHES * RECORDS

    async def blocking_watch(self) -> int:
        """`watch` by the blocking client."""

        def run() -> None:
            left = BATCHES * RECORDS
            with connect_blocking(self.address) as client, client.watch(TOPIC, start="earliest") as watch:
                for event in watch:
                    if isinstance(event, Records):
                        left -= touch(event.records)
                    if left <= 0:
                        return

        await asyncio.to_thread(run)
        return BATCHES * RECORDS

    async def lone_append(self) -> list[float]:
        """`append` of one record after the other; the times in us."""
        one = self.records[:1]
        return await latencies(lambda: self.client.append(TOPIC, one))

    async def lone_append_raw(self) -> list[float]:
        """The same by AppendRecords."""
        stub = log_pb2_grpc.LogServiceStub(self.store)
        request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=columns_of(self.records[:1]))
        return await latencies(lambda: stub.AppendRecords(request))


def columns_of(records: list[Record]) -> types_pb2.ColumnarBatch:
    """The records as columns: keys and data."""

    def column(cells: list[bytes]) -> types_pb2.BinaryColumn:
        offsets = array("I", [0])
        for cell in cells:
            offsets.append(offsets[-1] + len(cell))
        return types_pb2.BinaryColumn(offsets=offsets.tobytes(), values=b"".join(cells))

    keys, data = [record.key or b"" for record in records], [record.data or b"" for record in records]
    return types_pb2.ColumnarBatch(count=len(records), key=column(keys), data=column(data))


def touch(records: Iterable[Record]) -> int:
    """Look at each row; return their number."""
    return sum(1 for record in records if record.data is not None)


async def in_parallel(call: Callable[[], Awaitable[None]]) -> int:
    """Run 8 callers; the number of records."""

    async def run() -> None:
        await call()

    async with asyncio.TaskGroup() as callers:
        for _ in range(IN_FLIGHT):
            callers.create_task(run())
    return BATCHES * RECORDS


async def latencies(append: Callable[[], Awaitable[object]]) -> list[float]:
    """Time one append after the other, in us."""
    seen = []
    for _ in range(LONE_APPENDS):
        started = time.perf_counter_ns()
        await append()
        seen.append((time.perf_counter_ns() - started) / 1e3)
    return seen


async def timed(work: Callable[[], Awaitable[int | list[float]]]) -> dict[str, float]:
    """Measure one round."""
    started, used = time.perf_counter(), time.process_time()
    done = await work()
    count, p50_us = (done, 0.0) if isinstance(done, int) else (len(done), statistics.median(done))
    passed, spent = time.perf_counter() - started, time.process_time() - used
    return {"rate": count / passed, "processor_s": spent * 1e6 / count, "p50_us": p50_us}


async def main(store: str, delivery: str) -> None:
    """Run the loads that the input names, until it ends."""
    records = [Record(key=b"sensor.%04d" % number, data=os.urandom(RECORD_BYTES)) for number in range(RECORDS)]
    async with (
        grpc.aio.insecure_channel(store, options=OPTIONS) as store_channel,
        grpc.aio.insecure_channel(delivery, options=OPTIONS) as delivery_channel,
        connect(store) as client,
    ):
        loads = Loads(store, client, store_channel, delivery_channel, records)
        while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
            print(json.dumps(await timed(getattr(loads, name))), flush=True)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
