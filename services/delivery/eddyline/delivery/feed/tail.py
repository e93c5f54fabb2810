"""Tails: topics that delivery follows at one store, on one FollowTopics stream for any number of subscribers.

A topic is followed from its first subscriber until some time after its last; its frames are pushed into its ring, and
credit is granted again as soon as they are there, independent of subscribers' reads. When the stream breaks, all topics
are added again from the ends of their rings, so a ring has neither gaps nor duplicates.

I1: `ring.end_seq` of `ring.epoch` is exactly the position that the store sent, never above the head in the same event.
    I2: the ring's epoch only grows; a topic recreated under its name starts a new one. I3: an ended tail receives
    nothing more, and a new subscriber a new tail; it holds frames only while it has listeners. I4: the ring has no
    record that was deleted on request before `delete_mark`: when the store sends another mark the ring is emptied, and
    earlier reads count as before the delete.
Failure: while the store is unreachable the loop retries with back-off, without end; rings keep their frames.
Threading: event loop only; `run` is one task.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from eddyline.core.errors import CLASS_BY_REASON, ROLE_REFUSED, Code, EddylineError, StoreUnreachable
from eddyline.core.model.sharding import name_on
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason
from eddyline.core.records.size import CREDIT_BYTES_MAX, item_bytes
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.logging import fields
from eddyline.core.store_link.protocol import FollowChanged, FollowEnded, FollowItem, FollowLevel, FollowStarted
from eddyline.core.telemetry.tracing import NOOP_TRACER
from eddyline.delivery.feed.frame_split import split_batch
from eddyline.delivery.feed.ring import Ring, RingBudget
from eddyline.delivery.feed.trace import commit_traces, end_receive_spans

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.store_link.protocol import Follow, FollowEvent, StoreLink
    from eddyline.core.telemetry.metrics import Histogram
    from eddyline.core.telemetry.tracing import Tracer
    from eddyline.delivery.feed.trace import CommitTrace
    from eddyline.delivery.schedule.in_flight import PendingRead
    from eddyline.delivery.schedule.timer_wheel import ScheduledCall, TimerWheel

CREDIT_BYTES: Final = 16 << 20
"""Default in HTTP/2: 64 KiB, one round trip a window. 16 MiB cover 16 topics that catch up at 1 MiB a turn each; at
most this much is in flight between the store and the rings.
"""
CREDIT_BYTES_MIN: Final = 1 << 20
"""Per store, if there are many stores, which share the credit of one."""
GRANTS: Final = 4
"""Credit is returned in quarters of the window: a message each 4 MiB instead of one a frame."""
LINGER_S: Final = 60.0
"""A topic without subscribers is followed this long: one that reconnects gets its ring."""
RECONNECT_S_MAX: Final = 0.5
"""gRPC's reconnect back-off: up to 120 s.

Between its own attempts to connect, up to 2.4 s apart, the channel refuses a probe at once, so one each quarter second
costs nothing; and a stream that opens waits 5 s, enough to notice that the store is back.
"""
REFUSED_S: Final = 5.0
"""A store of another cluster stays one until an operator acts."""
PROBE_TOPIC: Final = "eddyline.probe"
"""Topic name of the probe: any answer but silence means that the store is reachable.

With several stores it has a number that makes it that store's own: another store's answer would prove nothing.
"""

assert CREDIT_BYTES <= CREDIT_BYTES_MAX

_LOG: Final = logging.getLogger(__name__)
_AWAY: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)


class TopicTail:
    """One followed topic."""

    def __init__(self, name: str, follow_id: int, ring: Ring) -> None:
        self.name = name
        self.follow_id = follow_id
        self.ring = ring
        self.info: TopicInfo | None = None
        self.priority: int | None = None
        """Of its configuration; None = by recency."""
        self.delete_mark = 0
        """Last mark on the stream that brings the frames."""
        self.ended: FollowEnded | None = None
        self.resolved = asyncio.Event()
        self.listeners: dict[Callable[[], None], None] = {}
        self.waiting: dict[PendingRead, None] = {}
        """Listeners that have received all open frames, and wait for more."""
        self.has_news = False
        """True = all listeners must be woken for an event without records: it began, ended, or was recreated."""
        self.is_held = False
        """True = its next turn is delayed, so that more records gather."""
        self.served_s = -math.inf
        """Time of its last turn."""
        self.consumed_s = -math.inf
        """Time of its last use: its turn, or a new subscriber."""
        self.expiry: ScheduledCall | None = None

    def error(self) -> EddylineError:
        """Return the reason of its end, as a new error for each caller."""
        assert self.ended is not None
        return error_of(self.ended, self.name)

    def start(self, started: FollowStarted) -> None:
        """Handle the start of the follow. After a broken stream the ring's position is the newer one."""
        if self.info is None:
            self.ring.reset(started.topic.epoch, started.after_seq)
            self.info = started.topic
            self.resolved.set()
            self.has_news = True
        self.change(started.topic)

    def change(self, topic: TopicInfo) -> None:
        """Apply the topic's present state. After an eviction waiting subscriptions have a turn, and read the log."""
        self.priority = topic.config.priority
        if self.delete_mark != topic.delete_mark:
            self.delete_mark = topic.delete_mark
            self.ring.forget()

    def push_item(self, event: FollowItem, traces: tuple[CommitTrace, ...] = ()) -> None:
        """Push records or a gap into the ring, split into frames; records that it has already are skipped.

        `traces` = those of the item.
        """
        item, end_seq = event.item, event.next_after_seq
        if isinstance(item, Gap):
            if item.reason == GapReason.RECREATED:
                self.ring.reset(item.new_epoch, end_seq)
                self.has_news = True
                return
            # a gap's range may end past the head, after which no record would ever be new
            end_seq = min(item.own_seq or end_seq, event.head_seq)
            if end_seq > self.ring.end_seq:
                self.ring.push(item, end_seq, batch_end=event.batch_end or end_seq == event.head_seq)
            return
        if end_seq <= self.ring.end_seq:
            return
        if item.seq_at(0) <= self.ring.end_seq:
            item = item.slice(item.index_after(self.ring.end_seq), item.count)
        is_batch_end, pushed = event.batch_end or end_seq == event.head_seq, 0
        for part in split_batch(item):
            pushed += part.count
            ends = is_batch_end if pushed == item.count else item.ends_append(pushed)
            part_traces = traces and tuple(trace for trace in traces if part.first_seq <= trace.seq <= part.last_seq)
            next_after_seq = end_seq if part.last_seq == item.last_seq else part.last_seq
            self.ring.push(part, next_after_seq, part_traces, batch_end=ends)

    def advance_to(self, head_seq: int) -> None:
        """Move the ring's end to the head: the records up to there were deleted."""
        if self.info is not None and head_seq > self.ring.end_seq:
            self.ring.push(Batch.from_rows([]), head_seq, batch_end=True)

    def end(self, ended: FollowEnded) -> None:
        """Handle the end of the follow."""
        self.ended = ended
        self.has_news = True
        self.resolved.set()

    def free(self) -> None:
        """Drop the frames: the topic is no longer followed and has no listeners."""
        self.ring.reset(self.ring.epoch, self.ring.end_seq)


class Tails:
    """All followed topics of a store, shard `shard` of `shard_count`."""

    def __init__(
        self,
        link: StoreLink,
        *,
        clock: Clock,
        random: Random,
        wheel: TimerWheel,
        budget: RingBudget,
        topic_bytes_max: int,
        notify: Callable[[TopicTail], None],
        latency: Histogram,
        shard: int = 0,
        shard_count: int = 1,
        tracer: Tracer = NOOP_TRACER,
    ) -> None:
        self._link = link
        self._shard = shard
        self._probe_topic = name_on(shard, shard_count, PROBE_TOPIC)
        self._credit_bytes = max(CREDIT_BYTES // shard_count, CREDIT_BYTES_MIN)
        self.on_change: Callable[[], None] = lambda: None
        """Called when following the store begins or ends."""
        self._clock = clock
        self._wheel = wheel
        self._budget = budget
        self._topic_bytes_max = topic_bytes_max
        self._notify = notify
        self._latency = latency
        self._tracer = tracer
        self._backoff = Backoff(random, cap_s=RECONNECT_S_MAX)
        self._by_name: dict[str, TopicTail] = {}
        self._by_id: dict[int, TopicTail] = {}
        self._last_id = 0
        self._steps: deque[int] = deque()
        self._owed = 0
        self._step_wake = asyncio.Event()
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self.down.set()
        self.trouble = StoreUnreachable.reason
        """Reason, of the contract, why the store is not followed; without meaning while it is."""

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def followed(self) -> tuple[TopicTail, ...]:
        """Every followed topic."""
        return tuple(self._by_id.values())

    def __contains__(self, topic: str) -> bool:
        """Return True if the topic is or will be followed."""
        return topic in self._by_name

    def attach(self, topic: str, listener: Callable[[], None]) -> TopicTail:
        """Return the topic's tail; the dispatcher calls `listener` when there are new frames or news."""
        tail = self._by_name.get(topic)
        if tail is None:
            self._last_id += 1
            tail = TopicTail(topic, self._last_id, Ring(topic, self._budget, self._topic_bytes_max))
            self._by_name[topic] = self._by_id[tail.follow_id] = tail
            self._step(tail.follow_id)
        elif tail.expiry is not None:
            tail.expiry.cancel()
            tail.expiry = None
        tail.listeners[listener] = None
        tail.consumed_s = self._clock.monotonic_s()
        return tail

    def detach(self, tail: TopicTail, listener: Callable[[], None]) -> None:
        """Remove a listener. After the last one the topic stays followed for a while, unless the follow never began."""
        tail.listeners.pop(listener, None)
        if tail.listeners or tail.expiry is not None:
            return
        if tail.follow_id not in self._by_id:
            tail.free()
        elif tail.resolved.is_set():
            tail.expiry = self._wheel.schedule(LINGER_S, lambda: self._unfollow(tail))
        else:
            self._unfollow(tail)

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        while True:
            wait_s = 0.0
            try:
                await self._probe()
                async with self._link.follow() as follow:
                    self._backoff.reset()
                    self._set_up(True)
                    _LOG.info("the store is followed", extra=fields(shard=self._shard, topics=len(self._by_id)))
                    await self._session(follow)
            except EddylineError as error:
                if isinstance(error, ROLE_REFUSED):
                    if self.trouble != error.reason:
                        cause = fields(shard=self._shard, reason=error.reason, message=error.message)
                        _LOG.error("the store refuses this role", extra=cause)
                    self.trouble = error.reason
                    wait_s = REFUSED_S
                else:
                    if self._backoff.failures == 0:  # once an outage
                        cause = fields(shard=self._shard, reason=error.reason, message=error.message)
                        _LOG.warning("the store is away", extra=cause)
                    self.trouble = StoreUnreachable.reason
            finally:
                self._set_up(False)
            await sleep(self._clock, self._backoff.next_delay_s(minimum_s=wait_s))

    async def _probe(self) -> None:
        """Return when the store answers. Raises the error that proves that it does not."""
        try:
            await self._link.get_topic(self._probe_topic)
        except EddylineError as error:
            if error.code in _AWAY or isinstance(error, ROLE_REFUSED):
                raise

    async def _session(self, follow: Follow) -> None:
        """Run one stream until it breaks. Raises the error that broke it."""
        self._steps = deque(self._by_id)
        self._owed = self._credit_bytes
        self._step_wake.set()
        broken: EddylineError = StoreUnreachable("the store ended the stream")
        async with asyncio.TaskGroup() as tasks:
            sender = tasks.create_task(self._send(follow))
            try:
                async for event in follow:
                    self._take(event)
            except EddylineError as error:
                broken = error
            finally:
                sender.cancel()
                self._steps.clear()
        raise broken

    async def _send(self, follow: Follow) -> None:
        """Send all steps to the store, in one task: topics added or removed, credit granted."""
        # a failed send means a broken stream, whose reader gets the error too
        with suppress(EddylineError):
            while True:
                await self._step_wake.wait()
                self._step_wake.clear()
                if self._owed >= self._credit_bytes // GRANTS:
                    granted, self._owed = self._owed, 0
                    await follow.grant(granted)
                while self._steps:
                    await self._send_step(follow, self._steps.popleft())

    async def _send_step(self, follow: Follow, follow_id: int) -> None:
        tail = self._by_id.get(follow_id)
        if tail is None:
            await follow.remove(follow_id)
        elif tail.info is None:
            await follow.add(follow_id, tail.name)
        else:
            await follow.add(follow_id, tail.name, epoch=tail.ring.epoch, after_seq=tail.ring.end_seq)

    def _take(self, event: FollowEvent) -> None:
        if isinstance(event, FollowItem):
            self._owed += item_bytes(event.item)
            if self._owed >= self._credit_bytes // GRANTS:
                self._step_wake.set()
        tail = self._by_id.get(event.follow_id)
        if tail is None:
            return
        if isinstance(event, FollowItem):
            traces = commit_traces(self._tracer, event, tail.name) if event.traces else ()
            tail.push_item(event, traces)
            if not tail.listeners:
                end_receive_spans(traces)
            if not isinstance(event.item, Gap):
                # The hosts' clocks may differ by more than the latency.
                self._latency.observe(max(self._clock.now_ms() - event.item.last_ts_ms, 0) / 1000)
        elif isinstance(event, FollowStarted):
            tail.start(event)
        elif isinstance(event, FollowEnded):
            error = error_of(event, tail.name)
            if error.code in _AWAY:
                raise error  # the store is stopping: all topics are added again, none is forgotten
            self._forget(tail)
            tail.end(event)
        elif isinstance(event, FollowLevel):
            tail.advance_to(event.head_seq)
        elif isinstance(event, FollowChanged):
            tail.change(event.topic)
            return
        else:
            return
        self._notify(tail)

    def _unfollow(self, tail: TopicTail) -> None:
        if tail.follow_id in self._by_id:
            self._forget(tail)
            self._step(tail.follow_id)

    def _forget(self, tail: TopicTail) -> None:
        del self._by_id[tail.follow_id]
        if self._by_name.get(tail.name) is tail:
            del self._by_name[tail.name]
        if tail.expiry is not None:
            tail.expiry.cancel()
        if not tail.listeners:
            tail.free()

    def _step(self, follow_id: int) -> None:
        if self.up.is_set():  # otherwise the next stream starts with all topics
            self._steps.append(follow_id)
            self._step_wake.set()

    def _set_up(self, up: bool) -> None:
        risen, fallen = (self.up, self.down) if up else (self.down, self.up)
        if not risen.is_set():
            risen.set()
            fallen.clear()
            self.on_change()


def error_of(ended: FollowEnded, topic: str) -> EddylineError:
    """Return the error with which the store ended a follow; a reason of a newer store becomes an `EddylineError`."""
    return CLASS_BY_REASON.get(ended.reason, EddylineError)(ended.message, topic=topic)
