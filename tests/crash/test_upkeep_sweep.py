"""Crash at every call of each background job of the store: reads return the same before and after the job is repeated.

Each crash is the death of the process and two power failures. Deleted records stay deleted, floors stay, the fold is the
same; and once the job has run again every file is named.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

import pytest

from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.store.storage.layout import Layout, base_file
from tests.support.manual_clock import ManualClock, settle
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows, settings, sim_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from eddyline.store.shard.shard import Shard
    from tests.support.sim.fs import CrashKind

pytestmark = pytest.mark.crash

A = Match(MatchField.KEY, MatchKind.EQ, b"a")
ROUNDS = 12
OUTCOMES: tuple[tuple[CrashKind, int], ...] = (("kill", 0), ("power", 1), ("power", 2))


class Job(NamedTuple):
    """A preparation, and the job that is stopped."""

    make: Callable[[Shard], Awaitable[None]]
    work: Callable[[Shard], Awaitable[None]]


async def sealed(link: Shard, name: str, batch: Batch) -> None:
    topic = link._table.get(name)
    await append(link, name, batch)
    await link._parts.maintenance._sealer.seal(topic, topic.head_seq)


async def rounds(link: Shard, count: int = ROUNDS) -> None:
    link._parts.maintenance._planner._bases._freed_bytes_min = 1
    for _ in range(count):
        assert await link._parts.maintenance.round()
        await settle(5)


async def small_segments(link: Shard) -> None:
    await log_topic(link, "t", Durability.FSYNC)
    for number in range(4):
        await sealed(link, "t", rows(f"{number}", "x"))
    await append(link, "t", rows("unsegmented"))


async def half_deleted(link: Shard) -> None:
    await kv_topic(link, "t", Durability.FSYNC)
    await sealed(link, "t", puts(("a", "1"), ("b", "1"), ("a", "2")))
    await append(link, "t", puts(("c", "1")))
    await link.delete_records("t", match=A)


async def below_a_cap(link: Shard) -> None:
    await link.create_topic("t", Kind.LOG, TopicConfig(Durability.FSYNC, cap_records=3))
    for number in range(3):
        await sealed(link, "t", rows(f"{number}", "x"))
    await link.get_topic("t")


async def below_the_floors_of_a_fold(link: Shard) -> None:
    await kv_topic(link, "t", Durability.FSYNC)
    for number in range(3):
        await sealed(link, "t", puts(("a", f"{number}"), ("b", f"{number}")))
    await link.delete_records("t", before_seq=6)


async def deleted_everywhere(link: Shard) -> None:
    await below_the_floors_of_a_fold(link)
    link._parts.maintenance._planner._bases._freed_bytes_min = 1
    await link._parts.maintenance.round()
    await sealed(link, "t", puts(("a", "new"), ("c", "1"), ("d", "1")))
    await append(link, "t", puts(("a", "newer"), ("e", "1")))
    await link.delete_records("t", match=A)
    await kv_topic(link, "gone", Durability.FSYNC)
    await append(link, "gone", puts(("a", "1")))
    await link.delete_topic("gone")


async def erase(link: Shard) -> None:
    parts = link._parts
    parts.maintenance._clock.advance(13 * 3600)  # type: ignore[attr-defined]  # a manual one
    for _ in range(2 * ROUNDS):
        assert await parts.maintenance.round()
        await settle(5)
        if not (parts.maintenance.erasures.are_due or parts.garbage.erasing or link._table.get("t").erase_due_ms):
            break
    await rounds(link, 3)


JOBS = {
    "merge": Job(small_segments, rounds),
    "rewrite": Job(half_deleted, rounds),
    "reclaim": Job(below_a_cap, rounds),
    "base": Job(below_the_floors_of_a_fold, rounds),
    "erase": Job(deleted_everywhere, erase),
}


async def seen(link: Shard) -> list[object]:
    """Read everything that readers see."""
    items: list[object] = [info.name for info in await link.list_topics("", "", 10)]
    info = await link.get_topic("t")
    items += [info.head_seq, info.earliest_seq, info.evict_floor, info.record_count, info.record_bytes]
    for item in (await link.read_records("t", after_seq=0)).items:
        items += item.to_rows() if isinstance(item, Batch) else [item]
    if info.kind is Kind.KV:
        items += (await link.batch_get_entries("t", [key.encode() for key in "abcde"])).entries
    return items


def check_files(link: Shard, fs: SimFs) -> None:
    """Check that every file below topics/ is named, and none was set aside."""
    layout = Layout(settings().directory)
    topic = link._table.get("t")
    named = {segment.path.name for segment in topic.segments}
    if topic.base is not None and topic.base.rows:
        named.add(base_file(layout.topics, topic.base.seq, topic.base.generation).name)
    there = set(fs.listdir(layout.topic_dir(topic.id))) if fs.exists(layout.topic_dir(topic.id)) else set()
    assert there == named
    assert not fs.exists(layout.orphans)


async def run(job: Job, fs: SimFs, fold: SimFold, clock: ManualClock, *, stop: int = 0) -> tuple[list[object], range]:
    """Prepare and run the job, stopped at call `stop`. Returns what readers saw before, and the calls of the job."""
    before: list[object] = []
    calls = range(0)
    try:
        async with sim_store(fs, fold, clock, scrub_bytes_per_s=0) as link:
            await job.make(link)
            before, first = await seen(link), fs.calls + 1
            fs.crash_at = stop
            await job.work(link)
            calls = range(first, fs.calls + 1)
            fs.crash_at = None
            assert await seen(link) == before
            check_files(link, fs)
    except BaseException:
        if not fs.crashed:
            raise
    return before, calls


@pytest.mark.parametrize("name", JOBS)
async def test_a_crash_at_every_call_changes_no_read(name: str) -> None:
    job = JOBS[name]
    _, calls = await run(job, SimFs(), SimFold(0), ManualClock())
    assert len(calls) >= 5
    for call in calls:
        fs, fold, clock = SimFs(call), SimFold(call), ManualClock()
        before, _ = await run(job, fs, fold, clock, stop=call)
        assert fs.crashed, call
        disks = [(fs.reboot(crash, seed=seed), crash) for crash, seed in OUTCOMES]
        for disk, crash in disks[:1] if name == "erase" and call % 4 else disks:
            successor = deepcopy(fold).power() if crash == "power" else deepcopy(fold).kill()
            async with sim_store(disk, successor, ManualClock(clock.now_ms()), scrub_bytes_per_s=0) as link:
                assert await seen(link) == before, (call, crash)
                await erase(link)
                assert await seen(link) == before, (call, crash)
                assert link._table.get("t").erase_due_ms == 0
                assert not link._parts.garbage.erasing
                check_files(link, disk)
            async with sim_store(disk, successor.kill(), ManualClock(clock.now_ms()), scrub_bytes_per_s=0) as link:
                assert await seen(link) == before, (call, crash)
