"""Crash at every call of an import's commit: afterwards all of it is in the store, or nothing.

The staged files are made by hand on the simulated disk: tables and a base's temporary, as `importing.py` leaves them.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Durability
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.store.artifacts.download import StagedArtifact
from eddyline.store.artifacts.manifest import ArtifactManifest
from eddyline.store.catalog.catalog import BaseEntry
from eddyline.store.compaction.segment_swap import next_source
from eddyline.store.fold.entries import entries_of
from eddyline.store.storage.layout import Layout, base_file, temporary_file
from eddyline.store.storage.segment.writer import write_segment
from tests.support.manual_clock import ManualClock, settle
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import append, kv_topic, puts, settings, sim_store

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.store.shard.shard import Shard
    from tests.support.sim.fs import CrashKind

pytestmark = pytest.mark.crash

LAYOUT: Final = Layout(settings().directory)
SEQ: Final = 9
OUTCOMES: Final[tuple[tuple[CrashKind, int], ...]] = (("kill", 0), ("power", 1), ("power", 2))
ENTRIES: Final = Batch.from_rows(
    [
        Record(seq=4, ts_ms=5, op=Op.PUT, key=b"a", data=b"1"),
        Record(seq=9, ts_ms=6, op=Op.PUT, key=b"b", data=b"2"),
    ]
)


async def land(link: Shard, fs: SimFs) -> None:
    """Stage files by hand, and commit the import."""
    topic = link._table.get("t")
    imports = link._parts.folds.artifacts.imports
    source = next_source(topic)._replace(is_base=True, base_seq=SEQ)
    LAYOUT.make_topic_dir(fs, topic.id)
    path = base_file(LAYOUT.topic_dir(topic.id), SEQ, source.generation)
    footer = write_segment(fs, temporary_file(path), source, [ENTRIES])
    assert footer is not None
    tables = link._engine.fold.new_tables(topic.id, LAYOUT.staging)
    tables.add(entries_of(ENTRIES))
    tables.finish()
    base = BaseEntry(SEQ, source.generation, footer.summary.rows, footer.summary.file_bytes)
    body = {"bucket": "b", "name": "s"}
    manifest = ArtifactManifest("t", 1, SEQ, 2, 7, 7, "elsewhere", (), source=body, position=b"p9")
    staged = StagedArtifact("name", True, manifest, tables, base, path, source.generation + 1)
    async with link._parts.maintenance.between_rounds, topic.gate:
        await imports._commit(topic, staged)


async def begin(link: Shard, durability: Durability) -> None:
    await kv_topic(link, "t", durability)
    await link.put_source(SourceDefinition("s", "t", "b"))
    await link.acquire_lease("s", holder="me", lease_ms=5000)


async def is_landed(link: Shard) -> bool:
    """Return whether the import is in the store; part of it is an error."""
    info = await link.get_topic("t")
    page = await link.batch_get_entries("t", [b"a", b"b"])
    position = (await link.get_source("s")).position
    if not position:
        assert (info.evict_floor, page.entries) == (0, (None, None))
        return False
    assert position == b"p9"
    assert [entry.data if entry is not None else None for entry in page.entries] == [b"1", b"2"]
    assert (info.evict_floor, link._engine.fold.writers(info.epoch)["s"].position) == (SEQ, b"p9")
    first = (await link.read_records("t", after_seq=0)).items[0]
    assert first == Gap(1, SEQ, GapReason.COMPACTED)
    return True


async def goes_on(link: Shard, fs: SimFs) -> None:
    """Commit the import if it is not there, then append, checkpoint and read."""
    if not (await link.get_topic("t")).head_seq:
        await land(link, fs)
    assert await is_landed(link)
    fence = (await link.acquire_lease("s", holder="me", lease_ms=5000)).fence
    done = await link.apply_batch("s", fence=fence, previous=b"p9", new=b"p10", batch=puts(("c", "3")))
    assert done.first_seq > SEQ
    await link._parts.checkpointer.run()


def check_files(link: Shard, fs: SimFs) -> None:
    topic = link._table.get("t")
    directory: Path = LAYOUT.topic_dir(topic.id)
    named = {base_file(directory, topic.base.seq, topic.base.generation).name} if topic.base is not None else set()
    named |= {segment.path.name for segment in topic.segments}
    assert set(fs.listdir(directory) if fs.exists(directory) else []) == named
    assert not fs.exists(LAYOUT.orphans)


async def run(fs: SimFs, fold: SimFold, clock: ManualClock, durability: Durability, *, stop: int = 0) -> range:
    """Begin and commit, stopped at call `stop`. Returns the calls of the commit and of the checkpoint after it."""
    calls = range(0)
    try:
        async with sim_store(fs, fold, clock, scrub_bytes_per_s=0) as link:
            await begin(link, durability)
            first = fs.calls + 1
            fs.crash_at = stop
            await land(link, fs)
            assert await is_landed(link)
            await link._parts.checkpointer.run()
            calls = range(first, fs.calls + 1)
            fs.crash_at = None
            check_files(link, fs)
    except BaseException:
        if not fs.crashed:
            raise
    return calls


@pytest.mark.parametrize("durability", [Durability.DISK, Durability.FSYNC])
async def test_a_crash_at_every_call_leaves_all_or_nothing(durability: Durability) -> None:
    calls = await run(SimFs(), SimFold(0), ManualClock(), durability)
    assert len(calls) >= 10
    outcomes = set[bool]()
    for call in calls:
        fs, fold, clock = SimFs(call), SimFold(call), ManualClock()
        await run(fs, fold, clock, durability, stop=call)
        assert fs.crashed, call
        for crash, seed in OUTCOMES:
            disk = fs.reboot(crash, seed=seed)
            successor = deepcopy(fold).power() if crash == "power" else deepcopy(fold).kill()
            async with sim_store(disk, successor, ManualClock(clock.now_ms()), scrub_bytes_per_s=0) as link:
                check_files(link, disk)
                landed = await is_landed(link)
                outcomes.add(landed)
                # A power failure may have moved the head of a topic that reserves seqs: then the topic is not new.
                if landed or not link._table.get("t").staged_seq:
                    landed = True
                    await goes_on(link, disk)
                    await settle(5)
            if landed:
                async with sim_store(disk, successor.kill(), ManualClock(clock.now_ms()), scrub_bytes_per_s=0) as link:
                    page = await link.batch_get_entries("t", [b"a", b"b", b"c"])
                    assert [entry.data for entry in page.entries if entry is not None] == [b"1", b"2", b"3"]
                    assert (await link.get_source("s")).position == b"p10"
    assert outcomes == {False, True}


async def test_a_missing_fold_is_rebuilt_from_the_imported_base() -> None:
    fs = SimFs()
    await run(fs, SimFold(0), ManualClock(), Durability.FSYNC)
    async with sim_store(fs, SimFold(0), ManualClock()) as link:
        assert await is_landed(link)
        await append_is_behind(link)


async def append_is_behind(link: Shard) -> None:
    await kv_topic(link, "other")
    assert (await append(link, "other", puts(("a", "1")))).first_seq == 1
