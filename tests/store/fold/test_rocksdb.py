"""The fold on RocksDB in its differences from the one in memory: a killed process, a stall, damage, locks, threads."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import DataCorrupt
from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.record import Op, Record
from eddyline.store.fold.fold import FoldFailed, FoldStalled, FoldWrite, WriterState
from eddyline.store.fold.rocksdb import RocksFold
from eddyline.store.fold.rocksdb_files import CHECKED_BYTES
from eddyline.store.fold.rocksdb_options import PROFILES, Profile
from tests.support.storage import fold_writer
from tests.support.storage.killed_writer import killed_writer

if TYPE_CHECKING:
    from eddyline.store.fold.fold import Fold
    from eddyline.store.fold.rocksdb_options import ProfileName

ACKS_BEFORE_KILL = (1, 50, 173, 300)


def all_rows(fold: Fold, topic_id: int, page_rows: int = 512) -> list[Record]:
    view = fold.view(topic_id)
    rows: list[Record] = []
    while page := view.next_page(page_rows, 1 << 20):
        rows.extend(page)
    view.close()
    return rows


def fill(fold: Fold, count: int, data: bytes = b"") -> None:
    entries: list[tuple[bytes, bytes | None]] = [
        (b"%06d" % i, encode_entry(Record(i + 1, 1, 0, Op.PUT, b"", data or os.urandom(100)))) for i in range(count)
    ]
    fold.apply([FoldWrite(1, count, entries, [])])


def test_killed_process_leaves_complete_steps_and_every_acknowledged_one(tmp_path: Path) -> None:
    path = tmp_path / "fold"
    for acks in ACKS_BEFORE_KILL:
        acknowledged = killed_writer(fold_writer, path, acks)
        fold = RocksFold(path)
        applied = fold.applied(1)
        assert applied >= acknowledged
        assert applied % fold_writer.FRAME == 0
        for topic_id in fold_writer.TOPICS:
            assert fold.applied(topic_id) == applied
            assert fold.writers(topic_id) == {"writer": WriterState(1, b"%d" % applied)}
            rows = all_rows(fold, topic_id)
            assert {row.key: row.data for row in rows} == fold_writer.live_at(applied)
        fold.close()


def test_stalled_write_raises_and_applies_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Profile(
        memtable_bytes=64 << 10,
        memtable_count=2,
        meta_memtable_bytes=64 << 10,
        wal_bytes_max=64 << 20,
        cache_bytes=8 << 20,
        target_file_bytes=1 << 20,
        level_base_bytes=1 << 20,
        background_jobs=2,
        open_files_max=64,
    )
    monkeypatch.setitem(PROFILES, "small", tiny)
    fold = RocksFold(tmp_path / "fold")
    value = encode_entry(Record(1, 1, 0, Op.PUT, b"", bytes(16 << 10)))
    applied = 0
    with pytest.raises(FoldStalled):
        for seq in range(1, 100_000):
            fold.apply([FoldWrite(1, seq, [(b"%d" % seq, value)], [("w", WriterState(1, b"%d" % seq))])])
            applied = seq
    assert fold.applied(1) == applied
    assert fold.writers(1) == {"w": WriterState(1, b"%d" % applied)}
    assert fold.get(1, [b"%d" % (applied + 1)]) == [None]
    fold.flush()
    fold.apply([FoldWrite(1, applied + 1, [(b"%d" % (applied + 1), value)], [])])
    assert fold.get(1, [b"%d" % (applied + 1)]) != [None]
    fold.close()


def damage(path: Path) -> None:
    """Overwrite the middle of the largest table."""
    table = max(path.glob("*.sst"), key=lambda path: path.stat().st_size)
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 2)
        file.write(b"\xff" * 64)


def write_tables(path: Path) -> None:
    """Write a fold of 5000 keys, all in tables, and close it."""
    fold = RocksFold(path)
    fill(fold, 5_000)
    fold.flush()
    fold.close()


def test_damaged_table_raises_in_gets_and_views(tmp_path: Path) -> None:
    write_tables(tmp_path)
    damage(tmp_path)
    fold = RocksFold(tmp_path)
    with pytest.raises(DataCorrupt):
        all_rows(fold, 1)
    with pytest.raises(DataCorrupt):
        fold.get(1, [b"%06d" % i for i in range(5_000)])
    fold.close()


def test_read_from_memory_reads_no_table(tmp_path: Path) -> None:
    fold = RocksFold(tmp_path / "fold")
    fill(fold, 2_000)
    keys = [b"%06d" % number for number in range(0, 2_000, 100)]
    bytes_max = 1 << 20
    assert fold.get_cached(1, keys, bytes_max) == fold.get_stored(1, keys)
    fold.flush()
    fold.close()
    fold = RocksFold(tmp_path / "fold")
    assert [fold.get_cached(1, [key], bytes_max) for key in keys] == [None] * len(keys)
    assert fold.get_cached(1, keys, bytes_max) is None
    stored = fold.get_stored(1, keys)
    assert None not in stored
    assert fold.get_cached(1, keys, bytes_max) == stored
    fold.close()


@pytest.mark.parametrize(
    "value", [b"", bytes(60), encode_entry(Record(1, 1, 0, Op.PUT, b"", b"", version=bytes(8)))[:-1]]
)
def test_value_that_is_no_entry_is_damage_in_every_get(tmp_path: Path, value: bytes) -> None:
    fold = RocksFold(tmp_path / "fold")
    fold.apply([FoldWrite(1, 1, [(b"k", value)], [])])
    for get in (fold.get, fold.get_stored, lambda topic_id, keys: fold.get_cached(topic_id, keys, 1 << 20)):
        with pytest.raises(DataCorrupt):
            get(1, [b"k"])
    fold.close()
    with pytest.raises(DataCorrupt):
        RocksFold(tmp_path / "fold")


def test_damage_once_detected_is_reported_at_every_open(tmp_path: Path) -> None:
    write_tables(tmp_path)
    damage(tmp_path)
    fold = RocksFold(tmp_path)
    with pytest.raises(DataCorrupt):
        all_rows(fold, 1)
    fold.close()
    for _ in range(2):
        with pytest.raises(DataCorrupt):
            RocksFold(tmp_path)


def test_checking_open_detects_damage_before_any_read(tmp_path: Path) -> None:
    write_tables(tmp_path)
    RocksFold(tmp_path, checked_bytes=CHECKED_BYTES).close()
    damage(tmp_path)
    with pytest.raises(DataCorrupt):
        RocksFold(tmp_path, checked_bytes=CHECKED_BYTES)


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST", ".sst"])
@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_open_reports_damaged_and_missing_files_and_removes_none(tmp_path: Path, name: str, how: str) -> None:
    path = tmp_path / "fold"
    write_tables(path)
    for file in [file for file in path.iterdir() if name in file.name]:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.unlink()
        if how != "gone":
            file.write_bytes(content[: len(content) // 2] if how == "cut" else content)
    before = {file.name for file in path.iterdir()}
    with pytest.raises(DataCorrupt):
        RocksFold(path, checked_bytes=CHECKED_BYTES)
    assert {file.name for file in path.iterdir()} >= {name for name in before if name != "LOG"}
    # No handle is open: this process can move the directory and create a new fold in its place.
    path.rename(tmp_path / "aside")
    RocksFold(path).close()


def files_with(path: Path, words: bytes) -> list[str]:
    """Names of the fold's files that contain the bytes."""
    return [file.name for file in sorted(path.iterdir()) if file.is_file() and words in file.read_bytes()]


def put(key: bytes, data: bytes) -> tuple[bytes, bytes | None]:
    return key, encode_entry(Record(1, 1, 0, Op.PUT, key, data))


@pytest.mark.parametrize("flushed", [True, False], ids=["in tables", "in the WAL"])
@pytest.mark.parametrize("whole", [True, False], ids=["topic deleted", "keys deleted"])
def test_erased_bytes_are_in_no_file(tmp_path: Path, flushed: bool, whole: bool) -> None:
    fold = RocksFold(tmp_path)
    gone = [put(b"goner-%d" % i, b"secret-%d" % i + os.urandom(50)) for i in range(3)]
    kept = [put(b"keeper-%d" % i, os.urandom(50)) for i in range(3)]
    for topic_id in (6, 7, 8):
        fold.apply([FoldWrite(topic_id, 9, kept if topic_id != 7 else [*gone, *kept], [])])
    if flushed:
        fold.flush()
        fold.apply([FoldWrite(7, 10, [put(b"goner-0", b"secret-again")], [])])
        fold.flush()
    assert files_with(tmp_path, b"secret-")
    fold.apply([FoldWrite(7, 11, [(key, None) for key, _ in gone], [])])
    if whole:
        fold.delete_topic(7)
    assert fold.erase(7)
    for words in (b"secret-", b"goner-"):
        assert files_with(tmp_path, words) == []
    fold.close()
    for words in (b"secret-", b"goner-"):
        assert files_with(tmp_path, words) == []
    fold = RocksFold(tmp_path)
    assert [len(all_rows(fold, topic_id)) for topic_id in (6, 7, 8)] == [3, 0 if whole else 3, 3]
    assert fold.applied(7) == (0 if whole else 11)
    fold.close()


def test_replaced_value_is_erased(tmp_path: Path) -> None:
    fold = RocksFold(tmp_path)
    fold.apply([FoldWrite(1, 1, [put(b"k", b"secret")], [])])
    fold.flush()
    fold.apply([FoldWrite(1, 2, [put(b"k", b"new")], [])])
    assert fold.erase(1)
    assert files_with(tmp_path, b"secret") == []
    assert files_with(tmp_path, b"new") != []
    fold.close()


def test_erase_runs_concurrently_with_the_folds_thread(tmp_path: Path) -> None:
    fold = RocksFold(tmp_path)
    fill(fold, 20_000)
    with ThreadPoolExecutor(1) as thread:
        erasing = thread.submit(fold.erase, 1)
        writes = 0
        while writes == 0 or not erasing.done():
            writes += 1
            fold.apply([FoldWrite(2, writes, [put(b"%d" % writes, b"")], [])])
        assert erasing.result()
    assert len(all_rows(fold, 2)) == fold.applied(2) == writes
    fold.close()


def test_damaged_table_is_not_erased_silently(tmp_path: Path) -> None:
    write_tables(tmp_path)
    damage(tmp_path)
    fold = RocksFold(tmp_path)
    with pytest.raises(FoldFailed):
        fold.erase(1)
    # RocksDB repeats its error at the close.
    with pytest.raises(DataCorrupt):
        fold.close()


def test_open_fold_stays_locked_until_it_is_closed_even_with_open_views(tmp_path: Path) -> None:
    fold = RocksFold(tmp_path)
    fill(fold, 10)
    views = [fold.view(1) for _ in range(3)]
    with pytest.raises(FoldFailed, match="lock"):
        RocksFold(tmp_path)
    fold.close()
    again = RocksFold(tmp_path)
    assert len(all_rows(again, 1)) == 10
    again.close()
    assert len(views) == 3


def test_views_are_paged_on_other_threads_while_the_fold_is_written(tmp_path: Path) -> None:
    fold = RocksFold(tmp_path)
    fill(fold, 2_000, b"old")
    views = [fold.view(1) for _ in range(4)]
    written = threading.Event()

    def read(index: int) -> list[bytes | None]:
        data: list[bytes | None] = []
        while page := views[index].next_page(100, 1 << 20):
            data.extend(row.data for row in page)
            written.wait()
        return data

    with ThreadPoolExecutor(4) as threads:
        reads = [threads.submit(read, index) for index in range(4)]
        fill(fold, 2_000, b"new")
        fold.flush()
        written.set()
        assert [set(result.result()) for result in reads] == [{b"old"}] * 4
    assert {row.data for row in all_rows(fold, 1)} == {b"new"}
    fold.close()


@pytest.mark.parametrize("profile", ["small", "large"])
def test_every_profile_opens_and_serves(tmp_path: Path, profile: ProfileName) -> None:
    fold = RocksFold(tmp_path, profile=profile)
    fill(fold, 1_000)
    fold.flush()
    assert len(all_rows(fold, 1)) == 1_000
    assert fold.get(1, [b"000999"]) != [None]
    fold.close()
