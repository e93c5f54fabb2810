"""The server of every role, on either wire: bind, health, reflection, raw methods."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from eddyline.core.errors import TopicNotFound
from eddyline.core.runtime.addresses import check_loopback, is_loopback
from eddyline.core.runtime.settings import WIRES, SettingsError
from eddyline.core.server.server import RawMethod, RoleServer, make_server
from eddyline.core.transport.channel import open_channel
from eddyline.core.transport.status import unwrap
from eddyline.v1 import topic_pb2, topic_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

TOPIC_SERVICE = "eddyline.v1.TopicService"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def started(server: RoleServer) -> AsyncIterator[grpc.aio.Channel]:
    address = await server.start(TOPIC_SERVICE)
    try:
        async with open_channel(address) as channel:
            yield channel
    finally:
        await server.stop(0)


def health_check(
    channel: grpc.aio.Channel,
) -> grpc.aio.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]:
    return channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.8.9.1:7701", "[::1]:7701", "localhost:7701"])
def test_loopback_may_be_bound(listen: str) -> None:
    check_loopback(listen)
    assert is_loopback(listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:7701", "[::]:7701", "10.0.0.1:7701", "a.host:7701"])
def test_any_other_bind_is_refused_with_the_allowed_ones(listen: str) -> None:
    with pytest.raises(SettingsError, match=r"refusing to listen on .*127\.0\.0\.1"):
        check_loopback(listen)


@pytest.mark.parametrize("listen", ["7701", ":7701", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_invalid_address_is_refused(listen: str) -> None:
    with pytest.raises(SettingsError, match="not host:port"):
        check_loopback(listen)


async def test_a_port_in_use_is_refused_and_not_shared(wire: str) -> None:
    first, second = make_server("127.0.0.1:0", wire=wire), None
    async with started(first):
        second = make_server(first.address, wire=wire)
        with pytest.raises(SettingsError, match="in use"):
            await second.start()
        await second.stop(0)


async def test_health_is_live_first_and_ready_once_set(wire: str) -> None:
    server = make_server("127.0.0.1:0", wire=wire)
    async with started(server) as channel:
        check = health_check(channel)

        async def status(name: str) -> int:
            return (await check(health_pb2.HealthCheckRequest(service=name), timeout=5)).status

        assert (await status(""), await status("live")) == (NOT_SERVING, SERVING)
        await server.health.set_ready(True)
        await server.health.set_source("orders", False)
        assert (await status(""), await status("source/orders")) == (SERVING, NOT_SERVING)
        await server.health.set_source("orders", True)
        assert await status("source/orders") == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await status("source/unknown")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_watchers_see_changes(wire: str) -> None:
    server = make_server("127.0.0.1:0", wire=wire)
    async with started(server) as channel:
        watch: grpc.aio.UnaryStreamMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse] = (
            channel.unary_stream(
                "/grpc.health.v1.Health/Watch",
                health_pb2.HealthCheckRequest.SerializeToString,
                health_pb2.HealthCheckResponse.FromString,
            )
        )
        call = watch(health_pb2.HealthCheckRequest(service=""), timeout=5)
        answers = aiter(call)
        assert (await anext(answers)).status == NOT_SERVING
        await server.health.set_ready(True)
        assert (await anext(answers)).status == SERVING


async def test_reflection_lists_the_role_s_services(wire: str) -> None:
    async with started(make_server("127.0.0.1:0", wire=wire)) as channel:
        call: grpc.aio.StreamStreamMultiCallable[
            reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse
        ] = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = [answer async for answer in call(iter([asked]), timeout=5)]
    listed = {service.name for service in answers[0].list_services_response.service}
    assert {TOPIC_SERVICE, "grpc.health.v1.Health"} <= listed


class GeneratedTopics(topic_pb2_grpc.TopicServiceServicer):
    async def GetTopic(self, request: topic_pb2.GetTopicRequest, context: object) -> topic_pb2.GetTopicResponse:
        return topic_pb2.GetTopicResponse(topic=topic_pb2.Topic(name="generated"))

    async def DeleteTopic(
        self, request: topic_pb2.DeleteTopicRequest, context: object
    ) -> topic_pb2.DeleteTopicResponse:
        return topic_pb2.DeleteTopicResponse(epoch=5)

    async def CreateTopic(
        self, request: topic_pb2.CreateTopicRequest, context: object
    ) -> topic_pb2.CreateTopicResponse:
        raise AssertionError("not called")

    async def ListTopics(self, request: topic_pb2.ListTopicsRequest, context: object) -> topic_pb2.ListTopicsResponse:
        raise AssertionError("not called")

    async def UpdateTopic(
        self, request: topic_pb2.UpdateTopicRequest, context: object
    ) -> topic_pb2.UpdateTopicResponse:
        raise AssertionError("not called")

    async def EraseTopic(
        self, request: topic_pb2.EraseTopicRequest, context: object
    ) -> AsyncGenerator[topic_pb2.EraseTopicResponse, None]:
        raise AssertionError("not called")
        yield topic_pb2.EraseTopicResponse()


async def raw_get_topic(request: topic_pb2.GetTopicRequest, context: object) -> bytes:
    if request.topic == "missing":
        raise TopicNotFound("no such topic", topic=request.topic)
    return topic_pb2.GetTopicResponse(topic=topic_pb2.Topic(name="raw")).SerializeToString()


async def test_raw_methods_work_with_generated_ones_and_their_errors_are_typed(wire: str) -> None:
    server = make_server("127.0.0.1:0", wire=wire)
    topic_pb2_grpc.add_TopicServiceServicer_to_server(GeneratedTopics(), server.grpc)
    server.add_raw_methods(TOPIC_SERVICE, {"GetTopic": RawMethod(raw_get_topic, topic_pb2.GetTopicRequest.FromString)})
    async with started(server) as channel:
        stub = topic_pb2_grpc.TopicServiceStub(channel)
        assert (await stub.GetTopic(topic_pb2.GetTopicRequest(topic="a"), timeout=5)).topic.name == "raw"
        assert (await stub.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="a"), timeout=5)).epoch == 5
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.GetTopic(topic_pb2.GetTopicRequest(topic="missing"), timeout=5)
    assert isinstance(unwrap(raised.value), TopicNotFound)


async def test_a_burst_of_calls_is_queued(wire: str) -> None:
    # the library's own bound is 1 000, and beyond it calls are cancelled by chance
    server = make_server("127.0.0.1:0", wire=wire)
    async with started(server) as channel:
        check = health_check(channel)
        calls = [check(health_pb2.HealthCheckRequest(service="live")) for _ in range(3_500)]
        assert {(await call).status for call in calls} == {SERVING}
