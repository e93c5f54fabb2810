"""VerifyFold on a running store: a correct fold passes, a wrong one is reported by its keys, during any other work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import DataCorrupt, NotKv, ScanExpired, TooManyScans, TopicNotFound
from eddyline.core.model.fold_check import FINDINGS_MAX, FoldCheckProgress, FoldVerdict
from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Op, Record
from eddyline.store.fold.fold import FoldWrite
from eddyline.store.fold_repair.check import run_fold_check
from eddyline.store.fold_repair.source import FoldSource
from eddyline.store.storage.layout import Layout
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.store.real import real_store, scratch_of, threaded
from tests.support.store.simulated import append, kv_topic, log_topic, puts, settings, sim_store

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.core.records.batch import Batch
    from eddyline.store.shard.shard import Shard

LAYOUT = Layout(settings().directory)


async def verdict(link: Shard, topic: str = "kv") -> FoldVerdict:
    steps = [step async for step in link.verify_fold(topic)]
    assert all(isinstance(step, FoldCheckProgress) for step in steps[:-1])
    assert steps[:-1], "progress comes before the verdict"
    last = steps[-1]
    assert isinstance(last, FoldVerdict)
    return last


async def fill(link: Shard, count: int = 30) -> None:
    await kv_topic(link)
    for number in range(count):
        await append(link, "kv", puts((f"k{number % 9}", f"v{number}"), (f"g{number}", "x")))
        await append(link, "kv", puts((f"g{number}", None)))
        if number == count // 2:
            topic = link._table.get("kv")
            await link._parts.checkpointer._sealer.seal(topic, topic.head_seq)


def behind_the_back(link: Shard, *entries: tuple[bytes, bytes | None]) -> None:
    """Write to the fold without the engine."""
    fold = link._engine.fold
    fold.apply([FoldWrite(1, fold.applied(1), list(entries), [])])


def entry(key: bytes, data: bytes, seq: int = 1) -> tuple[bytes, bytes]:
    return key, encode_entry(Record(seq, 1, 0, Op.PUT, key, data))


async def test_correct_fold_passes() -> None:
    async with sim_store() as link:
        await fill(link)
        await link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.EQ, b"k3"))
        await link.delete_records("kv", before_seq=50)
        result = await verdict(link)
        assert (result.differing_count, result.entry_count, result.base_seq) == (0, 8, 0)
        assert result.fold_seq == (await link.get_topic("kv")).head_seq
        base = link._parts.maintenance._planner._bases
        await base.make(link._table.get("kv"))
        await link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.EQ, b"k4"))
        await append(link, "kv", puts(("k5", "new")))
        after = await verdict(link)
        assert (after.differing_count, after.entry_count, after.base_seq) == (0, 7, result.fold_seq)


async def test_wrong_entries_are_reported_by_key() -> None:
    async with sim_store() as link:
        await fill(link)
        behind_the_back(link, entry(b"k1", b"forged"), (b"k2", None), entry(b"extra", b"1"))
        result = await verdict(link)
        assert result.differing_count == 3
        assert result.findings == (
            "key 'extra' exists and should not",
            "key 'k1' differs in seq, ts_ms, data",
            "key 'k2' is missing",
        )
        assert (await verdict(link)).findings == result.findings, "nothing was changed"


async def test_findings_are_bounded() -> None:
    async with sim_store() as link:
        await fill(link)
        behind_the_back(link, *[entry(b"x%04d" % number, b"1") for number in range(FINDINGS_MAX + 20)])
        result = await verdict(link)
        assert result.differing_count == FINDINGS_MAX + 20
        assert len(result.findings) == FINDINGS_MAX


async def test_concurrent_appends_and_deletes_are_not_compared() -> None:
    async with sim_store() as link:
        await fill(link)
        head_seq = (await link.get_topic("kv")).head_seq
        steps = link.verify_fold("kv")
        assert isinstance(await anext(steps), FoldCheckProgress)
        await append(link, "kv", puts(("late", "1"), ("k1", None)))
        await link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.PREFIX, b"k"))
        rest = [step async for step in steps]
        result = rest[-1]
        assert isinstance(result, FoldVerdict)
        assert (result.fold_seq, result.differing_count, result.entry_count) == (head_seq, 0, 9)


async def test_one_check_at_a_time_and_a_cancelled_one_frees_its_place() -> None:
    async with sim_store() as link:
        await fill(link)
        steps = link.verify_fold("kv")
        await anext(steps)
        with pytest.raises(TooManyScans):
            await verdict(link)
        await steps.aclose()
        assert not link._engine.fold._views  # type: ignore[attr-defined]
        assert (await verdict(link)).differing_count == 0
        await log_topic(link)
        with pytest.raises(NotKv):
            await verdict(link, "log")
        with pytest.raises(TopicNotFound):
            await verdict(link, "none")


async def test_damaged_log_gives_no_verdict() -> None:
    fs = SimFs()
    async with sim_store(fs) as link:
        await fill(link)
        (segment,) = link._table.get("kv").segments
        file = fs.open(segment.path)
        file.pwritev([b"damage"], file.size() // 2)
        file.close()
        link._parts.log.files.forget(segment.path)
        with pytest.raises(DataCorrupt):
            await verdict(link)
        assert link.status().corrupt_count == 1
        assert [step async for step in link.range_entries("kv")], "the fold itself is served"


async def test_base_replaced_during_the_check_ends_it_without_damage() -> None:
    async with sim_store() as link:
        await fill(link)
        bases, topic = link._parts.maintenance._planner._bases, link._table.get("kv")
        await bases.make(topic)
        steps = link.verify_fold("kv")
        await anext(steps)
        await append(link, "kv", puts(("late", "1")))
        await bases.make(topic)
        with pytest.raises(ScanExpired):
            [step async for step in steps]
        assert link.status().corrupt_count == 0
        assert (await verdict(link)).differing_count == 0


async def test_log_sealed_during_the_check_ends_it_without_damage() -> None:
    async with sim_store() as link:
        await fill(link)
        topic = link._table.get("kv")
        steps = link.verify_fold("kv")
        await anext(steps)
        await link._parts.checkpointer._sealer.seal(topic, topic.head_seq)
        await link._parts.checkpointer.run()
        await append(link, "kv", puts(("late", "1")))
        await link._parts.checkpointer.run()
        with pytest.raises(ScanExpired):
            [step async for step in steps]
        assert link.status().corrupt_count == 0
        assert (await verdict(link)).differing_count == 0


async def test_stopped_directory_is_checked_without_an_engine() -> None:
    fs, fold = SimFs(), SimFold(0)
    async with sim_store(fs, fold) as link:
        await fill(link)
        topic = link._table.get("kv")
        source = FoldSource(link._parts.log.files, LAYOUT, topic, through_seq=fold.applied(1))
        view = fold.view(1)
        result = run_fold_check(1, source=source, actual=view, scratch=SimFold(1))
        assert (result.differing_count, result.entry_count) == (0, 9)
        source.close()
        view.close()


def large(number: int, count: int = 2000) -> Batch:
    return puts(*[(f"key-{i:05}", f"{number}-{i}") for i in range(count)])


async def test_real_store_is_checked_during_appends_and_keeps_no_second_fold(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    async with real_store(data_dir, workers=threaded) as link:
        await kv_topic(link)
        for number in range(10):
            await append(link, "kv", large(number))
        await link._parts.checkpointer.run()
        stop = asyncio.Event()
        appended = 0

        async def keep_appending() -> None:
            nonlocal appended
            while not stop.is_set():
                await append(link, "kv", puts((f"live-{appended}", "1")))
                appended += 1

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep_appending())
            assert (await verdict(link)).differing_count == 0
            stop.set()
        assert appended > 5
        behind_the_back(link, entry(b"key-01234", b"flipped", 7))
        result = await verdict(link)
        assert result.differing_count == 1
        assert result.findings[0].startswith("key 'key-01234' differs in")
        assert not scratch_of(data_dir).exists()
        # Cancelled half-way, as by a client that disconnects.
        steps = link.verify_fold("kv")
        await anext(steps)
        assert scratch_of(data_dir).exists()
        await steps.aclose()
        assert not scratch_of(data_dir).exists()
    scratch_of(data_dir).mkdir()
    async with real_store(data_dir, workers=threaded):
        assert not scratch_of(data_dir).exists(), "what a killed check left"
