"""Invalid bytes, and callers that leave: results for handlers, callers and the log."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import grpc
import pytest

from eddyline.core.errors import InvalidArgument
from eddyline.core.server.error_interceptor import REQUEST_BYTES_MAX
from eddyline.core.server.server import make_server
from eddyline.core.transport.channel import open_channel
from eddyline.core.transport.status import unwrap
from eddyline.v1 import topic_pb2
from tests.support.rpc import SERVICE, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Context = grpc.aio.ServicerContext[bytes, bytes]

GARBAGE: Final = b"\xff\xff\xff"
GOOD: Final = topic_pb2.GetTopicRequest(topic="t").SerializeToString()
ANSWER: Final = bytes(64 << 10)
CALLS: Final = 60


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return error log records, without those of gRPC's poller in a process with several event loops."""
    errors = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.ERROR]
    return [error for error in errors if not error.startswith("Exception in callback PollerCompletionQueue")]


def decode(message: bytes) -> bytes:
    """As generated code, but the handler gets the bytes."""
    return topic_pb2.GetTopicRequest.FromString(message).SerializeToString()


@pytest.mark.parametrize("kind", ["unary_unary", "stream_unary", "unary_stream", "stream_stream"])
async def test_request_above_the_bound_of_its_call_is_refused_before_parsing(kind: str) -> None:
    asked: list[int] = []

    def decode_counted(message: bytes) -> bytes:
        asked.append(len(message))
        return message

    async def handler(request: bytes, number: int) -> bytes:
        return b"%d" % len(request)

    async with serving(handler, decode=decode_counted) as kinds:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in kinds.calls[kind](bytes(REQUEST_BYTES_MAX + 1)):
                pass
        assert await anext(kinds.calls[kind](bytes(REQUEST_BYTES_MAX))) == b"%d" % REQUEST_BYTES_MAX
    assert isinstance(unwrap(raised.value), InvalidArgument)
    assert set(asked) == {REQUEST_BYTES_MAX}


@pytest.mark.parametrize("kind", ["unary_unary", "stream_unary", "unary_stream", "stream_stream"])
async def test_bytes_that_are_no_message_are_an_invalid_argument_and_not_logged(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[bytes] = []

    async def handler(request: bytes, number: int) -> bytes:
        asked.append(request)
        return request

    async with serving(handler, decode=decode) as kinds:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in kinds.calls[kind](GARBAGE):
                pass
        assert await anext(kinds.calls[kind](GOOD)) == GOOD
    error = unwrap(raised.value)
    assert (type(error), error.message) == (InvalidArgument, "the request cannot be decoded as this call's message")
    assert set(asked) == {GOOD}
    assert errors_of(caplog) == []


async def test_a_stream_handles_messages_before_invalid_bytes() -> None:
    async def echo(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async with _serving({"Echo": grpc.stream_stream_rpc_method_handler(echo, decode)}) as channel:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/Echo")
        call = method(iter([GOOD, GOOD, GARBAGE, GOOD]), timeout=10)
        answers: list[bytes] = []
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for answer in call:
                answers.append(answer)  # noqa: PERF401 - what came before the error is what is asked
    assert answers == [GOOD, GOOD]
    assert isinstance(unwrap(raised.value), InvalidArgument)


async def generator(request: bytes, context: Context) -> AsyncIterator[bytes]:
    while True:
        yield ANSWER


async def coroutine(request: bytes, context: Context) -> None:
    while True:
        await context.write(ANSWER)


async def group(request: bytes, context: Context) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(coroutine(request, context))


async def refusing(request: bytes, context: Context) -> None:
    await context.write(ANSWER)
    await asyncio.sleep(0)
    raise InvalidArgument("said to nobody")


@pytest.mark.parametrize("stream", [generator, coroutine, group, refusing])
@pytest.mark.parametrize("leaving", ["cancelled", "expired", "disconnected"])
async def test_callers_that_go_away_with_answers_unread_leave_nothing_in_the_log(
    stream: Callable[[bytes, Context], AsyncIterator[bytes]] | Callable[[bytes, Context], Awaitable[None]],
    leaving: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(stream)
    async with _serving({"Flow": handler}) as channel:
        flow: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/{SERVICE}/Flow")
        timeout_s = 0.2 if leaving == "expired" else 10
        calls = [flow(b"", timeout=timeout_s) for _ in range(CALLS)]
        for number, call in enumerate(calls):
            if number % 3 and leaving != "expired":
                await call.read()
        for call in calls:
            match leaving:
                case "cancelled":
                    call.cancel()
                case "expired":
                    await call.code()
        if leaving == "disconnected":
            await channel.close()
        for call in calls:
            await call.code()
    assert errors_of(caplog) == []


@asynccontextmanager
async def _serving(
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]],
) -> AsyncIterator[grpc.aio.Channel]:
    server = make_server("127.0.0.1:0")
    server.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    address = await server.start()
    try:
        async with open_channel(address, own_connection=True) as channel:
            yield channel
    finally:
        await server.stop(0)
