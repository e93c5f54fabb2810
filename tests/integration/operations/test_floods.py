"""A store that is flooded: by a key's streams, by calls without a key, by connections that send slowly or rubbish."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import grpc
import pytest

from eddyline.core.auth.caller_channel import CallerAccess
from eddyline.core.transport.status import unwrap
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc, log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.support.access import Keys, calling, is_lost
from tests.support.cluster.process_figures import resident_bytes
from tests.support.cluster.processes import store_process
from tests.support.hang import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    AppendCall: TypeAlias = grpc.aio.StreamStreamCall[log_pb2.AppendStreamRequest, log_pb2.AppendStreamResponse]

pytestmark = pytest.mark.integration

CONNECTIONS = 4
STREAMS = 600
"""Of each connection: more than twice what a key may have."""
KEY_MAX = 1_000
ROUNDS = 4
GROWTH_BYTES = 32 << 20
"""Between the first round and the last: what an allocator keeps differs by so much."""
LARGE_CALLS = 100
"""Of 2 MiB each, at once."""
LOST = "lost"
"""It ended, and gRPC's client forgot by what."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Flooded:
    """A store and two callers: one floods it, the other must be served meanwhile."""

    def __init__(self, pid: int, address: str, flooder: CallerAccess, bystander: grpc.aio.Channel) -> None:
        self.pid = pid
        self.address = address
        self.flooder = flooder
        self.cluster = cluster_pb2_grpc.ClusterServiceStub(bystander)
        self.topics = topic_pb2_grpc.TopicServiceStub(bystander)

    async def check_served(self) -> None:
        """Another key's calls are answered."""
        answer = await self.cluster.GetStatus(cluster_pb2.GetStatusRequest(), timeout=HANG_S)
        assert answer.ready


@asynccontextmanager
async def flooded(folder: Path) -> AsyncIterator[Flooded]:
    keys = Keys(folder)
    flooder, bystander = keys.add("flooder", "write", "read"), keys.add("bystander", "admin")
    environment = {"EDDYLINE_COMMON_KEYS_FILE": str(keys.path)}
    async with (
        store_process(folder / "store", **environment) as (process, address),
        calling(address, bystander) as channel,
    ):
        store = Flooded(process.pid, address, flooder, channel)
        topic = topic_pb2.Topic(name="log", kind=topic_pb2.TOPIC_KIND_LOG)
        await store.topics.CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        yield store
        await store.check_served()
        assert process.returncode is None


async def test_streams_of_one_key_are_bounded_and_given_back(tmp_path: Path) -> None:
    async with flooded(tmp_path) as store:
        sizes: list[int] = []
        for _ in range(ROUNDS):
            async with AsyncExitStack() as stack:
                channels = [await stack.enter_async_context(calling(store.address, store.flooder)) for _ in range(4)]
                assert len(channels) == CONNECTIONS
                outcomes, refusal = await opened(channels)
                assert outcomes.count("") == KEY_MAX
                assert refusal == "QUOTA_REQUESTS"
                assert set(outcomes) <= {"", "QUOTA_REQUESTS", LOST}
                await store.check_served()
            async with calling(store.address, store.flooder) as channel:
                await settled(log_pb2_grpc.LogServiceStub(channel))
            sizes.append(resident_bytes(store.pid))
        assert sizes[-1] - sizes[0] < GROWTH_BYTES, sizes


async def opened(channels: list[grpc.aio.Channel]) -> tuple[list[str], str]:
    """Open streams of appends; return how each ended (empty = it stays open), and the reason that refuses one more call."""
    stubs = [log_pb2_grpc.LogServiceStub(channel) for channel in channels for _ in range(STREAMS)]
    calls = [stub.AppendStream(wait_for_ready=True) for stub in stubs]
    start = log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic="log"))
    record = types_pb2.RecordBatch(records=[types_pb2.Record(data=b"x")])
    append = log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch(rows=record))
    outcomes: list[str] = []

    async def one(call: AppendCall) -> None:
        try:
            await call.write(start)
            await call.write(append)
            await call.read()
            outcomes.append("")
        except grpc.aio.AioRpcError as error:
            outcomes.append(LOST if is_lost(error) else unwrap(error).reason)
        except asyncio.InvalidStateError:
            # It was over before the next step was sent.
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            outcomes.append("QUOTA_REQUESTS")

    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(one(call))
    # A refused stream may be lost to its client, which was writing; a unary call beside the open ones never is.
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await log_pb2_grpc.LogServiceStub(channels[0]).ReadRecords(log_pb2.ReadRecordsRequest(topic="log", limit=1))
    return outcomes, unwrap(caught.value).reason


async def settled(log: log_pb2_grpc.LogServiceStub) -> None:
    """Call until the key may again: its streams have ended."""
    async with asyncio.timeout(HANG_S):
        while True:
            try:
                await log.ReadRecords(log_pb2.ReadRecordsRequest(topic="log", limit=1))
                return
            except grpc.aio.AioRpcError as error:
                assert unwrap(error).reason == "QUOTA_REQUESTS"
            await asyncio.sleep(0.05)


async def test_large_calls_of_strangers_are_refused_before_they_take_memory(tmp_path: Path) -> None:
    async with flooded(tmp_path) as store:
        records = types_pb2.RecordBatch(records=[types_pb2.Record(data=b"x" * (1 << 19))] * 4)
        append = log_pb2.AppendRecordsRequest(topic="log", rows=records)
        sizes = [resident_bytes(store.pid)]
        for _ in range(ROUNDS):
            async with calling(store.address, CallerAccess()) as channel, asyncio.TaskGroup() as group:
                log = log_pb2_grpc.LogServiceStub(channel)
                for _ in range(LARGE_CALLS):
                    group.create_task(refused(log, append))
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await log.ReadRecords(log_pb2.ReadRecordsRequest(topic="log", limit=1), timeout=HANG_S)
                assert unwrap(caught.value).reason == "UNAUTHENTICATED"
            await store.check_served()
            sizes.append(resident_bytes(store.pid))
        # What gRPC had received of a burst before it was refused differs; all of one round would be 200 MiB.
        assert max(sizes) - sizes[0] < LARGE_CALLS * append.ByteSize() / 2, sizes


async def refused(log: log_pb2_grpc.LogServiceStub, append: log_pb2.AppendRecordsRequest) -> None:
    """The call ends by the refusal, which a client that is still writing may lose."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await log.AppendRecords(append, timeout=HANG_S)
    assert is_lost(caught.value) or unwrap(caught.value).reason == "UNAUTHENTICATED"


async def test_connections_that_send_slowly_or_rubbish_hold_no_one_up(tmp_path: Path) -> None:
    rng = random.Random(11)
    async with flooded(tmp_path) as store:
        host, _, port = store.address.rpartition(":")
        writers: list[asyncio.StreamWriter] = []
        try:
            for number in range(300):
                _, writer = await asyncio.open_connection(host, int(port))
                writers.append(writer)
                # A preface that stops short, one with rubbish behind it, and rubbish alone.
                sent = (PREFACE[: number % len(PREFACE)], PREFACE + rng.randbytes(200), rng.randbytes(300))[number % 3]
                writer.write(sent)
            for _ in range(20):
                await store.check_served()
                for writer in writers:
                    writer.write(b"\x00")
                await asyncio.sleep(0.02)
        finally:
            for writer in writers:
                writer.close()
