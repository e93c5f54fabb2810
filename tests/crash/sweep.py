"""Crash sweep: stops the machine at every file-system and catalog call of a scenario, recovers, checks, recovers again.

The death of the process is tried at every call; a power failure, or the same loss without a reboot, with outcomes of the
disk drawn by the call's number: as many as the plan has. A scenario may begin with a prologue, whose calls are not swept.
"""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from eddyline.core.model.topic import Kind
from eddyline.store.storage.layout import Layout
from tests.crash.disk import check_files
from tests.support.manual_clock import ManualClock, settle
from tests.support.models.history import History, look
from tests.support.models.recorded_store import Play, kv_rows, log_rows
from tests.support.models.topic_model import Moment
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import settings, sim_store

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from eddyline.store.shard.shard import Shard
    from tests.support.models.history import End
    from tests.support.sim.fs import CrashKind

PARTS: Final = 4
"""Parts of a sweep, which run in parallel."""


class Scenario(Protocol):
    """Operations on a store; the function's name is the sweep's."""

    @property
    def __name__(self) -> str: ...

    async def __call__(self, play: Play) -> None: ...


class Tuning(NamedTuple):
    """Settings of the swept store: segments of few records, and checkpoints only on request."""

    seal_records: int = 4
    checkpoint_bytes: int = 1 << 30
    wal_shards: int = 1
    seal_age_ms: int = 3_600_000
    compression: str = "lz4"


class PrologueCrash(NamedTuple):
    """Crash of a prologue: at which call, and how."""

    crash_at: int
    end: End


class SweepPlan(NamedTuple):
    """One sweep. `powers` = power failures tried at each call, or at each `power_every`th, besides the death of the process.

    `every` samples the calls if there are many. A prologue runs before the swept scenario, and ends with a clean stop unless
    `broken` is given.
    """

    scenario: Scenario
    prologue: Scenario | None = None
    broken: PrologueCrash | None = None
    tuning: Tuning = Tuning()
    powers: int = 2
    power_every: int = 1
    every: int = 1

    @property
    def name(self) -> str:
        """Name of the sweep in test ids."""
        shards = f"-{self.tuning.wal_shards}-shards" if self.tuning.wal_shards > 1 else ""
        broken = f"-after-{self.broken.end}-at-{self.broken.crash_at}" if self.broken is not None else ""
        return self.scenario.__name__ + shards + broken

    @property
    def is_checked(self) -> bool:
        """True = the state after a clean stop is checked before the scenario begins."""
        return self.prologue is not None and self.broken is None


@dataclass
class MachineHistory:
    """A machine with its history: disk, fold and clock pass from one run to the next."""

    tuning: Tuning
    fs: SimFs = field(default_factory=SimFs)
    fold: SimFold = field(default_factory=lambda: SimFold(0))
    clock: ManualClock = field(default_factory=ManualClock)
    history: History = field(default_factory=History)

    @property
    def now(self) -> Moment:
        """Return the time at which a store starts."""
        return Moment(self.clock.now_ms(), self.clock.now_ms())

    def store(self) -> AbstractAsyncContextManager[Shard]:
        """Open the store on this machine."""
        tuning = self.tuning
        return sim_store(
            self.fs,
            self.fold,
            self.clock,
            seal_records=tuning.seal_records,
            checkpoint_bytes=tuning.checkpoint_bytes,
            wal_shards=tuning.wal_shards,
            seal_age_ms=tuning.seal_age_ms,
            compression=tuning.compression,
        )

    def copy(self, seed: int) -> MachineHistory:
        """Return an independent copy at rest; the seed decides the outcome of its crashes."""
        fold = deepcopy(self.fold)
        fold._random.seed(seed)
        fs, clock = self.fs.reboot("kill", seed=seed), ManualClock(self.clock.now_ms())
        return MachineHistory(self.tuning, fs, fold, clock, deepcopy(self.history))

    async def run(self, scenario: Scenario, *, checked: bool = False) -> bool:
        """Run until done or stopped; True = the machine stopped. `checked` = check the state after the clean stop first."""
        try:
            async with self.store() as link:
                await settle()  # the store's own first round is over: only the scenario runs rounds from here on
                if checked:
                    await self.history.judge(link, "clean", self.now)
                await scenario(Play(link, self.history, self.clock))
        except BaseException:
            if not self.fs.crashed:
                raise
            return True
        return self.fs.crashed

    def reboot(self, end: End, seed: int, *, crash_at: int | None = None) -> None:
        """Reboot the machine after an end of this kind."""
        lossy: CrashKind = "detach" if (seed // 10 + seed) % 2 else "power"  # half of the outcomes each
        self.fs = self.fs.reboot(lossy if end == "power" else "kill", seed=seed, crash_at=crash_at)
        self.fold = self.fold.power() if end == "power" else self.fold.kill()

    async def recover(self, end: End, *, goes_on: bool) -> None:
        """Recover, check, recover again to the same state; with `goes_on` append, and recover once more."""
        async with self.store() as link:
            await self.history.judge(link, end, self.now)
            before = [await look(link, topic.name) for topic in self.history.current()]
        self.fold = self.fold.kill()
        async with self.store() as link:
            await settle()
            await self.history.judge(link, "clean", self.now)
            after = [await look(link, topic.name) for topic in self.history.current()]
            assert after == before, "recovering twice changed something"
            for value in self.history.erased:
                assert not self.fs.holding(value), f"{value!r} was erased and is in {self.fs.holding(value)}"
            play = Play(link, self.history, self.clock)
            await play.upkeep()
            check_files(link, self.fs, Layout(settings().directory))
            if goes_on:
                await go_on(play)
        if goes_on:
            self.fold = self.fold.kill()
            async with self.store() as link:
                await self.history.judge(link, "clean", self.now)


async def go_on(play: Play) -> None:
    """Check that every topic takes appends, and the store new topics."""
    for topic in play.history.current():
        await play.add(topic, kv_rows(("k", "after")) if topic.kind is Kind.KV else log_rows("after"))
    await play.upkeep()
    await play.checkpoint()
    await play.check()


async def begun(plan: SweepPlan) -> MachineHistory:
    """Make the machine on which the scenario begins."""
    life = MachineHistory(plan.tuning)
    if plan.prologue is not None:
        life.fs.crash_at = plan.broken.crash_at if plan.broken is not None else None
        assert await life.run(plan.prologue) is (plan.broken is not None)
        life.reboot(plan.broken.end if plan.broken is not None else "clean", 0)
    return life


def sweep(plan: SweepPlan, part: int) -> int:
    """Try every crash of one part of a sweep. Returns their number."""
    beginning = asyncio.run(begun(plan))  # noqa: TID251
    whole, tried = beginning.copy(0), 0
    assert not asyncio.run(whole.run(plan.scenario, checked=plan.is_checked))  # noqa: TID251
    for crash_at in range(1 + part * plan.every, whole.fs.calls + 1, PARTS * plan.every):
        for outcome in range(plan.powers + 1 if crash_at % plan.power_every == 0 else 1):
            tried += 1
            asyncio.run(one_crash(plan, beginning, crash_at, outcome))  # noqa: TID251
    return tried


async def one_crash(plan: SweepPlan, beginning: MachineHistory, crash_at: int, outcome: int) -> None:
    """Crash at a call; outcome 0 is a kill, the others are power failures. After one outcome a call the store is used
    again."""
    end: End = "power" if outcome else "kill"
    seed = crash_at * 10 + outcome
    try:
        life = beginning.copy(seed)
        life.fs.crash_at = crash_at
        assert await life.run(plan.scenario, checked=plan.is_checked)
        life.reboot(end, seed)
        if plan.broken is not None and plan.broken.end == "power":
            end = "power"
        await life.recover(end, goes_on=crash_at % (plan.powers + 1) == outcome)
    except BaseException as error:
        error.add_note(f"{plan.name}: crash_at={crash_at} outcome={outcome}")
        raise
