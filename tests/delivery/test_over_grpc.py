"""Delivery over the store's gRPC services: the same promises through a cluster's link, and its credit."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.store_link.grpc import GrpcLink
from eddyline.delivery.config import DeliverySettings
from eddyline.delivery.feed.tail import CREDIT_BYTES, RECONNECT_S_MAX, REFUSED_S
from eddyline.delivery.role import DeliveryRole
from eddyline.delivery.rpc.status import delivery_status
from eddyline.delivery.watch.request import StartPoint, TopicRequest, WatchRequest
from eddyline.v1 import delivery_pb2 as pb
from tests.support.hang import HANG_S
from tests.support.store.served import CLUSTER_ID, ServedStore, served_store
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.core.model.topic import TopicInfo


@pytest.fixture(name="store")
async def _store(tmp_path: Path) -> AsyncIterator[ServedStore]:
    async with served_store(tmp_path / "store") as store:
        yield store


@asynccontextmanager
async def delivery_over(store: ServedStore) -> AsyncIterator[DeliveryRole]:
    """A role that reaches the store by gRPC, on the store's clock."""
    settings = DeliverySettings(topic_buffer_bytes=1 << 20)
    role = DeliveryRole(
        GrpcLink(store.channel, cluster_id=CLUSTER_ID), clock=store.clock, random=Random(0), settings=settings
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(role.run())
        await role.tails.up.wait()
        yield role
        running.cancel()


async def test_snapshot_then_live_over_grpc(store: ServedStore) -> None:
    await kv_topic(store.link)
    await append(store.link, "kv", puts(("a", "1"), ("b", "2")))
    request = WatchRequest((TopicRequest("kv", StartPoint.SNAPSHOT),))
    async with (
        delivery_over(store) as role,
        role.watches.open(request) as subscriber,
        asyncio.timeout(HANG_S),
    ):
        frames = subscriber.frames()
        got: list[str | None] = []
        while "caught_up" not in got:
            got.append(pb.WatchTopicsResponse.FromString(await anext(frames)).WhichOneof("frame"))
        assert got == ["snapshot_begin", "rows", "snapshot_end", "caught_up"]
        await append(store.link, "kv", puts(("c", "3")))
        frame = pb.WatchTopicsResponse.FromString(await anext(frames))
        assert [record.key for record in frame.rows.records] == [b"c"]
        await frames.aclose()


async def test_credit_is_returned_indefinitely(store: ServedStore) -> None:
    await log_topic(store.link)
    size = 250_000
    count = 2 * CREDIT_BYTES // size
    async with (
        delivery_over(store) as role,
        role.watches.open(WatchRequest((TopicRequest("log", StartPoint.TAIL),))) as subscriber,
        asyncio.timeout(HANG_S),
    ):
        frames = subscriber.frames()
        await anext(frames)
        seqs: list[int] = []
        for _ in range(count):
            await append(store.link, "log", rows("x" * size))
            frame = pb.WatchTopicsResponse.FromString(await anext(frames))
            seqs += [record.seq for record in frame.rows.records]
        assert seqs == list(range(1, count + 1))
        await frames.aclose()


async def test_store_of_another_cluster_is_not_followed_and_probed_slowly(
    store: ServedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    link = GrpcLink(store.channel, cluster_id="other")
    role = DeliveryRole(link, clock=store.clock, random=Random(0), settings=DeliverySettings())
    answered: asyncio.Queue[None] = asyncio.Queue(1)
    get_topic = link.get_topic

    async def noted(name: str) -> TopicInfo:
        try:
            return await get_topic(name)
        finally:
            answered.put_nowait(None)

    monkeypatch.setattr(link, "get_topic", noted)
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(HANG_S):
        running = tasks.create_task(role.run())
        for _ in range(3):
            await answered.get()
            await store.clock.pass_time(REFUSED_S - 1)
            assert answered.empty()
            status = delivery_status(role.stats, tails=role.tails, budget=role.budget, clock=store.clock)
            assert (status.ready, status.reason) == (False, "CLUSTER_MISMATCH")
            await store.clock.pass_time(1 + RECONNECT_S_MAX)
        running.cancel()
    refusals = [record for record in caplog.records if record.getMessage() == "the store refuses this role"]
    assert len(refusals) == 1
