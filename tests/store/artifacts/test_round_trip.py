"""An imported fold equals the exported one: in another store, after a restart, through a directory or an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from eddyline.core.errors import (
    ArtifactMismatch,
    ArtifactNotFound,
    ArtifactsNotConfigured,
    HistoryGone,
    InvalidArgument,
    NotKv,
    TopicNotEmpty,
)
from eddyline.core.model.artifact import FoldExported, FoldImported
from eddyline.core.model.fold_check import FoldVerdict
from eddyline.core.model.source import SourceDefinition
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, MetaEntry, Op, Record
from eddyline.core.runtime.fs import RealFs
from eddyline.store.artifacts.local_store import LocalArtifactStore
from eddyline.store.artifacts.object_store import ObjectArtifactStore
from tests.support.manual_clock import ManualClock
from tests.support.store.artifacts import exported, fold_of, imported
from tests.support.store.real import real_store, threaded
from tests.support.store.simulated import append, kv_topic, log_topic, puts

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.store.artifacts.store import ArtifactStore
    from eddyline.store.shard.shard import Shard


@pytest.fixture(params=["local", "remote"])
def artifact_store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    if request.param == "local":
        return LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="the test")
    return ObjectArtifactStore(MemoryStore(), tmp_path / "draft")


async def _fill(link: Shard) -> None:
    await kv_topic(link)
    await append(link, "kv", puts(("a", "1"), ("b", "1"), ("gone", "1")))
    await append(link, "kv", puts(("b", "2"), ("gone", None), ("c", "")))


async def test_imported_fold_equals_the_exported_one_also_after_restarts(
    artifact_store: ArtifactStore, tmp_path: Path
) -> None:
    async with real_store(tmp_path / "one", workers=threaded, artifact_store=artifact_store) as link:
        await _fill(link)
        before = await fold_of(link)
        done = await exported(link)
        assert (done.artifact.fold_seq, done.artifact.entry_count, done.superseded) == (6, 3, False)
        assert await link.list_artifacts("kv") == [done.artifact]
    async with real_store(tmp_path / "two", workers=threaded, artifact_store=artifact_store) as link:
        await kv_topic(link)
        result = await imported(link)
        assert result.artifact == done.artifact
        assert result.state.fold_seq == 6
        assert await fold_of(link) == before
        await _goes_on(link)
    for _ in range(2):
        async with real_store(tmp_path / "two", workers=threaded, artifact_store=artifact_store) as link:
            assert {row.key: row.data for row in await fold_of(link)} == {b"a": b"1", b"c": b"", b"d": b"1"}
            verdict = [step async for step in link.verify_fold("kv")][-1]
            assert isinstance(verdict, FoldVerdict)
            assert (verdict.differing_count, verdict.base_seq) == (0, 6)


async def _goes_on(link: Shard) -> None:
    """Check that the log begins after the artifact's seq, with a gap before it."""
    result = await append(link, "kv", puts(("d", "1"), ("b", None)))
    assert result.first_seq == 7
    read = await link.read_records("kv", after_seq=2)
    gap, batch = read.items
    assert gap == Gap(3, 6, GapReason.COMPACTED)
    assert isinstance(batch, Batch)
    assert (batch.first_seq, batch.last_seq, read.earliest_seq) == (7, 8, 7)
    at_base = await link.entry_at("kv", b"b", at_seq=6)
    assert at_base.entries[0] is not None
    assert at_base.entries[0].data == b"2"
    verdict = [step async for step in link.verify_fold("kv")][-1]
    assert isinstance(verdict, FoldVerdict)
    assert verdict.differing_count == 0


async def test_empty_fold_of_a_topic_that_had_records(artifact_store: ArtifactStore, tmp_path: Path) -> None:
    async with real_store(tmp_path / "one", workers=threaded, artifact_store=artifact_store) as link:
        await kv_topic(link)
        await append(link, "kv", puts(("a", "1"), ("a", None)))
        assert (await exported(link)).artifact.entry_count == 0
        await kv_topic(link, "other")
        await imported(link, "other", from_topic="kv")
        assert await fold_of(link, "other") == []
        assert (await append(link, "other", puts(("b", "1")))).first_seq == 3
    async with real_store(tmp_path / "one", workers=threaded, artifact_store=artifact_store) as link:
        assert [row.key for row in await fold_of(link, "other")] == [b"b"]


async def test_source_continues_from_the_artifacts_position(artifact_store: ArtifactStore, tmp_path: Path) -> None:
    async with real_store(tmp_path / "one", workers=threaded, artifact_store=artifact_store) as link:
        await kv_topic(link)
        await link.put_source(SourceDefinition("nats", "kv", "prices"))
        fence = (await link.acquire_lease("nats", holder="me", lease_ms=5000)).fence
        await link.apply_batch("nats", fence=fence, previous=b"", new=b"p1", batch=puts(("a", "1")))
        done = await exported(link)
        assert (done.artifact.source, done.artifact.source_position) == ("nats", b"p1")
        await link.apply_batch("nats", fence=fence, previous=b"p1", new=b"p2", batch=puts(("a", "2")))
    async with real_store(tmp_path / "two", workers=threaded, artifact_store=artifact_store) as link:
        await kv_topic(link)
        await link.put_source(SourceDefinition("mine", "kv", "prices"))
        fence = (await link.acquire_lease("mine", holder="me", lease_ms=5000)).fence
        assert (await imported(link)).position_set
        assert (await link.get_source("mine")).position == b"p1"
        await link.apply_batch("mine", fence=fence, previous=b"p1", new=b"p2", batch=puts(("a", "2")))
        await kv_topic(link, "other")
        await link.put_source(SourceDefinition("other", "other", "elsewhere"))
        with pytest.raises(ArtifactMismatch):
            await imported(link, "other", from_topic="kv")
        assert (await link.get_topic("other")).head_seq == 0
    async with real_store(tmp_path / "two", workers=threaded, artifact_store=artifact_store) as link:
        assert (await link.get_source("mine")).position == b"p2"
        assert [row.data for row in await fold_of(link)] == [b"2"]


async def test_invalid_exports_and_imports_are_refused(artifact_store: ArtifactStore, tmp_path: Path) -> None:
    async with real_store(tmp_path / "one", workers=threaded, artifact_store=artifact_store) as link:
        await log_topic(link)
        await kv_topic(link)
        with pytest.raises(NotKv):
            await exported(link, "log")
        with pytest.raises(InvalidArgument):
            await exported(link)
        with pytest.raises(NotKv):
            await imported(link, "log", from_topic="kv")
        with pytest.raises(ArtifactNotFound):
            await imported(link)
        with pytest.raises(ArtifactNotFound):
            await imported(link, artifact="../../etc/passwd")
        await append(link, "kv", puts(("a", "1")))
        await exported(link)
        with pytest.raises(TopicNotEmpty):
            await imported(link)
    async with real_store(tmp_path / "one", workers=threaded) as link:
        with pytest.raises(ArtifactsNotConfigured):
            await exported(link)
        with pytest.raises(ArtifactsNotConfigured):
            await link.list_artifacts("kv")


KEYS = st.binary(min_size=1, max_size=40) | st.sampled_from([b"\xff" * 1024, b"\x00", b"../x", b"a/b"])
ENTRIES = st.dictionaries(KEYS, st.none() | st.binary(max_size=60), max_size=30)


@given(entries=ENTRIES, tag=st.none() | st.text(max_size=10), meta=st.binary(max_size=20))
@settings(max_examples=15, deadline=None)
async def test_any_fold_survives_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[bytes, bytes | None], tag: str | None, meta: bytes
) -> None:
    path = tmp_path_factory.mktemp("any")
    rows = [
        Record(op=Op.PUT, key=key, data=data, tag=tag, meta=(MetaEntry("m", meta),), source_ts_ns=7)
        for key, data in entries.items()
    ]
    async with real_store(
        path / "one", artifact_store=LocalArtifactStore(RealFs(), path / "artifacts", holder="")
    ) as link:
        await kv_topic(link)
        await append(link, "kv", puts(("first", "x"), ("first", None)))
        if rows:
            await append(link, "kv", Batch.from_rows(rows))
        await exported(link)
        await kv_topic(link, "copy")
        await imported(link, "copy", from_topic="kv")
        assert await fold_of(link, "copy") == await fold_of(link)


async def test_large_values_survive_a_round_trip(tmp_path: Path) -> None:
    artifact_store = LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="")
    async with real_store(tmp_path / "one", artifact_store=artifact_store, wal_file_bytes=16 << 20) as link:
        await kv_topic(link)
        for number in range(5):
            row = Record(op=Op.PUT, key=b"%d" % number, data=bytes((number,)) * ((1 << 20) - 100))
            await append(link, "kv", Batch.from_rows([row]))
        done = await exported(link)
        assert isinstance(done, FoldExported)
        await kv_topic(link, "copy")
        assert isinstance(await imported(link, "copy", from_topic="kv"), FoldImported)
        assert await fold_of(link, "copy") == await fold_of(link)


async def test_history_before_an_imported_fold_is_a_gap(tmp_path: Path) -> None:
    artifact_store = LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="")
    clock = ManualClock()
    async with real_store(tmp_path / "one", artifact_store=artifact_store, clock=clock) as link:
        await _fill(link)
        await exported(link)
        clock.advance(10)
        await kv_topic(link, "copy")
        before_ms = clock.now_ms()
        clock.advance(10)
        await imported(link, "copy", from_topic="kv")
        clock.advance(10)
        await append(link, "copy", puts(("b", "later")))
        appended_ms = clock.now_ms()
        clock.advance(10)
        with pytest.raises(HistoryGone):
            await link.entry_at("copy", b"b", at_seq=5)
        for key, at_ms, expected in ((b"b", appended_ms, b"later"), (b"a", before_ms, b"1")):
            entry = (await link.entry_at("copy", key, at_time_ms=at_ms)).entries[0]
            assert entry is not None, at_ms
            assert entry.data == expected
        with pytest.raises(HistoryGone):
            await link.entry_at("copy", b"b", at_time_ms=before_ms)
        assert [item async for item in link.key_history("copy", b"a")] == [Gap(1, 6, GapReason.COMPACTED)]
        result = await link.find_seq("copy", commit_time_ms=before_ms)
        assert result.seq == 7
