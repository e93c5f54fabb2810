"""A lost fold is restored from an artifact of its own topic, and from no other."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import ArtifactMismatch, CommitUnknown, FoldLost
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.runtime.fs import RealFs
from eddyline.store.artifacts.local_store import LocalArtifactStore
from eddyline.store.fold.fold import FoldFailed
from tests.support.manual_clock import START_MS, ManualClock
from tests.support.store.artifacts import exported, fold_of, imported
from tests.support.store.real import real_store
from tests.support.store.simulated import append, kv_topic, puts

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.core.records.record import Record
    from eddyline.store.shard.shard import Shard


async def _seal(link: Shard) -> None:
    topic = link._table.get("kv")
    await link._parts.checkpointer._sealer.seal(topic, topic.head_seq)


async def lose(tmp_path: Path, *, also_after: bool = False) -> list[Record]:
    """A store with a lost fold: return its former content; there are an artifact of an earlier moment, and one of
    another store."""
    artifact_store = artifacts_in(tmp_path)
    async with real_store(tmp_path / "data", artifact_store=artifact_store) as link:
        await kv_topic(link)
        for number in range(20):
            await append(link, "kv", puts((f"k{number % 7}", f"v{number}"), (f"erased{number}", "x")))
        await _seal(link)
        await exported(link)
        await append(link, "kv", puts(("k1", "later"), ("k2", None), ("new", "1")))
        await link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.PREFIX, b"erased"))
        if also_after:
            await _seal(link)
        await append(link, "kv", puts(("last", "1")))
        held = await fold_of(link)
    segments = sorted((tmp_path / "data" / "topics").rglob("seg-*.arrow"))
    for path in segments if also_after else segments[:1]:
        encoded = bytearray(path.read_bytes())
        encoded[len(encoded) // 3] ^= 0xFF
        path.write_bytes(encoded)
    shutil.rmtree(tmp_path / "data" / "fold")
    return held


def artifacts_in(tmp_path: Path) -> LocalArtifactStore:
    return LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="")


async def test_artifact_and_the_log_after_it_give_the_fold(tmp_path: Path) -> None:
    held = await lose(tmp_path)
    async with real_store(tmp_path / "data", artifact_store=artifacts_in(tmp_path)) as link:
        with pytest.raises(FoldLost):
            await fold_of(link)
        result = await append(link, "kv", puts(("while lost", "1")))
        done = await imported(link)
        assert not done.position_set
        assert (done.artifact.fold_seq, done.state.fold_seq) == (40, result.last_seq)
        rows = await fold_of(link)
        assert [row for row in rows if row.key != b"while lost"] == held
        assert b"while lost" in {row.key for row in rows}
        await append(link, "kv", puts(("after", "1")))
    shutil.rmtree(tmp_path / "data" / "fold")
    async with real_store(tmp_path / "data", artifact_store=artifacts_in(tmp_path)) as link:
        keys = {row.key for row in await fold_of(link)}
        assert keys == {*(row.key for row in held), b"while lost", b"after"}


async def test_log_damaged_after_the_artifact_is_reported(tmp_path: Path) -> None:
    await lose(tmp_path, also_after=True)
    async with real_store(tmp_path / "data", artifact_store=artifacts_in(tmp_path)) as link:
        with pytest.raises(ArtifactMismatch, match="damaged"):
            await imported(link)
        with pytest.raises(FoldLost):
            await fold_of(link)
        assert link._table.get("kv").base is None
        assert (await link.settle_fold("kv")).settled


async def test_artifact_of_another_topic_restores_nothing(tmp_path: Path) -> None:
    clock = ManualClock(START_MS + 1)  # a store's id contains its creation time
    async with real_store(tmp_path / "other", artifact_store=artifacts_in(tmp_path), clock=clock) as link:
        await kv_topic(link)
        for number in range(10):
            await append(link, "kv", puts((f"k{number}", "x"), ("y", "z")))
        other = (await exported(link)).artifact.name
    await lose(tmp_path)
    async with real_store(tmp_path / "data", artifact_store=artifacts_in(tmp_path)) as link:
        with pytest.raises(ArtifactMismatch, match="another topic"):
            await imported(link, artifact=other)
        await imported(link)


async def test_restore_that_fails_half_way_is_completed_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await lose(tmp_path)
    async with real_store(tmp_path / "data", artifact_store=artifacts_in(tmp_path)) as link:
        monkeypatch.setattr(link._engine.fold, "set_base", _fails)
        with pytest.raises(CommitUnknown):
            await imported(link)
        with pytest.raises(FoldLost):
            await fold_of(link)
    async with real_store(tmp_path / "data", artifact_store=artifacts_in(tmp_path)) as link:
        assert await fold_of(link) == held


def _fails(*_: object) -> None:
    raise FoldFailed("the test's")
