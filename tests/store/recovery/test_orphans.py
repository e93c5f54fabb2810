"""Starts with unnamed files, and with missing named ones: files set aside, removed or renamed, or the start refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import DataCorrupt
from eddyline.core.model.topic import Durability
from eddyline.core.runtime.fs import write_all
from eddyline.store.recovery.orphans import ForeignFile
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.store.simulated import all_rows, append, log_topic, rows, sim_store, values

if TYPE_CHECKING:
    from eddyline.store.shard.shard import Shard

TOPIC = Path("/data/topics/0000000000000001")


def put_file(fs: SimFs, path: Path, content: bytes = b"foreign") -> None:
    """Put a file and its parent directories on the disk, durably."""
    for directory in (*reversed(path.parents[:-1]),):
        fs.mkdir(directory)
        fs.fsync_dir(directory.parent)
    file = fs.open(path, create=True)
    write_all(file, [content], 0)
    file.fsync()
    fs.fsync_dir(path.parent)


def content_of(fs: SimFs, path: Path) -> bytes:
    return fs.open(path).pread(1 << 20, 0)


async def sealed(fs: SimFs, fold: SimFold) -> tuple[Path, list[bytes | None]]:
    """Make a store with one segment and stop it. Returns the segment's path and the records."""
    async with sim_store(fs, fold) as link:
        await log_topic(link, durability=Durability.FSYNC)
        await append(link, "log", rows("a", "b", "c"))
        topic = link._table.get("log")
        await link._parts.maintenance._sealer.seal(topic, topic.head_seq)
        (segment,) = topic.segments
        kept = values(await all_rows(link, "log"))
    return segment.path, kept


async def kept_in(link: Shard) -> list[bytes | None]:
    return values(await all_rows(link, "log"))


async def test_unnamed_files_are_set_aside_with_their_paths() -> None:
    fs, fold = SimFs(), SimFold(0)
    _, kept = await sealed(fs, fold)
    foreign = [
        TOPIC / "seg-0000000000000009-000000000000000a-00000007.arrow",
        TOPIC / "base-0000000000000009-00000007.arrow",
        TOPIC / "notes.txt",
        TOPIC / "notes.txt.tmp",
        Path("/data/topics/readme"),
        Path("/data/topics/00000000000000ff/seg-0000000000000001-0000000000000002-00000001.arrow"),
        Path("/data/wal/old.wal"),
        Path("/data/wal/00/1.wal"),
        Path("/data/wal/00/000000000000000X.wal"),
        Path("/data/wal/0f/0000000000000001.wal"),
    ]
    for path in foreign:
        put_file(fs, path, str(path).encode())
    async with sim_store(fs, fold.kill()) as link:
        assert await kept_in(link) == kept
    (day,) = fs.listdir(Path("/data/orphans"))
    for path in foreign:
        assert not fs.exists(path)
        assert content_of(fs, Path("/data/orphans") / day / path.relative_to("/data")) == str(path).encode()
    async with sim_store(fs, fold.kill()) as link:
        assert await kept_in(link) == kept


async def test_same_name_set_aside_twice_on_a_day_keeps_both() -> None:
    fs, fold = SimFs(), SimFold(0)
    await sealed(fs, fold)
    for content in (b"one", b"two"):
        put_file(fs, TOPIC / "notes", content)
        async with sim_store(fs, fold.kill()):
            pass
    (day,) = fs.listdir(Path("/data/orphans"))
    aside = Path("/data/orphans") / day / "topics" / TOPIC.name
    assert [content_of(fs, aside / name) for name in fs.listdir(aside)] == [b"one", b"two"]


async def test_named_temporary_is_renamed_and_others_are_removed() -> None:
    fs, fold = SimFs(), SimFold(0)
    segment, kept = await sealed(fs, fold)
    fs.rename(segment, segment.with_name(segment.name + ".tmp"))
    unnamed = [
        TOPIC / "seg-0000000000000000-0000000000000000-00000009.arrow.tmp",
        TOPIC / "base-0000000000000003-00000009.arrow.tmp",
        Path("/data/wal/00/0000000000000077.wal.tmp"),
        Path("/data/wal/01/0000000000000077.wal.tmp"),
        Path("/data/wal/01/spare"),
    ]
    for path in unnamed:
        put_file(fs, path)
    async with sim_store(fs, fold.kill()) as link:
        assert await kept_in(link) == kept
    assert fs.exists(segment)
    assert not [path for path in unnamed if fs.exists(path)]
    assert not fs.exists(Path("/data/wal/01"))
    assert not fs.exists(Path("/data/orphans"))


async def test_directory_of_a_topic_deleted_meanwhile_is_removed_with_its_temporaries() -> None:
    fs, fold = SimFs(), SimFold(0)
    async with sim_store(fs, fold.kill()) as link:
        await log_topic(link)
        await link.delete_topic("log")
    put_file(fs, TOPIC / "seg-0000000000000000-0000000000000000-00000001.arrow.tmp")
    async with sim_store(fs, fold.kill()):
        pass
    assert not fs.exists(TOPIC)
    assert not fs.exists(Path("/data/orphans"))


@pytest.mark.parametrize("whole", [False, True])
async def test_missing_named_file_refuses_the_start_and_changes_nothing(whole: bool) -> None:
    fs, fold = SimFs(), SimFold(0)
    segment, kept = await sealed(fs, fold)
    moved = segment.parent if whole else segment
    fs.rename(moved, Path("/elsewhere"))
    put_file(fs, Path("/data/topics/notes"))
    with pytest.raises(DataCorrupt, match="is missing, and the catalog or the log names it") as refused:
        async with sim_store(fs, fold.kill()):
            pass
    assert refused.value.metadata["file"] == str(segment)
    assert fs.exists(Path("/data/topics/notes"))
    fs.rename(Path("/elsewhere"), moved)
    async with sim_store(fs, fold.kill()) as link:
        assert await kept_in(link) == kept


@pytest.mark.parametrize("name", ["README", "topics.bak", "core.1234"])
async def test_foreign_file_at_the_top_refuses_the_start_before_any_write(name: str) -> None:
    fs = SimFs()
    put_file(fs, Path("/data") / name)
    with pytest.raises(ForeignFile, match="move it out of the data directory"):
        async with sim_store(fs):
            pass
    assert fs.listdir(Path("/data")) == [name]


@pytest.mark.parametrize("name", ["lost+found", ".snapshot", ".nfs0001"])
async def test_files_that_file_systems_make_at_the_top_are_ignored(name: str) -> None:
    fs = SimFs()
    put_file(fs, Path("/data") / name)
    async with sim_store(fs):
        assert fs.exists(Path("/data") / name)
    assert not fs.exists(Path("/data/orphans"))


@pytest.mark.crash
async def test_every_crash_while_setting_aside_ends_in_the_same_state() -> None:
    disk, fold = SimFs(), SimFold(0)
    segment, kept = await sealed(disk, fold)
    disk.rename(segment, segment.with_name(segment.name + ".tmp"))
    disk.fsync_dir(segment.parent)
    for name in ("notes", "seg-0000000000000000-0000000000000000-00000009.arrow.tmp"):
        put_file(disk, TOPIC / name)
    whole = disk.reboot("kill")
    async with sim_store(whole, fold.kill()):
        calls = whole.calls
    for crash_at in range(1, calls + 1):
        for crash in ("kill", "power"):
            fs = disk.reboot("kill", seed=crash_at, crash_at=crash_at)
            with pytest.raises(Crashed):
                async with sim_store(fs, fold.kill()):
                    raise AssertionError("it must not come so far")
            fs = fs.reboot("power" if crash == "power" else "kill")
            async with sim_store(fs, fold.kill()) as link:
                assert await kept_in(link) == kept
            (day,) = fs.listdir(Path("/data/orphans"))
            aside = Path("/data/orphans") / day / "topics" / TOPIC.name
            # A power loss between the two halves of a move leaves both names, so it is moved once more.
            assert {content_of(fs, aside / name) for name in fs.listdir(aside)} == {b"foreign"}
            assert fs.listdir(TOPIC) == [segment.name]
