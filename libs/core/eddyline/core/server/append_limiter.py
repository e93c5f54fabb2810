"""Server interceptor that bounds the memory of appends in flight: a call's message is received only once there is room
for it.

An append call counts as the largest message while it is received, since its size is unknown, then as the memory of the
message and of what is made from it, until the call ends. Calls wait in order of arrival; gRPC's flow control makes their
clients wait. Streams of appends are bounded by their messages in flight, and by the store's `memory_guard.py`.
I1: a call is admitted only if it fits, or if no other is in flight; later growth is at most `FORMS` times the bound, or
one call's. I2: a claim ends with its call's task, in whichever way that ends.
Threading: event loop. Order: after `eddyline.core.server.error_interceptor`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Final

import grpc

from eddyline.core.records.record import MESSAGE_BYTES_MAX
from eddyline.core.transport.handlers import HandlerCache, behaviour_of, handler_like
from eddyline.core.transport.quick_gate import admit_any

if TYPE_CHECKING:
    from eddyline.core.transport.handlers import Continuation, Handler
    from eddyline.core.transport.quick_gate import Admit, Certificate, GiveBack, Metadata

METHODS: Final = frozenset(("/eddyline.v1.LogService/AppendRecords", "/eddyline.v1.ApplyService/ApplyBatch"))
FORMS: Final = 3
"""Memory of a received message, in multiples of its size: as received, as columns, as a frame on its way to the disk; at
ingest also in pieces, and as sent to the store."""


class _Claim:
    """Memory that one call has claimed."""

    __slots__ = ("bytes", "turn")

    def __init__(self) -> None:
        self.bytes = 0
        self.turn: asyncio.Event | None = None


_CLAIM: Final[ContextVar[_Claim]] = ContextVar("_CLAIM")
"""Claim of the current task's call."""


class AppendLimiter(grpc.aio.ServerInterceptor):
    """Admits appends while their claims fit into `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[_Claim] = deque()
        self.bytes = 0
        """Sum of all claims."""
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

    def quick_admit(self, method: str, _metadata: Metadata, _certificate: Certificate) -> Admit | None:
        return self._admit if method in METHODS else admit_any

    def _admit(self, _request: object, size: int) -> GiveBack | None:
        """Claim the memory of an append that was received already, unless others wait for theirs or there is no room."""
        if self._waiting or not self._fits():
            return None
        claim = _Claim()
        self._change(claim, FORMS * size)
        return partial(self._change, claim, 0)

    def hold(self, memory_is_full: bool) -> None:
        """Admit calls one at a time while memory is full: the store refuses each with its reason."""
        self._is_held = memory_is_full
        self._let_in()

    async def claim(self) -> _Claim:
        """Wait for room for the largest message, and claim it until the current task ends.

        That is the call's own task: gRPC decodes and answers in it too.
        """
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
        """Remove the claim of a call that was cancelled while waiting, or just as it was admitted."""
        if claim in self._waiting:
            self._waiting.remove(claim)
        self._change(claim, 0)

    def _let_in(self) -> None:
        while self._waiting and self._fits():
            claim = self._waiting.popleft()
            self._take(claim)
            assert claim.turn is not None
            claim.turn.set()
