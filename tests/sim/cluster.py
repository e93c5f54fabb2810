"""A whole cluster on one loop: a store on a simulated disk, an unreliable wire, a delivery role that dies, subscribers.

The store runs the operations of `tests.sim.test_walk`, all recorded in its history, and a source that writes by
positions; meanwhile subscribers watch. Time passes only between the steps. At the end faults stop, all subscribers catch
up within a bounded time, every view is checked, and no task or subscription is left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Final

from eddyline.delivery.feed.tail import LINGER_S
from tests.sim.cluster_writer import ClusterWriter
from tests.sim.mortal_delivery import Delivery
from tests.sim.subscriber import Cluster, Subscriber
from tests.support.delivery.slots import held_count, waiting_count
from tests.support.manual_clock import ManualClock, settle
from tests.support.models.history import End, History
from tests.support.models.random_walk import PASSING
from tests.support.models.recorded_store import Play
from tests.support.models.subscriber_view import Head, Judge, Opened, Truth
from tests.support.models.topic_model import Moment
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.sim.weather import StormyWire
from tests.support.store.simulated import sim_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.store.shard.shard import Shard

LIVES: Final = 6
STEPS_MIN: Final = 5
STEPS_MAX: Final = 40
SUBSCRIBERS: Final = (5, 20)
TICK_S: Final = 0.02
TURNS_A_TICK: Final = 4
PATIENCE_S: Final = 120.0
TRACE_LINES: Final = 30


class WholeCluster(Cluster):
    """Store, delivery role and subscribers of one simulation."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random, self.clock = Random(seed), ManualClock()
        self.fs, self.fold = SimFs(seed), SimFold(seed)
        self.history, self.writer = History(), ClusterWriter(Random(f"{seed} writer"))
        self.wire = StormyWire(self.clock, Random(f"{seed} wire"))
        self.delivery = Delivery(self, self.wire)
        count = self.random.randint(*SUBSCRIBERS)
        self.subscribers = [Subscriber(self, Random(f"{seed} {one}"), f"s{one}") for one in range(count)]
        self.resting = False
        self.checked = False
        self.crashes = 0
        self.records = self.gaps = self.snapshots = self.levels = 0
        self._age_ms = 0
        self._link: Shard | None = None
        self._heads: dict[str, Head] = {}
        self._trace: deque[str] = deque(maxlen=TRACE_LINES)

    def heads(self) -> Mapping[str, Head]:
        if self._link is not None:
            infos = [topic.info() for topic in self._link._table.page("", "", 1_000)]
            self._heads = {info.name: Head(info.epoch, info.head_seq) for info in infos}
        return self._heads

    def opened(self, topic: str) -> Opened:
        known = [one for one in self.history.topics if one.name == topic and one.epoch]
        return Opened(known[-1].epoch, known[-1].removed) if known else Opened()

    async def go(self) -> None:
        """Run all lives, the final quiet phase, and the checks. Raises AssertionError."""
        try:
            async with asyncio.TaskGroup() as tasks:
                role = tasks.create_task(self.delivery.live())
                reading = [tasks.create_task(one.live()) for one in self.subscribers]
                end: End = "clean"
                for life in range(LIVES):
                    end = await self._live(end, last=life == LIVES - 1)
                for task in reading:
                    task.cancel()
                await self._left_behind()
                role.cancel()
                self.clock.advance(0)
            self._judge()
        except BaseException as error:
            error.add_note("\n".join(self._trace))
            raise

    # the store ---------------------------------------------------------------------------------------------------

    async def _live(self, end: End, *, last: bool) -> End:
        """Run one life of the store, the last one with the quiet phase. Returns how it ended."""
        random = self.random
        if not last and random.random() < 0.3:
            self.fs.crash_at = self.fs.calls + random.randrange(1, 150)
        stopped = False
        try:
            stopped = await self._use(end, last=last)
        except OSError:
            stopped = True
        except BaseException as error:
            if not self.fs.crashed or not only_crashes(error):
                raise
        self._link = None
        self.crashes += self.fs.crashed
        ended: End = "kill" if self.fs.crashed or stopped else "clean"
        if end == "power" and not self.checked:
            ended = "power"
        power, seed = random.random() < 0.5, random.getrandbits(32)
        if power:
            self.fs, self.fold = self.fs.reboot("power", seed=seed), self.fold.power()
            ended = "power" if ended == "kill" else ended
        else:
            self.fs, self.fold = self.fs.reboot("kill", seed=seed), self.fold.kill()
        self._say(f"the store ended: {ended}")
        if self.checked:  # a start that failed may have dated a gap
            await self._pass(random.choice((0, random.uniform(0, 3))))
        return ended

    async def _use(self, end: End, *, last: bool) -> bool:
        random, disk, self.checked = self.random, FaultyFs(self.fs), False
        self.writer.begin()
        async with sim_store(
            disk,
            self.fold,
            self.clock,
            boot_id=self.fs.boot_id,
            seal_records=6,
            seal_age_ms=1_000,
            checkpoint_bytes=3_000,
            checkpoint_interval_ms=2_000,
        ) as link:
            now = Moment(self.clock.now_ms(), self.clock.now_ms())
            await self.history.judge(link, end, now)
            self.checked = True
            play = Play(link, self.history, self.clock)
            if not last and random.random() < 0.5:
                self.fs.crash_at = self.fs.calls + random.randrange(1, 600)
            with self.wire.plugged(link):
                self._link = link
                try:
                    failed = await self._walk(play, disk, last=last)
                    if last:
                        await self._rest(play)
                finally:
                    self.heads()
                    self._link = None
            calls = disk.calls.copy()
        erred = any(calls[fault.operation] < fault.call <= disk.calls[fault.operation] for fault in disk.faults)
        return failed or erred or bool(link.status().read_only_reason)

    async def _walk(self, play: Play, disk: FaultyFs, *, last: bool) -> bool:
        """Take steps, and let time pass between them; True = the disk has failed."""
        random = self.random
        for _ in range(random.randrange(STEPS_MIN, STEPS_MAX)):
            if not last and random.random() < 0.01:
                disk.next_fault(random.choice(("pwritev", "fdatasync")), error=5)
            try:
                self._say(await self.writer.take_step(play))
            except PASSING as error:
                self._say(f"step: {error.reason}")
                await self._pass(random.uniform(0, 2))
                return True
            await self._pass(random.choice((0, 0, 0.05, random.uniform(0, 1), random.uniform(0, 1))))
        if play.link.status().read_only_reason:
            return True
        await play.check()
        return False

    async def _rest(self, play: Play) -> None:
        """Stop faults, and wait until all subscribers are caught up."""
        self.wire.calm = self.delivery.calm = self.resting = True
        start_s = self.clock.monotonic_s()
        while not self._is_level():
            still = [one for one in self.subscribers if not one.level]
            assert self.clock.monotonic_s() < start_s + PATIENCE_S, f"stuck: {still}, heads {self.heads()}"
            await self._pass(0.5)
        await play.check()
        self._age_ms = play.now.age_ms
        self._say(f"level after {self.clock.monotonic_s() - start_s:.1f} s")

    def _is_level(self) -> bool:
        return not self.heads() or all(one.level for one in self.subscribers)

    async def _pass(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / TICK_S)):
            self.clock.advance(TICK_S)
            await settle(TURNS_A_TICK)

    def _say(self, what: str) -> None:
        self._trace.append(f"{self.clock.monotonic_s():8.2f} {what}")

    # the end -----------------------------------------------------------------------------------------------------

    async def _left_behind(self) -> None:
        """Check that no subscription or task is left after all subscribers have ended. The store is stopped by now."""
        await self._pass(LINGER_S + 5)
        role = self.delivery.role
        assert role is not None
        assert role.stats.watch_count == 0, "a closed stream is still counted"
        assert (held_count(role.slots), waiting_count(role.slots)) == (0, 0), "scan slots are held without a stream"
        assert len(role.tails) == 0, "topics are followed for nobody"
        assert role.budget.nbytes == 0, "frames are held for nobody"

    def _judge(self) -> None:
        topics: dict[int, Truth] = {}
        for topic in self.history.topics:
            if topic.epoch:
                past, kept = topic.settled.past, topic.model.kept
                kept.settle(self._age_ms)
                topics[topic.epoch] = Truth(topic.kind, topic.gone, kept.evict_floor, past, sorted(past.rows))
        for subscriber in self.subscribers:
            for view in subscriber.views:
                judge = Judge(view, topics)
                judge.go()
                self.records += judge.count
                self.gaps += judge.gaps
                self.snapshots += judge.snapshots
                self.levels += judge.levels


def only_crashes(error: BaseException) -> bool:
    """Return whether the error consists of simulated crashes alone."""
    if isinstance(error, BaseExceptionGroup):
        return all(only_crashes(part) for part in error.exceptions)
    return isinstance(error, Crashed)
