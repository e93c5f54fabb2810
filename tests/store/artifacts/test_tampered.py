"""A changed artifact is refused, and leaves no trace in the store."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import ArtifactInvalid, ArtifactNotFound
from eddyline.core.runtime.fs import RealFs
from eddyline.store.artifacts.local_store import LocalArtifactStore
from tests.support.store.artifacts import exported, fold_of, imported
from tests.support.store.real import real_store
from tests.support.store.simulated import append, kv_topic, puts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.store.shard.shard import Shard


def artifacts_in(tmp_path: Path) -> LocalArtifactStore:
    return LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="the test")


async def _make(link: Shard, tmp_path: Path) -> Path:
    await kv_topic(link)
    for number in range(40):
        await append(link, "kv", puts((f"k{number}", f"v{number}" * 10)))
    name = (await exported(link)).artifact.name
    (directory,) = (tmp_path / "artifacts").iterdir()
    return directory / name


async def _refused(link: Shard, tmp_path: Path, number: int) -> None:
    """Check that nothing was imported, and that the topic accepts the intact artifact."""
    topic = f"copy{number}"
    await kv_topic(link, topic)
    with pytest.raises(ArtifactInvalid):
        await imported(link, topic, from_topic="kv")
    assert (await link.get_topic(topic)).head_seq == 0
    assert await fold_of(link, topic) == []
    assert not list((tmp_path / "data" / ".artifacts").glob("**/*"))
    assert not list((tmp_path / "data" / "topics").glob("**/*.tmp"))


def _flip(path: Path, offset: int) -> None:
    encoded = bytearray(path.read_bytes())
    encoded[offset] ^= 1
    path.write_bytes(encoded)


async def test_flipped_bytes_are_detected(tmp_path: Path) -> None:
    async with real_store(tmp_path / "data", artifact_store=artifacts_in(tmp_path)) as link:
        artifact = await _make(link, tmp_path)
        pointer = artifact.parent / "latest"
        number = 0
        for path in (artifact / "MANIFEST.json", artifact / "data" / "000000.sst", pointer):
            size = path.stat().st_size
            for offset in sorted({0, 1, size // 3, size // 2, size - 2, size - 1}):
                _flip(path, offset)
                await _refused(link, tmp_path, number)
                _flip(path, offset)
                number += 1
        await kv_topic(link, "whole")
        await imported(link, "whole", from_topic="kv")
        assert await fold_of(link, "whole") == await fold_of(link)


def _missing(artifact: Path) -> None:
    (artifact / "data" / "000000.sst").unlink()


def _shorter(artifact: Path) -> None:
    path = artifact / "data" / "000000.sst"
    os.truncate(path, path.stat().st_size - 1)


def _longer(artifact: Path) -> None:
    with (artifact / "data" / "000000.sst").open("ab") as file:
        file.write(b"x")


def _undeclared(artifact: Path) -> None:
    shutil.copy(artifact / "data" / "000000.sst", artifact / "data" / "000001.sst")


def _undeclared_beside(artifact: Path) -> None:
    (artifact / "note").write_text("x")


def _linked(artifact: Path) -> None:
    path = artifact / "data" / "000000.sst"
    path.rename(artifact.parent / "elsewhere.sst")
    path.symlink_to(artifact.parent / "elsewhere.sst")


@pytest.mark.parametrize("tamper", [_missing, _shorter, _longer, _undeclared, _undeclared_beside, _linked])
async def test_undeclared_missing_and_swapped_files_are_detected(
    tmp_path: Path, tamper: Callable[[Path], None]
) -> None:
    async with real_store(tmp_path / "data", artifact_store=artifacts_in(tmp_path)) as link:
        tamper(await _make(link, tmp_path))
        await _refused(link, tmp_path, 0)


async def test_artifact_without_a_manifest_does_not_exist(tmp_path: Path) -> None:
    async with real_store(tmp_path / "data", artifact_store=artifacts_in(tmp_path)) as link:
        (await _make(link, tmp_path) / "MANIFEST.json").unlink()
        await kv_topic(link, "copy")
        with pytest.raises(ArtifactNotFound):
            await imported(link, "copy", from_topic="kv")
