"""Groups of appends on their way to the disk, two at a time: each append has its answer, in order, and none too early."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import CommitUnknown, ReadOnly
from eddyline.core.model.topic import Durability
from eddyline.store.log.append import AppendRequest, WriterPosition
from eddyline.store.storage.wal.wal import Wal
from tests.support.manual_clock import ManualClock, settle
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.sim.worker import InlineWorker
from tests.support.store.simulated import all_rows, append, log_topic, rows, sim_store

if TYPE_CHECKING:
    from eddyline.store.log.append import Ack
    from eddyline.store.shard.shard import Shard
    from eddyline.store.storage.wal.wal import WriteGroup

LARGE = "x" * 300_000
"""More than a second group needs to begin while one is with the disk."""


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def staged(link: Shard, topic: str, value: str) -> Ack:
    """An append under way."""
    return await link.stage(AppendRequest(topic=topic, batch=rows(value)))


@pytest.mark.parametrize("idles", [False, True])
async def test_every_append_in_memory_is_answered_also_beyond_its_reservation(idles: bool) -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        await log_topic(link, "memory", Durability.EPHEMERAL)
        await append(link, "memory", rows("a"))
        if idles:
            for _ in range(15):  # its reservation is given back
                await clock.pass_time(1)
        first = await staged(link, "memory", "b")
        await turns(2)
        second = await staged(link, "memory", "c")
        await settle()
        assert (await first).last_seq == 2
        assert (await second).last_seq == 3
        assert [row.seq for row in await all_rows(link, "memory")] == [1, 2, 3]


async def test_larger_fence_on_a_topic_in_memory_is_answered() -> None:
    async with sim_store() as link:
        await log_topic(link, "memory", Durability.EPHEMERAL)
        await append(link, "memory", rows("a"), writer=WriterPosition("w", 1, b"", b"x"))
        again = await append(link, "memory", rows("a"), writer=WriterPosition("w", 2, b"", b"x"))
        assert again.deduplicated


@pytest.mark.parametrize("gone_after", [0, 1, 3])
async def test_cancelled_caller_does_not_undo_its_append(gone_after: int) -> None:
    async with sim_store() as link:
        await log_topic(link, "t")
        async with asyncio.TaskGroup() as tasks:
            gone, other = [tasks.create_task(append(link, "t", rows(key), idempotency_key=key)) for key in "ab"]
            await turns(gone_after + 1)
            gone.cancel()
            again = await append(link, "t", rows("a"), idempotency_key="a")
        assert gone.cancelled()
        assert other.result().last_seq == 2
        assert (again.last_seq, again.deduplicated) == (1, True)
        assert [row.seq for row in await all_rows(link, "t")] == [1, 2]


CASES = [*product(("pwritev", "fdatasync"), ("memory", "disk", "synced"), (1, 2, 5))]


@pytest.mark.parametrize(("operation", "second", "between"), CASES)
async def test_failure_of_a_group_is_the_refusal_of_the_one_behind_it(
    operation: str, second: str, between: int
) -> None:
    """Behind what the disk failed nothing is handed on: not what was queued, and not what is in memory alone."""
    disk = FaultyFs(SimFs())
    async with sim_store(disk, wal_file_bytes=1 << 20) as link:
        for name, durability in (
            ("memory", Durability.EPHEMERAL),
            ("disk", Durability.DISK),
            ("synced", Durability.FSYNC),
        ):
            await log_topic(link, name, durability)
            await append(link, name, rows("before"))
        await settle()
        await link._engine.committers[0].sync()
        disk.next_fault(operation, error=errno.EIO)
        first = await staged(link, "synced", "a")
        await turns(between)
        behind = [await staged(link, second, LARGE), await staged(link, second, "b")]
        await settle()
        with pytest.raises(CommitUnknown):
            await first
        for ack in behind:
            with pytest.raises((ReadOnly, CommitUnknown)):
                await ack
        assert [row.seq for row in await all_rows(link, second)] == [1]


async def test_appends_of_a_group_that_cannot_be_placed_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with suppress(BaseExceptionGroup):
        async with sim_store() as link:
            await log_topic(link)

            def place(bodies: object) -> None:
                raise MemoryError

            monkeypatch.setattr(link._engine.committers[0].wal, "place", place)
            ack = await staged(link, "log", "a")
            await asyncio.wait([ack])
    with pytest.raises(CommitUnknown):
        await ack


async def test_two_groups_under_way_are_handed_on_in_their_order() -> None:
    async with sim_store(wal_file_bytes=1 << 20) as link:
        await log_topic(link, "log", Durability.FSYNC)
        acks = []
        for number in range(12):  # with rotations between them
            acks.append(await staged(link, "log", f"{number}{LARGE}"))
            await turns(number % 4)
        told = list[int]()
        for ack in acks:
            ack.add_done_callback(lambda done: told.append(done.result().last_seq))
        await asyncio.wait(acks)
        await settle()
        assert told == list(range(1, 13))


async def test_files_of_the_log_are_closed_once_no_job_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[str]()

    class Told(InlineWorker):
        def close(self) -> None:
            ended.append("worker")

    def close(wal: Wal) -> None:
        ended.append("log")
        whole(wal)

    whole = Wal.close
    monkeypatch.setattr("tests.support.store.simulated.InlineWorker", Told)
    monkeypatch.setattr(Wal, "close", close)
    async with sim_store(wal_shards=2):
        pass
    assert ended[:4] == ["worker", "worker", "log", "log"]


async def test_append_is_as_durable_as_its_topic_was_when_it_was_staged() -> None:
    disk = FaultyFs(SimFs())
    async with sim_store(disk) as link:
        await log_topic(link, "log", Durability.FSYNC)
        topic = link._table.get("log")
        async with link._engine.committers[0].held():
            ack = await staged(link, "log", "a")
            topic.config = replace(topic.config, durability=Durability.DISK)
        disk.next_fault("fdatasync", error=errno.EIO)
        with pytest.raises(CommitUnknown):
            await ack


# groups that the event loop writes itself ---------------------------------------------------------------------------


async def lone(link: Shard, count: int) -> None:
    """Append one after the other."""
    for number in range(count):
        await append(link, "log", rows(str(number)))


@pytest.mark.parametrize("durability", [Durability.DISK, Durability.FSYNC])
async def test_lone_appends_are_written_here_once_they_come_one_by_one(
    durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, away = Counter[bool](), list[bool]()
    write_now, write = Wal.write_now, Wal.write

    def noted_now(wal: Wal, group: WriteGroup, *, sync: bool = False) -> bool:
        here[sync] += 1
        return write_now(wal, group, sync=sync)

    def noted(wal: Wal, group: WriteGroup, *, sync: bool = False) -> None:
        away.append(sync)
        write(wal, group, sync=sync)

    async with sim_store(writes_here=True) as link:
        await log_topic(link, "log", durability)
        await lone(link, 10)
        monkeypatch.setattr(Wal, "write_now", noted_now)
        monkeypatch.setattr(Wal, "write", noted)
        await lone(link, 10)
        assert (sum(here.values()), away) == (10, [])
        acks = [await staged(link, "log", str(number)) for number in range(3)]
        await asyncio.wait(acks)
        assert len(away) == (durability is Durability.FSYNC)
        assert [row.seq for row in await all_rows(link, "log")] == list(range(1, 24))


@pytest.mark.parametrize("writes_here", [False, True])
async def test_log_goes_on_over_rotations_whoever_writes(writes_here: bool) -> None:
    fs, fold, clock = SimFs(), SimFold(0), ManualClock()
    async with sim_store(fs, fold, clock, writes_here=writes_here, wal_file_bytes=64 << 10) as link:
        await log_topic(link, "log", Durability.FSYNC)
        for number in range(40):
            await append(link, "log", rows(f"{number}" + "x" * 5_000))
    async with sim_store(fs.reboot("kill"), fold.kill(), clock) as link:
        assert [row.seq for row in await all_rows(link, "log")] == list(range(1, 41))


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
async def test_failure_of_a_write_here_is_its_appends_and_stops_writes(call: str) -> None:
    disk = FaultyFs(SimFs())
    async with sim_store(disk, writes_here=True) as link:
        await log_topic(link, "log", Durability.FSYNC)
        await lone(link, 8)
        disk.next_fault(call, error=errno.EIO)
        with pytest.raises(CommitUnknown):
            await append(link, "log", rows("lost"))
        with pytest.raises(ReadOnly):
            await append(link, "log", rows("refused"))


async def test_shortage_in_a_write_here_is_waited_for_on_the_writers_thread() -> None:
    disk = FaultyFs(SimFs())
    async with sim_store(disk, writes_here=True) as link:
        await log_topic(link, "log", Durability.FSYNC)
        await lone(link, 8)
        disk.next_fault("pwritev", error=errno.ENOMEM)
        assert (await append(link, "log", rows("kept"))).last_seq == 9


async def test_slow_write_sends_the_next_groups_to_the_writers_thread() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock, writes_here=True) as link:
        await log_topic(link, "log", Durability.DISK)
        await lone(link, 8)
        committer = link._engine.committers[0]
        wal_write = committer.wal.write_now

        def slow(group: WriteGroup, *, sync: bool = False) -> bool:
            clock.advance(0.01)
            return wal_write(group, sync=sync)

        committer.wal.write_now = slow  # type: ignore[method-assign]
        await lone(link, 1)
        slow_until = clock.monotonic_s()
        await lone(link, 20)
        assert clock.monotonic_s() == slow_until
