"""A store flooded by many clients with the largest messages, and by slow readers, stays within its memory."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.core.transport.status import unwrap
from eddyline.store.limits.memory_guard import PROCESS_BYTES
from eddyline.v1 import log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.support.cluster.process_figures import peak_bytes
from tests.support.cluster.processes import free_address, process, serving
from tests.support.hang import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

pytestmark = pytest.mark.integration

MEMORY_BYTES = 256 << 20
ARRIVING_BYTES = 1 << 30
"""Memory above the bound before the store reacts: gRPC's threads continue to receive from all clients while the event loop
parses a message of 64 MiB."""
CALLERS, STREAMS, READERS = 8, 4, 6
ROUNDS = 2
RECORDS = 62
OPTIONS = [
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
]
REFUSALS = {"MEMORY_FULL", "THROTTLED", "APPLY_LAG"}


async def test_a_flood_of_large_appends_and_slow_readers_is_refused_or_waits(tmp_path: Path) -> None:
    address = free_address()
    settings = {"LISTEN": address, "DATA_DIR": str(tmp_path / "store"), "MEMORY_BYTES": str(MEMORY_BYTES)}
    environment = {f"EDDYLINE_STORE_{name}": value for name, value in settings.items()}
    async with process("eddyline.store", **environment) as store, grpc.aio.insecure_channel(address) as channel:
        await serving(address)
        topic = topic_pb2.Topic(name="log", kind=topic_pb2.TOPIC_KIND_LOG)
        await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        data = os.urandom((1 << 20) - 1_000)
        rows = types_pb2.RecordBatch(records=[types_pb2.Record(data=data)] * RECORDS)
        seen, over = Counter[str](), asyncio.Event()
        async with asyncio.TaskGroup() as readers:
            for _ in range(READERS):
                readers.create_task(read_slowly(address, over))
            async with asyncio.TaskGroup() as writers:
                for _ in range(CALLERS):
                    writers.create_task(call(address, rows, seen))
                for _ in range(STREAMS):
                    writers.create_task(stream(address, rows, seen))
            over.set()
        assert store.returncode is None
        assert seen["OK"] > 0
        assert not seen.keys() - REFUSALS - {"OK", "CUT"}
        assert peak_bytes(store.pid) <= MEMORY_BYTES + PROCESS_BYTES + ARRIVING_BYTES
        small = log_pb2.AppendRecordsRequest(
            topic="log", rows=types_pb2.RecordBatch(records=[types_pb2.Record(data=b"x")])
        )
        async with asyncio.timeout(HANG_S):
            while await outcome(log_pb2_grpc.LogServiceStub(channel).AppendRecords(small)) != "OK":
                pass


async def call(address: str, rows: types_pb2.RecordBatch, seen: Counter[str]) -> None:
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        request = log_pb2.AppendRecordsRequest(topic="log", rows=rows)
        for _ in range(ROUNDS):
            seen[await outcome(log_pb2_grpc.LogServiceStub(channel).AppendRecords(request))] += 1


async def stream(address: str, rows: types_pb2.RecordBatch, seen: Counter[str]) -> None:
    async def steps() -> AsyncIterator[log_pb2.AppendStreamRequest]:
        yield log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic="log"))
        for _ in range(ROUNDS):
            yield log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch(rows=rows))

    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        try:
            async for _ in log_pb2_grpc.LogServiceStub(channel).AppendStream(steps()):
                seen["OK"] += 1
        except grpc.aio.AioRpcError as error:
            # A client that is cut off while it sends a message may learn nothing else.
            seen["CUT" if error.code() is grpc.StatusCode.INTERNAL else unwrap(error).reason] += 1


async def read_slowly(address: str, over: asyncio.Event) -> None:
    """Take one frame, and no more."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        frames = log_pb2_grpc.LogServiceStub(channel).StreamRecords(
            log_pb2.StreamRecordsRequest(topic="log", follow=True)
        )
        async for _ in frames:
            await over.wait()
            break
        frames.cancel()


async def outcome(answer: Awaitable[object]) -> str:
    try:
        await answer
    except grpc.aio.AioRpcError as error:
        return unwrap(error).reason
    return "OK"
