"""Many subscribers of one topic, a tenth of them standing still: the others get all of it, memory stays bounded, and whoever
stood still has missed nothing when he reads on. EDDYLINE_TEST_SUBSCRIBERS = how many (default 500)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
import pytest

from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import delivery_pb2_grpc, log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.support.cluster.process_figures import resident_bytes
from tests.support.cluster.processes import delivery_at, free_address, store_server
from tests.support.hang import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.integration

SUBSCRIBERS: Final = int(os.environ.get("EDDYLINE_TEST_SUBSCRIBERS") or 500)
STANDING: Final = SUBSCRIBERS // 10
BATCHES, RECORDS, RECORD_BYTES = 20, 50, 1_000
CHANNELS = 5
GROWTH_BYTES_MAX: Final = (128 << 20) + SUBSCRIBERS * (64 << 10) + STANDING * (512 << 10)
"""A ring and its encodings, an open stream, and what a stream that stands still has under way."""
NARROW = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 65_536),
    ("grpc.use_local_subchannel_pool", 1),
]
OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


class Reader:
    """One stream: its seqs, and whether it may read."""

    def __init__(self, channel: grpc.aio.Channel, reads: asyncio.Event) -> None:
        topic = pb.WatchTopic(topic="log", point=pb.START_POINT_TAIL)
        self._call = delivery_pb2_grpc.DeliveryServiceStub(channel).WatchTopics(pb.WatchTopicsRequest(topics=[topic]))
        self._reads = reads
        self.level = asyncio.Event()
        self.seqs: list[int] = []

    async def run(self) -> None:
        """Read until it has all."""
        frames: AsyncIterator[pb.WatchTopicsResponse] = aiter(self._call)
        async for frame in frames:
            if frame.HasField("caught_up"):
                self.level.set()
                await self._reads.wait()
            self.seqs += [record.seq for record in frame.rows.records]
            if len(self.seqs) >= BATCHES * RECORDS:
                break
        self._call.cancel()


async def test_who_stands_still_costs_the_others_nothing_and_misses_nothing(tmp_path: Path) -> None:
    address = free_address()
    async with store_server(tmp_path / "store") as store, delivery_at(address, store) as delivery:
        go, later = asyncio.Event(), asyncio.Event()
        go.set()
        wide = [grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(CHANNELS)]
        narrow = [grpc.aio.insecure_channel(address, options=NARROW) for _ in range(STANDING)]
        async with grpc.aio.insecure_channel(store) as channel, asyncio.TaskGroup() as tasks:
            await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(
                topic_pb2.CreateTopicRequest(topic=topic_pb2.Topic(name="log", kind=topic_pb2.TOPIC_KIND_LOG))
            )
            before = resident_bytes(delivery.pid)
            moving = [Reader(wide[number % CHANNELS], go) for number in range(SUBSCRIBERS - STANDING)]
            standing = [Reader(one, later) for one in narrow]
            reading = [tasks.create_task(reader.run()) for reader in moving]
            late = [tasks.create_task(reader.run()) for reader in standing]
            for reader in (*moving, *standing):
                await reader.level.wait()
            record = types_pb2.Record(data=bytes(RECORD_BYTES))
            request = log_pb2.AppendRecordsRequest(topic="log", rows=types_pb2.RecordBatch(records=[record] * RECORDS))
            most = 0
            for _ in range(BATCHES):
                await log_pb2_grpc.LogServiceStub(channel).AppendRecords(request)
                most = max(most, resident_bytes(delivery.pid))
            async with asyncio.timeout(120):
                await asyncio.wait(reading)
            assert all(len(reader.seqs) < BATCHES * RECORDS for reader in standing), "they stood still meanwhile"
            most = max(most, resident_bytes(delivery.pid))
            later.set()
            async with asyncio.timeout(HANG_S):
                await asyncio.wait(late)
        everything = list(range(1, BATCHES * RECORDS + 1))
        assert all(reader.seqs == everything for reader in (*moving, *standing))
        assert most - before < GROWTH_BYTES_MAX
        for one in (*wide, *narrow):
            await one.close()
