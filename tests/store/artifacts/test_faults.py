"""Failing exports and imports: they leave no partial result, and the store continues."""

from __future__ import annotations

import errno
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import (
    ArtifactsUnreachable,
    CommitUnknown,
    DiskFloor,
    EddylineError,
    TooManyScans,
    TopicNotEmpty,
    TopicNotFound,
)
from eddyline.core.runtime.fs import RealFs
from eddyline.store.artifacts import job
from eddyline.store.artifacts.job import ArtifactJob
from eddyline.store.artifacts.local_store import LocalArtifactStore
from eddyline.store.artifacts.manifest import topic_dir_name
from eddyline.store.fold.fold import FoldFailed
from tests.support.sim.faulty_fs import Fault, FaultyFs
from tests.support.store.artifacts import exported, fold_of, imported
from tests.support.store.real import real_store, threaded
from tests.support.store.simulated import append, kv_topic, puts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.core.model.artifact import Artifact
    from eddyline.store.shard.shard import Shard

pytestmark = pytest.mark.crash

OPERATIONS = ("open", "mkdir", "rename", "fsync", "fsync_dir", "pwritev", "pread", "listdir", "lock")


async def _fill(link: Shard) -> None:
    await kv_topic(link)
    await append(link, "kv", puts(("a", "1"), ("b", "2")))


@asynccontextmanager
async def _exported_store(folder: Path) -> AsyncIterator[Shard]:
    """Open a store with threads, an artifact of `kv`, and the empty topic `copy`."""
    artifact_store = LocalArtifactStore(RealFs(), folder / "artifacts", holder="")
    async with real_store(folder / "data", workers=threaded, artifact_store=artifact_store) as link:
        await _fill(link)
        await exported(link)
        await kv_topic(link, "copy")
        yield link


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_export_failed_by_the_disk_keeps_the_previous_artifact(tmp_path: Path, operation: str) -> None:
    faulty = FaultyFs(RealFs())
    root = tmp_path / "artifacts"
    artifact_store = LocalArtifactStore(faulty, root, holder="")
    async with real_store(tmp_path / "data", artifact_store=artifact_store) as link:
        await _fill(link)
        first = (await exported(link)).artifact
        await append(link, "kv", puts(("c", "3")))
        failed = 0
        for _ in range(20):
            faulty.faults = [Fault(operation, faulty.calls[operation] + 1 + failed, errno.EIO)]
            try:
                done = await exported(link)
            except ArtifactsUnreachable:
                failed += 1
                latest = [artifact for artifact in await _listed(link, faulty) if artifact.is_latest]
                assert latest[0].fold_seq in (2, 3)
                assert not list(root.glob("*/.gone"))
            else:
                break
        faulty.faults = []
        if operation not in ("listdir",):
            assert failed
        assert done.artifact.fold_seq == 3
        assert first.name in {artifact.name for artifact in await link.list_artifacts("kv")}
        directory = root / topic_dir_name("kv")
        assert {path.name for path in directory.iterdir() if path.name.startswith(".")} == {".lock"}
        await kv_topic(link, "copy")
        await imported(link, "copy", from_topic="kv")
        assert await fold_of(link, "copy") == await fold_of(link)


async def _listed(link: Shard, faulty: FaultyFs) -> list[Artifact]:
    faulty.faults = []
    return await link.list_artifacts("kv")


@pytest.mark.parametrize("operation", ["open", "fsync", "fsync_dir", "pwritev", "pread", "mkdir", "rename"])
async def test_import_failed_by_the_disk_is_complete_or_absent(tmp_path: Path, operation: str) -> None:
    faulty = FaultyFs(RealFs())
    artifact_store = LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="")
    async with real_store(tmp_path / "one", artifact_store=artifact_store) as link:
        await _fill(link)
        await exported(link)
    landed = False
    async with real_store(tmp_path / "two", artifact_store=artifact_store, fs=faulty) as link:
        await kv_topic(link)
        for failing in range(30):
            faulty.faults = [Fault(operation, faulty.calls[operation] + 1 + failing, errno.EIO)]
            try:
                await imported(link)
            except DiskFloor:
                assert (await link.get_topic("kv")).head_seq == 0
            except TopicNotEmpty:
                break
            except (CommitUnknown, EddylineError) as error:
                assert error.reason in ("COMMIT_UNKNOWN", "READ_ONLY", "DATA_CORRUPT"), error
                break
            else:
                landed = True
                break
        faulty.faults = []
    async with real_store(tmp_path / "two", artifact_store=artifact_store) as link:
        head_seq = (await link.get_topic("kv")).head_seq
        assert head_seq in ((2,) if landed else (0, 2))
        assert len(await fold_of(link)) == (2 if head_seq else 0)
        if not head_seq:
            await imported(link)
        assert [row.data for row in await fold_of(link)] == [b"1", b"2"]


async def test_fold_that_fails_during_an_import_is_loaded_from_the_base_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact_store = LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="")
    async with real_store(tmp_path / "data", artifact_store=artifact_store) as link:
        await _fill(link)
        await exported(link)
        await kv_topic(link, "copy")
        monkeypatch.setattr(link._engine.fold, "adopt", _fails)
        with pytest.raises(CommitUnknown):
            await imported(link, "copy", from_topic="kv")
        assert (await link.get_topic("copy")).head_seq == 0
    async with real_store(tmp_path / "data", artifact_store=artifact_store) as link:
        assert await fold_of(link, "copy") == await fold_of(link)
        assert (await append(link, "copy", puts(("c", "3")))).first_seq == 3


def _fails(*_: object) -> None:
    raise FoldFailed("the test's")


async def test_one_job_at_a_time_and_a_cancelled_one_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "PROGRESS_S", 0.001)
    root = tmp_path / "artifacts"
    async with real_store(
        tmp_path / "data", workers=threaded, artifact_store=LocalArtifactStore(RealFs(), root, holder="")
    ) as link:
        await _fill(link)
        stages: list[str] = []
        report = ArtifactJob.report

        def slow(self: ArtifactJob, stage: str, done: int, total: int = 0) -> None:
            stages.append(stage)
            while len(stages) == 1 and not self._stop.wait(0.01):
                pass
            report(self, stage, done, total)

        monkeypatch.setattr(ArtifactJob, "report", slow)
        async with aclosing(link.export_fold("kv")) as steps:
            while not stages:
                await anext(steps)
            with pytest.raises(TooManyScans):
                await exported(link)
        assert stages == ["dump"]
        assert await link.list_artifacts("kv") == []
        assert not list(root.rglob("*.sst"))
        monkeypatch.setattr(ArtifactJob, "report", report)
        await exported(link)
        stages.clear()
        monkeypatch.setattr(ArtifactJob, "report", slow)
        await kv_topic(link, "copy")
        async with aclosing(link.import_fold("copy", from_topic="kv")) as imports:
            while not stages:
                await anext(imports)
        assert stages == ["fetch"]
        assert (await link.get_topic("copy")).head_seq == 0
        assert not list((tmp_path / "data" / ".artifacts").rglob("*"))
        monkeypatch.setattr(ArtifactJob, "report", report)
        await imported(link, "copy", from_topic="kv")


async def test_reads_and_appends_continue_during_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "PROGRESS_S", 0.001)
    async with _exported_store(tmp_path) as link:
        seen = set[tuple[int, int]]()
        async with aclosing(link.import_fold("copy", from_topic="kv")) as steps:
            async for _ in steps:
                page = await link.batch_get_entries("copy", [b"a", b"b"])
                seen.add((page.state.fold_seq, sum(entry is not None for entry in page.entries)))
                await append(link, "kv", puts(("other", "x")))
        page = await link.batch_get_entries("copy", [b"a", b"b"])
        seen.add((page.state.fold_seq, sum(entry is not None for entry in page.entries)))
        assert seen <= {(0, 0), (2, 2)}


async def test_full_disk_ends_exports_and_imports_without_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "PROGRESS_S", 0.001)
    async with _exported_store(tmp_path) as link:
        report, is_full = ArtifactJob.report, list[bool]()

        def full(self: ArtifactJob, stage: str, done: int, total: int = 0) -> None:
            is_full.append(True)
            self._stop.wait(30)
            report(self, stage, done, total)

        def check() -> None:
            if is_full:
                raise DiskFloor("the disk is full", retryAfterMs=1)

        monkeypatch.setattr(ArtifactJob, "report", full)
        monkeypatch.setattr(link._engine.gate, "check_disk", check)
        for _ in range(2):
            with pytest.raises(DiskFloor):
                await exported(link)
        assert len(is_full) == 1, "the second one has not begun"
        is_full.clear()
        with pytest.raises(DiskFloor):
            await imported(link, "copy", from_topic="kv")
        monkeypatch.setattr(ArtifactJob, "report", report)
        is_full.clear()
        assert len(await link.list_artifacts("kv")) == 1
        await imported(link, "copy", from_topic="kv")


async def test_topic_deleted_during_an_import_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "PROGRESS_S", 0.001)
    async with _exported_store(tmp_path) as link:
        steps = link.import_fold("copy", from_topic="kv")
        async with link._parts.maintenance.between_rounds:
            await anext(steps)
            await link.delete_topic("copy")
        with pytest.raises(TopicNotFound):
            async for _ in steps:
                pass
        assert not list((tmp_path / "data" / "topics").rglob("*.arrow*"))


async def test_append_during_an_import_refuses_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _exported_store(tmp_path) as link:
        monkeypatch.setattr(job, "PROGRESS_S", 0.001)
        steps = link.import_fold("copy", from_topic="kv")
        lock = link._parts.maintenance.between_rounds
        await lock.acquire()
        try:
            await anext(steps)
        finally:
            await append(link, "copy", puts(("mine", "1")))
            lock.release()
        with pytest.raises(TopicNotEmpty):
            async for _ in steps:
                pass
        assert [row.key for row in await fold_of(link, "copy")] == [b"mine"]
