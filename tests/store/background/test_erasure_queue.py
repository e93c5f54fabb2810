"""Erasures: when they begin, what they wait for, and the progress that callers get."""

from __future__ import annotations

import asyncio
import errno
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import DataCorrupt, DiskFloor, EpochMismatch, NotReady, TooManyScans, TopicNotFound
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.store.background.erasure import WAIT_S_MAX
from eddyline.store.log_io.files import extent_of
from eddyline.store.stats import Stage
from eddyline.store.storage.layout import Layout
from tests.support.manual_clock import ManualClock, settle
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.sim.worker import InlineWorker
from tests.support.store.simulated import all_rows, append, kv_topic, log_topic, puts, rows, settings, sim_store, values

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from eddyline.core.model.deletion import EraseProgress
    from eddyline.store.log.topic import Topic
    from eddyline.store.shard.shard import Shard

A = Match(MatchField.KEY, MatchKind.EQ, b"a")
HOUR_S = 3600.0
SECRET = b"SECRET"


def bytes_on(fs: SimFs) -> bytes:
    """Return all bytes on the disk but the catalog's."""
    contents: list[bytes] = []

    def walk(path: str) -> None:
        for name, node in fs._directory(Layout(settings().directory).data_dir / path).names.items():
            if hasattr(node, "names"):
                walk(f"{path}{name}/")
            else:
                contents.append(bytes(node.data))

    walk("")
    return b"".join(contents)


async def two_rows(link: Shard, name: str = "kv") -> Topic:
    """Append one row to be deleted, in a segment, and one that stays."""
    await kv_topic(link, name)
    topic = link._table.get(name)
    await append(link, name, puts(("a", "SECRET"), ("b", "kept")))
    await link._parts.maintenance._sealer.seal(topic, topic.head_seq)
    return topic


async def rounds_until(link: Shard, condition: Callable[[], bool]) -> None:
    for _ in range(100):
        if condition():
            return
        await link._parts.maintenance.round()
        await settle()
    raise AssertionError("it never came to hold")


async def later(link: Shard, clock: ManualClock, seconds: float) -> None:
    """Let time pass at once, and the store run the jobs due then."""
    clock.advance(seconds)
    for _ in range(60):
        await link._parts.maintenance.round()
        await settle()


@asynccontextmanager
async def working(link: Shard) -> AsyncIterator[None]:
    """Run rounds of background jobs while the context is open; no time passes."""

    async def work() -> None:
        while True:
            await link._parts.maintenance.round()
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work())
        try:
            yield
        finally:
            task.cancel()


async def erased(link: Shard, name: str = "kv") -> list[EraseProgress]:
    async with working(link):
        return await erase_progress(link, name)


async def erase_progress(link: Shard, name: str = "kv") -> list[EraseProgress]:
    return [progress async for progress in link.erase_topic(name)]


async def pass_until_done(clock: ManualClock, task: asyncio.Task[list[EraseProgress]], seconds: float) -> None:
    for _ in range(int(seconds)):
        if task.done():
            return
        await clock.pass_time(1)


# when ------------------------------------------------------------------------------------------------------------


async def test_deleted_records_are_erased_before_their_deadline() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, erase_within_h=24, compression="none") as link:
        topic = await two_rows(link)
        await link.delete_records("kv", match=A)
        await later(link, clock, 11.9 * HOUR_S)
        assert SECRET in bytes_on(fs)
        assert topic.erase_due_ms
        await later(link, clock, 0.2 * HOUR_S)
        assert topic.erase_due_ms == 0
        assert SECRET not in bytes_on(fs)
        assert values(await all_rows(link, "kv")) == [b"kept"]


async def test_deleted_topics_are_erased_before_their_deadline() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, compression="none") as link:
        await two_rows(link)
        await log_topic(link)
        await append(link, "log", rows("SECRET"))
        for name in ("kv", "log"):
            await link.delete_topic(name)
        assert SECRET in bytes_on(fs)
        await later(link, clock, 12.1 * HOUR_S)
        assert SECRET not in bytes_on(fs)
        assert not link._parts.garbage.erasing


async def test_a_deadline_stands_over_restarts_and_kills() -> None:
    fs, fold, clock = SimFs(), SimFold(0), ManualClock()
    async with sim_store(fs, fold, clock) as link:
        await two_rows(link)
        await two_rows(link, "gone")
        await link.delete_records("kv", match=A)
        await link.delete_topic("gone")
        due_ms, erasing = link._table.get("kv").erase_due_ms, dict(link._parts.garbage.erasing)
        killed, killed_fold = fs.reboot("kill"), fold
    async with sim_store(killed, killed_fold.kill(), clock) as link:
        assert (link._table.get("kv").erase_due_ms, link._parts.garbage.erasing) == (due_ms, erasing)


async def test_several_due_topics_share_two_checkpoints() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock, checkpoint_interval_ms=86_400_000) as link:
        topics = [await two_rows(link, name) for name in ("x", "y", "z")]
        for name in ("x", "y", "z"):
            await link.delete_records(name, match=A)
        before = link._parts.checkpointer.number
        await later(link, clock, 12.1 * HOUR_S)
        assert [topic.erase_due_ms for topic in topics] == [0, 0, 0]
        assert link._parts.checkpointer.number == before + 2


# who asks --------------------------------------------------------------------------------------------------------


async def test_caller_gets_the_progress_and_the_end() -> None:
    fs = SimFs()
    async with sim_store(fs, compression="none") as link:
        await two_rows(link)
        await link.delete_records("kv", match=A)
        steps = await erased(link)
        assert steps[-1].erased
        assert not any(step.erased for step in steps[:-1])
        assert steps[-1].done_bytes == steps[-1].total_bytes > 0
        assert SECRET not in bytes_on(fs)


async def test_erasing_a_topic_with_nothing_deleted_changes_nothing() -> None:
    async with sim_store() as link:
        topic = await two_rows(link)
        segments = list(topic.segments)
        assert (await erased(link))[-1].erased
        assert list(topic.segments) == segments


async def test_a_missing_topic_or_another_epoch_is_refused() -> None:
    async with sim_store() as link:
        with pytest.raises(TopicNotFound):
            link.erase_topic("kv")
        epoch = await kv_topic(link)
        with pytest.raises(EpochMismatch):
            link.erase_topic("kv", if_epoch=epoch + 1)


async def test_a_topic_deleted_meanwhile_ends_the_erasure() -> None:
    async with sim_store() as link:
        await two_rows(link)
        await link.delete_records("kv", match=A)
        steps = link.erase_topic("kv")
        async with working(link):
            await anext(steps)
            await link.delete_topic("kv")
            with pytest.raises(TopicNotFound):
                async for _ in steps:
                    pass


async def test_erasure_continues_after_its_caller_leaves() -> None:
    fs = SimFs()
    async with sim_store(fs, compression="none") as link:
        topic = await two_rows(link)
        await link.delete_records("kv", match=A)
        steps = link.erase_topic("kv")
        await anext(steps)
        await steps.aclose()
        await rounds_until(link, lambda: not topic.erase_due_ms)
        assert SECRET not in bytes_on(fs)


async def test_a_stop_ends_the_erasure_and_leaves_it_due() -> None:
    fs, fold, clock = SimFs(), SimFold(0), ManualClock()
    async with asyncio.TaskGroup() as tasks:
        async with sim_store(fs, fold, clock) as link:
            topic = await two_rows(link)
            await link.delete_records("kv", match=A)
            view = fold.view(topic.id, counted=False)
            asking = tasks.create_task(_refusal(link))
            await clock.pass_time(5)
        view.close()
        assert isinstance(await asking, NotReady)
    async with sim_store(fs, fold.kill(), clock) as link:
        assert link._table.get("kv").erase_due_ms
        await erased(link)
        assert not link._table.get("kv").erase_due_ms


async def test_a_stop_waits_for_the_fold_that_is_being_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    fold, happened = SimFold(0), list[str]()
    erase, close = fold.erase, fold.close

    def erases(topic_id: int) -> bool:
        happened.append("erased")
        return erase(topic_id)

    def closes() -> None:
        happened.append("closed")
        close()

    monkeypatch.setattr(fold, "erase", erases)
    monkeypatch.setattr(fold, "close", closes)
    async with sim_store(fold=fold) as link:
        await two_rows(link)
        await link.delete_records("kv", match=A)
        erasures = link._parts.maintenance.erasures
        erasures._erase_job._reader = InlineWorker(turns=500)
        steps = link.erase_topic("kv")
        await anext(steps)
        while not (erasures.stage is Stage.ERASE and erasures._steps is not None):
            await link._parts.maintenance.round()
        assert not happened, "the fold's job is under way"
        await erasures.close()
        assert happened == ["erased"]
        with pytest.raises(NotReady):
            await anext(steps)
    assert happened == ["erased", "closed"]


async def _refusal(link: Shard, name: str = "kv") -> Exception | None:
    try:
        await erase_progress(link, name)
    except Exception as error:
        return error
    return None


# what comes in between -------------------------------------------------------------------------------------------


async def test_a_delete_during_an_erasure_is_due_at_its_own_time() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, compression="none") as link:
        topic = await two_rows(link)
        await link.delete_records("kv", match=A)
        clock.advance(HOUR_S)
        steps = link.erase_topic("kv")
        await anext(steps)
        await link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.EQ, b"b"))
        async with working(link):
            last = [step async for step in steps][-1]
        assert last.erased
        assert topic.erase_due_ms == clock.now_ms() + 24 * 3600 * 1000
        await later(link, clock, 13 * HOUR_S)
        assert topic.erase_due_ms == 0
        assert b"kept" not in bytes_on(fs)
        assert await all_rows(link, "kv") == []


async def test_an_erasure_waits_for_a_reader_of_an_old_segment() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, compression="none") as link, asyncio.TaskGroup() as tasks:
        topic = await two_rows(link)
        await link.delete_records("kv", match=A)
        extent = extent_of(topic)
        task = tasks.create_task(erase_progress(link))
        await pass_until_done(clock, task, 10)
        assert not task.done()
        assert SECRET in bytes_on(fs)
        extent.close()
        await pass_until_done(clock, task, 10)
        assert (await task)[-1].erased
        assert SECRET not in bytes_on(fs)


async def test_an_erasure_waits_for_a_scan_that_pins_the_fold_up_to_a_bound() -> None:
    fold, clock = SimFold(0), ManualClock()
    async with sim_store(fold=fold, clock=clock) as link, asyncio.TaskGroup() as tasks:
        topic = await two_rows(link)
        await link.delete_records("kv", match=A)
        view = fold.view(topic.id)
        asking = tasks.create_task(_refusal(link))
        await clock.pass_time(3)
        await later(link, clock, WAIT_S_MAX)
        await clock.pass_time(3)
        assert isinstance(await asking, TooManyScans)
        assert topic.erase_due_ms
        view.close()
        clock.advance(60)
        assert (await erased(link))[-1].erased


async def test_a_full_disk_fails_the_erasure_and_leaves_it_due() -> None:
    fs, clock = FaultyFs(SimFs()), ManualClock()
    async with sim_store(fs, clock=clock) as link:
        topic = await two_rows(link)
        await link.delete_records("kv", match=A)
        await link._parts.maintenance.round()  # it is half dead, and rewritten before
        fs.next_fault("pwritev", error=errno.ENOSPC)
        async with working(link):
            assert isinstance(await _refusal(link), DiskFloor)
        assert topic.erase_due_ms
        clock.advance(60)
        await settle()
        assert (await erased(link))[-1].erased
        assert values(await all_rows(link, "kv")) == [b"kept"]


async def test_a_damaged_topic_leaves_the_others_to_be_erased() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock) as link:
        bad, good = await two_rows(link, "bad"), await two_rows(link, "good")
        for name in ("bad", "good"):
            await link.delete_records(name, match=A)
        fs.open(next(iter(bad.segments)).path).pwritev([b"\xff" * 64], 1200)
        await later(link, clock, 13 * HOUR_S)
        assert good.erase_due_ms == 0
        assert bad.erase_due_ms
        assert link.status().corrupt_count == 1
        async with working(link):
            assert isinstance(await _refusal(link, "bad"), DataCorrupt)


async def test_appends_go_on_while_an_erasure_runs() -> None:
    async with sim_store() as link:
        await two_rows(link)
        await link.delete_records("kv", match=A)
        count = 0
        async with working(link):
            async for _ in link.erase_topic("kv"):
                await append(link, "kv", puts(("c", str(count))))
                count += 1
        assert [row.data for row in await all_rows(link, "kv")][-1] == str(count - 1).encode()
