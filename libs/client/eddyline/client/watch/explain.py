"""Why a watch is where it is: what it would cost to open one, and where the open ones of every delivery stand.

    for cost in await explain_watch(client, [WatchTopic("orders", Position(epoch, 100))]):
        print(cost.topic, cost.records, cost.nbytes, cost.gap)

Failure: a delivery that does not answer has its error in place of its streams; `explain_watch` asks the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eddyline.client.transport.call import call_once
from eddyline.client.watch.events import Position
from eddyline.client.watch.plan import WatchPlan
from eddyline.core.codec.records import gap_from_pb
from eddyline.core.errors import Code, EddylineError, NotReady
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1.delivery_pb2_grpc import DeliveryServiceStub

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.client.watch.plan import WatchTopic
    from eddyline.client.watch.watch_source import DeliveryChannels
    from eddyline.core.records.record import Gap

TIMEOUT_S: Final = 10.0
STREAMS_MAX: Final = 10_000
"""Of each delivery; the client requests no more."""
_PREFIX: Final = "WATCH_STANDING_"


@dataclass(frozen=True, slots=True)
class WatchCost:
    """The cost of one topic of a watch. `start` = behind which it would begin; `records` at most, `nbytes` about.

    `snapshot`: the current values come first, and are not counted. `gap`: what was lost right behind the start.
    """

    topic: str
    start: Position
    head_seq: int
    snapshot: bool
    records: int
    nbytes: int
    gap: Gap | None
    deleted: bool


@dataclass(frozen=True, slots=True)
class TopicStanding:
    """The position and state of one topic of an open watch. `standing` is LEVEL, SENDING, WAITING_TURN, READING,
    SNAPSHOT or GONE."""

    topic: str
    position: Position
    head_seq: int
    standing: str
    band: int
    turn_wait_ms: int
    next: str


@dataclass(frozen=True, slots=True)
class WatchBacklog:
    """What the reader of a watch has not taken. `queued_bytes` wait at the delivery, the first of them for `queued_ms`;
    `unread_bytes` are sent, and the reader has not given back their window for `unread_ms`, at least: its program may not
    have read them. Readers give windows back in steps, so some KiB say nothing."""

    queued_bytes: int
    queued_ms: int
    unread_bytes: int
    unread_ms: int


@dataclass(frozen=True, slots=True)
class OpenWatch:
    """One open watch of a delivery; `topics` are those furthest behind, at most 20 of `topic_count`. `backlog` None = the
    delivery does not see what its reader has taken: it serves by gRPC's own core, or is of an earlier version."""

    watch_id: int
    peer: str
    open_ms: int
    last_send_ms: int
    queued_bytes: int
    sent_count: int
    sent_bytes: int
    slow: bool
    caught_up: bool
    topic_count: int
    topics: tuple[TopicStanding, ...]
    backlog: WatchBacklog | None = None


async def explain_watch(client: DeliveryChannels, topics: Sequence[WatchTopic]) -> list[WatchCost]:
    """Return the cost that a watch of these topics would have now, in their order. It is not opened.

    Raises:
        EddylineError: those of opening it; NotReady: no delivery is known.
    """
    request = pb.ExplainWatchRequest(watch=WatchPlan(topics, heartbeat_ms=0).request(), page_size=1)
    failure: EddylineError = NotReady("the cluster names no delivery")
    for address in client.topology.deliveries:
        try:
            answer = await _ask(client, address, request)
        except EddylineError as error:
            if error.code is not Code.UNAVAILABLE:
                raise
            failure = error
            continue
        return [_cost(cost) for cost in answer.costs]
    raise failure


async def open_watches(client: DeliveryChannels, topic: str = "") -> dict[str, list[OpenWatch] | EddylineError]:
    """The open watches by the address of their delivery, the oldest first; of `topic` alone, where one is named."""
    found: dict[str, list[OpenWatch] | EddylineError] = {}
    for address in client.topology.deliveries:
        try:
            found[address] = await _all_of(client, address, topic)
        except EddylineError as error:
            found[address] = error
    return found


async def _all_of(client: DeliveryChannels, address: str, topic: str) -> list[OpenWatch]:
    watches: list[OpenWatch] = []
    request = pb.ExplainWatchRequest(topic=topic, page_size=1_000)
    while len(watches) < STREAMS_MAX:
        answer = await _ask(client, address, request)
        watches += map(_watch, answer.watches)
        request.page_token = answer.next_page_token
        if not request.page_token:
            break
    return watches


async def _ask(client: DeliveryChannels, address: str, request: pb.ExplainWatchRequest) -> pb.ExplainWatchResponse:
    stub = DeliveryServiceStub(client.channel_to(address))
    return await call_once(stub.ExplainWatch(request, timeout=TIMEOUT_S))


def _cost(cost: pb.WatchCost) -> WatchCost:
    return WatchCost(
        topic=cost.start.topic,
        start=Position(cost.start.epoch, cost.start.seq),
        head_seq=cost.head_seq,
        snapshot=cost.snapshot,
        records=cost.record_count,
        nbytes=cost.record_bytes,
        gap=gap_from_pb(cost.gap) if cost.HasField("gap") else None,
        deleted=cost.deleted,
    )


def _watch(watch: pb.OpenWatch) -> OpenWatch:
    return OpenWatch(
        watch_id=watch.watch_id,
        peer=watch.peer,
        open_ms=watch.open_ms,
        last_send_ms=watch.last_send_ms,
        queued_bytes=watch.queued_bytes,
        sent_count=watch.sent_count,
        sent_bytes=watch.sent_bytes,
        slow=watch.slow,
        caught_up=watch.caught_up,
        topic_count=watch.topic_count,
        topics=tuple(map(_standing, watch.topics)),
        backlog=_backlog(watch.backlog) if watch.HasField("backlog") else None,
    )


def _backlog(backlog: pb.WatchBacklog) -> WatchBacklog:
    return WatchBacklog(
        queued_bytes=backlog.queued_bytes,
        queued_ms=backlog.queued_ms,
        unread_bytes=backlog.unread_bytes,
        unread_ms=backlog.unread_ms,
    )


def _standing(standing: pb.TopicStanding) -> TopicStanding:
    known = standing.standing in pb.WatchStanding.values()
    name = pb.WatchStanding.Name(standing.standing).removeprefix(_PREFIX) if known else str(standing.standing)
    return TopicStanding(
        topic=standing.cursor.topic,
        position=Position(standing.cursor.epoch, standing.cursor.seq),
        head_seq=standing.head_seq,
        standing=name,
        band=standing.band,
        turn_wait_ms=standing.turn_wait_ms,
        next=standing.next,
    )
