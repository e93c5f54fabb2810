"""The one server interceptor: errors raised by handlers become statuses, for all four kinds of calls.

A domain error becomes its status (`eddyline.core.transport.status`), also after the first messages of a stream, and also
where a task group wrapped it. An exception nobody expected becomes INTERNAL with a random id, and is logged once with the
same id: nothing internal leaks. Bytes that are not a message of the call are InvalidArgument, raised where the handler would
have got the message: in a stream of requests by its iterator, so that what came before them is dealt with first.
`CancelledError` is never eaten: it is how an expired or cancelled call stops its work. An abort that gRPC's own
servicers (health, reflection) asked for passes as it is. What gRPC itself raises of a call that is over, where its
cancellation has not arrived yet, ends the call as that would: nobody is there to be told, and nothing is logged.
Streams are written from one coroutine, so an asynchronous generator costs no second layer, and it is closed
(its `finally` has run) before the call ends.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError

from eddyline.core.errors import EddylineError, Internal, InvalidArgument
from eddyline.core.runtime.logging import fields
from eddyline.core.transport.handlers import HandlerCache, behaviour_of, handler_like
from eddyline.core.transport.status import to_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from eddyline.core.transport.handlers import Continuation, Handler

    # What a handler gets and gives; gRPC's own types leave asynchronous handlers out.
    Context = grpc.aio.ServicerContext[object, object]
    UnaryBehaviour = Callable[[object, Context], Awaitable[object]]
    StreamBehaviour = Callable[[object, Context], AsyncGenerator[object, None] | Awaitable[None]]
    NewId = Callable[[], str]
    Decode = Callable[[bytes], "Request"]

BATCH_METHODS: Final = frozenset(
    (
        "/eddyline.v1.LogService/AppendRecords",
        "/eddyline.v1.LogService/AppendStream",
        "/eddyline.v1.ApplyService/ApplyBatch",
    )
)
REQUEST_BYTES_MAX: Final = 11 << 20
"""Of a request that carries no batch: 10 000 keys of 1 KiB, which is the largest that any other call may ask for. Elsewhere
only the message's bound, 64 MiB, holds: empty entries of two bytes each would become gigabytes of objects before any bound
of the call is judged."""

_LOG: Final = logging.getLogger(__name__)

Request = TypeVar("Request")


def random_id() -> str:
    """An id that finds an error's log entry: 16 hex digits."""
    return secrets.token_hex(8)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns what handlers raise into statuses."""

    def __init__(self, *, new_id: NewId = random_id) -> None:
        self._new_id = new_id
        self._wrapped_handlers: HandlerCache[Handler] = HandlerCache(self._wrap)

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        return None if handler is None else self._wrapped_handlers.get(handler, handler_call_details.method)

    def _wrap(self, handler: Handler, method: str) -> Handler:
        decode = _bounded(handler.request_deserializer, method)
        wrap = _stream if handler.response_streaming else _unary
        return handler_like(
            handler,
            wrap(behaviour_of(handler), method, self._new_id),
            decode=_checked(decode) if handler.request_streaming else _late(decode),
        )


def _bounded(decode: Decode[Request] | None, method: str) -> Decode[Request] | None:
    """Decode a request that is not larger than those of this call may be."""
    if decode is None or method in BATCH_METHODS:
        return decode

    def bounded(message: bytes) -> Request:
        if len(message) > REQUEST_BYTES_MAX:
            raise InvalidArgument(
                f"a request of this call has at most {REQUEST_BYTES_MAX} bytes, not {len(message)}",
                requestBytes=len(message),
                requestBytesMax=REQUEST_BYTES_MAX,
            )
        return decode(message)

    return bounded


def _checked(decode: Decode[Request] | None) -> Decode[Request] | None:
    """Decode, or raise what the caller is told. A stream's iterator raises it in the handler."""
    if decode is None:
        return None

    def checked(message: bytes) -> Request:
        try:
            return decode(message)
        except DecodeError as error:
            raise InvalidArgument("the request is not a message of this call") from error

    return checked


def _late(decode: Decode[Request] | None) -> Decode[Request] | None:
    """Decode, or give the error in place of the message: gRPC decodes a single request outside of the handler."""
    checked = _checked(decode)
    if checked is None:
        return None

    def late(message: bytes) -> Request:
        try:
            return checked(message)
        except InvalidArgument as error:
            return cast("Request", error)  # never seen by the handler: see `_message`

    return late


def _message(request: object) -> object:
    """A handler's request. Raises the error that stands in its place."""
    if isinstance(request, InvalidArgument):
        raise request
    return request


def _unary(behaviour: UnaryBehaviour, method: str, new_id: NewId) -> UnaryBehaviour:
    async def answer(request: object, context: Context) -> object:
        try:
            return await behaviour(_message(request), context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error, method, new_id)
            return None

    return answer


def _stream(behaviour: StreamBehaviour, method: str, new_id: NewId) -> Callable[[object, Context], Awaitable[None]]:
    async def answer(request: object, context: Context) -> None:
        try:
            answers = behaviour(_message(request), context)
            if isinstance(answers, AsyncGenerator):
                async with aclosing(answers):
                    async for message in answers:
                        await context.write(message)
            else:
                await answers
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error, method, new_id)

    return answer


async def _abort(context: Context, error: Exception, method: str, new_id: NewId) -> None:
    """Tell the caller, if it is still there. Raises what ends the call in gRPC's eyes."""
    error = _ungrouped(error)
    if _says_over(error, context):
        raise asyncio.CancelledError from error
    if not isinstance(error, EddylineError):
        error_id = new_id()
        _log(error, method, error_id)
        error = Internal(f"internal error; the role's log has it under the id {error_id}", id=error_id)
    code, message, trailing_metadata = to_status(error)
    try:
        await context.abort(code, message, trailing_metadata)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError as over:
        raise asyncio.CancelledError from over


def _says_over(error: Exception, context: Context) -> bool:
    """True = gRPC's own word for a call that was cancelled, has expired or was ended with its server."""
    if isinstance(error, ExceptionGroup):
        return all(_says_over(one, context) for one in error.exceptions)
    if isinstance(error, grpc.aio.UsageError):
        return context.done()  # of a call that is not over it is a misuse of ours
    return isinstance(error, grpc.aio.BaseError)


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
