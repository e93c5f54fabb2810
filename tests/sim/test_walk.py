"""Random walks over a store's operations, with clean stops and crashes, checked against the semantics, by seeds.

Segments and checkpoints are tiny, so that sealing, merging, rewriting, reclaiming and erasing run all the time; the
machine stops at calls drawn by the seed, also in recoveries and background jobs; the disk fails; the wall clock jumps.
Reads from any seq return exactly the records that are there and gaps for losses, at every step and after every start.
"""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.sim.seeds import naming, seeds
from tests.sim.stops import stop_is_untold
from tests.support.manual_clock import ManualClock, settle
from tests.support.models.history import End, History, read_items
from tests.support.models.random_walk import PASSING, Wanderer
from tests.support.models.recorded_store import Play
from tests.support.models.topic_model import Moment
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.store.simulated import sim_store

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.sim

SEEDS = 60
LIVES = 8
STEPS_MAX = 25


class Walk:
    """One machine over all lives of its store."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.fs, self.fold, self.clock = SimFs(seed), SimFold(seed), ManualClock()
        self.history, self.wanderer = History(), Wanderer(self.random)
        self.shards = self.random.choice((1, 1, 3))
        self.steps = 0

    async def go(self) -> None:
        """Run all lives, and a last one that only reads."""
        end: End = "clean"
        for life in range(LIVES):
            end = await self.live(end, steps=0 if life == LIVES - 1 else self.random.randrange(STEPS_MAX))

    async def live(self, end: End, *, steps: int) -> End:
        """Start, as often as it takes, and run a life. Returns how it ended."""
        random = self.random
        if steps and random.random() < 0.4:
            self.fs.crash_at = self.fs.calls + random.randrange(1, 150)
        stopped = False
        try:
            stopped = await self.use(end, steps)
        except OSError:
            stopped = True  # the disk failed in a start or a stop
        except BaseException as error:
            if not self.fs.crashed or not _only_crashes(error):
                raise
        ended: End = "kill" if self.fs.crashed or stopped else "clean"
        if end == "power" and not self.checked:
            ended = "power"
        power = random.random() < 0.5
        seed = random.getrandbits(32)
        if power:
            self.fs, self.fold = self.fs.reboot("power", seed=seed), self.fold.power()
            ended = "power" if ended == "kill" else ended
        else:
            self.fs, self.fold = self.fs.reboot("kill", seed=seed), self.fold.kill()
        return ended

    async def use(self, end: End, steps: int) -> bool:
        """Run one life; True = the disk failed in it, so that it ends like a kill."""
        random, disk, self.checked = self.random, FaultyFs(self.fs), False
        async with sim_store(
            disk,
            self.fold,
            self.clock,
            boot_id=self.fs.boot_id,
            seal_records=6,
            seal_age_ms=1_000,
            checkpoint_bytes=3_000,
            checkpoint_interval_ms=2_000,
            wal_shards=self.shards,
        ) as link:
            now = Moment(self.clock.now_ms(), self.clock.now_ms())
            await self.history.judge(link, end, now)
            self.checked = True
            await settle()
            play = Play(link, self.history, self.clock)
            if steps and random.random() < 0.5:
                self.fs.crash_at = self.fs.calls + random.randrange(1, 400)
            for _ in range(steps):
                if random.random() < 0.05:
                    code, call = (
                        random.choice((errno.EIO, errno.ENOSPC)),
                        random.choice(("pwritev", "fsync", "rename", "unlink")),
                    )
                    disk.next_fault(call, error=code)
                self.steps += 1
                try:
                    await self.wanderer.step(play)
                    await self.read(play)
                except PASSING:
                    return True
            if not link.status().read_only_reason:
                await play.check()
            calls = disk.calls.copy()
        return link.status().read_only_reason.endswith("FAILED") or stop_is_untold(self.fs, disk, calls)

    async def read(self, play: Play) -> None:
        """Read from a random cursor, whose records may all be deleted or evicted."""
        topics = play.history.current()
        if not topics or play.link.status().read_only_reason:
            return  # a read-only shard moves no floors
        topic = self.random.choice(topics)
        model = topic.model
        model.kept.settle(play.now.age_ms)
        after_seq = self.random.randint(0, model.kept.head_seq)
        items = await read_items(play.link, topic.name, after_seq)
        if play.link.status().read_only_reason:
            return  # the disk failed while this read moved the floor
        assert items == model.kept.read(after_seq), (
            f"{topic.name} after {after_seq}: {items}, not {model.kept.read(after_seq)}"
        )


def _only_crashes(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_only_crashes(part) for part in error.exceptions)
    return isinstance(error, Crashed)


@pytest.mark.parametrize("seed", seeds(SEEDS))
async def test_store_keeps_the_records_that_the_semantics_define(
    seed: int, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    with naming(seed, capsys):
        walk = Walk(seed)
        await walk.go()
    record_property("steps of walks", walk.steps)
