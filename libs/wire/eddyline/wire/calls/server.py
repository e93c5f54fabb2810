"""A server for handlers and interceptors written for grpc.aio: the methods of `grpc.aio.Server`, on our own frames.

Differences from grpc.aio, all refused aloud rather than done otherwise: handlers that are not coroutines or asynchronous
generators; `add_secure_port`, whose credentials only the C core can read (`add_tls_port` takes a context); compression.
A status waits for the end of its request, for `STATUS_DELAY_S` at most, since a grpc.aio client that is still sending would
not report it. Handlers of a request without a stream start when its first bytes are here. Interceptors and handler run in
one task a call.
Order: register, add ports, `start`; `stop` ends it for good.
V1: after `stop` no socket, connection, task or timer is left.
Stopping: GOAWAY in two steps, so that calls on their way are served; calls in flight have the grace; those left end with
UNAVAILABLE, and their handlers are cancelled and awaited.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import grpc

from eddyline.wire.calls.call import (
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    UNKNOWN,
    Call,
    Opening,
)
from eddyline.wire.calls.context import WireContext
from eddyline.wire.calls.metadata import (
    CONTENT_TYPE,
    HEADERS_BLOCK,
    MalformedMetadata,
    decode_metadata,
    decode_timeout,
    encode_trailers,
)
from eddyline.wire.http2.hpack import encode_field
from eddyline.wire.http2.limits import Limits
from eddyline.wire.transport.address import bind
from eddyline.wire.transport.listener import CONNECTIONS_MAX, HALF_OPEN_MAX, Listener
from eddyline.wire.transport.timeouts import Timeouts

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from eddyline.wire.calls.metadata import Metadatum
    from eddyline.wire.http2.request import Request
    from eddyline.wire.http2.stream import Http2Stream
    from eddyline.wire.transport.connection import SocketConnection
    from eddyline.wire.transport.counters import Counters, StreamBacklog

    Handler = grpc.RpcMethodHandler[Any, Any]
    QuickHandler = Callable[[Call, bytes], bytes | None]

UNSUPPORTED_MEDIA_TYPE: Final = encode_field(b":status", b"415")
METHOD_NOT_ALLOWED: Final = encode_field(b":status", b"405")
NOT_FOUND: Final = "Method not found!"
"""grpc.aio's words, which clients and tests know."""

_LOG: Final = logging.getLogger(__name__)


class CallDetails(NamedTuple):
    """A call as interceptors see it: `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: tuple[Metadatum, ...]


class Server(grpc.aio.Server):
    """A server. Needs a running loop."""

    def __init__(
        self,
        *,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        maximum_concurrent_rpcs: int | None = None,
        limits: Limits | None = None,
        timeouts: Timeouts | None = None,
        connections_max: int = CONNECTIONS_MAX,
        half_open_max: int = HALF_OPEN_MAX,
        rng: random.Random | None = None,
    ) -> None:
        """`maximum_concurrent_rpcs` = calls above it are RESOURCE_EXHAUSTED; None = no bound but those of connections."""
        self.loop = asyncio.get_running_loop()
        self._interceptors = tuple(interceptors)
        self._calls_max = maximum_concurrent_rpcs
        self._handlers: dict[str, Handler] = {}
        self._quick: dict[str, QuickHandler] = {}
        self._generic: list[grpc.GenericRpcHandler] = []
        self._listener = Listener(
            self,
            limits=limits or Limits(),
            timeouts=timeouts or Timeouts(),
            rng=rng or random.Random(),
            connections_max=connections_max,
            half_open_max=half_open_max,
        )
        self._calls: set[Call] = set()
        self._no_calls = asyncio.Event()
        self._no_calls.set()
        self._is_stopping = False
        self._stopped = asyncio.Event()

    # -- of grpc.aio.Server

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Add the methods of a service; a later registration of a name replaces the earlier."""
        self._handlers.update((f"/{service_name}/{name}", handler) for name, handler in method_handlers.items())

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Add handlers for methods that are not registered. The first one that knows a method serves it."""
        self._generic.extend(generic_rpc_handlers)

    def add_insecure_port(self, address: str) -> int:
        """Bind `host:port` without TLS, and return the port; port 0 = a free one.

        Raises:
            RuntimeError: the address is in use, or not one of this host.
        """
        return self._add_port(address, None)

    def add_secure_port(self, _address: str, _server_credentials: grpc.ServerCredentials) -> NoReturn:
        """Refuse: only gRPC's own core can read its credentials.

        Raises:
            TypeError: always.
        """
        raise TypeError("gRPC's credentials cannot be read: use add_tls_port with an ssl.SSLContext")

    async def start(self) -> None:
        """Serve."""
        await self._listener.start()

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, wait `grace` seconds for those in flight, end the rest, and close. None = no wait.

        A second call with a shorter grace makes it end sooner.
        """
        await self._listener.drain()
        try:
            async with asyncio.timeout(grace or 0):
                await self._no_calls.wait()
        except TimeoutError:
            self._is_stopping = True
            for call in list(self._calls):
                call.stop(UNAVAILABLE, "the server stops")
            await self._no_calls.wait()
        self._is_stopping = True
        await self._listener.close()
        self._stopped.set()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Wait until the server has stopped; False = `timeout` seconds have passed before."""
        try:
            async with asyncio.timeout(timeout):
                await self._stopped.wait()
        except TimeoutError:
            return False
        return True

    # -- besides

    def add_tls_port(self, address: str, context: Callable[[], ssl.SSLContext]) -> int:
        """Bind `host:port` with TLS, and return the port.

        `context` is called for each new connection, and returns one that `transport.tls.prepare_context` has prepared. It
        decides about clients' certificates: with CERT_REQUIRED, `auth_context` of a call has the verified names.

        Raises:
            RuntimeError: the address is in use, or not one of this host.
        """
        return self._add_port(address, context)

    def add_quick_handlers(self, service_name: str, handlers: Mapping[str, QuickHandler]) -> None:
        """Add functions that answer a method's request at once, without a task.

        A quick handler gets a call and the bytes of its request, and returns the bytes of the answer, or None if the
        method's own handler shall answer, or after `call.finish` or `call.defer`. Interceptors do not see what it answers:
        it checks what they would, and keeps the verdict in `call.opening.verdict`. It must not block.
        """
        self._quick.update((f"/{service_name}/{name}", handler) for name, handler in handlers.items())

    @property
    def counters(self) -> Counters:
        """Return the counts of connections, streams and bytes."""
        return self._listener.counters

    @property
    def calls_open(self) -> int:
        """Return the number of calls whose stream is open or whose handler runs."""
        return len(self._calls)

    def backlogs(self) -> list[StreamBacklog]:
        """Return what each open stream's client has not taken."""
        return self._listener.backlogs()

    # -- of transport.connection.Service

    def on_request(self, stream: Http2Stream, connection: SocketConnection) -> None:
        request = stream.request
        if not _is_grpc(request.content_type):
            stream.end(UNSUPPORTED_MEDIA_TYPE)
            return
        if request.method != b"POST":
            stream.end(METHOD_NOT_ALLOWED)
            return
        try:
            opening = request.cache if isinstance(request.cache, Opening) else _open(request)
            timeout_s = decode_timeout(request.timeout) if request.timeout is not None else None
        except MalformedMetadata as error:
            _refuse(stream, INTERNAL, str(error))
            return
        request.cache = opening
        call = Call(self, stream, connection, opening)
        if self._is_stopping:
            call.refuse(UNAVAILABLE, "the server stops")
        elif self._calls_max is not None and len(self._calls) >= self._calls_max:
            call.refuse(RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
        else:
            self._calls.add(call)
            self._no_calls.clear()
            handler = self._handlers.get(opening.path)
            at_once = handler is None or handler.request_streaming
            call.begin(timeout_s=timeout_s, at_once=at_once, quick=self._quick.get(opening.path))

    def on_oversized(self, stream: Http2Stream, _connection: SocketConnection) -> None:
        _refuse(stream, RESOURCE_EXHAUSTED, "received metadata size exceeds the limit")

    # -- of calls.call.CallOwner

    def run(self, call: Call) -> Coroutine[object, object, None]:
        return self._run(call)

    def release(self, call: Call) -> None:
        self._calls.discard(call)
        if not self._calls:
            self._no_calls.set()

    # -- parts

    def _add_port(self, address: str, context: Callable[[], ssl.SSLContext] | None) -> int:
        try:
            sockets = bind(address)
        except (OSError, ValueError) as error:
            raise RuntimeError(f"Failed to bind to address {address}: {error}") from error
        self._listener.add(sockets, context)
        name = sockets[0].getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    async def _run(self, call: Call) -> None:
        context = WireContext(call)
        try:
            handler = await self._find(CallDetails(call.opening.path, call.opening.metadata), 0)
            if handler is None:
                call.finish(UNIMPLEMENTED, NOT_FOUND)
                return
            context.decode, context.encode = handler.request_deserializer, handler.response_serializer
            await _answer(handler, context)
        except Exception as error:
            is_over = call.is_finished or call.is_cancelled
            if is_over and isinstance(error, grpc.aio.BaseError):
                return  # an abort, or an operation of a call that had ended
            _LOG.exception("unexpected error in a call", exc_info=error)
            context.fail(UNKNOWN, f"Unexpected {type(error)}: {error}")

    async def _find(self, details: CallDetails, index: int) -> Handler | None:
        """Return the handler that the interceptors from `index` on give."""
        if index == len(self._interceptors):
            return self._find_registered(details)

        async def go_on(details: CallDetails) -> Handler | None:
            return await self._find(details, index + 1)

        handler: Handler | None = await self._interceptors[index].intercept_service(go_on, details)  # type: ignore[arg-type]
        return handler

    def _find_registered(self, details: CallDetails) -> Handler | None:
        handler = self._handlers.get(details.method)
        if handler is not None:
            return handler
        for generic in self._generic:
            handler = generic.service(details)  # type: ignore[arg-type]
            if handler is not None:
                return handler
        return None


async def _answer(handler: Handler, context: WireContext) -> None:
    """Run a handler, send what it gives, and end the call."""
    request: object
    if handler.request_streaming:
        request = context.requests()
    else:
        request = await context.read()
        if request is grpc.aio.EOF:
            if not context.cancelled():
                context.fail(UNIMPLEMENTED, "a request without a message")
            return
    behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    assert behaviour is not None
    result: Any = behaviour(request, context)  # type: ignore[arg-type]  # the stubs know synchronous contexts only
    if handler.response_streaming:
        if hasattr(result, "__aiter__"):
            async with aclosing(result) as messages:
                async for message in messages:
                    await context.write(message)
        else:
            await result
        context.check_open()
        context.finish()
        return
    message = await result
    context.check_open()
    code = context.code()
    if code is not None and code not in (0, grpc.StatusCode.OK):
        context.finish()
    else:
        context.finish(context.encode(message) if context.encode is not None else message)


def _is_grpc(content_type: bytes) -> bool:
    return content_type == CONTENT_TYPE or content_type.startswith((CONTENT_TYPE + b"+", CONTENT_TYPE + b";"))


def _open(request: Request) -> Opening:
    return Opening(request.path.decode("latin-1"), decode_metadata(request.fields))


def _refuse(stream: Http2Stream, code: int, message: str) -> None:
    """End a stream that becomes no call."""
    bytes_max = stream.connection.peer_header_list_bytes_max
    stream.end(HEADERS_BLOCK + encode_trailers(code, message, (), bytes_max=bytes_max))
