"""Explaining: where an open stream stands and what happens next, and what a stream would cost before it is opened.

Everything here is looked at when somebody asks; nothing is kept for it but what a stream was sent.
Threading: event loop only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import TopicNotFound
from eddyline.core.records.record import Gap, GapReason
from eddyline.delivery.watch.subscription import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.delivery.feed.dispatcher import Dispatcher
    from eddyline.delivery.watch.subscriber import Subscriber
    from eddyline.delivery.watch.subscription import StartPosition, Subscription

TOPICS_TOLD: Final = 20
"""Of one stream: a page of 1 000 streams of 1 000 topics each would be a million."""


class StreamState(Enum):
    """What a topic of a stream is doing, and what comes next, in words."""

    LEVEL = "has all that there is; the next record goes as it comes"
    SENDING = "its next frame goes when its reader has taken the one before"
    WAITING_TURN = "its topic waits for its turn among other topics"
    READING = (
        "reads the log by its cursor, 64 KiB at a time, as its reader takes them, until it meets the newest frames"
    )
    SNAPSHOT = "brings the current values, then the changes behind them"
    GONE = "the topic was deleted; nothing comes"


@dataclass(frozen=True, slots=True)
class TopicState:
    """Where one topic of a stream stands. `band` and `wait_s` while it waits for its turn, else 0."""

    topic: str
    epoch: int
    seq: int
    head_seq: int
    standing: StreamState
    band: int = 0
    wait_s: float = 0.0

    @property
    def lag(self) -> int:
        """Seqs between the head, as this replica knows it, and the position."""
        return max(self.head_seq - self.seq, 0)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one topic of a stream would cost. `records` at most, `nbytes` about; both 0 of a snapshot."""

    topic: str
    epoch: int
    seq: int
    head_seq: int = 0
    snapshot: bool = False
    records: int = 0
    nbytes: int = 0
    gap: Gap | None = None
    deleted: bool = False


def stand_of(subscription: Subscription, dispatcher: Dispatcher) -> TopicState:
    """Where one topic of a stream stands now."""
    ring = subscription.tail.ring
    seq, epoch = subscription.seq, subscription.epoch
    head_seq = max(ring.end_seq, seq) if ring.epoch == epoch else seq
    turn = None
    if subscription.phase is Phase.GONE:
        standing = StreamState.GONE
    elif subscription.phase is Phase.SNAPSHOT:
        standing = StreamState.SNAPSHOT
    elif seq >= head_seq:
        standing = StreamState.LEVEL
    elif subscription.reads_log:
        standing = StreamState.READING
    elif seq < ring.open_seq:
        standing = StreamState.SENDING
    else:
        standing = StreamState.WAITING_TURN
        turn = dispatcher.place_of(subscription.tail)
    return TopicState(
        subscription.topic,
        epoch,
        seq,
        head_seq,
        standing,
        band=turn.band if turn is not None else 0,
        wait_s=turn.waited_s if turn is not None else 0.0,
    )


def stands_of(
    subscriber: Subscriber, dispatcher: Dispatcher, topic: str = "", *, shown: Callable[[str], bool] | None = None
) -> list[TopicState]:
    """Where the topics of a stream stand that are furthest behind; only `topic`, where one is named, and those that may be
    `shown` (None = all)."""
    wanted = [one for one in subscriber.topics if topic in ("", one.topic) and (shown is None or shown(one.topic))]
    stands = [stand_of(one, dispatcher) for one in wanted]
    return sorted(stands, key=lambda stand: (-stand.lag, stand.topic))[:TOPICS_TOLD]


async def cost_of(link: StoreLink, topic: str, begin: StartPosition, found: TopicInfo | TopicNotFound) -> Cost:
    """What a topic that begins so would cost.

    Raises:
        What a read of the log raises.
    """
    if isinstance(found, TopicNotFound) or begin.phase is Phase.GONE:
        return Cost(topic, begin.epoch, begin.seq, deleted=True)
    if begin.phase is Phase.SNAPSHOT:
        return Cost(topic, begin.epoch, 0, found.head_seq, snapshot=True)
    records = min(found.head_seq - max(begin.seq, found.earliest_seq - 1), found.record_count)
    nbytes = found.record_bytes * records // found.record_count if found.record_count else 0
    gap = await _gap_behind(link, topic, begin, found)
    return Cost(topic, begin.epoch or found.epoch, begin.seq, found.head_seq, records=records, nbytes=nbytes, gap=gap)


async def _gap_behind(link: StoreLink, topic: str, begin: StartPosition, found: TopicInfo) -> Gap | None:
    """What would be told as lost before the first record."""
    if begin.old_epoch:
        return Gap(0, 0, GapReason.RECREATED, old_epoch=begin.old_epoch, new_epoch=found.epoch)
    if begin.seq >= found.head_seq:
        return None
    result = await link.read_records(topic, after_seq=begin.seq, epoch=begin.epoch, limit=1)
    first = result.items[0] if result.items else None
    return first if isinstance(first, Gap) else None
