"""Handlers of gRPC methods, as interceptors wrap them: the function in a handler, a handler of the same kind around another
function, and a cache of wrapped handlers, so that a method is wrapped once rather than at each call.

gRPC's types know only synchronous handlers, and grpc.aio has only asynchronous ones; the casts for that are here.
Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Handler = grpc.RpcMethodHandler[Any, Any]
    Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]
    """Gives an interceptor the handler of a call; None = the server does not have the method."""

AnyHandler = TypeVar("AnyHandler")


class HandlerCache(Generic[AnyHandler]):
    """Wrapped handlers by method. Bounded by the methods that the server has."""

    def __init__(self, wrap: Callable[[AnyHandler, str], AnyHandler]) -> None:
        self._wrap = wrap
        self._cached: dict[str, tuple[AnyHandler, AnyHandler]] = {}

    def get(self, handler: AnyHandler, method: str) -> AnyHandler:
        """Return `handler` wrapped; wrap it again if the method had another handler before."""
        cached = self._cached.get(method)
        if cached is None or cached[0] is not handler:
            cached = self._cached[method] = handler, self._wrap(handler, method)
        return cached[1]


def make_handler(
    behaviour: Callable[..., object],
    decode: Callable[[bytes], Any] | None = None,
    encode: Callable[[Any], bytes] | None = None,
    *,
    request_streaming: bool = False,
    response_streaming: bool = False,
) -> Handler:
    """Return a handler of one of the four kinds."""
    match request_streaming, response_streaming:
        case False, False:
            make = grpc.unary_unary_rpc_method_handler
        case False, True:
            make = grpc.unary_stream_rpc_method_handler
        case True, False:
            make = grpc.stream_unary_rpc_method_handler
        case _:
            make = grpc.stream_stream_rpc_method_handler
    return make(behaviour, decode, encode)


def behaviour_of(handler: Handler) -> Callable[..., Any]:
    """Return the function that a handler calls."""
    behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    return cast("Callable[..., Any]", behaviour)


def handler_like(
    handler: Handler,
    behaviour: Callable[..., object],
    *,
    decode: Callable[[bytes], Any] | None = None,
    encode: Callable[[Any], bytes] | None = None,
) -> Handler:
    """Return a handler of the same kind around `behaviour`; None = decode or encode as `handler` does."""
    return make_handler(
        behaviour,
        decode if decode is not None else handler.request_deserializer,
        encode if encode is not None else handler.response_serializer,
        request_streaming=handler.request_streaming,
        response_streaming=handler.response_streaming,
    )
