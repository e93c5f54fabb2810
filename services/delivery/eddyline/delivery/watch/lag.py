"""Lag of subscriptions: the largest number of missing records, and the age of the oldest one.

Computed on request, so that it costs nothing otherwise: one check of each subscription, with yields to other tasks. The
oldest record that a subscription lacks is looked up in the ring; if it has been evicted, the ring's oldest record is
used, which is newer, so the result is a lower bound of the age.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.records.record import Gap
from eddyline.delivery.watch.subscription import SubscriptionPhase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eddyline.delivery.watch.subscriber import Subscriber
    from eddyline.delivery.watch.subscription import Subscription

CHECKS_BEFORE_YIELD: Final = 1_000
"""A millisecond."""


class Lag(NamedTuple):
    """Maximum of each over all subscriptions; the two may belong to different ones."""

    records: int = 0
    seconds: float = 0.0


async def largest_lag(subscribers: Iterable[Subscriber], now_ms: int) -> Lag:
    """Check all subscriptions. Those that come or go meanwhile may or may not be included."""
    records, oldest_ms, checks = 0, now_ms, 0
    for subscriber in tuple(subscribers):
        for subscription in tuple(subscriber.topics):
            behind = records_behind(subscription)
            if behind:
                records = max(records, behind)
                oldest_ms = min(oldest_ms, _oldest_ms(subscription, now_ms))
            checks += 1
            if checks % CHECKS_BEFORE_YIELD == 0:
                await asyncio.sleep(0)
    return Lag(records, (now_ms - oldest_ms) / 1000)


def records_behind(subscription: Subscription) -> int:
    """Return the seqs that the subscription lacks; 0 if it reads no log, or its topic was recreated."""
    ring = subscription.tail.ring
    if subscription.phase is not SubscriptionPhase.LOG or ring.epoch != subscription.epoch:
        return 0
    return max(0, ring.end_seq - subscription.seq)


def _oldest_ms(subscription: Subscription, now_ms: int) -> int:
    ring = subscription.tail.ring
    frame = ring.frame_after(max(subscription.seq, ring.floor_seq))
    if frame is None or isinstance(frame.item, Gap) or not frame.item.count:
        return now_ms
    return frame.item.last_ts_ms
