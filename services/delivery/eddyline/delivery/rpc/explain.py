"""ExplainWatch as messages: a page of the open streams, and the cost of a planned watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.auth.grant import caller
from eddyline.core.codec.records import gap_to_pb
from eddyline.core.errors import PageTokenInvalid
from eddyline.core.model.paging import name_after, page_limit, token_after
from eddyline.core.model.topic import check_name
from eddyline.delivery.rpc.watch import request_from_pb
from eddyline.delivery.watch.explain import StreamState, cost_of, states_of
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import delivery_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.server.wire import Backlog
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.delivery.feed.dispatcher import Dispatcher
    from eddyline.delivery.watch.explain import Cost, TopicState
    from eddyline.delivery.watch.subscriber import Subscriber
    from eddyline.delivery.watch.watches import Watches

_CALL: Final = "ExplainWatch"
_STANDINGS: Final = {
    StreamState.CAUGHT_UP: pb.WATCH_STANDING_LEVEL,
    StreamState.SENDING: pb.WATCH_STANDING_SENDING,
    StreamState.WAITING_TURN: pb.WATCH_STANDING_WAITING_TURN,
    StreamState.READING: pb.WATCH_STANDING_READING,
    StreamState.SNAPSHOT: pb.WATCH_STANDING_SNAPSHOT,
    StreamState.GONE: pb.WATCH_STANDING_GONE,
}


class DeliveryService(delivery_pb2_grpc.DeliveryServiceServicer):
    """Unary calls of delivery; WatchTopics is served as bytes (`rpc/watch.py`)."""

    def __init__(self, watches: Watches, dispatcher: Dispatcher, *, link: StoreLink, clock: Clock) -> None:
        self._watches = watches
        self._dispatcher = dispatcher
        self._link = link
        self._clock = clock

    async def ExplainWatch(self, request: pb.ExplainWatchRequest, context: object) -> pb.ExplainWatchResponse:
        """Return a page of the open streams, and the cost of the request's watch."""
        if request.topic:
            check_name(request.topic, "topic")
        limit = page_limit(request.page_size)
        after = _number_of(name_after(request.page_token, call=_CALL, argument=request.topic))
        answer = pb.ExplainWatchResponse()
        if request.HasField("watch"):
            answer.costs.extend([_cost_to_pb(cost) for cost in await self._costs(request.watch)])
        is_visible = caller().covers if caller().prefixes else None
        for subscriber in self._watches.opened:
            if subscriber.number <= after:
                continue
            states = states_of(subscriber, self._dispatcher, request.topic, is_visible=is_visible)
            if not states and (request.topic or caller().prefixes):
                continue
            if len(answer.watches) == limit:
                last = str(answer.watches[-1].watch_id)
                answer.next_page_token = token_after(last, call=_CALL, argument=request.topic)
                break
            answer.watches.append(self._watch_to_pb(subscriber, states))
        return answer

    async def _costs(self, request: pb.WatchTopicsRequest) -> list[Cost]:
        watch = request_from_pb(request)
        planned = await self._watches.plan(watch)
        return [
            await cost_of(self._link, wanted.topic, start, info)
            for wanted, (start, info) in zip(watch.topics, planned, strict=True)
        ]

    def _watch_to_pb(self, subscriber: Subscriber, states: list[TopicState]) -> pb.OpenWatch:
        now_s = self._clock.monotonic_s()
        return pb.OpenWatch(
            watch_id=subscriber.number,
            peer=subscriber.peer,
            open_ms=round((now_s - subscriber.opened_s) * 1000),
            last_send_ms=round((now_s - subscriber.reader.sent_s) * 1000),
            queued_bytes=subscriber.queued_bytes,
            sent_count=subscriber.reader.sent_count,
            sent_bytes=subscriber.reader.sent_bytes,
            slow=subscriber.reader.slow,
            caught_up=subscriber.caught_up,
            topic_count=sum(map(caller().covers, (topic.topic for topic in subscriber.topics))),
            topics=[_state_to_pb(state) for state in states],
            backlog=_backlog_to_pb(backlog) if (backlog := subscriber.backlog()) is not None else None,
        )


def _number_of(text: str) -> int:
    try:
        return int(text or "0")
    except ValueError:
        raise PageTokenInvalid("the page token belongs to another call") from None


def _backlog_to_pb(backlog: Backlog) -> pb.WatchBacklog:
    return pb.WatchBacklog(
        queued_bytes=backlog.queued_bytes,
        queued_ms=round(backlog.queued_s * 1000),
        unread_bytes=backlog.unread_bytes,
        unread_ms=round(backlog.unread_s * 1000),
    )


def _state_to_pb(state: TopicState) -> pb.TopicStanding:
    return pb.TopicStanding(
        cursor=types_pb2.Cursor(topic=state.topic, epoch=state.epoch, seq=state.seq),
        head_seq=state.head_seq,
        standing=_STANDINGS[state.state],
        band=state.band,
        turn_wait_ms=round(state.wait_s * 1000),
        next=state.state.value,
    )


def _cost_to_pb(cost: Cost) -> pb.WatchCost:
    return pb.WatchCost(
        start=types_pb2.Cursor(topic=cost.topic, epoch=cost.epoch, seq=cost.seq),
        head_seq=cost.head_seq,
        snapshot=cost.snapshot,
        record_count=cost.records,
        record_bytes=cost.nbytes,
        gap=gap_to_pb(cost.gap) if cost.gap is not None else None,
        deleted=cost.deleted,
    )
