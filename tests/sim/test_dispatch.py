"""Dispatch on an overloaded machine: shares, the longest wait, slow readers, by seeds.

Dispatcher, tails and rings are real; the machine sends a fixed number of frames a millisecond of the manual clock, in
order of arrival. Most frames are whole ones, which are never joined.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, NoReturn

import pytest

from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import RECORD_OVERHEAD_BYTES
from eddyline.core.store_link.protocol import FollowItem, FollowStarted
from eddyline.delivery.feed.dispatcher import Dispatcher
from eddyline.delivery.feed.frame_split import FRAME_BYTES
from eddyline.delivery.feed.ring import Ring, RingBudget
from eddyline.delivery.feed.tail import TopicTail
from eddyline.delivery.schedule.governor import LadderStep
from eddyline.delivery.schedule.in_flight import STILL_S, WORKERS, PendingRead
from eddyline.delivery.schedule.scheduler import BANDS, SLOWED, TICK_S, WEIGHTS
from eddyline.delivery.stats import DeliveryStats
from tests.sim.seeds import naming, seeds
from tests.support.manual_clock import ManualClock, settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.sim

SEEDS = 6
STEP_S = 0.001
FRAMES_A_STEP = 5
FRAME_RECORDS = FRAME_BYTES // RECORD_OVERHEAD_BYTES
RECORDS_A_S = FRAMES_A_STEP / STEP_S * FRAME_RECORDS
BASE_OF_BAND = (-1000, 0, 250, 500, 1000)
RING_BYTES = 1 << 40
FOR_EVER = 1e6


@dataclass(eq=False)
class Reader:
    """A subscription: takes the open frame, has the machine send it, requests the next. A slow one pauses after each
    frame."""

    machine: Machine
    tail: TopicTail
    rest_s: float = 0.0
    seq: int = 0
    latest_s: float = 0.0

    def __post_init__(self) -> None:
        self.woken = asyncio.Event()
        self.waiter = PendingRead(self.woken.set)
        self.tail.listeners[self.woken.set] = None

    async def live(self) -> NoReturn:
        dispatcher, ring = self.machine.dispatcher, self.tail.ring
        while True:
            if self.seq < ring.open_seq or dispatcher.request(self.tail, self.waiter, self.seq):
                frame = ring.frame_after(self.seq)
                assert frame is not None
                assert frame.after_seq == self.seq, "neither missed nor doubled"
                assert isinstance(frame.item, Batch)
                self.machine.log.append((self.tail.name, frame.next_after_seq))
                if self.rest_s == FOR_EVER:
                    await self.machine.rest(self.rest_s)
                await self.machine.send()
                self.seq = frame.next_after_seq
                if self.rest_s:
                    await self.machine.rest(self.rest_s)
                dispatcher.on_sent(self.waiter)
            else:
                dispatcher.on_sent(self.waiter)
                await self.woken.wait()
                self.woken.clear()


@dataclass
class Machine:
    """The clock, the send queue, and all readers."""

    seed: int
    clock: ManualClock = field(default_factory=ManualClock)
    stats: DeliveryStats = field(default_factory=DeliveryStats)
    log: list[tuple[str, int]] = field(default_factory=list)
    tails: list[TopicTail] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    longest_wait_s: float = 0.0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.dispatcher = Dispatcher(clock=self.clock, stats=self.stats)
        self._budget = RingBudget(RING_BYTES)
        self._sending: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def on(self) -> AsyncIterator[None]:
        """Run all readers while the context is open."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self.dispatcher.run()), tasks.create_task(self.dispatcher.sample_pressure())]
            running += [tasks.create_task(reader.live()) for reader in self.readers]
            yield
            for task in running:
                task.cancel()

    def topic(self, priority: int | None, readers: int = 1, *, rest_s: float = 0.0) -> TopicTail:
        tail = TopicTail(f"t{len(self.tails)}", 1, Ring("t", self._budget, RING_BYTES))
        tail.start(FollowStarted(1, TopicInfo("t", 7, Kind.LOG, TopicConfig(priority=priority), 0, 1, "", 0), 0))
        tail.has_news = False
        tail.consumed_s = self.clock.monotonic_s()
        self.tails.append(tail)
        self.readers += [Reader(self, tail, rest_s) for _ in range(readers)]
        return tail

    def append(self, tail: TopicTail, count: int = FRAME_RECORDS) -> None:
        first = tail.ring.end_seq + 1
        batch = Batch(count, first_seq=first, ts_ms=1)
        tail.push_item(FollowItem(1, batch, batch.last_seq, batch.last_seq))
        self.dispatcher.notify(tail)

    async def send(self) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sending.append(done)
        await done

    async def rest(self, seconds: float) -> None:
        done = asyncio.Event()
        self.clock.call_later(seconds, done.set)
        await done.wait()

    async def step(self) -> None:
        """Pass one millisecond. All readers run between two frames, as on a busy machine."""
        self.clock.advance(STEP_S)
        for _ in range(FRAMES_A_STEP):
            await settle(4)
            if self._sending:
                self._sending.popleft().set_result(None)
        self.longest_wait_s = max(self.longest_wait_s, self.stats.longest_wait_s)


def shares(before: list[int], after: list[int]) -> list[float]:
    """Return each band's share of the frames served in between, 0 to 1."""
    served = [now - then for then, now in zip(before, after, strict=True)]
    return [one / sum(served) for one in served]


@pytest.mark.parametrize("seed", seeds(SEEDS))
async def test_backlogged_bands_share_by_their_weights_and_b0_gives_way_under_lasting_pressure(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with naming(seed, capsys):
        machine = Machine(seed)
        topics_a_band = machine.random.randrange(8, 14)
        for priority in BASE_OF_BAND * topics_a_band:
            machine.topic(priority, machine.random.randrange(1, 3))
        async with machine.on():
            for tail in machine.tails:
                for _ in range(6_000 // topics_a_band):
                    machine.append(tail)
            results = []
            for slowed in (False, True):
                while machine.stats.reading.slows_b0 is not slowed:
                    await machine.step()
                before = list(machine.stats.served_records)
                for _ in range(400):
                    await machine.step()
                    if machine.stats.reading.slows_b0 is not slowed:
                        break
                results.append(shares(before, machine.stats.served_records))
        assert machine.stats.reading.step is LadderStep.SLOW_B0
        assert min(len(tail.waiting) + tail.ring.end_seq - tail.ring.open_seq for tail in machine.tails) > 0
        plain, slow = results
        for band in range(BANDS):
            assert plain[band] == pytest.approx(WEIGHTS[band] / sum(WEIGHTS), rel=0.1)
        assert slow[0] < plain[0] / 4
        weights = [1 / SLOWED, *WEIGHTS[1:]]
        for band in range(1, BANDS):
            assert slow[band] == pytest.approx(weights[band] / sum(weights), rel=0.1)


@pytest.mark.parametrize("seed", seeds(2))
async def test_frames_are_delivered_once_in_order_within_the_bound_of_waits(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice the machine's capacity of high priority, for 12 s: the lowest band is served too, within the bound."""
    with naming(seed, capsys):
        machine = Machine(seed)
        random = machine.random
        topics = [machine.topic(random.choice((1000, 900, 800))) for _ in range(random.randrange(20, 40))]
        low = [machine.topic(priority) for priority in (-1000, -1000, -600, 0, None, 400)]
        async with machine.on():
            for step in range(round(12 / STEP_S)):
                for _ in range(2 * FRAMES_A_STEP):
                    machine.append(random.choice(topics))
                if step % 500 == 0:
                    for tail in low:
                        machine.append(tail, random.randrange(1, FRAME_RECORDS))
                await machine.step()
            # Frames in B4 get at least half of the machine; each band may be a turn ahead.
            ahead = (len(machine.tails) + BANDS + WORKERS) * FRAME_RECORDS
            assert machine.longest_wait_s <= 10 + TICK_S + STILL_S + 2 * ahead / RECORDS_A_S
            assert all(reader.seq > 0 for reader in machine.readers)
            machine.tails, busy = low, machine.readers
            while any(reader.seq < reader.tail.ring.end_seq for reader in busy if reader.tail in low):
                await machine.step()


@pytest.mark.parametrize("seed", seeds(SEEDS))
async def test_slow_readers_delay_no_other_reader(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the machine's capacity is requested; some readers pause for seconds after each frame, some without end."""
    with naming(seed, capsys):
        machine = Machine(seed)
        random = machine.random
        quick = [machine.topic(random.choice((None, -1000, 500))) for _ in range(20)]
        for tail in quick[:10]:
            machine.readers += [Reader(machine, tail, rest_s=random.uniform(0.05, 3)) for _ in range(WORKERS)]
        stopped = [machine.topic(1000, rest_s=FOR_EVER) for _ in range(WORKERS)]
        wide = [machine.topic(None, rest_s=FOR_EVER) for _ in range(300)]
        for reader in machine.readers[-len(wide) :]:
            reader.waiter.reader = machine.readers[-1].waiter.reader
        async with machine.on():
            for tail in stopped:
                machine.append(tail)
            for step in range(2_000):
                if step == 500:  # the dispatcher has waited once for each of them
                    turns, waited_s = machine.stats.turn_count, machine.stats.turn_wait_s
                    machine.longest_wait_s = 0.0
                if step == 1_500:  # a stalled stream of many topics
                    mean_s = (machine.stats.turn_wait_s - waited_s) / (machine.stats.turn_count - turns)
                    for tail in wide:
                        machine.append(tail)
                for _ in range(FRAMES_A_STEP // 2):
                    machine.append(random.choice(quick), random.randrange(1, 50))
                await machine.step()
            assert mean_s < STEP_S
            assert machine.longest_wait_s <= STILL_S + 2 * STEP_S
            for _ in range(100):
                await machine.step()
            quick_ones = [reader for reader in machine.readers if not reader.rest_s]
            assert all(reader.seq == reader.tail.ring.end_seq for reader in quick_ones)


async def test_the_same_seed_serves_the_same_order() -> None:
    logs = []
    for _ in range(2):
        machine = Machine(11)
        for _ in range(30):
            machine.topic(machine.random.choice((None, *BASE_OF_BAND)), machine.random.randrange(1, 4))
        async with machine.on():
            for _ in range(300):
                for _ in range(machine.random.randrange(12)):
                    machine.append(machine.random.choice(machine.tails), machine.random.randrange(1, FRAME_RECORDS))
                await machine.step()
        logs.append(machine.log)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 1_000
