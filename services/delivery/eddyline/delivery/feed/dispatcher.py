"""Dispatcher: opens new frames of a topic's ring to the subscriptions that wait for it, in the scheduler's order.

A subscription that has received all open frames of its topic requests more. If nothing else waits, it gets the next
frame at once; otherwise its topic waits for a turn. The next turn begins when there is room: the number of sends in
flight is bounded, so that a busy process can choose. A turn opens one frame, and charges the topic's band with the
delivered records: the frame's records, once for each subscription that waited. Subscriptions that are behind take
opened frames at their own pace, or read the log, and need no turn.
Frames that gathered while the topic had no turn are joined into one, up to `FRAME_BYTES`: a send takes 0.1 ms, whatever
it carries. Under pressure a topic has one turn per window, so that more gathers.

I1: a topic is queued iff a subscription waits for frames in its ring, or it has news (it began, ended, was recreated).
    I2: the topic's next turn wakes every waiting subscription. I3: with nothing else waiting and no pressure nothing is
    delayed.
Threading: event loop only; `run` and `sample_pressure` are one task each. Idle, no timer is armed.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from eddyline.core.runtime.clock import sleep
from eddyline.delivery.feed.fan import Fan
from eddyline.delivery.feed.frame_split import FRAME_BYTES
from eddyline.delivery.schedule.governor import SAMPLE_S, Governor, LadderStep
from eddyline.delivery.schedule.in_flight import MOMENT_S, WORKERS, InFlight
from eddyline.delivery.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eddyline.core.runtime.clock import Clock, Timer
    from eddyline.delivery.feed.ring import RingFrame
    from eddyline.delivery.feed.tail import TopicTail
    from eddyline.delivery.schedule.in_flight import PendingRead
    from eddyline.delivery.schedule.scheduler import Turn
    from eddyline.delivery.stats import DeliveryStats

WAKES_A_PASS: Final = 256
"""Wake-ups before the dispatcher yields to the event loop: about 0.2 ms."""
SEND_BYTES_MAX: Final = 256 << 20
"""Bytes in the streams' send buffers that are full pressure: 4 096 stalled streams with a frame of 64 KiB each."""
QUIET_PRESSURE: Final = 0.01
"""Below it, and without countermeasures, pressure is not sampled until the next event."""


class _TurnResult(NamedTuple):
    """Result of a turn: the subscriptions it serves, and the number of newly opened records.

    `listeners` = all of the topic's, which are woken for its news, in place of those that it serves.
    """

    waiters: list[PendingRead]
    listeners: list[Callable[[], None]]
    records: int


class Dispatcher:
    """Gives topics their turns."""

    def __init__(self, *, clock: Clock, stats: DeliveryStats, fan: Fan | None = None) -> None:
        """`fan` None = every frame goes through the task of its stream."""
        self._clock = clock
        self._stats = stats
        self._fan = fan if fan is not None else Fan(clock=clock, stats=stats)
        self._has_passing = False
        """True = frames were sent to many in this turn of the loop."""
        self._is_pausing = False
        """True = a turn has served some of its subscriptions, and other tasks have their turn of the loop."""
        self._scheduler: Scheduler[TopicTail] = Scheduler()
        self._governor = Governor(workers=WORKERS, send_bytes_max=SEND_BYTES_MAX)
        self._in_flight = InFlight()
        self._window_s = 0.0
        self._held: list[tuple[float, int, TopicTail]] = []
        self._held_count = 0
        self._wake = asyncio.Event()
        self._busy = asyncio.Event()
        self._timer: Timer | None = None
        self._timer_s = 0.0
        self._sampled_turns = 0
        self._sampled_wait_s = 0.0

    def notify(self, tail: TopicTail) -> None:
        """Handle news of a topic: a turn at once or in its order, if any subscription waits for it."""
        if tail.has_news or (tail.waiting and tail.ring.has_unopened):
            self._offer(tail)

    def request(self, tail: TopicTail, waiter: PendingRead, seq: int) -> bool:
        """Register a subscription at `seq` that has received all open frames of a topic.

        Returns True if there are more; else it is woken when there are.
        """
        waiter.seq = seq
        tail.waiting[waiter] = None
        if tail.ring.has_unopened:
            now_s = self._clock.monotonic_s()
            if not self._can_serve_now(tail, now_s):
                self._queue(tail, now_s)
                return False
            self._serve_at_once(tail, now_s, requester=waiter)
            if seq < tail.ring.open_seq:
                return True
            tail.waiting[waiter] = None  # it is ahead of the ring
        return False

    def on_sent(self, waiter: PendingRead) -> None:
        """Handle the completion of a subscription's last step: its frames are sent."""
        if waiter.began_s is not None and self._in_flight.end(waiter, self._clock.monotonic_s()) and self._scheduler:
            self._wake.set()

    def remove(self, tail: TopicTail, waiter: PendingRead) -> None:
        """Remove a subscription that closes."""
        tail.waiting.pop(waiter, None)
        waiter.is_closed = True
        if self._in_flight.forget(waiter) and self._scheduler:
            self._wake.set()

    def waiting_turn(self, tail: TopicTail) -> Turn[TopicTail] | None:
        """Return the turn that a topic waits for; None = it waits for none, or is held until its window ends."""
        return self._scheduler.waiting_turn(tail, self._clock.monotonic_s())

    async def run(self) -> NoReturn:
        """Give turns until cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._give_turns()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def sample_pressure(self) -> NoReturn:
        """Sample the pressure while there is any, until cancelled."""
        while True:
            if not self._busy.is_set():
                await self._busy.wait()
                self._count_from_now()
            await sleep(self._clock, SAMPLE_S)
            self._sample()

    async def _give_turns(self) -> None:
        woken = 0
        while True:
            now_s = self._clock.monotonic_s()
            self._release_held(now_s)
            if not self._scheduler:
                break
            room_in_s = self._in_flight.wait_s(now_s)
            if room_in_s:
                self._arm(now_s + room_in_s)
                break
            turn = self._scheduler.pop(now_s)
            assert turn is not None, "something waits"
            opened = self._open(turn.topic, now_s, turn.waited_s)
            delivered = opened.records * len(opened.waiters)
            self._scheduler.charge(turn.band, max(1, delivered))
            self._stats.served_records[turn.band] += delivered
            for served in self._serve(turn.topic, opened, now_s):
                woken += served
                if woken >= WAKES_A_PASS:
                    woken = 0
                    await self._pause()
        if self._held:
            self._arm(self._held[0][0])

    async def _pause(self) -> None:
        """Let the event loop serve others; no turn begins meanwhile."""
        self._is_pausing = True
        try:
            await asyncio.sleep(0)
        finally:
            self._is_pausing = False

    def _offer(self, tail: TopicTail) -> None:
        now_s = self._clock.monotonic_s()
        if self._can_serve_now(tail, now_s):
            self._serve_at_once(tail, now_s)
        else:
            self._queue(tail, now_s)

    def _can_serve_now(self, tail: TopicTail, now_s: float) -> bool:
        """Return True if serving the topic now delays no other, and no window or bound holds it back."""
        return (
            not self._scheduler
            and not self._is_pausing
            and len(tail.waiting) + (len(tail.listeners) if tail.has_news else 0) <= WAKES_A_PASS
            and not self._is_early(tail, now_s)
            and not self._in_flight.wait_s(now_s)
        )

    def _is_early(self, tail: TopicTail, now_s: float) -> bool:
        """Return True if the topic had a turn within the window, and does not have a whole frame yet."""
        if not self._window_s or tail.has_news:
            return False
        return now_s < tail.served_s + self._window_s and tail.ring.unopened_bytes < FRAME_BYTES

    def _serve_at_once(self, tail: TopicTail, now_s: float, *, requester: PendingRead | None = None) -> None:
        opened = self._open(tail, now_s, 0.0)
        for _ in self._serve(tail, opened, now_s, requester=requester):
            pass

    def _serve(
        self, tail: TopicTail, opened: _TurnResult, now_s: float, *, requester: PendingRead | None = None
    ) -> Iterator[int]:
        """Send the opened frame to the subscriptions of a turn that can take it at once, and wake the others.

        `requester` needs no wake-up. Yields the number served so far after each `WAKES_A_PASS`, for the caller to pause.
        """
        waiters, listeners = opened.waiters, opened.listeners
        frame = tail.ring.last_opened() if waiters and not listeners else None
        for start in range(0, len(waiters), WAKES_A_PASS):
            part = waiters[start : start + WAKES_A_PASS]
            behind = self._fan_out(tail, frame, part) if frame is not None else part
            for waiter in behind:
                self._in_flight.begin(waiter, now_s)
                if waiter is not requester and not listeners:
                    waiter.wake()
            yield len(part)
        for start in range(0, len(listeners), WAKES_A_PASS):
            part_of_listeners = listeners[start : start + WAKES_A_PASS]
            for wake in part_of_listeners:
                wake()
            yield len(part_of_listeners)

    def _fan_out(self, tail: TopicTail, frame: RingFrame, waiters: list[PendingRead]) -> list[PendingRead]:
        """Send a frame to those that can take it at once, and request the next one for them; return the others."""
        sent: list[PendingRead] = []
        behind = self._fan.send(tail.ring, frame, waiters, sent)
        if not sent:
            return behind
        self._in_flight.begin_passing(len(sent))
        if not self._has_passing:
            self._has_passing = True
            asyncio.get_running_loop().call_soon(self._on_passed)
        tail.waiting.update(dict.fromkeys(sent))
        if tail.ring.has_unopened:
            self._queue(tail, self._clock.monotonic_s())
        return behind

    def _on_passed(self) -> None:
        """Handle the end of the turn of the loop in which frames were sent to many: their sockets are written."""
        self._has_passing = False
        self._in_flight.end_passing(self._clock.monotonic_s())
        if self._scheduler:
            self._wake.set()

    def _open(self, tail: TopicTail, now_s: float, waited_s: float) -> _TurnResult:
        """Open a topic's next frame, joined with those that gathered behind it."""
        if self._stats.queued_bytes > QUIET_PRESSURE * SEND_BYTES_MAX:
            self._busy.set()
        self._stats.count_turn(waited_s)
        waiters: list[PendingRead] = []
        records = 0
        if tail.ring.has_unopened:
            waiters = list(tail.waiting)
            tail.waiting.clear()
            # frames that no subscription waited for are skipped: a subscription that starts at the head does not
            # receive them
            after_seq = min([waiter.seq for waiter in waiters], default=0)
            records = tail.ring.open_next(after_seq, joined_bytes_max=FRAME_BYTES)
        listeners: list[Callable[[], None]] = []
        if tail.has_news:
            tail.has_news = False
            listeners = list(tail.listeners)  # the waiting ones are among them
        tail.served_s = tail.consumed_s = now_s
        return _TurnResult(waiters, listeners, records)

    def _queue(self, tail: TopicTail, now_s: float) -> None:
        if tail.is_held or tail in self._scheduler:
            if not tail.is_held or self._is_early(tail, now_s):
                return
            tail.is_held = False  # a whole frame has arrived: the window ends early
        elif self._is_early(tail, now_s):
            tail.is_held = True
            self._held_count += 1
            heapq.heappush(self._held, (tail.served_s + self._window_s, self._held_count, tail))
            self._arm(self._held[0][0])
            return
        self._push(tail, now_s)

    def _push(self, tail: TopicTail, now_s: float) -> None:
        self._scheduler.push(tail, now_s, manual=tail.priority, consumed_s=tail.consumed_s)
        self._busy.set()
        self._wake.set()

    def _release_held(self, now_s: float) -> None:
        """Queue the held topics whose window has ended."""
        while self._held and self._held[0][0] <= now_s + MOMENT_S:
            _, _, tail = heapq.heappop(self._held)
            if tail.is_held:
                tail.is_held = False
                self._push(tail, now_s)

    def _arm(self, due_s: float) -> None:
        """Wake the turn task at `due_s`, or before."""
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = self._clock.call_later(max(0.0, due_s - self._clock.monotonic_s()), self._due)

    def _due(self) -> None:
        self._timer = None
        self._wake.set()

    def _sample(self) -> None:
        now_s, stats, scheduler = self._clock.monotonic_s(), self._stats, self._scheduler
        scheduler.advance(now_s)
        turns = stats.turn_count - self._sampled_turns
        longest_wait_s = scheduler.longest_wait_s(now_s)
        # without a turn, the longest wait is a lower bound of the latency
        latency_s = (stats.turn_wait_s - self._sampled_wait_s) / turns if turns else longest_wait_s
        self._count_from_now()
        reading = self._governor.sample(
            now_s, ready=len(scheduler), latency_s=latency_s, queued_bytes=stats.queued_bytes
        )
        self._window_s = reading.window_s
        scheduler.slows_b0 = reading.slows_b0
        stats.reading, stats.latency_s = reading, self._governor.latency_s
        stats.ready, stats.longest_wait_s = scheduler.ready, longest_wait_s
        if not scheduler and reading.pressure < QUIET_PRESSURE and reading.step is LadderStep.REST:
            self._busy.clear()

    def _count_from_now(self) -> None:
        self._sampled_turns, self._sampled_wait_s = self._stats.turn_count, self._stats.turn_wait_s
