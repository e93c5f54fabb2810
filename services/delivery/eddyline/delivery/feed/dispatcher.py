"""Dispatch: a topic's turn opens what is new in its ring to those that wait for it, in the scheduler's order.

A subscription that has all that was opened of its topic asks for more. Where nothing else waits it gets it at once;
otherwise its topic waits for a turn. The next turn begins when there is room: what has been set going and is not sent yet is
bounded, so that a busy process has a choice. A turn opens one frame, and charges the topic's band what it delivers: the
frame's records, once for each subscription that waited. Those behind take what was opened before at their own pace, or read
the log, and are nobody's turn.
Under pressure a topic has one turn in a window, and what gathered goes as one frame.

I1: a topic is queued iff somebody waits for what its ring has, or it has news (it began, ended, was made anew). I2: a
subscription that waits is woken by the topic's next turn. I3: with nothing else waiting and no pressure nothing is put off.
Threading: event loop only; `run` and `govern` are one task each. Idle, no timer is armed.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from eddyline.core.runtime.clock import sleep
from eddyline.delivery.feed.frame_split import FRAME_BYTES
from eddyline.delivery.schedule.governor import SAMPLE_S, Governor, LadderStep
from eddyline.delivery.schedule.in_flight import MOMENT_S, WORKERS, InFlight
from eddyline.delivery.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.runtime.clock import Clock, Timer
    from eddyline.delivery.feed.tail import TopicTail
    from eddyline.delivery.schedule.in_flight import PendingRead
    from eddyline.delivery.schedule.scheduler import Turn
    from eddyline.delivery.stats import DeliveryStats

WAKES_A_PASS: Final = 256
"""Wake-ups before others get the loop: about 0.2 ms."""
SEND_BYTES_MAX: Final = 256 << 20
"""Bytes in the streams' send buffers that are full pressure: 4 096 streams that stand still with a frame of 64 KiB each."""
QUIET_PRESSURE: Final = 0.01
"""Below it, and at rest, pressure is not sampled until something happens."""


class _Opened(NamedTuple):
    """What a turn came to: whom it serves, who is to be woken, and the records that are open now and were not."""

    waiters: list[PendingRead]
    wakes: list[Callable[[], None]]
    records: int


class Dispatcher:
    """Who is served when; see the module."""

    def __init__(self, *, clock: Clock, figures: DeliveryStats) -> None:
        self._clock = clock
        self._figures = figures
        self._scheduler: Scheduler[TopicTail] = Scheduler()
        self._governor = Governor(workers=WORKERS, send_bytes_max=SEND_BYTES_MAX)
        self._under_way = InFlight()
        self._window_s = 0.0
        self._held: list[tuple[float, int, TopicTail]] = []
        self._held_count = 0
        self._wake = asyncio.Event()
        self._busy = asyncio.Event()
        self._timer: Timer | None = None
        self._timer_s = 0.0
        self._sampled_turns = 0
        self._sampled_wait_s = 0.0

    def mark(self, tail: TopicTail) -> None:
        """There is something new of a topic: it has a turn at once or when it is its turn, if anybody waits for that."""
        if tail.has_news or (tail.waiting and tail.ring.has_unopened):
            self._offer(tail)

    def ask(self, tail: TopicTail, waiter: PendingRead, seq: int) -> bool:
        """A subscription at `seq` has all that is open of a topic. True = there is more; else it is woken when there is."""
        waiter.seq = seq
        tail.waiting[waiter] = None
        if tail.ring.has_unopened:
            now_s = self._clock.monotonic_s()
            if not self._is_free(tail, now_s):
                self._queue(tail, now_s)
                return False
            self._serve_at_once(tail, now_s, asking=waiter)
            if seq < tail.ring.open_seq:
                return True
            tail.waiting[waiter] = None  # it is ahead of the ring
        return False

    def sent(self, waiter: PendingRead) -> None:
        """What a subscription took in its last step is sent."""
        if waiter.began_s is not None and self._under_way.end(waiter, self._clock.monotonic_s()) and self._scheduler:
            self._wake.set()

    def leave(self, tail: TopicTail, waiter: PendingRead) -> None:
        """A subscription ends."""
        tail.waiting.pop(waiter, None)
        if self._under_way.forget(waiter) and self._scheduler:
            self._wake.set()

    def place_of(self, tail: TopicTail) -> Turn[TopicTail] | None:
        """Where a topic waits for its turn; None = it does not, or is put off until its window is over."""
        return self._scheduler.place_of(tail, self._clock.monotonic_s())

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
            room_in_s = self._under_way.room_in_s(now_s)
            if room_in_s:
                self._arm(now_s + room_in_s)
                break
            turn = self._scheduler.pop(now_s)
            assert turn is not None, "something waits"
            opened = self._open(turn.topic, now_s, turn.waited_s)
            delivered = opened.records * len(opened.waiters)
            self._scheduler.charge(turn.band, max(1, delivered))
            self._figures.served_records[turn.band] += delivered
            for waiter in opened.waiters:
                self._under_way.begin(waiter, now_s)
            for wake in opened.wakes:
                wake()
                woken += 1
                if woken % WAKES_A_PASS == 0:
                    await asyncio.sleep(0)
        if self._held:
            self._arm(self._held[0][0])

    def _offer(self, tail: TopicTail) -> None:
        now_s = self._clock.monotonic_s()
        if self._is_free(tail, now_s):
            self._serve_at_once(tail, now_s)
        else:
            self._queue(tail, now_s)

    def _is_free(self, tail: TopicTail, now_s: float) -> bool:
        """Nothing is put off by serving it now, and nothing says to put it off."""
        return (
            not self._scheduler
            and len(tail.waiting) + (len(tail.listeners) if tail.has_news else 0) <= WAKES_A_PASS
            and not self._is_early(tail, now_s)
            and not self._under_way.room_in_s(now_s)
        )

    def _is_early(self, tail: TopicTail, now_s: float) -> bool:
        """It had a turn within the window, and has not yet a whole frame."""
        if not self._window_s or tail.has_news:
            return False
        return now_s < tail.served_s + self._window_s and tail.ring.unopened_bytes < FRAME_BYTES

    def _serve_at_once(self, tail: TopicTail, now_s: float, *, asking: PendingRead | None = None) -> None:
        opened = self._open(tail, now_s, 0.0, asking=asking)
        for waiter in opened.waiters:
            self._under_way.begin(waiter, now_s)
        for wake in opened.wakes:
            wake()

    def _open(self, tail: TopicTail, now_s: float, waited_s: float, *, asking: PendingRead | None = None) -> _Opened:
        """A topic's turn. `asking` needs no waking."""
        if self._figures.queued_bytes > QUIET_PRESSURE * SEND_BYTES_MAX:
            self._busy.set()
        self._figures.count_turn(waited_s)
        waiters: list[PendingRead] = []
        records = 0
        if tail.ring.has_unopened:
            waiters = list(tail.waiting)
            tail.waiting.clear()
            # what came while nobody waited is passed over: who comes at the head does not go through it
            after_seq = min([waiter.seq for waiter in waiters], default=0)
            records = tail.ring.open_next(after_seq, joined_bytes_max=FRAME_BYTES if self._window_s else 0)
        wakes = [waiter.wake for waiter in waiters if waiter is not asking]
        if tail.has_news:
            tail.has_news = False
            wakes = list(tail.listeners)  # those that wait are among them
        tail.served_s = tail.consumed_s = now_s
        return _Opened(waiters, wakes, records)

    def _queue(self, tail: TopicTail, now_s: float) -> None:
        if tail.is_held or tail in self._scheduler:
            if not tail.is_held or self._is_early(tail, now_s):
                return
            tail.is_held = False  # a whole frame has come: the window is over for it
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
        """Those whose window is over wait for their turn now."""
        while self._held and self._held[0][0] <= now_s + MOMENT_S:
            _, _, tail = heapq.heappop(self._held)
            if tail.is_held:
                tail.is_held = False
                self._push(tail, now_s)

    def _arm(self, due_s: float) -> None:
        """Look again at `due_s`, or before."""
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
        now_s, figures, scheduler = self._clock.monotonic_s(), self._figures, self._scheduler
        scheduler.advance(now_s)
        turns = figures.turn_count - self._sampled_turns
        longest_wait_s = scheduler.longest_wait_s(now_s)
        # without a turn, what waits says how late its turn is at least
        latency_s = (figures.turn_wait_s - self._sampled_wait_s) / turns if turns else longest_wait_s
        self._count_from_now()
        ruling = self._governor.sample(
            now_s, ready=len(scheduler), latency_s=latency_s, queued_bytes=figures.queued_bytes
        )
        self._window_s = ruling.window_s
        scheduler.slows_b0 = ruling.slows_b0
        figures.ruling, figures.latency_s = ruling, self._governor.latency_s
        figures.ready, figures.longest_wait_s = scheduler.ready, longest_wait_s
        if not scheduler and ruling.pressure < QUIET_PRESSURE and ruling.step is LadderStep.REST:
            self._busy.clear()

    def _count_from_now(self) -> None:
        self._sampled_turns, self._sampled_wait_s = self._figures.turn_count, self._figures.turn_wait_s
