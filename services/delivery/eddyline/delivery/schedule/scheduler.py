"""Scheduler: chooses which of the topics with new records is served next. Pure: no loop, no clock of its own.

A topic waits in one of five bands by its priority, which grows while it waits; bands take turns by deficit weighted
round robin, in records; within a band the order is first in, first out. Source: M. Shreedhar and G. Varghese,
"Efficient Fair Queuing Using Deficit Round Robin", 1996, in the form that charges after the service (surplus round
robin), since the cost of a turn is known only then.

I1: a topic is queued at most once. I2: within a band the order is that of arrival in it; a topic that rises goes to its
    end. I3: a topic of any priority is in B4 after 10 s of waiting and a tick. I4: a band owes at most the cost of one
    of its turns; an empty one keeps its debt, so that a topic alone in its band pays for large batches, and no credit.
Cost: `push`, `pop` and `charge` are O(1) for any number of waiting topics, plus the checks that have fallen due. No
tick checks all topics: each waits in the bucket of the first tick at which it could rise, and is checked a few times a
band (see `_schedule_check`), so a wait of any length costs at most a dozen checks; a topic served within its first tick
costs none. `longest_wait_s` and `ready` are O(1) too.
Rejected: one heap by priority (starves by design, and O(log n)); a sweep of all waiting topics each tick (10 000 topics
are 5 ms of each 50).
Threading: none of its own; one caller.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable
from operator import attrgetter
from typing import Final, Generic, NamedTuple, TypeVar

BANDS: Final = 5
FLOORS: Final = (-math.inf, 0.0, 250.0, 500.0, 750.0)
"""Lowest priority of each band, B0 to B4."""
WEIGHTS: Final = (1, 1, 2, 4, 8)
QUANTUM_RECORDS: Final = 64
"""Records per weight and round.

A turn delivers up to some hundred, so a round is a few turns; a smaller quantum only makes rounds without a turn, which
are skipped by arithmetic.
"""
SLOWED: Final = 8
"""B0's weight is divided by this while it is slowed: it still has a turn now and then."""
MANUAL_MAX: Final = 1_000
RECENT_MAX: Final = 500.0
RECENT_HALF_S: Final = 30.0
RECENT_END_S: Final = 300.0
AGE_A_S: Final = 175.0
AGE_MAX: Final = 1_750.0
"""From the lowest priority, -1 000, to the floor of B4: 10 s at 175 a second.

With 100 a second and at most 1 000 the lowest would stay in B1 indefinitely.
"""
TICK_S: Final = 0.05
"""Interval of priority checks: 8.75 of the 250 that a band is wide."""

assert FLOORS[-1] <= AGE_MAX - MANUAL_MAX, "the oldest is in the highest band, whatever its priority"
assert QUANTUM_RECORDS % SLOWED == 0, "a slowed quantum is whole"

_TOLERANCE: Final = 1e-6
"""Of a tick: a clock in floating point may be slightly before the requested time."""
_ORDER: Final = attrgetter("order")

Topic = TypeVar("Topic", bound=Hashable)


class Turn(NamedTuple, Generic[Topic]):
    """A topic to serve now: its band, to be charged, and its wait."""

    topic: Topic
    band: int
    waited_s: float


def base_priority(manual: int | None, consumed_s: float, now_s: float) -> float:
    """Return the priority without age: `manual`, clamped, or by recency.

    By recency of `consumed_s`: 500, halved each 30 s, 0 from 300 s on.
    """
    if manual is not None:
        return float(max(-MANUAL_MAX, min(MANUAL_MAX, manual)))
    untouched_s = max(0.0, now_s - consumed_s)
    return 0.0 if untouched_s >= RECENT_END_S else RECENT_MAX * 2.0 ** (-untouched_s / RECENT_HALF_S)


def band_of(priority: float) -> int:
    """Return the band of a priority, 0 to 4."""
    band = BANDS - 1
    while priority < FLOORS[band]:
        band -= 1
    return band


class _QueuedTopic(Generic[Topic]):
    __slots__ = ("band", "consumed_s", "manual", "order", "since_s", "topic")

    def __init__(self, topic: Topic, manual: int | None, consumed_s: float, since_s: float, order: int) -> None:
        self.topic = topic
        self.manual = manual
        self.consumed_s = consumed_s
        self.since_s = since_s
        self.order = order
        self.band = band_of(base_priority(manual, consumed_s, since_s))

    def priority(self, now_s: float) -> float:
        age = min(AGE_MAX, AGE_A_S * (now_s - self.since_s))
        return base_priority(self.manual, self.consumed_s, now_s) + age


class Scheduler(Generic[Topic]):
    """The queue of waiting topics. `now_s` never decreases from call to call."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Topic, _QueuedTopic[Topic]] = OrderedDict()
        self._fresh: OrderedDict[Topic, _QueuedTopic[Topic]] = OrderedDict()
        """Topics that arrived since the last tick, and are in no bucket yet."""
        self._queues: tuple[OrderedDict[Topic, _QueuedTopic[Topic]], ...] = tuple(OrderedDict() for _ in range(BANDS))
        self._buckets: dict[int, list[_QueuedTopic[Topic]]] = {}
        self._ticks: list[int] = []
        self._tick = -1
        self._order = 0
        self._deficits = [0] * BANDS
        self._current_band = 0
        self.slows_b0 = False
        """True = B0 has an eighth of its weight."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, topic: object) -> bool:
        return topic in self._entries

    @property
    def ready(self) -> tuple[int, ...]:
        """Number of waiting topics, B0 to B4."""
        return tuple(map(len, self._queues))

    def longest_wait_s(self, now_s: float) -> float:
        """Return the longest wait of a queued topic; 0 if none is queued."""
        return now_s - next(iter(self._entries.values())).since_s if self._entries else 0.0

    def waiting_turn(self, topic: Topic, now_s: float) -> Turn[Topic] | None:
        """Return the band in which a topic waits, and its wait so far; None = it does not wait."""
        entry = self._entries.get(topic)
        return Turn(topic, entry.band, now_s - entry.since_s) if entry is not None else None

    def push(self, topic: Topic, now_s: float, *, manual: int | None, consumed_s: float) -> bool:
        """Queue a topic; False = it is queued already, and keeps its position, wait and priority."""
        if topic in self._entries:
            return False
        self.advance(now_s)
        self._order += 1
        entry = _QueuedTopic(topic, manual, consumed_s, now_s, self._order)
        self._entries[topic] = self._fresh[topic] = self._queues[entry.band][topic] = entry
        return True

    def remove(self, topic: Topic) -> None:
        """Remove a topic, if it is queued."""
        entry = self._entries.pop(topic, None)
        if entry is not None:
            self._fresh.pop(topic, None)
            del self._queues[entry.band][topic]

    def pop(self, now_s: float) -> Turn[Topic] | None:
        """Dequeue the topic whose turn it is; None = none waits. The caller must charge the turn before the next `pop`."""
        if not self._entries:
            return None
        self.advance(now_s)
        band = self._next_band()
        topic, entry = next(iter(self._queues[band].items()))
        self.remove(topic)
        return Turn(topic, band, now_s - entry.since_s)

    def charge(self, band: int, records: int) -> None:
        """Charge a turn of this band with the records it delivered, at least 1."""
        assert records > 0, "a turn that costs nothing would never end its band's"
        self._deficits[band] -= records

    def advance(self, now_s: float) -> None:
        """Process the ticks up to `now_s`, in their order."""
        tick = math.floor(now_s / TICK_S + _TOLERANCE)
        if tick <= self._tick:
            return
        for entry in self._fresh.values():
            self._schedule_check(entry, entry.since_s)
        self._fresh.clear()
        while self._ticks and self._ticks[0] <= tick:
            self._tick = heapq.heappop(self._ticks)
            for entry in sorted(self._buckets.pop(self._tick), key=_ORDER):
                if self._entries.get(entry.topic) is entry:
                    self._raise(entry, self._tick * TICK_S)
        self._tick = tick

    def _raise(self, entry: _QueuedTopic[Topic], now_s: float) -> None:
        band = band_of(entry.priority(now_s))
        if band > entry.band:
            del self._queues[entry.band][entry.topic]
            entry.band = band
            self._queues[band][entry.topic] = entry
        self._schedule_check(entry, now_s)

    def _schedule_check(self, entry: _QueuedTopic[Topic], now_s: float) -> None:
        """Schedule the next check for the first tick at which the topic could be in a higher band.

        Age alone bounds the growth. Recency takes back at most 11.6 of 175 a second: if a tick was too early, a
        fifteenth of the missing priority is still missing, and after three checks less than a tick's.
        """
        if entry.band == BANDS - 1:
            return
        missing_s = (FLOORS[entry.band + 1] - entry.priority(now_s)) / AGE_A_S
        tick = max(self._tick + 1, math.ceil((now_s + missing_s) / TICK_S - _TOLERANCE))
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = []
            heapq.heappush(self._ticks, tick)
        bucket.append(entry)

    def _next_band(self) -> int:
        """Return the band whose turn it is; at least one topic waits."""
        while True:
            for _ in range(BANDS + 1):
                if self._queues[self._current_band] and self._deficits[self._current_band] > 0:
                    return self._current_band
                self._move_on()
            self._skip_rounds()

    def _move_on(self) -> None:
        """Go from a band to the next lower one, which gets its quantum."""
        if not self._queues[self._current_band] and self._deficits[self._current_band] > 0:
            self._deficits[self._current_band] = 0
        self._current_band = (self._current_band - 1) % BANDS
        self._credit(self._current_band, 1)

    def _skip_rounds(self) -> None:
        """If all waiting bands are in debt, skip at once as many rounds as would give no turn."""
        rounds = min(-self._deficits[band] // self._quantum(band) for band in range(BANDS) if self._queues[band])
        if rounds > 0:
            for band in range(BANDS):
                self._credit(band, rounds)

    def _credit(self, band: int, rounds: int) -> None:
        credit = self._deficits[band] + rounds * self._quantum(band)
        self._deficits[band] = credit if self._queues[band] else min(0, credit)

    def _quantum(self, band: int) -> int:
        quantum = WEIGHTS[band] * QUANTUM_RECORDS
        return quantum // SLOWED if band == 0 and self.slows_b0 else quantum
