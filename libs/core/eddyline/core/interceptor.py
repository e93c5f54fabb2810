"""The one server interceptor: errors raised by handlers become statuses, for all four kinds of calls.

A domain error becomes its status (`eddyline.core.status`), also after the first messages of a stream, and also where a
task group wrapped it. An exception nobody expected becomes INTERNAL with a random id, and is logged once with the same
id: nothing internal leaks.
`CancelledError` is never eaten: it is how an expired or cancelled call stops its work. An abort that gRPC's own
servicers (health, reflection) asked for passes as it is.
Streams are written from one coroutine, so an asynchronous generator costs no second layer, and it is closed
(its `finally` has run) before the call ends.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, TypeVar, cast

import grpc

from eddyline.core.errors import EddylineError, Internal
from eddyline.core.status import to_status
from eddyline.core.telemetry import fields

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    # What a handler gets and gives; gRPC's own types leave asynchronous handlers out.
    Context = grpc.aio.ServicerContext[object, object]
    UnaryBehaviour = Callable[[object, Context], Awaitable[object]]
    StreamBehaviour = Callable[[object, Context], AsyncGenerator[object, None] | Awaitable[None]]
    NewId = Callable[[], str]

_LOG: Final = logging.getLogger(__name__)

Request = TypeVar("Request")
Response = TypeVar("Response")


def random_id() -> str:
    """An id that finds an error's log entry: 16 hex digits."""
    return secrets.token_hex(8)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns what handlers raise into statuses."""

    def __init__(self, *, new_id: NewId = random_id) -> None:
        self._new_id = new_id

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Request, Response] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Request, Response] | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return self._wrapped(handler, handler_call_details.method)

    def _wrapped(
        self, handler: grpc.RpcMethodHandler[Request, Response], method: str
    ) -> grpc.RpcMethodHandler[Request, Response]:
        request, response = handler.request_deserializer, handler.response_serializer
        # The casts: gRPC's types know only synchronous handlers, an aio server has only asynchronous ones.
        if handler.unary_unary is not None:
            unary = _unary(cast("UnaryBehaviour", handler.unary_unary), method, self._new_id)
            return grpc.unary_unary_rpc_method_handler(unary, request, response)
        if handler.stream_unary is not None:
            unary = _unary(cast("UnaryBehaviour", handler.stream_unary), method, self._new_id)
            return grpc.stream_unary_rpc_method_handler(unary, request, response)
        if handler.unary_stream is not None:
            stream = _stream(cast("StreamBehaviour", handler.unary_stream), method, self._new_id)
            return grpc.unary_stream_rpc_method_handler(stream, request, response)
        assert handler.stream_stream is not None
        stream = _stream(cast("StreamBehaviour", handler.stream_stream), method, self._new_id)
        return grpc.stream_stream_rpc_method_handler(stream, request, response)


def _unary(behaviour: UnaryBehaviour, method: str, new_id: NewId) -> UnaryBehaviour:
    async def answer(request: object, context: Context) -> object:
        try:
            return await behaviour(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error, method, new_id)
            return None

    return answer


def _stream(behaviour: StreamBehaviour, method: str, new_id: NewId) -> Callable[[object, Context], Awaitable[None]]:
    async def answer(request: object, context: Context) -> None:
        try:
            answers = behaviour(request, context)
            if isinstance(answers, AsyncGenerator):
                async with aclosing(answers):
                    async for message in answers:
                        try:
                            await context.write(message)
                        except grpc.aio.InternalError:
                            return  # gRPC's word for a caller that went away within the write
            else:
                await answers
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error, method, new_id)

    return answer


async def _abort(context: Context, error: Exception, method: str, new_id: NewId) -> None:
    error = _ungrouped(error)
    if context.done() or context.cancelled():
        # The caller is gone, so there is nobody to tell; a defect is logged all the same.
        if not isinstance(error, EddylineError | grpc.aio.UsageError):
            _log(error, method, new_id())
        return
    if not isinstance(error, EddylineError):
        error_id = new_id()
        _log(error, method, error_id)
        error = Internal(f"internal error; the role's log has it under the id {error_id}", id=error_id)
    code, message, trailing_metadata = to_status(error)
    await context.abort(code, message, trailing_metadata)


def _ungrouped(error: Exception) -> Exception:
    """The first domain error of a task group's, where it holds nothing else; any other error as it is."""
    if not isinstance(error, ExceptionGroup):
        return error
    known, other = error.split(EddylineError)
    if known is None or other is not None:
        return error
    first: Exception = known
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    return first


def _log(error: Exception, method: str, error_id: str) -> None:
    _LOG.error("unexpected error in a call", exc_info=error, extra=fields(id=error_id, method=method))
