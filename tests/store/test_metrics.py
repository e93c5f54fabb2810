"""A store's metrics: all from the start, and equal to what was done."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import CommitUnknown, ReadOnly, Throttled
from eddyline.core.forwarding.stats import ForwardedCalls
from eddyline.core.model.topic import Durability
from eddyline.core.telemetry import names as telemetry
from eddyline.store.fold.fold import FoldStalled
from eddyline.store.log.append import AppendRequest
from eddyline.store.metrics import StoreMetrics
from eddyline.store.stats import RecoveryProgress, Stage
from tests.support.manual_clock import ManualClock
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows, sim_store
from tests.support.telemetry.scrape import Scrape, check_complete, in_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.store.fold.fold import FoldWrite

DISK_FLOOR_BYTES = 1 << 20


def metrics(recovery: RecoveryProgress | None = None) -> StoreMetrics:
    told = recovery or RecoveryProgress()
    return StoreMetrics(recovery=lambda: told, disk_floor_bytes=DISK_FLOOR_BYTES, forwarded=ForwardedCalls(1))


def counts(seen: Scrape) -> dict[str, float]:
    """Value of a counter or a distribution, if it is not zero."""
    kinds = ("counter", "histogram")
    names = [name for name, family in seen.families.items() if family.type in kinds and not has_labels(seen, name)]
    return {name: value for name in names if (value := seen.value(name))}


def has_labels(seen: Scrape, name: str) -> bool:
    return any(set(sample.labels) - {"le"} for sample in seen.families[name].samples)


async def test_all_are_there_at_zero_while_the_store_recovers() -> None:
    seen = in_place(await metrics(RecoveryProgress(3, 9)).collect())
    check_complete(seen, "store")
    assert counts(seen) == {}
    assert set(seen.series(telemetry.STORE_REFUSED_APPENDS).values()) == {0}
    assert seen.value(telemetry.STORE_READY) == 0
    assert seen.value(telemetry.STORE_RECOVERED_BYTES) == 3
    assert seen.value(telemetry.STORE_TO_RECOVER_BYTES) == 9


async def test_counts_are_what_was_done() -> None:
    made = metrics()
    async with sim_store() as link:
        made.link = link
        before = in_place(await made.collect())
        check_complete(before, "store")
        await log_topic(link, durability=Durability.FSYNC)
        await kv_topic(link)
        first, second = rows("a", "bb", "ccc"), puts(("k", "v"), ("l", "w"))
        started = in_place(await made.collect())
        await append(link, "log", first)
        await append(link, "kv", second)
        seen = in_place(await made.collect())
        check_complete(seen, "store")
        assert before.value(telemetry.STORE_READY) == seen.value(telemetry.STORE_READY) == 1
        assert seen.value(telemetry.STORE_TOPICS) == 2
        assert seen.value(telemetry.STORE_APPENDED_RECORDS) == 5
        assert seen.value(telemetry.STORE_APPENDED_BYTES) == first.record_bytes + second.record_bytes
        assert seen.value(telemetry.STORE_APPLY_SECONDS) == 1
        assert seen.value(telemetry.STORE_APPLY_LAG_RECORDS) == seen.value(telemetry.STORE_STAGED_BYTES) == 0
        for name in (telemetry.STORE_GROUP_FRAMES, telemetry.STORE_COMMIT_SECONDS):
            assert seen.value(name) - started.value(name) == 2
        assert seen.value(telemetry.STORE_SYNC_SECONDS) > started.value(telemetry.STORE_SYNC_SECONDS)
        assert seen.value(telemetry.STORE_WAL_BYTES) >= started.value(telemetry.STORE_WAL_BYTES) > 0
        assert seen.value(telemetry.STORE_UNSEGMENTED_BYTES) > 0
        assert seen.value(telemetry.STORE_DISK_FLOOR_BYTES) == DISK_FLOOR_BYTES
        stages = seen.series(telemetry.STORE_UPKEEP_STAGE)
        assert set(stages) == {(stage.name,) for stage in Stage}
        assert sum(stages.values()) == 1


async def test_followed_topics_are_those_of_open_streams() -> None:
    made = metrics()
    async with sim_store() as link:
        made.link = link
        await log_topic(link)
        async with link.follow() as follow:
            await follow.add(1, "log")
            assert in_place(await made.collect()).value(telemetry.STORE_FOLLOWED_TOPICS) == 1
        assert in_place(await made.collect()).value(telemetry.STORE_FOLLOWED_TOPICS) == 0


async def test_refusals_count_by_their_reason() -> None:
    made = metrics()
    async with sim_store() as link:
        made.link = link
        await log_topic(link)
        link._engine.gate.unsegmented_bytes = 1 << 62
        for _ in range(2):
            with pytest.raises(Throttled):
                await append(link, "log", rows("a"))
        refused = in_place(await made.collect()).series(telemetry.STORE_REFUSED_APPENDS)
        assert {reason: count for (reason,), count in refused.items() if count} == {"THROTTLED": 2}


async def test_failed_sync_is_in_the_metrics() -> None:
    made = metrics()
    disk = FaultyFs(SimFs())
    async with sim_store(disk) as link:
        made.link = link
        await log_topic(link, durability=Durability.FSYNC)
        disk.next_fault("fdatasync", error=errno.EIO)
        with pytest.raises(CommitUnknown):
            await append(link, "log", rows("a"))
        with pytest.raises(ReadOnly):
            await append(link, "log", rows("a"))
        seen = in_place(await made.collect())
        assert (seen.value(telemetry.STORE_READY), seen.value(telemetry.STORE_READ_ONLY)) == (0, 1)
        assert seen.value(telemetry.STORE_REFUSED_APPENDS, reason="READ_ONLY") == 1


class StallingFold(SimFold):
    """A fold that takes nothing while `stalls`."""

    stalls = True

    def apply(self, writes: Sequence[FoldWrite]) -> None:
        if self.stalls:
            raise FoldStalled
        super().apply(writes)


async def test_apply_lag_is_in_the_metrics_with_its_age() -> None:
    made, clock, fold = metrics(), ManualClock(), StallingFold(0)
    async with sim_store(fold=fold, clock=clock) as link:
        made.link = link
        await kv_topic(link)
        first = await link.stage(AppendRequest("kv", puts(("k", "v"), ("l", "w"))))
        await clock.pass_time(1.5)
        second = await link.stage(AppendRequest("kv", puts(("m", "x"))))
        await clock.pass_time(0.25)
        seen = in_place(await made.collect())
        assert seen.value(telemetry.STORE_APPLY_LAG_RECORDS) == 3
        assert seen.value(telemetry.STORE_APPLY_LAG_SECONDS) == 1.75
        fold.stalls = False
        await clock.pass_time(5.0)
        assert first.done()
        assert second.done()
        assert in_place(await made.collect()).value(telemetry.STORE_APPLY_LAG_SECONDS) == 0
