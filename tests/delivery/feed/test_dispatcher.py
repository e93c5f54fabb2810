"""Turns of topics: real rings and tails, the manual clock, subscriptions driven by the test."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.core.store_link.protocol import FollowEnded, FollowItem, FollowStarted
from eddyline.delivery.feed.dispatcher import SEND_BYTES_MAX, WAKES_A_PASS, Dispatcher
from eddyline.delivery.feed.ring import Ring, RingBudget
from eddyline.delivery.feed.tail import TopicTail
from eddyline.delivery.schedule.governor import SAMPLE_S, WINDOW_S_MAX, LadderStep
from eddyline.delivery.schedule.in_flight import STILL_S, WORKERS, PendingRead
from eddyline.delivery.stats import DeliveryStats
from tests.support.manual_clock import ManualClock, settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WHOLE_BYTES = 8_000
"""Eight records of this size are a whole frame, with which no other is joined."""


@dataclass
class Reader:
    """A subscription that takes the open frames when it is woken; the test completes its sends."""

    stage: Stage
    tail: TopicTail
    seq: int = 0
    frames: list[int] = field(default_factory=list)
    """Records of each frame it took."""
    prompt: bool = True

    def __post_init__(self) -> None:
        self.waiter = PendingRead(self.step)
        self.tail.listeners[self.step] = None

    def step(self) -> None:
        """Take a turn; a prompt subscription requests more at once."""
        while self.seq < self.tail.ring.open_seq or self.stage.dispatcher.request(self.tail, self.waiter, self.seq):
            frame = self.tail.ring.frame_after(self.seq)
            assert frame is not None
            assert frame.after_seq == self.seq
            self.frames.append(frame.next_after_seq - frame.after_seq)
            self.seq = frame.next_after_seq
            self.stage.order.append(self.tail.name)
            if not self.prompt:
                return
            self.on_sent()
        self.on_sent()

    def on_sent(self) -> None:
        self.stage.dispatcher.on_sent(self.waiter)


@dataclass
class Stage:
    """A dispatcher and its topics."""

    clock: ManualClock = field(default_factory=ManualClock)
    stats: DeliveryStats = field(default_factory=DeliveryStats)
    order: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(clock=self.clock, stats=self.stats)
        self.budget = RingBudget(1 << 24)

    def topic(self, name: str, priority: int | None = None) -> TopicTail:
        """Add a followed topic without records."""
        tail = TopicTail(name, 1, Ring(name, self.budget, 1 << 24))
        info = TopicInfo(name, 7, Kind.LOG, TopicConfig(priority=priority), 0, 1, "", 0)
        tail.start(FollowStarted(1, info, 0))
        self.dispatcher.notify(tail)
        return tail

    def reader(self, tail: TopicTail, *, prompt: bool = True) -> Reader:
        """Add a subscription that has requested more."""
        reader = Reader(self, tail, prompt=prompt)
        reader.step()
        return reader

    def append(self, tail: TopicTail, count: int = 1, size: int = 10) -> None:
        """Push `count` new records of `size` bytes from the store."""
        first = tail.ring.end_seq + 1
        batch = Batch.from_rows([Record(data=b"x" * size) for _ in range(count)]).with_seqs(first, 1)
        tail.push_item(FollowItem(1, batch, batch.last_seq, batch.last_seq))
        self.dispatcher.notify(tail)

    def fill(self, priority: int | None = None) -> list[Reader]:
        """Put the maximum number of sends in flight."""
        readers = [self.reader(self.topic(f"full-{number}", priority), prompt=False) for number in range(WORKERS)]
        for reader in readers:
            self.append(reader.tail)
        self.order.clear()
        return readers

    async def press(self, share: float, samples: int = 1) -> None:
        """Set the pressure to `share`, by bytes being sent."""
        self.stats.queued_bytes = round(share * SEND_BYTES_MAX)
        self.append(self.topic("press"))
        reader = self.reader(self.topic("pressed"))
        for _ in range(samples):
            self.append(reader.tail)
            await self.clock.pass_time(SAMPLE_S)
        self.order.clear()


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    one = Stage()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one.dispatcher.run()), tasks.create_task(one.dispatcher.sample_pressure())]
        await settle()
        yield one
        for task in running:
            task.cancel()


async def test_a_single_topic_is_served_at_once_and_arms_no_timer() -> None:
    async with stage() as one:
        reader = one.reader(one.topic("log"))
        for _ in range(3):
            one.append(reader.tail)
        assert reader.frames == [1, 1, 1], "without a turn of the loop"
        await settle()
        assert one.clock.pending == 0
        assert (one.stats.turn_wait_s, one.stats.reading.step) == (0.0, LadderStep.REST)


async def test_a_topic_waits_for_sends_in_flight_and_the_highest_priority_is_served_first() -> None:
    async with stage() as one:
        full = one.fill()
        for name, priority in (("low", -500), ("high", 800), ("middle", 300)):
            reader = one.reader(one.topic(name, priority))
            one.append(reader.tail)
        await settle()
        assert one.order == []
        full[0].on_sent()
        await settle()
        assert one.order == ["high", "middle", "low"]


async def test_stalled_readers_delay_the_others_once_and_briefly() -> None:
    async with stage() as one:
        full = one.fill()
        reader = one.reader(one.topic("log"))
        one.append(reader.tail)
        await one.clock.pass_time(STILL_S - 0.001)
        assert reader.frames == []
        await one.clock.pass_time(0.001)
        assert reader.frames == [1]
        for stopped in full:
            one.append(stopped.tail)
        one.append(reader.tail)
        assert reader.frames == [1, 1]


async def test_a_closed_subscription_frees_its_slot_and_is_not_woken_again() -> None:
    async with stage() as one:
        full = one.fill()
        reader = one.reader(one.topic("log"))
        one.append(reader.tail)
        gone = one.reader(one.topic("gone"))
        one.dispatcher.remove(gone.tail, gone.waiter)
        del gone.tail.listeners[gone.step]
        one.append(gone.tail)
        one.dispatcher.remove(full[0].tail, full[0].waiter)
        await settle()
        assert (reader.frames, gone.frames) == ([1], [])


async def test_a_band_is_charged_per_record_and_subscription() -> None:
    async with stage() as one:
        full = one.fill()
        wide, narrow = one.topic("wide", 10), one.topic("narrow", -1)
        for _ in range(10):
            one.reader(wide)
        one.reader(narrow)
        for _ in range(100):
            one.append(wide, 8, WHOLE_BYTES)
            one.append(narrow, 8, WHOLE_BYTES)
        full[0].on_sent()
        await settle()
        both = one.order[: len(one.order) - one.order[::-1].index("narrow")]
        assert both.count("narrow") == 100
        assert both.count("wide") == pytest.approx(100, rel=0.2), "ten readers of 8 records pay for 80"


async def test_news_without_records_wake_every_subscription() -> None:
    async with stage() as one:
        tail = one.topic("log")
        woken: list[str] = []
        tail.listeners[lambda: woken.append("one")] = None
        tail.end(FollowEnded(1, "TOPIC_NOT_FOUND", "gone"))
        one.dispatcher.notify(tail)
        assert woken == ["one"]
        for number in range(WAKES_A_PASS + 1):
            tail.listeners[partial(woken.append, str(number))] = None
        tail.has_news = True
        one.dispatcher.notify(tail)
        await settle()
        assert len(woken) == 1 + 1 + WAKES_A_PASS + 1


async def test_under_pressure_a_topic_has_one_frame_in_a_window() -> None:
    async with stage() as one:
        reader = one.reader(one.topic("log"))
        await one.press(1.0)
        assert one.stats.reading.window_s == WINDOW_S_MAX
        one.append(reader.tail)
        assert reader.frames == [1], "the first after a pause goes at once"
        for _ in range(9):
            await one.clock.pass_time(0.002)
            one.append(reader.tail)
        assert reader.frames == [1]
        await one.clock.pass_time(0.002)
        assert reader.frames == [1, 9]
        one.append(reader.tail, 3_000)
        await settle()
        assert sum(reader.frames) >= 1 + 9 + 1_000, "a whole frame does not wait"
        await one.clock.pass_time(WINDOW_S_MAX * 4)
        assert reader.seq == reader.tail.ring.end_seq


async def test_under_low_pressure_no_frame_is_delayed() -> None:
    async with stage() as one:
        reader = one.reader(one.topic("log"))
        await one.press(0.2, samples=8)
        for _ in range(5):
            one.append(reader.tail)
        assert reader.frames == [1] * 5


async def test_records_that_come_during_a_send_are_one_frame() -> None:
    async with stage() as one:
        reader = one.reader(one.topic("log"), prompt=False)
        for _ in range(5):
            one.append(reader.tail)
        assert reader.frames == [1], "the first one goes at once"
        reader.on_sent()
        reader.step()
        assert reader.frames == [1, 4]


async def test_a_subscription_that_is_behind_gets_the_frames_that_others_got() -> None:
    async with stage() as one:
        tail = one.topic("log")
        fast, slow = one.reader(tail), one.reader(tail, prompt=False)
        for _ in range(3):
            one.append(tail)
        assert (fast.frames, slow.frames) == ([1, 1, 1], [1])
        for _ in range(2):
            slow.on_sent()
            slow.step()
        assert slow.frames == [1, 1, 1], "encoded once for both"


async def test_pressure_is_sampled_while_there_is_any_and_b0_is_slowed() -> None:
    async with stage() as one:
        await one.press(0.9, samples=4)
        steps = [one.stats.reading.step]
        for share in (0.9, 0.5, 0.0):
            one.stats.queued_bytes = round(share * SEND_BYTES_MAX)
            await one.clock.pass_time(SAMPLE_S)
            steps.append(one.stats.reading.step)
        assert steps == [LadderStep.COALESCE, LadderStep.SLOW_B0, LadderStep.COALESCE, LadderStep.REST]
        assert one.clock.pending == 0, "no sample while at rest"


async def test_waiting_topics_are_pressure_by_number_and_by_time() -> None:
    async with stage() as one:
        full = one.fill()
        for number in range(32):
            one.append(one.reader(one.topic(f"t{number}", -3 if number < 4 else 3)).tail)
        one.clock.advance(0.0)
        await settle()
        for reader in full:
            reader.waiter.reader.slow = False
        one.clock.advance(STILL_S / 2)
        assert one.stats.ready == (0,) * 5, "not sampled yet"
        for reader in full:
            one.dispatcher.request(reader.tail, reader.waiter, reader.seq)
        one.dispatcher._sample()
        reading = one.stats.reading
        assert one.stats.ready == (4, 28, 0, 0, 0)
        assert reading.ready == pytest.approx(0.5)
        assert one.stats.longest_wait_s == pytest.approx(STILL_S / 2)
        assert reading.latency == pytest.approx(0.2 * (STILL_S / 2) / 0.005)


async def test_an_evicted_ring_still_costs_a_turn() -> None:
    async with stage() as one:
        one.budget = RingBudget(0)
        tail = one.topic("log")
        woken: list[int] = []
        waiter = PendingRead(lambda: woken.append(1))
        assert not one.dispatcher.request(tail, waiter, 0)
        one.append(tail)
        assert woken == [1]
        assert (tail.ring.floor_seq, tail.ring.open_seq, tail.ring.has_unopened) == (1, 1, False)


async def test_frames_that_no_subscription_waited_for_are_skipped() -> None:
    async with stage() as one:
        tail = one.topic("log")
        for _ in range(100):
            one.append(tail)
        reader = Reader(one, tail, seq=100)
        reader.step()
        one.append(tail)
        assert reader.frames == [1]
        late = Reader(one, tail, seq=0)
        late.step()
        assert late.frames == [1] * 101, "what was passed over is open"


async def test_a_subscription_ahead_of_the_ring_is_woken_when_the_ring_reaches_it() -> None:
    async with stage() as one:
        tail = one.topic("log")
        one.append(tail)
        reader = Reader(one, tail, seq=5)
        reader.step()
        one.append(tail, 4)
        assert reader.frames == []
        await settle()
        one.append(tail, 2)
        await settle()
        assert reader.frames == [2]
