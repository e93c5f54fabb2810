"""`Follow` over gRPC: one open FollowTopics stream.

Owns the stream and the queue of its steps. Steps go through a bounded queue into the call, so that a caller cancelled
in the middle of a step does not take the stream down with it (gRPC cancels a call whose `write` is cancelled).
Failure: when the stream breaks the iteration raises, `StoreUnreachable` unless the store said why; steps that wait or
come later raise `StoreUnreachable`. A stream has no deadline: keepalive finds a store that is gone within 30 s.
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
"""Steps that wait to be sent; then `add` waits. 100 B each: what one flow-control window takes."""


class GrpcFollow:
    """One stream; `close` ends it. Made by `GrpcLink.follow`."""

    def __init__(
        self,
        method: grpc.aio.StreamStreamMultiCallable[apply_pb2.FollowTopicsRequest, apply_pb2.FollowTopicsResponse],
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._steps: asyncio.Queue[apply_pb2.FollowTopicsRequest | None] = asyncio.Queue(STEPS_MAX)
        self._call = method(self._sent(), metadata=metadata)
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
        """End the stream."""
        self._call.cancel()

    async def _step(self, request: apply_pb2.FollowTopicsRequest) -> None:
        if self._call.done():
            raise _ended()
        await self._steps.put(request)
        if self._call.done():
            # It ended while this waited for room. Making room again lets the next one that waits come to the same end.
            self._drain()
            raise _ended()

    async def _sent(self) -> AsyncIterator[apply_pb2.FollowTopicsRequest]:
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
            found = answer.item
            traces = tuple(SeqTrace(traced.seq, traced.traceparent) for traced in found.traces) if found.traces else ()
            item = item_from_pb(found.item)
            return FollowItem(follow_id, item, found.next_after_seq, found.head_seq, traces, found.batch_end)
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
