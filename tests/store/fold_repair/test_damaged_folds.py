"""Real folds deleted, truncated or damaged between two runs of a store: the store then serves the log's state."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import DataCorrupt
from eddyline.core.model.fold_check import FoldVerdict
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.store.stats import RecoveryProgress
from tests.support.store.fold_lives import entries
from tests.support.store.real import real_store
from tests.support.store.simulated import append, kv_topic, puts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.core.records.record import Record
    from eddyline.store.shard.shard import Shard

LENGTHS = 24


async def fill(link: Shard, first: int, count: int) -> None:
    for number in range(first, first + count):
        await append(link, "kv", puts(*[(f"k{number % 50:02}-{i}", f"{number}." * 20) for i in range(10)]))


async def life(data_dir: Path, copy: Path) -> list[Record]:
    """Fill a store, sealed, checkpointed and erased in part, and copy its directory while it runs, as a kill leaves it."""
    async with real_store(data_dir) as link:
        await kv_topic(link)
        await kv_topic(link, "other")
        await append(link, "other", puts(("o", "1")))
        await fill(link, 0, 60)
        topic = link._table.get("kv")
        await link._parts.checkpointer._sealer.seal(topic, topic.head_seq)
        await link._parts.checkpointer.run(light=True)
        await fill(link, 60, 20)
        await link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.PREFIX, b"k07"))
        await link._parts.checkpointer.run(light=True)
        await fill(link, 80, 10)
        shutil.copytree(data_dir, copy)
        return await entries(link)


async def found_in(data_dir: Path) -> list[Record]:
    """Entries that a store serves, before and after a restart."""
    async with real_store(data_dir) as link:
        assert [row.key for row in await entries(link, "other")] == [b"o"]
        first = await entries(link)
        verdict = [step async for step in link.verify_fold("kv")][-1]
        assert isinstance(verdict, FoldVerdict)
        assert (verdict.differing_count, verdict.entry_count) == (0, len(first))
        await append(link, "other", puts(("o", "2")))
    async with real_store(data_dir) as link:
        assert await entries(link) == first
    return first


def files(data_dir: Path, name: str) -> list[Path]:
    return [path for path in (data_dir / "fold").iterdir() if name in path.name]


@pytest.mark.crash
async def test_fold_with_a_truncated_wal_equals_the_log(tmp_path: Path) -> None:
    expected = await life(tmp_path / "life", tmp_path / "killed")
    (wal,) = files(tmp_path / "killed", ".log")
    size = wal.stat().st_size
    assert size > 50_000
    for length in {*range(0, size, size // LENGTHS), *range(size - 40, size, 8), size}:
        cut = tmp_path / "cut"
        shutil.copytree(tmp_path / "killed", cut)
        with files(cut, ".log")[0].open("r+b") as file:
            file.truncate(length)
        assert await found_in(cut) == expected, f"cut to {length} of {size} bytes"
        shutil.rmtree(cut)


def _delete(path: Path) -> None:
    shutil.rmtree(path / "fold")


def _flip(name: str, part: float, path: Path) -> None:
    paths = files(path, name)
    assert paths
    for file in paths:
        content = bytearray(file.read_bytes())
        content[int(len(content) * part)] ^= 0x5A
        file.write_bytes(content)


def _remove(name: str, path: Path) -> None:
    for file in files(path, name):
        file.unlink()


@pytest.mark.parametrize(
    "hurt",
    [
        pytest.param(_delete, id="deleted"),
        *[
            pytest.param(partial(_flip, name, part), id=f"{name} flipped at {part}")
            for name in (".sst", "MANIFEST", "CURRENT")
            for part in (0.02, 0.3, 0.6, 0.98)
        ],
        *[pytest.param(partial(_remove, name), id=f"{name} gone") for name in (".sst", "MANIFEST", "CURRENT", ".log")],
    ],
)
async def test_damaged_fold_equals_the_log_after_the_start(tmp_path: Path, hurt: Callable[[Path], None]) -> None:
    expected = await life(data_dir := tmp_path / "life", tmp_path / "killed")
    # A clean stop flushes everything to tables.
    hurt(data_dir)
    assert await found_in(data_dir) == expected
    if files(tmp_path / "killed", ".sst"):
        hurt(tmp_path / "killed")
        assert await found_in(tmp_path / "killed") == expected


async def test_block_damaged_at_a_read_is_reported_counted_and_repaired_by_the_next_start(tmp_path: Path) -> None:
    data_dir = tmp_path / "life"
    expected = await life(data_dir, tmp_path / "killed")
    table = max(files(data_dir, ".sst"), key=lambda path: path.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 3] ^= 0xFF
    table.write_bytes(content)
    # The fold is too large for the complete read at a start.
    async with real_store(data_dir, checked_bytes=0) as link:
        assert link.status().corrupt_count == 0
        with pytest.raises(DataCorrupt):
            await entries(link)
        assert link.status().corrupt_count == 1
        assert (await append(link, "kv", puts(("more", "1")))).last_seq
        assert [row.key for row in await entries(link, "other")] == [b"o"]
    steps: list[RecoveryProgress] = []
    async with real_store(data_dir, checked_bytes=0, tell=steps.append) as link:
        assert [row for row in await entries(link) if row.key != b"more"] == expected
    (day,) = (data_dir / "orphans").iterdir()
    assert (day / "fold" / "CURRENT").exists()
    assert all(step.replayed_bytes <= step.total_bytes for step in steps)
    assert steps[-1].replayed_bytes > steps[0].replayed_bytes
