"""The server's methods as grpc.aio has them: registration, interceptors, bounds, and its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from eddyline.wire.calls.server import Server
from eddyline.wire.http2.limits import Limits
from tests.support.hang import HANG_S
from tests.support.wire.client import stream_stream, unary_unary, until
from tests.support.wire.echo_server import echo_server, unary

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Handler = grpc.RpcMethodHandler[Any, Any]


class Noting(grpc.aio.ServerInterceptor):
    """Notes calls, and lets those with the key `refuse` fail."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name = name
        self._notes = notes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        self._notes.append(f"{self._name} {handler_call_details.method}")
        if dict(handler_call_details.invocation_metadata or ()).get("refuse"):

            async def refuse(_request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, "refused", (("why-bin", b"\0"),))

            return unary(refuse)
        return await continuation(handler_call_details)


async def test_interceptors_are_asked_in_order_and_may_refuse() -> None:
    notes: list[str] = []
    server = Server(interceptors=(Noting("a", notes), Noting("b", notes)))
    async with echo_server(server) as echo, grpc.aio.insecure_channel(echo.address) as channel:
        assert await unary_unary(channel, "/t.T/Echo")(b"x") == b"x"
        assert notes == ["a /t.T/Echo", "b /t.T/Echo"]
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await unary_unary(channel, "/t.T/Echo")(b"x", metadata=(("refuse", "yes"),))
        assert failed.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert tuple(failed.value.trailing_metadata() or ()) == (("why-bin", b"\0"),)


async def test_health_and_reflection_register_as_on_grpc_aio() -> None:
    server = Server()
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((health.SERVICE_NAME,), server)
    async with echo_server(server) as echo, grpc.aio.insecure_channel(echo.address) as channel:
        check = unary_unary(channel, "/grpc.health.v1.Health/Check")
        answer = health_pb2.HealthCheckResponse.FromString(await check(b""))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        info = stream_stream(channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (listed,) = [one async for one in info(iter([request.SerializeToString()]))]
        services = reflection_pb2.ServerReflectionResponse.FromString(listed).list_services_response.service
        assert [one.name for one in services] == [health.SERVICE_NAME]


async def test_generic_handlers_answer_what_is_not_registered() -> None:
    async def answer(request: bytes, _context: object) -> bytes:
        return b"generic " + request

    class Generic(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
            if handler_call_details.method != "/g.G/Any":
                return None
            return unary(answer)

    server = Server()
    server.add_generic_rpc_handlers((Generic(),))
    async with echo_server(server) as echo, grpc.aio.insecure_channel(echo.address) as channel:
        assert await unary_unary(channel, "/g.G/Any")(b"x") == b"generic x"


async def test_calls_above_the_bound_are_refused_until_one_ends() -> None:
    async with (
        echo_server(Server(maximum_concurrent_rpcs=1)) as echo,
        grpc.aio.insecure_channel(echo.address) as channel,
        asyncio.timeout(HANG_S),
    ):
        waiting = unary_unary(channel, "/t.T/Wait")(b"")
        await echo.begun.wait()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await unary_unary(channel, "/t.T/Echo")(b"")
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert failed.value.details() == "Concurrent RPC limit exceeded!"
        waiting.cancel()
        await until(lambda: not echo.server.calls_open)
        assert await unary_unary(channel, "/t.T/Echo")(b"x") == b"x"


async def test_calls_in_flight_have_the_grace_and_new_ones_are_refused() -> None:
    release = asyncio.Event()

    async def slow(_request: bytes, _context: object) -> bytes:
        begun.set()
        await release.wait()
        return b"done"

    begun = asyncio.Event()
    server = Server()
    handler = unary(slow)
    server.add_registered_method_handlers("s.S", {"Slow": handler})
    async with (
        echo_server(server) as echo,
        grpc.aio.insecure_channel(echo.address) as channel,
        asyncio.timeout(HANG_S),
        asyncio.TaskGroup() as group,
    ):
        call = unary_unary(channel, "/s.S/Slow")(b"")
        await begun.wait()
        stopping = group.create_task(server.stop(HANG_S))
        while not await _is_refused(echo.address):
            pass
        release.set()
        assert await call == b"done"
        await stopping
        assert server.counters.connections == server.calls_open == 0


async def _is_refused(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            await unary_unary(channel, "/t.T/Echo")(b"")
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return True
        return False


async def test_calls_beyond_the_grace_end_unavailable_and_their_handlers_are_cancelled() -> None:
    async with echo_server() as echo, grpc.aio.insecure_channel(echo.address) as channel, asyncio.timeout(HANG_S):
        call = unary_unary(channel, "/t.T/Wait")(b"")
        await echo.begun.wait()
        await echo.server.stop(None)
        assert echo.cancelled.is_set()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert await echo.server.wait_for_termination()


async def test_waiting_for_the_end_may_time_out() -> None:
    async with echo_server() as echo:
        assert not await echo.server.wait_for_termination(0.01)


async def test_an_address_in_use_is_a_runtime_error() -> None:
    async with echo_server() as echo:
        with pytest.raises(RuntimeError, match="Failed to bind"):
            Server().add_insecure_port(echo.address)
        with pytest.raises(RuntimeError):
            Server().add_insecure_port("no port")


async def test_credentials_of_grpc_are_refused() -> None:
    credentials = grpc.ssl_server_credentials([(b"", b"")])
    with pytest.raises(TypeError, match="add_tls_port"):
        Server().add_secure_port("127.0.0.1:0", credentials)


async def test_compressed_messages_are_unimplemented() -> None:
    async with echo_server() as echo, grpc.aio.insecure_channel(echo.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await unary_unary(channel, "/t.T/Echo")(bytes(5_000), compression=grpc.Compression.Gzip)
        assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_large_metadata_is_refused_and_the_connection_goes_on() -> None:
    limits = Limits(header_list_bytes_max=4_000)
    options = (("grpc.max_metadata_size", 1 << 20),)
    async with (
        echo_server(Server(limits=limits)) as echo,
        grpc.aio.insecure_channel(echo.address, options=options) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await unary_unary(channel, "/t.T/Echo")(b"", metadata=(("a", "b" * 10_000),))
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await unary_unary(channel, "/t.T/Echo")(b"x") == b"x"


async def test_large_trailers_are_cut_to_what_the_client_takes() -> None:
    async with echo_server() as echo, grpc.aio.insecure_channel(echo.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await unary_unary(channel, "/t.T/Status")(b"9 " + b"why" * 20_000)
        assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert (failed.value.details() or "").startswith("whywhy")


async def test_an_unexpected_error_is_unknown_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_request: bytes, _context: object) -> bytes:
        raise KeyError("mine")

    async def fail_with_code(_request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        context.set_code(grpc.StatusCode.DATA_LOSS)
        raise KeyError("mine")

    server = Server()
    handlers = {
        "Fail": unary(fail),
        "Code": unary(fail_with_code),
    }
    server.add_registered_method_handlers("f.F", handlers)
    async with echo_server(server) as echo, grpc.aio.insecure_channel(echo.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await unary_unary(channel, "/f.F/Fail")(b"")
        assert failed.value.code() is grpc.StatusCode.UNKNOWN
        assert failed.value.details() == "Unexpected <class 'KeyError'>: 'mine'"
        with pytest.raises(grpc.aio.AioRpcError) as coded:
            await unary_unary(channel, "/f.F/Code")(b"")
        assert coded.value.code() is grpc.StatusCode.DATA_LOSS
    assert [record.message for record in caplog.records].count("unexpected error in a call") == 2
