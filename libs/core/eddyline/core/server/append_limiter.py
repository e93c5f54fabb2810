"""Room for appends under way: a call's message is not received before there is room for it, so that clients wait instead.

An append of one call is taken as the largest message while it is received, since its size is not known; then as what it and
what is made of it take, until the call is over. Calls wait in order of arrival, and gRPC's flow control lets their clients
wait. Streams of appends are bounded by what they may have in flight each, and by the store's `memory_guard.py`.
I1: no call is let in that does not fit, but for one; what is claimed grows by what came then, to at most `FORMS` times the
room, or one call's. I2: a claim ends with its call's task, however that ends.
Threading: event loop. Order: behind `eddyline.core.server.error_interceptor`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import grpc

from eddyline.core.records.record import MESSAGE_BYTES_MAX
from eddyline.core.transport.handlers import HandlerCache, behaviour_of, handler_like

if TYPE_CHECKING:
    from eddyline.core.transport.handlers import Continuation, Handler

METHODS: Final = frozenset(("/eddyline.v1.LogService/AppendRecords", "/eddyline.v1.ApplyService/ApplyBatch"))
FORMS: Final = 3
"""What a message takes once it is there, in its own sizes: as it came, as columns, as a frame on its way to the disk; at
ingest also in pieces, and as it goes to the store."""


class _Claim:
    """What one call takes."""

    __slots__ = ("bytes", "turn")

    def __init__(self) -> None:
        self.bytes = 0
        self.turn: asyncio.Event | None = None


_CLAIM: Final[ContextVar[_Claim]] = ContextVar("_CLAIM")
"""That of the call whose task it is."""


class AppendLimiter(grpc.aio.ServerInterceptor):
    """Lets appends in while there is room."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[_Claim] = deque()
        self.bytes = 0
        """Claimed now."""
        self._is_held = False
        self._counting_handlers: HandlerCache[Handler] = HandlerCache(self._counting)

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method not in METHODS:
            return handler
        await self.claim()
        return self._counting_handlers.get(handler, handler_call_details.method)

    def _counting(self, handler: Handler, _method: str) -> Handler:
        decode = handler.request_deserializer
        assert decode is not None

        def received(message: bytes) -> object:
            self._change(_CLAIM.get(), FORMS * len(message))
            return decode(message)

        return handler_like(handler, behaviour_of(handler), decode=received)

    def hold(self, memory_is_full: bool) -> None:
        """Let calls in one at a time while memory is full: the store refuses them, and tells why."""
        self._is_held = memory_is_full
        self._let_in()

    async def claim(self) -> _Claim:
        """Wait for room for the largest message; it is held until the task that asks is over, which is the call's own: gRPC
        decodes and answers in it too."""
        claim, task = _Claim(), asyncio.current_task()
        assert task is not None
        if self._waiting or not self._fits():
            claim.turn = asyncio.Event()
            self._waiting.append(claim)
            try:
                await claim.turn.wait()
            except asyncio.CancelledError:
                self._leave(claim)
                raise
        else:
            self._take(claim)
        _CLAIM.set(claim)
        task.add_done_callback(lambda _: self._change(claim, 0))
        return claim

    def _fits(self) -> bool:
        return not self.bytes or (not self._is_held and self.bytes + MESSAGE_BYTES_MAX <= self._bytes_max)

    def _take(self, claim: _Claim) -> None:
        claim.bytes = MESSAGE_BYTES_MAX
        self.bytes += MESSAGE_BYTES_MAX

    def _change(self, claim: _Claim, size: int) -> None:
        self.bytes += size - claim.bytes
        claim.bytes = size
        self._let_in()

    def _leave(self, claim: _Claim) -> None:
        """The caller went while it waited, perhaps in the very moment that it was let in."""
        if claim in self._waiting:
            self._waiting.remove(claim)
        self._change(claim, 0)

    def _let_in(self) -> None:
        while self._waiting and self._fits():
            claim = self._waiting.popleft()
            self._take(claim)
            assert claim.turn is not None
            claim.turn.set()
