"""One FollowTopics call: takes steps and sends events concurrently.

Half-closing the stream ends the steps only: a caller that has added its topics and granted its credit may read on until it
cancels. `eddyline.store.read.follow` keeps order and credit; this call only passes them on.
Threading: event loop; one task takes steps, the call's own task sends events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from eddyline.core.codec import records as wire
from eddyline.core.codec import state as wire_state
from eddyline.core.errors import InvalidArgument
from eddyline.core.runtime.tasks import run_with
from eddyline.core.store_link.protocol import FollowChanged, FollowEnded, FollowItem, FollowLevel, FollowStarted
from eddyline.store.rpc.stream_context import open_stream
from eddyline.v1 import apply_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.store_link.protocol import Follow, FollowEvent
    from eddyline.store.rpc.shard_handle import ShardHandle
    from eddyline.store.rpc.stream_context import StreamContext


class FollowCall:
    """State of one FollowTopics call."""

    def __init__(
        self,
        handle: ShardHandle,
        *,
        steps: AsyncIterator[apply_pb2.FollowTopicsRequest],
        context: StreamContext[apply_pb2.FollowTopicsResponse],
    ) -> None:
        self._handle = handle
        self._steps = steps
        self._context = context

    async def run(self) -> None:
        """Serve the call until it is cancelled, a step is refused or the store stops.

        Raises:
            InvalidArgument: a step is empty, or grants too much. NotReady: the store stops.
        """
        async with self._handle.get().follow() as follow:
            await open_stream(self._context)
            await self._handle.cancel_on_stop(run_with(self._send_events(follow), background=self._take_steps(follow)))

    async def _take_steps(self, follow: Follow) -> None:
        async for step in self._steps:
            match step.WhichOneof("step"):
                case "add":
                    add = step.add
                    after_seq = add.after_seq if add.HasField("after_seq") else None
                    await follow.add(add.follow_id, add.topic, epoch=add.epoch, after_seq=after_seq)
                case "remove":
                    await follow.remove(step.remove.follow_id)
                case "credit_bytes":
                    await follow.grant(step.credit_bytes)
                case _:
                    raise InvalidArgument("the step must be `add`, `remove` or `credit_bytes`", field="step")

    async def _send_events(self, follow: Follow) -> None:
        async for event in follow:
            await self._context.write(event_to_pb(event))


def event_to_pb(event: FollowEvent) -> apply_pb2.FollowTopicsResponse:
    """Return an event as the stream's answer."""
    answer = apply_pb2.FollowTopicsResponse(follow_id=event.follow_id)
    match event:
        case FollowStarted():
            answer.started.topic.CopyFrom(wire_state.topic_info_to_pb(event.topic))
            answer.started.after_seq = event.after_seq
        case FollowItem():
            item = answer.item
            item.next_after_seq = event.next_after_seq
            item.head_seq = event.head_seq
            item.batch_end = event.batch_end
            wire.fill_item(item.item, event.item, as_columns=True)
            for traced in event.traces:
                item.traces.add(seq=traced.seq, traceparent=traced.traceparent)
        case FollowLevel():
            answer.level.head_seq = event.head_seq
        case FollowEnded():
            answer.ended.reason = event.reason
            answer.ended.message = event.message
        case FollowChanged():
            answer.changed.topic.CopyFrom(wire_state.topic_info_to_pb(event.topic))
        case _:
            assert_never(event)
    return answer
