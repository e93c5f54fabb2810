"""`Follow` over gRPC: one open FollowTopics stream.

Owns the stream and the queue of its steps. Steps pass through a bounded queue, so that the cancellation of a caller
within a step does not end the stream (gRPC cancels a call whose `write` is cancelled).
Failure: when the stream breaks the iteration raises the store's error, or `StoreUnreachable` if there is none; steps
that wait or come later raise `StoreUnreachable`. A stream has no deadline: keepalive detects a dead store within 30 s.
Threading: event loop only; one task iterates, steps may come from others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import grpc

from eddyline.core.codec.records import item_from_pb
from eddyline.core.codec.state import topic_info_from_pb
from eddyline.core.errors import StoreUnreachable
from eddyline.core.store_link.protocol import FollowChanged, FollowEnded, FollowItem, FollowLevel, FollowStarted
from eddyline.core.telemetry.trace_context import SeqTrace
from eddyline.core.transport.status import unwrap
from eddyline.v1 import apply_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.store_link.protocol import FollowEvent

STEPS_MAX: Final = 1_024
"""Steps waiting to be sent; at the bound `add` waits. 100 B each: together the size of one flow-control window."""


class GrpcFollow:
    """One FollowTopics stream, made by `GrpcLink.follow`; `close` ends it."""

    def __init__(
        self,
        method: grpc.aio.StreamStreamMultiCallable[apply_pb2.FollowTopicsRequest, apply_pb2.FollowTopicsResponse],
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._steps: asyncio.Queue[apply_pb2.FollowTopicsRequest | None] = asyncio.Queue(STEPS_MAX)
        self._call = method(self._outgoing(), metadata=metadata)
        self._call.add_done_callback(self._done)

    async def add(self, follow_id: int, topic: str, *, epoch: int = 0, after_seq: int | None = None) -> None:
        added = apply_pb2.FollowAdd(follow_id=follow_id, topic=topic, epoch=epoch, after_seq=after_seq)
        await self._step(apply_pb2.FollowTopicsRequest(add=added))

    async def remove(self, follow_id: int) -> None:
        removed = apply_pb2.FollowRemove(follow_id=follow_id)
        await self._step(apply_pb2.FollowTopicsRequest(remove=removed))

    async def grant(self, credit_bytes: int) -> None:
        await self._step(apply_pb2.FollowTopicsRequest(credit_bytes=credit_bytes))

    async def __aiter__(self) -> AsyncIterator[FollowEvent]:
        try:
            async for answer in self._call:
                event = event_from_pb(answer)
                if event is not None:
                    yield event
        except grpc.aio.AioRpcError as error:
            raise unwrap(error, unreachable=StoreUnreachable) from error
        raise _ended()

    def close(self) -> None:
        """Cancel the stream."""
        self._call.cancel()

    async def _step(self, request: apply_pb2.FollowTopicsRequest) -> None:
        if self._call.done():
            raise _ended()
        await self._steps.put(request)
        if self._call.done():
            # The stream ended while this step waited for room. Making room again lets the next waiting step end the
            # same way.
            self._drain()
            raise _ended()

    async def _outgoing(self) -> AsyncIterator[apply_pb2.FollowTopicsRequest]:
        while (request := await self._steps.get()) is not None:
            yield request

    def _done(self, _call: object) -> None:
        self._drain()
        # gRPC's task that sends the steps waits on the queue, and gRPC does not end it when the peer ends the call.
        self._steps.put_nowait(None)

    def _drain(self) -> None:
        while not self._steps.empty():
            self._steps.get_nowait()


def event_from_pb(answer: apply_pb2.FollowTopicsResponse) -> FollowEvent | None:
    """Translate one answer; None = an event of a newer contract."""
    follow_id = answer.follow_id
    match answer.WhichOneof("event"):
        case "started":
            started = answer.started
            return FollowStarted(follow_id, topic_info_from_pb(started.topic), started.after_seq)
        case "item":
            followed = answer.item
            traces = (
                tuple(SeqTrace(traced.seq, traced.traceparent) for traced in followed.traces) if followed.traces else ()
            )
            item = item_from_pb(followed.item)
            return FollowItem(follow_id, item, followed.next_after_seq, followed.head_seq, traces, followed.batch_end)
        case "level":
            return FollowLevel(follow_id, answer.level.head_seq)
        case "ended":
            return FollowEnded(follow_id, answer.ended.reason, answer.ended.message)
        case "changed":
            return FollowChanged(follow_id, topic_info_from_pb(answer.changed.topic))
        case _:
            return None


def _ended() -> StoreUnreachable:
    return StoreUnreachable("the store's stream of followed topics has ended")
