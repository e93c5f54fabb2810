"""Resharding of the WAL: every acknowledged write survives, with a crash at any call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.store.log.append import AppendRequest
from eddyline.store.storage.layout import Layout, wal_numbers
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.store.simulated import all_rows, append, puts, rows, settings, sim_store

if TYPE_CHECKING:
    from eddyline.core.records.record import Record
    from eddyline.store.shard.shard import Shard
    from tests.support.sim.fs import CrashKind

FILLER = "x" * 9_000
TOPICS = 5
LAYOUT = Layout(settings().directory)

Content = dict[str, list[tuple[bytes | None, bytes | None, int, int]]]


async def fill(link: Shard) -> None:
    """Make topics in every shard, KV ones too, over more than one file; one is sealed, one deleted, one empty."""
    for number in range(TOPICS):
        kind = Kind.KV if number % 2 else Kind.LOG
        await link.create_topic(f"t{number}", kind, TopicConfig(Durability.FSYNC))
    await link.create_topic("empty", Kind.LOG, TopicConfig(Durability.FSYNC))
    for i in range(4):
        for number in range(TOPICS):
            batch = puts((f"k{i}", f"{i}{FILLER}"), ("k", f"{i}")) if number % 2 else rows(f"{i}{FILLER}", f"{i}")
            await append(link, f"t{number}", batch, idempotency_key=f"{number}/{i}")
    topic = link._table.get("t0")
    await link._parts.maintenance._sealer.seal(topic, topic.head_seq)
    await append(link, "t0", rows("behind the segment"))
    await link.delete_topic("t4")


async def content_of(link: Shard) -> Content:
    def plain(record: Record) -> tuple[bytes | None, bytes | None, int, int]:
        return record.key, record.data, record.seq, record.ts_ms

    topics = await link.list_topics("", "", 100)
    return {topic.name: [plain(record) for record in await all_rows(link, topic.name)] for topic in topics}


async def check(link: Shard, expected: Content, wal_shards: int) -> None:
    """Check all content in the requested layout; a retried append is recognized, a new one continues."""
    assert await content_of(link) == expected
    assert len(link._engine.committers) == wal_shards
    again = puts(("k3", f"3{FILLER}"), ("k", "3"))
    assert (await append(link, "t1", again, idempotency_key="1/3")).deduplicated
    assert (await link.get_topic("t1")).head_seq == len(expected["t1"])


async def filled(wal_shards: int) -> tuple[SimFs, SimFold, Content]:
    fs, fold = SimFs(), SimFold(0)
    async with sim_store(fs, fold, wal_shards=wal_shards) as link:
        await fill(link)
        content = await content_of(link)
    return fs, fold, content


async def test_store_goes_from_one_to_four_shards_to_two_and_back() -> None:
    fs, fold, content = await filled(1)
    highest = 0
    for wal_shards in (4, 2, 1, 4, 4, 3):
        fold = fold.kill()
        async with sim_store(fs, fold, wal_shards=wal_shards) as link:
            await check(link, content, wal_shards)
            await append(link, "t2", rows(f"with {wal_shards}"))
            content = await content_of(link)
            await link._parts.garbage.sweep()
        assert fs.listdir(LAYOUT.wal) == [f"{shard:02x}" for shard in range(wal_shards)]
        lowest = min(
            number for shard in range(wal_shards) for number in wal_numbers(fs.listdir(LAYOUT.wal_shard(shard)))
        )
        assert lowest > highest or wal_shards == 4
        highest = max(
            number for shard in range(wal_shards) for number in wal_numbers(fs.listdir(LAYOUT.wal_shard(shard)))
        )


@pytest.mark.parametrize("end", ["stop", "kill", "power"])
async def test_shards_that_no_topic_is_in_start_again(end: CrashKind | Literal["stop"]) -> None:
    fs, fold = SimFs(), SimFold(0)
    async with sim_store(fs, fold) as link:
        await link.create_topic("t", Kind.LOG, TopicConfig(Durability.FSYNC))
        await append(link, "t", rows("a"))
    for wal_shards in (4, 4, 16, 16, 2):
        fold = fold.kill()
        async with sim_store(fs, fold, wal_shards=wal_shards) as link:
            await append(link, "t", rows("b"))
            await link._parts.checkpointer.run()
            if end != "stop":
                fs, fold = fs.reboot(end), fold.power()
    async with sim_store(fs, fold.kill(), wal_shards=2) as link:
        assert (await link.get_topic("t")).head_seq == 6


@pytest.mark.parametrize("end", ["kill", "power"])
async def test_store_without_a_clean_stop_logs_its_losses_in_the_new_layout(end: CrashKind) -> None:
    fs, fold = SimFs(), SimFold(0)
    async with sim_store(fs, fold) as link:
        await link.create_topic("t", Kind.LOG, TopicConfig(Durability.DISK))
        await link.create_topic("u", Kind.LOG, TopicConfig(Durability.FSYNC))
        await append(link, "t", rows("a"))
        await append(link, "u", rows("b"))
        fs = fs.reboot(end)
        fold = fold.power() if end == "power" else fold.kill()
    async with sim_store(fs, fold, wal_shards=2) as link:
        assert (await link.get_topic("t")).head_seq == (1 if end == "kill" else 65_537)
        assert (await append(link, "t", rows("c"))).first_seq == (2 if end == "kill" else 65_538)
    async with sim_store(fs, fold.kill(), wal_shards=1) as link:
        assert [record.data for record in await all_rows(link, "u")] == [b"b"]
        assert (await link.get_topic("t")).head_seq == (2 if end == "kill" else 65_538)


@pytest.mark.crash
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 2), (2, 1)])
async def test_every_crash_leaves_one_of_the_two_layouts_complete(
    before: int, after: int, capsys: pytest.CaptureFixture[str]
) -> None:
    disk, fold, content = await filled(before)
    whole = disk.reboot("kill")
    async with sim_store(whole, fold.kill(), wal_shards=after):
        calls = whole.calls
    tried = 0
    for crash_at in range(1, calls + 1):
        kinds: tuple[CrashKind, ...] = ("kill", "power", "power")
        for outcome, crash in enumerate(kinds):
            fs = disk.reboot("kill", seed=outcome, crash_at=crash_at)
            with pytest.raises(Crashed):
                async with sim_store(fs, fold.kill(), wal_shards=after):
                    raise AssertionError("it must not come so far")
            # With the old number again, with the new one, or with a third: which layout is there must not matter.
            then = (before, after, 3)[(crash_at + outcome) % 3]
            tried += 1
            again, fold_again = fs.reboot(crash, seed=outcome), fold.kill()
            try:
                async with sim_store(again, fold_again, wal_shards=then) as link:
                    await check(link, content, then)
                    await append(link, "t2", rows("more"))
                async with sim_store(again, fold_again.kill(), wal_shards=then) as link:
                    assert (await content_of(link))["t2"][:-1] == content["t2"]
            except BaseException as error:
                error.add_note(f"crash_at={crash_at} {crash} {outcome} then={then}")
                raise
    with capsys.disabled():
        print(f"\nreshard {before} to {after}: {calls} calls, {tried} crashes recovered")  # noqa: T201


async def test_new_layout_needs_no_more_than_is_unsegmented() -> None:
    fs, fold = SimFs(), SimFold(0)
    async with sim_store(fs, fold) as link:
        await link.create_topic("t", Kind.LOG, TopicConfig(Durability.FSYNC))
        for i in range(20):
            await (await link.stage(AppendRequest(topic="t", batch=rows(f"{i}{FILLER}"))))
        topic = link._table.get("t")
        await link._parts.maintenance._sealer.seal(topic, topic.head_seq)
    async with sim_store(fs, fold.kill(), wal_shards=2) as link:
        assert sum(committer.wal.bytes_total for committer in link._engine.committers) == 0
        assert len(await all_rows(link, "t")) == 20


async def test_files_replaced_by_the_replayed_log_are_garbage_in_the_new_layout_too() -> None:
    fs, fold, content = await filled(1)
    async with sim_store(fs, fold.kill()) as link:
        for data in ("one", "two"):
            await append(link, "t3", puts(("k", data)))
        topic = link._table.get("t3")
        await link._parts.maintenance._sealer.seal(topic, topic.head_seq)
        (segment,) = topic.segments
        await link.delete_topic("t3")
        fs, fold = fs.reboot("kill"), fold.kill()
    del content["t3"]
    assert fs.exists(segment.path)
    again = fs.reboot("kill")
    with pytest.raises(RuntimeError, match="before the first sweep"):
        async with sim_store(again, SimFold(0), wal_shards=2):
            raise RuntimeError("before the first sweep")
    async with sim_store(again, SimFold(0), wal_shards=2) as link:
        assert await content_of(link) == content
    assert not again.exists(segment.path.parent)
    assert not again.exists(LAYOUT.orphans)
