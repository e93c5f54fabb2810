"""Connections that are idle, and those whose other end is gone: the first are left alone, the second soon freed."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.transport.channel import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, open_channel
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc, delivery_pb2, delivery_pb2_grpc
from tests.support.clients.clients import client_of
from tests.support.cluster.processes import delivery_server, store_server

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PING_MS = 6_000
"""Busier than the 10 s that clients of others use."""
IDLE_S = 32.0
"""Five pings: gRPC sends a client away at the third that comes too early."""
SLACK_S = 6.0
SUBSCRIBER = """
import sys, grpc
from eddyline.v1 import delivery_pb2 as pb, delivery_pb2_grpc
stub = delivery_pb2_grpc.DeliveryServiceStub(grpc.insecure_channel(sys.argv[1]))
for _ in stub.WatchTopics(pb.WatchTopicsRequest(topics=[pb.WatchTopic(topic="log")])):
    print("open", flush=True)
"""


async def test_idle_stream_of_a_client_that_pings_often_is_not_sent_away(tmp_path: Path) -> None:
    async with store_server(tmp_path / "store") as store, delivery_server(store) as delivery:
        await topic_at(store)
        options = [
            ("grpc.keepalive_time_ms", PING_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        async with grpc.aio.insecure_channel(delivery, options=options) as channel:
            request = delivery_pb2.WatchTopicsRequest(
                topics=[delivery_pb2.WatchTopic(topic="log")], heartbeat_ms=60_000
            )
            call = delivery_pb2_grpc.DeliveryServiceStub(channel).WatchTopics(request)
            first = await call.read()
            assert isinstance(first, delivery_pb2.WatchTopicsResponse)
            assert first.HasField("caught_up")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(IDLE_S):
                    await call.read()


async def test_subscriber_that_hangs_is_freed_in_seconds(tmp_path: Path) -> None:
    async with store_server(tmp_path / "store") as store, delivery_server(store) as delivery:
        await topic_at(store)
        subscriber = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SUBSCRIBER, delivery, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert subscriber.stdout is not None
            assert await subscriber.stdout.readline() == b"open\n"
            assert await watches(delivery) == 1
            subscriber.send_signal(signal.SIGSTOP)
            for _ in range(round((KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS) / 1000 + SLACK_S)):
                await asyncio.sleep(1.0)
                if not await watches(delivery):
                    break
            else:
                raise AssertionError("it still holds its stream")
        finally:
            subscriber.kill()
            await subscriber.wait()


async def topic_at(store: str) -> None:
    """Make the topic."""
    async with client_of(store) as client:
        await client.create_topic("log", Kind.LOG, TopicConfig())


async def watches(delivery: str) -> int:
    """How many streams are open there."""
    async with open_channel(delivery, own_connection=True) as channel:
        stub = cluster_pb2_grpc.ClusterServiceStub(channel)
        return (await stub.GetStatus(cluster_pb2.GetStatusRequest())).delivery.watch_count
