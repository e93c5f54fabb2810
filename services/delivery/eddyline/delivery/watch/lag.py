"""How far subscriptions are behind their topics: what the one lacks that lacks most, and how old that is.

Seen when it is asked for, so that nothing is kept up for it: one look at each subscription, others have turns between.
Of a topic that is behind, the oldest record that it lacks is looked for in the ring; where the ring has it no more the
oldest one there tells, which is newer: then the age is at least that.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.records.record import Gap
from eddyline.delivery.watch.subscription import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eddyline.delivery.watch.subscriber import Subscriber
    from eddyline.delivery.watch.subscription import Subscription

LOOKS_A_TURN: Final = 1_000
"""A millisecond."""


class Lag(NamedTuple):
    """The largest of each, over all subscriptions; not of one and the same."""

    records: int = 0
    seconds: float = 0.0


async def largest_lag(subscribers: Iterable[Subscriber], now_ms: int) -> Lag:
    """Look at all. Those that come or go meanwhile are seen or not."""
    records, oldest_ms, looks = 0, now_ms, 0
    for subscriber in tuple(subscribers):
        for subscription in tuple(subscriber.topics):
            behind = records_behind(subscription)
            if behind:
                records = max(records, behind)
                oldest_ms = min(oldest_ms, _oldest_ms(subscription, now_ms))
            looks += 1
            if looks % LOOKS_A_TURN == 0:
                await asyncio.sleep(0)
    return Lag(records, (now_ms - oldest_ms) / 1000)


def records_behind(subscription: Subscription) -> int:
    """Seqs that its topic has, and it has not been given; 0 where it reads no log, or another topic's of this name."""
    ring = subscription.tail.ring
    if subscription.phase is not Phase.LOG or ring.epoch != subscription.epoch:
        return 0
    return max(0, ring.end_seq - subscription.seq)


def _oldest_ms(subscription: Subscription, now_ms: int) -> int:
    ring = subscription.tail.ring
    frame = ring.after(max(subscription.seq, ring.floor_seq))
    if frame is None or isinstance(frame.item, Gap) or not frame.item.count:
        return now_ms
    return frame.item.last_ts_ms
