"""Access at delivery: watches of several topics, ExplainWatch, watch streams per key, and revoked keys."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.core.transport.status import unwrap
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import delivery_pb2_grpc
from tests.support.access import Keys, calling
from tests.support.delivery.role import Watch, earliest, served_delivery, tail
from tests.support.store.simulated import append, log_topic, rows

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def opened(channel: grpc.aio.Channel, *topics: pb.WatchTopic) -> Watch:
    stub = delivery_pb2_grpc.DeliveryServiceStub(channel)
    return Watch(stub.WatchTopics(pb.WatchTopicsRequest(topics=topics)))


async def refusal(channel: grpc.aio.Channel, *topics: pb.WatchTopic) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with opened(channel, *topics) as watch:
            await watch.next()
    return unwrap(caught.value).reason


async def test_a_watch_needs_the_read_scope_and_access_to_all_its_topics(keys: Keys) -> None:
    reader, writer = keys.add("reader", "read", prefixes=("a",)), keys.add("writer", "write")
    async with served_delivery(access=keys.access()) as served:
        for name in ("a1", "a2", "b"):
            await log_topic(served.store, name=name)
        await append(served.store, "a1", rows("x"))
        async with calling(served.address, reader) as channel, calling(served.address, writer) as other:
            async with opened(channel, earliest("a1"), tail("a2")) as watch:
                assert await watch.data(1) == [b"x"]
            assert await refusal(channel, tail("a1"), tail("b")) == "PERMISSION_DENIED"
            assert await refusal(other, tail("a1")) == "PERMISSION_DENIED"
        assert await refusal(served.channel, tail("a1")) == "UNAUTHENTICATED"


async def test_explain_shows_streams_of_covered_topics_alone(keys: Keys) -> None:
    everything, reader = keys.add("all", "read"), keys.add("reader", "read", prefixes=("a",))
    async with served_delivery(access=keys.access()) as served, AsyncExitStack() as stack:
        for name in ("a1", "b1", "b2"):
            await log_topic(served.store, name=name)
        whole = await stack.enter_async_context(calling(served.address, everything))
        part = await stack.enter_async_context(calling(served.address, reader))
        for topics in ((tail("a1"), tail("b1")), (tail("b1"), tail("b2"))):
            watch = await stack.enter_async_context(opened(whole, *topics))
            await watch.until_kind("caught_up")
        explain = delivery_pb2_grpc.DeliveryServiceStub(part).ExplainWatch
        (seen,) = (await explain(pb.ExplainWatchRequest())).watches
        assert [topic.cursor.topic for topic in seen.topics] == ["a1"]
        assert seen.topic_count == 1
        for request in (
            pb.ExplainWatchRequest(topic="b1"),
            pb.ExplainWatchRequest(watch=pb.WatchTopicsRequest(topics=[tail("a1"), tail("b1")])),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await explain(request)
            assert unwrap(caught.value).reason == "PERMISSION_DENIED"
        both = delivery_pb2_grpc.DeliveryServiceStub(whole).ExplainWatch
        assert len((await both(pb.ExplainWatchRequest())).watches) == 2


async def test_watch_streams_are_counted_per_key_and_released(keys: Keys) -> None:
    few, other = keys.add("few", "read", watches_max=2), keys.add("other", "read")
    access = keys.access()
    async with served_delivery(access=access) as served, AsyncExitStack() as stack:
        await log_topic(served.store, name="a")
        mine = await stack.enter_async_context(calling(served.address, few))
        theirs = await stack.enter_async_context(calling(served.address, other))
        watches = [await stack.enter_async_context(opened(mine, tail("a"))) for _ in range(2)]
        for watch in watches:
            await watch.until_kind("caught_up")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with opened(mine, tail("a")) as third:
                await third.next()
        error = unwrap(caught.value)
        assert (error.reason, error.metadata["limit"]) == ("QUOTA_WATCHES", "2")
        assert int(error.metadata["retryAfterMs"]) > 0
        async with opened(theirs, tail("a")) as another:
            await another.until_kind("caught_up")
        watches[0].call.cancel()
        await served.until(lambda: access.interceptor.quotas.watches["few"] == 1)
        async with opened(mine, tail("a")) as third:
            await third.until_kind("caught_up")
        # A connection that closes ends all of its streams.
        gone = await stack.enter_async_context(calling(served.address, other))
        for _ in range(3):
            watch = await stack.enter_async_context(opened(gone, tail("a")))
            await watch.until_kind("caught_up")
        await gone.close()
        await served.until(lambda: access.interceptor.quotas.watches["other"] == 0)


async def test_a_replica_at_its_bound_returns_a_retry_time(keys: Keys) -> None:
    reader = keys.add("reader", "read")
    async with served_delivery(access=keys.access(), watches_max=1) as served:
        await log_topic(served.store, name="a")
        async with calling(served.address, reader) as channel, opened(channel, tail("a")) as watch:
            await watch.until_kind("caught_up")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async with opened(channel, tail("a")) as another:
                    await another.next()
            error = unwrap(caught.value)
            assert (error.reason, int(error.metadata["retryAfterMs"]) > 0) == ("QUOTA_WATCHES", True)


async def test_watches_of_a_revoked_key_end(keys: Keys) -> None:
    going, staying = keys.add("going", "read"), keys.add("staying", "read")
    access = keys.access()
    async with served_delivery(access=access) as served:
        await log_topic(served.store, name="a")
        async with (
            calling(served.address, going) as channel,
            calling(served.address, staying) as other,
            opened(channel, tail("a")) as ending,
            opened(other, tail("a")) as kept,
        ):
            for watch in (ending, kept):
                await watch.until_kind("caught_up")
            keys.take("going")
            await access.poll()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ending.next()
            assert unwrap(caught.value).reason == "UNAUTHENTICATED"
            await append(served.store, "a", rows("x"))
            assert await kept.data(1) == [b"x"]
            await served.until(lambda: served.role.stats.watch_count == 1)
