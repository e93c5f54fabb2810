"""Server interceptor that turns errors of handlers into statuses, for all four kinds of calls.

A domain error becomes its status (`eddyline.core.transport.status`), also after the first messages of a stream, and also
when a task group wrapped it. An unexpected exception becomes INTERNAL with a random id, and is logged once with the same
id, so that nothing internal leaks. Bytes that are not a message of the call raise InvalidArgument at the point where the
handler would get the message: in a stream of requests by its iterator, so that earlier messages are handled first.
`CancelledError` always propagates, since an expired or cancelled call stops its work by it. An abort by gRPC's own
servicers (health, reflection) passes unchanged. An error that gRPC raises because the call is already over, before its
cancellation has arrived, ends the call like the cancellation: no caller is left, and nothing is logged. Streams are
written from one coroutine, so an asynchronous generator needs no second layer, and it is closed (its `finally` has run)
before the call ends.
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
    from eddyline.core.transport.status import WireStatus

    # Arguments and results of handlers; gRPC's own types have no asynchronous handlers.
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
        "/eddyline.v1.ApplyService/ApplyStream",
    )
)
REQUEST_BYTES_MAX: Final = 11 << 20
"""Bound of a request that carries no batch: 10 000 keys of 1 KiB, the largest request of any other call. gRPC has only
the bound of a message, 64 MiB: empty entries of two bytes each would become gigabytes of objects before a handler could
check any bound of the call."""

_LOG: Final = logging.getLogger(__name__)

Request = TypeVar("Request")


def random_id() -> str:
    """Return an id that is in the status and the log entry of an error: 16 hex digits."""
    return secrets.token_hex(8)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns errors of handlers into statuses."""

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
    """Return a decoder that refuses requests larger than this call allows."""
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
    """Return a decoder that raises the caller's error. A stream's iterator raises it in the handler."""
    if decode is None:
        return None

    def checked(message: bytes) -> Request:
        try:
            return decode(message)
        except DecodeError as error:
            raise InvalidArgument("the request cannot be decoded as this call's message") from error

    return checked


def _late(decode: Decode[Request] | None) -> Decode[Request] | None:
    """Return a decoder that returns the error instead of the message: gRPC decodes a single request outside the handler."""
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
    """Return the request; raise the error that a decoder returned instead."""
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


def status_of(error: BaseException, method: str, new_id: NewId) -> WireStatus:
    """Return the status of a call that failed: of a domain error its own, of any other INTERNAL with the id it is logged
    with."""
    if not isinstance(error, EddylineError):
        error_id = new_id()
        _log(error, method, error_id)
        error = Internal(f"internal error; search the role's log for id {error_id}", id=error_id)
    return to_status(error)


async def _abort(context: Context, error: Exception, method: str, new_id: NewId) -> None:
    """End the call with the status of `error`. Raises AbortError, or CancelledError if the call is already over."""
    error = _ungrouped(error)
    if _is_call_over(error, context):
        raise asyncio.CancelledError from error
    code, message, trailing_metadata = status_of(error, method, new_id)
    try:
        await context.abort(code, message, trailing_metadata)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError as over:
        raise asyncio.CancelledError from over


def _is_call_over(error: Exception, context: Context) -> bool:
    """Return True for gRPC's own error of a call that was cancelled, has expired or ended with its server."""
    if isinstance(error, ExceptionGroup):
        return all(_is_call_over(one, context) for one in error.exceptions)
    if isinstance(error, grpc.aio.UsageError):
        return context.done()  # while the call is open, it is a defect of ours
    return isinstance(error, grpc.aio.BaseError)


def _ungrouped(error: Exception) -> Exception:
    """Return the first error of a group that has only domain errors; any other error as it is."""
    if not isinstance(error, ExceptionGroup):
        return error
    domain, other = error.split(EddylineError)
    if domain is None or other is not None:
        return error
    first: Exception = domain
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    return first


def _log(error: BaseException, method: str, error_id: str) -> None:
    _LOG.error("unexpected error in a call", exc_info=error, extra=fields(id=error_id, method=method))
