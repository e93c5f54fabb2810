"""Explains open streams (state and next step of each topic) and the cost of a stream before it is opened.

All values are computed on request; only the counters of sent records and bytes are kept.
Threading: event loop only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import TopicNotFound
from eddyline.core.records.record import Gap, GapReason
from eddyline.delivery.watch.subscription import SubscriptionPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.delivery.feed.dispatcher import Dispatcher
    from eddyline.delivery.watch.subscriber import Subscriber
    from eddyline.delivery.watch.subscription import StartPosition, Subscription

TOPICS_LISTED_MAX: Final = 20
"""Of one stream: a page of 1 000 streams of 1 000 topics each would be a million."""


class StreamState(Enum):
    """State of a topic within a stream, and the next step as text."""

    CAUGHT_UP = "caught up; the next record is sent when it arrives"
    SENDING = "its next frame is sent when its reader has taken the previous one"
    WAITING_TURN = "its topic waits for its turn among other topics"
    READING = (
        "reads the log from its cursor, 64 KiB at a time, as its reader takes them, until it reaches the newest frames"
    )
    SNAPSHOT = "sends the current values, then the changes after them"
    GONE = "the topic was deleted; nothing more is sent"


@dataclass(frozen=True, slots=True)
class TopicState:
    """Position and state of one topic of a stream. `band` and `wait_s` while it waits for its turn, else 0."""

    topic: str
    epoch: int
    seq: int
    head_seq: int
    state: StreamState
    band: int = 0
    wait_s: float = 0.0

    @property
    def lag(self) -> int:
        """Seqs between the head, as this replica knows it, and the position."""
        return max(self.head_seq - self.seq, 0)


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one topic of a stream. `records` is an upper bound, `nbytes` an estimate; both 0 for a snapshot."""

    topic: str
    epoch: int
    seq: int
    head_seq: int = 0
    snapshot: bool = False
    records: int = 0
    nbytes: int = 0
    gap: Gap | None = None
    deleted: bool = False


def state_of(subscription: Subscription, dispatcher: Dispatcher) -> TopicState:
    """Return the present state of one topic of a stream."""
    ring = subscription.tail.ring
    seq, epoch = subscription.seq, subscription.epoch
    head_seq = max(ring.end_seq, seq) if ring.epoch == epoch else seq
    turn = None
    if subscription.phase is SubscriptionPhase.GONE:
        state = StreamState.GONE
    elif subscription.phase is SubscriptionPhase.SNAPSHOT:
        state = StreamState.SNAPSHOT
    elif seq >= head_seq:
        state = StreamState.CAUGHT_UP
    elif subscription.reads_log:
        state = StreamState.READING
    elif seq < ring.open_seq:
        state = StreamState.SENDING
    else:
        state = StreamState.WAITING_TURN
        turn = dispatcher.waiting_turn(subscription.tail)
    return TopicState(
        subscription.topic,
        epoch,
        seq,
        head_seq,
        state,
        band=turn.band if turn is not None else 0,
        wait_s=turn.waited_s if turn is not None else 0.0,
    )


def states_of(
    subscriber: Subscriber, dispatcher: Dispatcher, topic: str = "", *, is_visible: Callable[[str], bool] | None = None
) -> list[TopicState]:
    """Return the states of a stream's topics, those with the largest lag first, at most `TOPICS_LISTED_MAX`.

    `topic` "" = all topics; `is_visible` None = the caller may see all.
    """
    subscriptions = [
        one for one in subscriber.topics if topic in ("", one.topic) and (is_visible is None or is_visible(one.topic))
    ]
    states = [state_of(one, dispatcher) for one in subscriptions]
    return sorted(states, key=lambda state: (-state.lag, state.topic))[:TOPICS_LISTED_MAX]


async def cost_of(link: StoreLink, topic: str, start: StartPosition, info: TopicInfo | TopicNotFound) -> Cost:
    """Return the cost of a topic with this start.

    Raises:
        The errors of a read of the log.
    """
    if isinstance(info, TopicNotFound) or start.phase is SubscriptionPhase.GONE:
        return Cost(topic, start.epoch, start.seq, deleted=True)
    if start.phase is SubscriptionPhase.SNAPSHOT:
        return Cost(topic, start.epoch, 0, info.head_seq, snapshot=True)
    records = min(info.head_seq - max(start.seq, info.earliest_seq - 1), info.record_count)
    nbytes = info.record_bytes * records // info.record_count if info.record_count else 0
    gap = await _gap_behind(link, topic, start, info)
    return Cost(topic, start.epoch or info.epoch, start.seq, info.head_seq, records=records, nbytes=nbytes, gap=gap)


async def _gap_behind(link: StoreLink, topic: str, start: StartPosition, info: TopicInfo) -> Gap | None:
    """Return the gap that the stream would report before the first record."""
    if start.old_epoch:
        return Gap(0, 0, GapReason.RECREATED, old_epoch=start.old_epoch, new_epoch=info.epoch)
    if start.seq >= info.head_seq:
        return None
    result = await link.read_records(topic, after_seq=start.seq, epoch=start.epoch, limit=1)
    first = result.items[0] if result.items else None
    return first if isinstance(first, Gap) else None
