"""A directory with an imported fold passes every check of a directory."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.runtime.fs import RealFs
from eddyline.store.artifacts.local_store import LocalArtifactStore
from eddyline.store.fsck.command import fsck
from tests.support.store.artifacts import exported, fold_of, imported
from tests.support.store.real import real_store
from tests.support.store.simulated import append, kv_topic, puts

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from eddyline.store.shard.shard import Shard


async def _work(link: Shard) -> None:
    """Later work on an imported fold: appends, deletes, seals, a new base, an erasure."""
    await append(link, "copy", puts(("b", "2"), ("c", "3")))
    topic = link._table.get("copy")
    await link._parts.maintenance._sealer.seal(topic, topic.head_seq)
    await link.delete_records("copy", before_seq=topic.head_seq)
    await link._parts.maintenance._planner._bases.make(topic)
    await link._parts.checkpointer.run()
    await append(link, "copy", puts(("d", "4")))


async def test_imported_directory_passes_every_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact_store = LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="")
    async with real_store(tmp_path / "data", artifact_store=artifact_store) as link:
        await kv_topic(link)
        await append(link, "kv", puts(("a", "1"), ("b", "1"), ("a", None)))
        await exported(link)
        await kv_topic(link, "copy")
        await imported(link, "copy", from_topic="kv")
    for worked in (False, True):
        code = fsck([str(tmp_path / "data"), "-o", "json"])
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert (code, lines[:-1]) == (0, []), lines
        if worked:
            break
        async with real_store(tmp_path / "data", artifact_store=artifact_store) as link:
            await _work(link)
    async with real_store(tmp_path / "data", artifact_store=artifact_store) as link:
        values = {row.key: row.data for row in await fold_of(link, "copy")}
        assert values == {b"b": b"2", b"c": b"3", b"d": b"4"}


async def test_key_deleted_after_the_import_stays_deleted(tmp_path: Path) -> None:
    artifact_store = LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="")
    async with real_store(tmp_path / "data", artifact_store=artifact_store) as link:
        await kv_topic(link)
        await append(link, "kv", puts(("a", "1"), ("b", "1")))
        await exported(link)
        await kv_topic(link, "copy")
        await imported(link, "copy", from_topic="kv")
        await link.delete_records("copy", match=Match(MatchField.KEY, MatchKind.EQ, b"a"))
        assert [row.key for row in await fold_of(link, "copy")] == [b"b"]
    shutil.rmtree(tmp_path / "data" / "fold")
    async with real_store(tmp_path / "data", artifact_store=artifact_store) as link:
        assert [row.key for row in await fold_of(link, "copy")] == [b"b"]
        assert {row.key for row in await fold_of(link)} == {b"a", b"b"}
