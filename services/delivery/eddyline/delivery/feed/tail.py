"""Tails: what delivery follows at one store, on one FollowTopics stream however many subscribers there are.

A topic is followed from the first subscriber that wants it until some time after the last has gone; its frames go into
its ring, and credit is granted again as soon as they are there, never when a subscriber has read them. When the stream
breaks, all topics are added again from where their rings end, so a ring has neither gap nor double.

I1: `ring.end_seq` of `ring.epoch` is exactly what the store was heard to say, never above the head it said with it. I2: the
ring's epoch only grows; a topic made anew under its name begins a new one. I3: an ended tail gets nothing more, and a new
subscriber a new tail; it holds frames only while somebody listens. I4: the ring has nothing that was deleted on request
before `delete_mark`: when the store tells another one it lets go of all it has, and what was read before comes before that.
Failure: while the store is away the loop retries for ever, with backoff; rings keep what they have.
Threading: event loop only; `run` is one task.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from eddyline.core.errors import ROLE_REFUSED, Code, EddylineError, StoreUnreachable
from eddyline.core.model.sharding import name_on
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason
from eddyline.core.records.size import CREDIT_BYTES_MAX, item_bytes
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.logging import fields
from eddyline.core.store_link.protocol import FollowChanged, FollowEnded, FollowItem, FollowLevel, FollowStarted
from eddyline.core.telemetry.tracing import NOOP_TRACER
from eddyline.delivery.feed.frame_split import pieces
from eddyline.delivery.feed.ring import Ring, RingBudget
from eddyline.delivery.feed.trace import commit_traces, opened

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
"""Elsewhere 64 KiB (HTTP/2): one round trip a window. 16 MiB cover 16 topics that catch up at 1 MiB a turn each; at most so
much is under way between the store and the rings."""
CREDIT_BYTES_MIN: Final = 1 << 20
"""Of each where there are many stores, which share those of one."""
GRANTS: Final = 4
"""Credit is given back in quarters of the window: a message each 4 MiB instead of one a frame."""
LINGER_S: Final = 60.0
"""How long a topic nobody watches is followed on: a subscriber that reconnects finds its ring."""
RECONNECT_S_MAX: Final = 0.5
"""Elsewhere 5 s and more. Between its own attempts to connect, up to 2.4 s apart, the channel refuses a probe at once, so
one each quarter second costs nothing; and a stream that opens waits 5 s, enough to notice that the store is back."""
REFUSED_S: Final = 5.0
"""A store of another cluster stays one until somebody acts."""
PROBE_TOPIC: Final = "eddyline.probe"
"""A name to ask for when nothing else is at hand: any answer but silence means that the store is there. Where there are
several, with a number by which it is that store's own: another's answer says nothing of it."""

assert CREDIT_BYTES <= CREDIT_BYTES_MAX

_LOG: Final = logging.getLogger(__name__)
_CLASSES: Final = {found.reason: found for found in EddylineError.__subclasses__()}
_AWAY: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)


class TopicTail:
    """One followed topic."""

    def __init__(self, name: str, follow_id: int, ring: Ring) -> None:
        self.name = name
        self.follow_id = follow_id
        self.ring = ring
        self.info: TopicInfo | None = None
        self.priority: int | None = None
        """What its configuration says; None = by recency."""
        self.delete_mark = 0
        """What the store said last on the stream that brings the frames."""
        self.ended: FollowEnded | None = None
        self.settled = asyncio.Event()
        self.listeners: dict[Callable[[], None], None] = {}
        self.waiting: dict[PendingRead, None] = {}
        """Those of them that have all that is open, and wait for more."""
        self.has_news = False
        """Whether all listeners are to be told something that is no record: it began, ended, or was made anew."""
        self.is_held = False
        """Whether its next turn is put off, so that more gathers."""
        self.served_s = -math.inf
        """When it last had a turn."""
        self.consumed_s = -math.inf
        """When it was last touched: its turn, or a subscriber that came."""
        self.expiry: ScheduledCall | None = None

    def error(self) -> EddylineError:
        """Why it ended, as an error of the caller's own."""
        assert self.ended is not None
        return _error(self.ended, self.name)

    def start(self, started: FollowStarted) -> None:
        """The store follows it. After a broken stream the ring knows better where it stands."""
        if self.info is None:
            self.ring.reset(started.topic.epoch, started.after_seq)
            self.info = started.topic
            self.settled.set()
            self.has_news = True
        self.change(started.topic)

    def change(self, topic: TopicInfo) -> None:
        """The topic is as the store says it is now. Who waits for what is let go of has its turn, and reads the log."""
        self.priority = topic.config.priority
        if self.delete_mark != topic.delete_mark:
            self.delete_mark = topic.delete_mark
            self.ring.forget()

    def take(self, event: FollowItem, traces: tuple[CommitTrace, ...] = ()) -> None:
        """Records or a gap go into the ring, cut to frames; what it has already is passed over. `traces` = the item's."""
        item, end_seq = event.item, event.next_after_seq
        if isinstance(item, Gap):
            if item.reason == GapReason.RECREATED:
                self.ring.reset(item.new_epoch, end_seq)
                self.has_news = True
                return
            # whatever range a gap tells: past the head nothing would ever be new again
            end_seq = min(item.own_seq or end_seq, event.head_seq)
            if end_seq > self.ring.end_seq:
                self.ring.push(item, end_seq, batch_end=event.batch_end or end_seq == event.head_seq)
            return
        if end_seq <= self.ring.end_seq:
            return
        if item.seq_at(0) <= self.ring.end_seq:
            item = item.slice(item.index_after(self.ring.end_seq), item.count)
        whole, taken = event.batch_end or end_seq == event.head_seq, 0
        for piece in pieces(item):
            taken += piece.count
            ends = whole if taken == item.count else item.ends_append(taken)
            within = traces and tuple(trace for trace in traces if piece.first_seq <= trace.seq <= piece.last_seq)
            next_after_seq = end_seq if piece.last_seq == item.last_seq else piece.last_seq
            self.ring.push(piece, next_after_seq, within, batch_end=ends)

    def level(self, head_seq: int) -> None:
        """There is nothing more up to the head: what had the seqs below it was deleted."""
        if self.info is not None and head_seq > self.ring.end_seq:
            self.ring.push(Batch.from_rows([]), head_seq, batch_end=True)

    def end(self, ended: FollowEnded) -> None:
        """No more of it."""
        self.ended = ended
        self.has_news = True
        self.settled.set()

    def free(self) -> None:
        """Let go of the frames: it is followed no more, and nobody listens."""
        self.ring.reset(self.ring.epoch, self.ring.end_seq)


class Tails:
    """All followed topics of a store, shard `shard` of `shard_count`; see the module."""

    def __init__(
        self,
        link: StoreLink,
        *,
        clock: Clock,
        random: Random,
        wheel: TimerWheel,
        budget: RingBudget,
        topic_bytes_max: int,
        mark: Callable[[TopicTail], None],
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
        """Called when the store is followed, and when it is no more."""
        self._clock = clock
        self._wheel = wheel
        self._budget = budget
        self._topic_bytes_max = topic_bytes_max
        self._mark = mark
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
        """Why the store is not followed, as a reason of the contract; of no meaning while it is."""

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def followed(self) -> tuple[TopicTail, ...]:
        """Every followed topic."""
        return tuple(self._by_id.values())

    def __contains__(self, topic: str) -> bool:
        """True = the store is asked to follow it, or has been."""
        return topic in self._by_name

    def attach(self, topic: str, listener: Callable[[], None]) -> TopicTail:
        """The topic's tail; `listener` is called, by way of the dispatcher, when there is something new."""
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
        """Stop listening. The last one leaves the topic followed for a while, unless it never began."""
        tail.listeners.pop(listener, None)
        if tail.listeners or tail.expiry is not None:
            return
        if tail.follow_id not in self._by_id:
            tail.free()
        elif tail.settled.is_set():
            tail.expiry = self._wheel.schedule(LINGER_S, lambda: self._unfollow(tail))
        else:
            self._unfollow(tail)

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        while True:
            wait_s = 0.0
            try:
                await self._reach()
                async with self._link.follow() as follow:
                    self._backoff.reset()
                    self._set_up(True)
                    _LOG.info("the store is followed", extra=fields(shard=self._shard, topics=len(self._by_id)))
                    await self._session(follow)
            except EddylineError as error:
                if isinstance(error, ROLE_REFUSED):
                    if self.trouble != error.reason:
                        told = fields(shard=self._shard, reason=error.reason, message=error.message)
                        _LOG.error("the store refuses this role", extra=told)
                    self.trouble = error.reason
                    wait_s = REFUSED_S
                else:
                    if self._backoff.failures == 0:  # once an outage
                        told = fields(shard=self._shard, reason=error.reason, message=error.message)
                        _LOG.warning("the store is away", extra=told)
                    self.trouble = StoreUnreachable.reason
            finally:
                self._set_up(False)
            await sleep(self._clock, self._backoff.next_delay_s(minimum_s=wait_s))

    async def _reach(self) -> None:
        """Return when the store answers. Raises what says that it does not."""
        try:
            await self._link.get_topic(self._probe_topic)
        except EddylineError as error:
            if error.code in _AWAY or isinstance(error, ROLE_REFUSED):
                raise

    async def _session(self, follow: Follow) -> None:
        """One stream, until it breaks. Raises the error that broke it."""
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
        """Everything that goes to the store, in one task: topics added or removed, credit given back."""
        # where sending fails the stream is broken, which its reader is told too
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
            tail.take(event, traces)
            if not tail.listeners:
                opened(traces)
            if not isinstance(event.item, Gap):
                # The hosts' clocks may differ by more than it took.
                self._latency.observe(max(self._clock.now_ms() - event.item.last_ts_ms, 0) / 1000)
        elif isinstance(event, FollowStarted):
            tail.start(event)
        elif isinstance(event, FollowEnded):
            error = _error(event, tail.name)
            if error.code in _AWAY:
                raise error  # the store is going: all topics are added again, none is forgotten
            self._forget(tail)
            tail.end(event)
        elif isinstance(event, FollowLevel):
            tail.level(event.head_seq)
        elif isinstance(event, FollowChanged):
            tail.change(event.topic)
            return
        else:
            return
        self._mark(tail)

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
        if self.up.is_set():  # else the next stream begins with all topics
            self._steps.append(follow_id)
            self._step_wake.set()

    def _set_up(self, up: bool) -> None:
        risen, fallen = (self.up, self.down) if up else (self.down, self.up)
        if not risen.is_set():
            risen.set()
            fallen.clear()
            self.on_change()


def _error(ended: FollowEnded, topic: str) -> EddylineError:
    return _CLASSES.get(ended.reason, EddylineError)(ended.message, topic=topic)
