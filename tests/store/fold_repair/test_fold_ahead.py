"""A fold ahead of its log after a power failure is correct: checks pass, and a rebuild uses the base written from it.
If the fold is lost before that base exists, its topic reports the loss."""

from __future__ import annotations

import pytest

from eddyline.core.errors import FoldLost
from eddyline.core.model.fold_check import FoldVerdict
from tests.store.recovery.test_replay import move
from tests.support.manual_clock import ManualClock
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.store.simulated import append, kv_topic, puts, sim_store


async def ahead(clock: ManualClock) -> tuple[SimFs, SimFold]:
    """A DISK topic whose second append only the fold has kept."""
    for seed in range(200):
        fs, fold = SimFs(seed), SimFold(seed)
        try:
            async with sim_store(fs, fold, clock) as link:
                await kv_topic(link)
                await append(link, "kv", puts(("k1", "v")), writer=move(b"", b"1"))
                await clock.pass_time(1.5)
                await append(link, "kv", puts(("k1", "w"), ("k2", "w")), writer=move(b"1", b"2"))
                fold.flush()  # as if RocksDB flushed its memtable
                fs.crashed = True
        except* Crashed:
            pass
        left, kept = fs.reboot("power", seed=seed), fold.power()
        async with sim_store(left, kept, clock) as link:
            page = await link.read_records("kv", after_seq=0, limit=100)
            if next(getattr(item, "count", 0) for item in page.items) == 1:
                return left.reboot("kill"), kept
    raise AssertionError("no seed loses the frame")


async def test_fold_ahead_of_its_log_passes_the_check() -> None:
    clock = ManualClock()
    fs, fold = await ahead(clock)
    async with sim_store(fs, fold.kill(), clock) as link:
        await link._parts.maintenance.round()
        verdict = [step async for step in link.verify_fold("kv")][-1]
        assert isinstance(verdict, FoldVerdict)
        assert verdict.differing_count == 0


async def test_rebuilt_fold_matches_the_positions() -> None:
    clock = ManualClock()
    fs, fold = await ahead(clock)
    async with sim_store(fs, fold.kill(), clock) as link:
        await link._parts.maintenance.round()
    async with sim_store(fs.reboot("kill"), SimFold(0), clock) as link:
        again = await append(link, "kv", puts(("k2", "w")), writer=move(b"1", b"2"))
        page = await link.batch_get_entries("kv", [b"k2"])
        assert not again.deduplicated or page.entries[0] is not None, "the move is known, its entry is not"


async def test_fold_lost_before_its_base_is_reported() -> None:
    clock = ManualClock()
    fs, _ = await ahead(clock)
    async with sim_store(fs, SimFold(0), clock) as link:
        with pytest.raises(FoldLost):
            await link.batch_get_entries("kv", [b"k2"])
