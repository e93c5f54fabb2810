"""gRPC interceptor that forwards a call to the shard it belongs to, at most once.

A store of a cluster with several shards passes its own index: calls for its topics go to its handlers, all others to
`eddyline.core.forwarding.shards`. Ingest and delivery have the interceptor for the store calls that they accept; they
own no shard. A message is forwarded as received, yet it is parsed here too, since access control and audit read it.
I1: a call is forwarded once: one that carries the mark is answered here or fails with WRONG_SHARD, so that roles with
    different shard lists make no loop. I2: no handler receives a message that names another shard's topic.
Only its shard knows a source: the others get a GetSource, and SOURCE_NOT_FOUND is raised only if all of them deny it.
Two sources of one name can be made on two shards by two calls at the same moment; the name then means either.
Order: after access control and the cluster check, next to the handlers. A cluster of one shard does not have this
interceptor.
Threading: event loop.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import grpc

from eddyline.core.auth.rules import RULES
from eddyline.core.errors import WrongShard
from eddyline.core.forwarding.list_topics import list_topics
from eddyline.core.forwarding.routes import ROUTES, Route, requested_source, requested_topic
from eddyline.core.model.sharding import shard_of
from eddyline.core.transport.cluster_check import FORWARDED_KEY
from eddyline.core.transport.handlers import HandlerCache, behaviour_of, handler_like
from eddyline.core.transport.pushed_requests import RejoinedRequests, as_pushed
from eddyline.core.transport.quick_gate import admit_any, nothing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
    from typing import Protocol

    from eddyline.core.forwarding.shards import ShardForwarder
    from eddyline.core.transport.handlers import Continuation, Handler
    from eddyline.core.transport.quick_gate import Admit, Certificate, GiveBack, Metadata

    Unary = Callable[[Any, Any], Awaitable[Any]]
    Stream = Callable[[Any, Any], Any]

    class OwnShard(Protocol):
        """The shard behind a store's handlers."""

        index: int

        async def has_source(self, name: str) -> bool:
            """Return True if the shard has a source of this name."""


class _Received:
    """Bytes of the message that a call received last, until they are forwarded."""

    __slots__ = ("is_kept", "is_marked", "message")

    def __init__(self, *, is_marked: bool) -> None:
        self.is_marked = is_marked
        self.is_kept = True
        self.message = b""

    def take(self) -> bytes:
        message, self.message = self.message, b""
        return message

    def stay(self) -> None:
        """Drop the bytes: the call is answered here."""
        self.is_kept, self.message = False, b""


_RECEIVED: Final[ContextVar[_Received]] = ContextVar("_RECEIVED")
"""Of the call whose task it is: gRPC decodes in it, or in a task that it makes."""


class ForwardingInterceptor(grpc.aio.ServerInterceptor):
    """Forwards calls to their shard. `own` None = the role owns no shard, and accepts `methods` only to forward them."""

    def __init__(
        self, shards: ShardForwarder, *, own: OwnShard | None = None, methods: Collection[str] = ROUTES
    ) -> None:
        self._shards = shards
        self._own = own
        self._own_index = own.index if own is not None else None
        self._methods = frozenset(method for method in methods if ROUTES[method] is not Route.HERE)
        self._sending_handlers: HandlerCache[Handler] = HandlerCache(self._sending)

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method not in self._methods:
            return handler
        metadata = handler_call_details.invocation_metadata or ()
        _RECEIVED.set(_Received(is_marked=any(key == FORWARDED_KEY for key, _ in metadata)))
        return self._sending_handlers.get(handler, method)

    def quick_admit(self, method: str, _metadata: Metadata, _certificate: Certificate) -> Admit | None:
        if method not in self._methods:
            return admit_any
        if self._own_index is None or ROUTES[method] is not Route.TOPIC:
            return None
        names = RULES[method].names

        def admit(request: Any, _size: int) -> GiveBack | None:
            topic = next(iter(names(request)), None)
            return nothing if topic and shard_of(topic, self._shards.count) == self._own_index else None

        return admit

    def _sending(self, handler: Handler, method: str) -> Handler:
        decode, encode = _recording(handler.request_deserializer), _or_bytes(handler.response_serializer)
        wrap = self._unary
        if handler.request_streaming:
            assert handler.response_streaming
            wrap = self._each if ROUTES[method] is Route.EACH else self._duplex
        elif handler.response_streaming:
            wrap = self._stream
        return handler_like(handler, wrap(behaviour_of(handler), method), decode=decode, encode=encode)

    def _unary(self, behaviour: Unary, method: str) -> Unary:
        route = ROUTES[method]

        async def answer(request: Any, context: Any) -> Any:
            received = _RECEIVED.get()
            if route is Route.ALL and not received.is_marked:
                received.stay()
                own_handler = None if self._own_index is None else (self._own_index, behaviour)
                return await list_topics(self._shards, request, context, here=own_handler)
            owner = None if route is Route.ALL else await self._owner(method, request, received)
            if owner is None:
                received.stay()
                return await behaviour(request, context)
            return await self._shards.unary(owner, method, received.take(), context)

        return answer

    def _stream(self, behaviour: Stream, method: str) -> Stream:
        def answer(request: Any, context: Any) -> Any:
            received = _RECEIVED.get()
            owner = self._owner_of(requested_topic(method, request), received)
            if owner is None:
                received.stay()
                return behaviour(request, context)
            return self._shards.stream(owner, method, received.take(), context)

        return answer

    def _duplex(self, behaviour: Stream, method: str) -> Stream:
        async def answer(requests: AsyncIterator[Any], context: Any) -> None:
            received = _RECEIVED.get()
            # Opened before the first step, as the handler does: a caller may wait for it.
            await context.send_initial_metadata(())
            steps = aiter(requests)
            first = await anext(steps, None)
            if first is None:
                owner = self._owner_of(None, received)
            else:
                owner = await self._owner(method, first, received)
            if owner is not None:
                messages = _messages(received, steps, is_empty=first is None)
                await self._shards.duplex(owner, method, messages, context)
                return
            message, pushed = received.take(), as_pushed(steps)
            received.stay()
            rejoined = _rejoined(first, steps) if pushed is None else RejoinedRequests(first, message, pushed)
            await behaviour(steps if first is None else rejoined, _OpenedContext(context))

        return answer

    def _each(self, behaviour: Stream, method: str) -> Stream:
        async def checked(steps: AsyncIterator[Any], received: _Received) -> AsyncGenerator[Any, None]:
            async for step in steps:
                topic = requested_topic(method, step)
                if topic and self._owner_of(topic, received) is not None:
                    raise self._wrong(shard_of(topic, self._shards.count), topic)
                yield step

        def answer(requests: AsyncIterator[Any], context: Any) -> Any:
            received = _RECEIVED.get()
            received.stay()
            return behaviour(checked(requests, received), context)

        return answer

    async def _owner(self, method: str, request: Any, received: _Received) -> int | None:
        """Return the shard that answers; None = this one."""
        route = ROUTES[method]
        source = requested_source(method, request)
        if self._own is None or source is None:
            return None if route is Route.SOURCE else self._owner_of(requested_topic(method, request), received)
        if await self._own.has_source(source):
            return None
        if route is Route.SOURCE:
            return None if received.is_marked else await self._shards.find_source(source, but=self._own.index)
        other_shard = None if received.is_marked else await self._shards.find_source(source, but=self._own.index)
        return self._owner_of(requested_topic(method, request), received) if other_shard is None else other_shard

    def _owner_of(self, topic: str | None, received: _Received) -> int | None:
        """Return the shard that answers for a topic; None = this one.

        A request without a topic goes to any shard, whose handler raises the error.

        Raises:
            WrongShard: the call was forwarded to this role, which does not own the topic.
        """
        if not topic:
            return 0 if self._own_index is None else None
        owner = shard_of(topic, self._shards.count)
        if owner == self._own_index:
            return None
        if received.is_marked:
            raise self._wrong(owner, topic)
        return owner

    def _wrong(self, owner: int, topic: str) -> WrongShard:
        count = self._shards.count
        if self._own_index is None:
            message = f"a forwarded call for topic {topic[:300]!r} reached a role that is not a store"
            return WrongShard(message, shardCount=count, ownerIndex=owner)
        return WrongShard(
            f"topic {topic[:300]!r} belongs to shard {owner} of {count}, and this is shard {self._own_index}: the roles"
            " have different store addresses",
            shardIndex=self._own_index,
            shardCount=count,
            ownerIndex=owner,
        )


class _OpenedContext:
    """Context of a stream whose initial metadata is sent already."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def send_initial_metadata(self, _metadata: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _recording(decode: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    def keeping(message: bytes) -> Any:
        received = _RECEIVED.get()
        if received.is_kept:
            received.message = message
        return decode(message) if decode is not None else message

    return keeping


def _or_bytes(encode: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
    def encoded(answer: Any) -> bytes:
        return answer if encode is None or isinstance(answer, bytes) else encode(answer)

    return encoded


async def _messages(received: _Received, steps: AsyncIterator[Any], *, is_empty: bool) -> AsyncGenerator[bytes, None]:
    if not is_empty:
        yield received.take()
    async for _step in steps:
        yield received.take()


async def _rejoined(first: Any, steps: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
    yield first
    async for step in steps:
        yield step
