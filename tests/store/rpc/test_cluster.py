"""Status, health and reflection of a store, before recovery too."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import grpc
from grpc_reflection.v1alpha import reflection_pb2

from eddyline.core.server.cluster_service import CONTRACT_VERSION
from eddyline.v1 import topic_pb2
from eddyline.v1.apply_pb2 import (
    ApplyServiceListSourcesRequest,
    ApplyStreamRequest,
    FollowTopicsRequest,
    PutSourceRequest,
    SourceDefinition,
)
from eddyline.v1.cluster_pb2 import ROLE_STORE, GetStatusRequest, GetTopologyRequest
from eddyline.v1.fold_pb2 import GetEntryRequest, RangeEntriesRequest
from eddyline.v1.log_pb2 import AppendRecordsRequest, AppendStreamRequest, ReadRecordsRequest
from tests.store.rpc.requests import keyed, rows
from tests.support.hang import HANG_S
from tests.support.store.served import answers_of, is_serving, refused, served_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.store.served import ServedStore


async def test_status_tells_the_stores_figures(tmp_path: Path) -> None:
    for instance in (1, 2):
        async with served_store(tmp_path / "store") as store:
            if instance == 1:
                await store.create("kv")
                await store.create("copied")
                definition = SourceDefinition(name="s", topic="copied", bucket="b")
                await store.apply.PutSource(PutSourceRequest(definition=definition))
            await store.log.AppendRecords(rows("kv", keyed("a", "1"), keyed("b", "2")))
            store.clock.advance(3)
            status = await store.cluster.GetStatus(GetStatusRequest())
            async with asyncio.timeout(HANG_S):
                # a look at the disk is under way, on a thread
                while not status.store.wal_bytes:
                    status = await store.cluster.GetStatus(GetStatusRequest())
            assert (status.role, status.cluster_id, status.contract_version) == (ROLE_STORE, "local", CONTRACT_VERSION)
            assert (status.ready, status.reason, status.pid, status.uptime_ms) == (True, "", os.getpid(), 3_000)
            detail = status.store
            assert (detail.shard_index, detail.shard_count, detail.instance) == (0, 1, instance)
            assert (detail.topic_count, detail.source_count, detail.appended_count) == (2, 1, 2)
            assert (detail.wal_bytes > 0, detail.apply_lag_bytes) == (True, 0)


async def test_topology_names_the_one_shard_where_it_listens(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        topology = await store.cluster.GetTopology(GetTopologyRequest())
        assert [(shard.shard_index, shard.address) for shard in topology.shards] == [(0, store.address)]
        assert list(topology.ingest_addresses) == ["127.0.0.1:7702"], "where others are the settings say"


async def refuse_all(store: ServedStore) -> str:
    """Expect every call to be refused as NOT_READY; the message of one."""
    error = await refused(store.topics.ListTopics(topic_pb2.ListTopicsRequest()), "NOT_READY")
    await refused(store.topics.GetTopic(topic_pb2.GetTopicRequest(topic="a")), "NOT_READY")
    await refused(store.log.AppendRecords(AppendRecordsRequest()), "NOT_READY")
    await refused(store.log.ReadRecords(ReadRecordsRequest(topic="a")), "NOT_READY")
    await refused(store.fold.GetEntry(GetEntryRequest(topic="a", key=b"a")), "NOT_READY")
    await refused(store.apply.ListSources(ApplyServiceListSourcesRequest()), "NOT_READY")
    assert await answers_of(store.log.AppendStream(iter([AppendStreamRequest()]))) == ([], "NOT_READY")
    assert await answers_of(store.fold.RangeEntries(RangeEntriesRequest(topic="a"))) == ([], "NOT_READY")
    assert await answers_of(store.apply.FollowTopics(iter([FollowTopicsRequest()]))) == ([], "NOT_READY")
    assert await answers_of(store.apply.ApplyStream(iter([ApplyStreamRequest()]))) == ([], "NOT_READY")
    status = await store.cluster.GetStatus(GetStatusRequest())
    assert (status.ready, status.reason) == (False, "NOT_READY")
    return error.message


async def test_nothing_is_answered_before_recovery_but_health_and_status(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store", recovered=False) as store:
        assert "recovering" in await refuse_all(store)
        assert await is_serving(store.channel, "live")
        assert not await is_serving(store.channel, "")


async def test_nothing_is_answered_while_the_store_stops(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("a")
        store.handle.close()
        assert "stopping" in await refuse_all(store)


async def test_reflection_lists_every_service(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        ask: grpc.aio.StreamStreamMultiCallable[
            reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse
        ] = store.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = ask(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        answer = await anext(aiter(call))
        found = {service.name for service in answer.list_services_response.service}
        call.cancel()
    assert {f"eddyline.v1.{name}Service" for name in ("Topic", "Log", "Fold", "Apply", "Cluster")} < found


async def test_unserved_call_is_unimplemented(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = store.channel.unary_unary(
            "/eddyline.v1.LogService/NoSuchCall"
        )
        try:
            await call(b"")
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        else:
            raise AssertionError("answered")
