"""A simulated machine that runs a store, breaks it by a seed, restarts and checks it, with actors that use it.

One loop, one seed, no thread and no real time: a ticker moves the clock all the time. The machine
crashes at a file-system call drawn by the seed (also in recovery), as the death of the process or as a power failure; the
disk fails; the fold stalls or fails; the wall clock jumps; some stops are clean.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

from eddyline.core.model.topic import Durability
from eddyline.core.runtime.clock import sleep
from eddyline.store.fold.fold import FoldFailed
from tests.sim.book import Book
from tests.sim.stops import stop_is_untold
from tests.support.manual_clock import ManualClock, settle
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.store.simulated import LASTING, sim_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from eddyline.core.store_link.protocol import AppendResult
    from eddyline.store.shard.shard import Shard

TICK_S = 0.01
LIVES = 8
CRASH_CALLS_MAX = 300
START_CALLS_MAX = 25
LIFE_S_MAX = 3.0
PATIENCE_S = 120.0


class Actor(Protocol):
    """A user of the store, over all its lives."""

    topic: str

    async def run(self, link: Shard) -> None:
        """Use this life of the store, until cancelled."""

    @property
    def content(self) -> bool:
        """True = no append or read of it is pending."""


class Companion(Protocol):
    """A task that outlives the store's lives."""

    async def live(self) -> None:
        """Run until cancelled."""

    @property
    def content(self) -> bool:
        """True = it has received everything."""


@dataclass
class World:
    """The simulated machine; see the module."""

    seed: int
    found: Callable[[World, Shard], Awaitable[None]]
    random: Random = field(init=False)
    clock: ManualClock = field(default_factory=ManualClock)
    book: Book = field(default_factory=Book)
    actors: list[Actor] = field(default_factory=list)
    acks: list[asyncio.Future[AppendResult]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    crashes: int = 0
    power: bool = False
    resting: bool = False
    always_present: list[Actor] = field(default_factory=list)
    companions: list[Companion] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.fs = SimFs(self.seed)
        self.fold = SimFold(self.seed)

    async def play(self) -> None:
        """Run all lives, and a last one in which all actors finish."""
        async with asyncio.TaskGroup() as tasks:
            always = [tasks.create_task(self._tick())]
            always += [tasks.create_task(companion.live()) for companion in self.companions]
            async with sim_store(self.fs, self.fold, self.clock) as link:
                await self.found(self, link)
            self._reboot(lossless=True)
            for _ in range(LIVES):
                await self._life()
            await self._life(last=True)
            for task in always:
                task.cancel()

    async def _tick(self) -> None:
        while True:
            self.clock.advance(TICK_S)
            await settle(2)

    async def _life(self, *, last: bool = False) -> None:
        """Start, as often as it takes; check; run; stop or crash."""
        fold_failed = False
        if not last and self.random.random() < 0.5:
            self.fs.crash_at = self.fs.calls + self.random.randrange(1, START_CALLS_MAX)
        disk = FaultyFs(self.fs)
        clean = False
        try:
            async with sim_store(
                disk,
                self.fold,
                self.clock,
                boot_id=self.fs.boot_id,
                seal_records=30,
                seal_age_ms=800,
                checkpoint_bytes=20_000,
                checkpoint_interval_ms=1_000,
            ) as link:
                self.fs.crash_at = None
                await self.book.check(link, power=self.power)
                self.power = False
                if not last and self.random.random() < 0.7:
                    self.fs.crash_at = self.fs.calls + self.random.randrange(1, CRASH_CALLS_MAX)
                await self._use(link, disk, last=last)
                calls = disk.calls.copy()
            clean = not stop_is_untold(self.fs, disk, calls) and not link.status().read_only_reason.endswith("FAILED")
        except FoldFailed:
            fold_failed = True
        except BaseException as error:
            if self.failures:
                raise self.failures[0] from error
            if not (self.fs.crashed and _only_crashes(error)):
                raise
            self.crashes += 1
        await settle(2)
        if self.failures:
            raise self.failures[0]
        assert all(ack.done() for ack in self.acks), "an append was left without an answer"
        self.acks.clear()
        self._reboot(lossless=clean and not fold_failed and not self.fs.crashed)

    def _reboot(self, *, lossless: bool) -> None:
        seed = self.random.getrandbits(32)
        if self.random.random() < 0.5:
            self.fs, self.fold = self.fs.reboot("power", seed=seed), self.fold.power()
            self.power = self.power or not lossless
        else:
            self.fs, self.fold = self.fs.reboot("kill", seed=seed), self.fold.kill()

    async def _use(self, link: Shard, disk: FaultyFs, *, last: bool) -> None:
        async with asyncio.TaskGroup() as tasks:
            present = self.always_present + (self.actors if last else self._present())
            running = [tasks.create_task(self._watched(actor, link)) for actor in present]
            if last:
                await sleep(self.clock, LIFE_S_MAX)
                await self._until_content(link)
            else:
                await self._trouble(link, disk)
            for task in running:
                task.cancel()

    def _present(self) -> list[Actor]:
        """Choose the actors of a life.

        With DISK topics alone a power failure loses more unsynced records; with FSYNC topics alone no fdatasync of another
        topic hides a missing one.
        """
        classes = self.random.choice(((Durability.DISK,), (Durability.FSYNC,), LASTING))
        return [
            actor for actor in self.actors if self.random.random() < 0.8 and self.book.names[actor.topic][1] in classes
        ]

    async def _watched(self, actor: Actor, link: Shard) -> None:
        """Run an actor; a crash must not hide its assertion error."""
        try:
            await actor.run(link)
        except (Exception, AssertionError) as error:
            self.failures.append(error)
            raise

    async def _trouble(self, link: Shard, disk: FaultyFs) -> None:
        random = self.random
        left_s = random.uniform(0.2, LIFE_S_MAX)
        while left_s > 0:
            step_s = random.uniform(0.02, 0.4)
            left_s -= step_s
            await sleep(self.clock, step_s)
            match random.randrange(12):
                case 0 | 1:
                    self.fold.stall(random.randrange(1, 6))
                case 2:
                    disk.next_fault("pwritev", short=random.randrange(1, 400))
                case 3 if random.random() < 0.3:
                    code = random.choice((errno.EIO, errno.ENOSPC))
                    disk.next_fault(random.choice(("pwritev", "fdatasync")), error=code)
                case 4 if random.random() < 0.2:
                    self.fold.fail()
                case 5:
                    self.clock.set_wall_ms(self.clock.now_ms() + random.randrange(-60_000, 60_000))
                case 6 if random.random() < 0.5:
                    self.clock.advance(random.uniform(5, 15))
            if link.status().read_only_reason:
                left_s = min(left_s, 0.3)
        self.fold.stall(0)

    async def _until_content(self, link: Shard) -> None:
        """Wait until all actors have finished and read to the end; then check the store once more."""
        self.resting = True
        end_s = self.clock.monotonic_s() + PATIENCE_S
        everybody: list[Actor | Companion] = [*self.actors, *self.companions]
        while not all(one.content for one in everybody):
            still = [one for one in everybody if not one.content]
            assert self.clock.monotonic_s() < end_s, f"never content: {still}"
            await sleep(self.clock, 0.1)
        await self.book.check(link, power=False)


def _only_crashes(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_only_crashes(part) for part in error.exceptions)
    return isinstance(error, Crashed)
