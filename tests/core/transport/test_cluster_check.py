"""Calls of another cluster's role are refused, of every kind; others pass."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import ClusterMismatch
from eddyline.core.runtime.settings import CommonSettings, SettingsError
from eddyline.core.server.server import RawMethod, make_server
from eddyline.core.store_link.grpc import GrpcLink
from eddyline.core.transport.channel import open_channel
from eddyline.v1 import apply_pb2, fold_pb2, topic_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LEVEL = apply_pb2.FollowTopicsResponse(follow_id=1, level=apply_pb2.FollowLevel(head_seq=1))


async def _topic(_request: object, _context: object) -> bytes:
    return topic_pb2.GetTopicResponse(topic=topic_pb2.Topic(name="t", kind=topic_pb2.TOPIC_KIND_KV)).SerializeToString()


async def _range(_request: object, _context: object) -> AsyncIterator[bytes]:
    yield fold_pb2.RangeEntriesResponse(state=fold_pb2.FoldState(fold_seq=1)).SerializeToString()


async def _follow(requests: AsyncIterator[object], _context: object) -> AsyncIterator[bytes]:
    async for _ in requests:
        yield LEVEL.SerializeToString()


@asynccontextmanager
async def linked(*, server_id: str, caller_id: str) -> AsyncIterator[GrpcLink]:
    """A link that says one id, to a server that has the other."""
    server = make_server("127.0.0.1:0", cluster_id=server_id)
    topic = RawMethod(_topic, topic_pb2.GetTopicRequest.FromString)
    found = RawMethod(_range, fold_pb2.RangeEntriesRequest.FromString, response_stream=True)
    follow = RawMethod(_follow, apply_pb2.FollowTopicsRequest.FromString, request_stream=True, response_stream=True)
    server.add_raw_methods("eddyline.v1.TopicService", {"GetTopic": topic})
    server.add_raw_methods("eddyline.v1.FoldService", {"RangeEntries": found})
    server.add_raw_methods("eddyline.v1.ApplyService", {"FollowTopics": follow})
    address = await server.start()
    try:
        async with open_channel(address, own_connection=True) as channel:
            yield GrpcLink(channel, cluster_id=caller_id)
    finally:
        await server.stop(0)


async def use(link: GrpcLink) -> None:
    """One call of each kind that a link makes."""
    await link.get_topic("t")
    assert [page.state.fold_seq async for page in link.range_entries("t")] == [1]
    async with link.follow() as follow:
        await follow.add(1, "t")
        async for _ in follow:
            break


@pytest.mark.parametrize(("server_id", "caller_id"), [("a", "a"), ("a", ""), ("", "b")])
async def test_calls_of_the_cluster_and_of_no_cluster_pass(server_id: str, caller_id: str) -> None:
    async with linked(server_id=server_id, caller_id=caller_id) as link:
        await use(link)


async def test_another_cluster_is_refused_in_every_call_with_the_store_s_id() -> None:
    async with linked(server_id="a", caller_id="b") as link:
        with pytest.raises(ClusterMismatch, match="to cluster a, the caller to cluster b") as refused:
            await link.get_topic("t")
        assert refused.value.metadata == {"clusterId": "a"}
        with pytest.raises(ClusterMismatch):
            async for _ in link.range_entries("t"):
                pass
        async with link.follow() as follow:
            with pytest.raises(ClusterMismatch):
                async for _ in follow:
                    pass


@pytest.mark.parametrize("cluster_id", ["", "a b", "\N{LATIN SMALL LETTER U WITH DIAERESIS}", "x" * 129])
def test_id_that_cannot_travel_is_refused_at_start(cluster_id: str) -> None:
    with pytest.raises(SettingsError, match="CLUSTER_ID"):
        CommonSettings(cluster_id=cluster_id)
