"""Properties of rocksdict and RocksDB on which the fold relies, each learned by experiment. Run at every upgrade."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

import pytest
from rocksdict import (
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    CompactOptions,
    IngestExternalFileOptions,
    Options,
    Rdict,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
    WriteOptions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rocksdict import RdictIter


def open_database(path: Path, family: Options | None = None) -> Rdict:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    return Rdict(str(path), options, {"data": family or Options(raw_mode=True), "meta": Options(raw_mode=True)})


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Rdict]:
    database = open_database(tmp_path / "db")
    yield database
    database.close()


def keys_from(iterator: RdictIter, first: bytes = b"") -> list[bytes]:
    iterator.seek(first)
    keys = []
    while iterator.valid():
        keys.append(iterator.key())
        iterator.next()
    iterator.status()
    return keys


def put(root: Rdict, family: str, *keys: bytes) -> None:
    batch = WriteBatch(raw_mode=True)
    for key in keys:
        batch.put(key, b"value of " + key, root.get_column_family_handle(family))
    root.write(batch)


def test_write_batch_spans_families_and_keeps_its_order(root: Rdict) -> None:
    batch = WriteBatch(raw_mode=True)
    batch.set_default_column_family(root.get_column_family_handle("data"))
    batch.put(b"a", b"1")
    batch.put(b"b", b"1")
    batch.delete(b"a")
    batch.put(b"a", b"2", root.get_column_family_handle("meta"))
    batch.put(b"b", b"2")
    root.write(batch)
    assert root.get_column_family("data").get([b"a", b"b"]) == [None, b"2"]
    assert root.get_column_family("meta").get([b"a", b"b"]) == [b"2", None]
    assert root.get([b"a", b"b"]) == [None, None]


def test_batch_with_a_wrong_operation_is_not_written_at_all(root: Rdict, tmp_path: Path) -> None:
    other = open_database(tmp_path / "other")
    batch = WriteBatch(raw_mode=True)
    batch.put(b"a", b"1", root.get_column_family_handle("data"))
    root.drop_column_family("meta")
    with pytest.raises(Exception, match="meta"):
        batch.put(b"a", b"1", root.get_column_family_handle("meta"))
    other.close()
    assert root.get_column_family("data").get([b"a"]) == [None]


def test_list_get_is_positional(root: Rdict) -> None:
    put(root, "data", b"a", b"b")
    data = root.get_column_family("data")
    assert data.get([b"b", b"none", b"a", b"b"]) == [b"value of b", None, b"value of a", b"value of b"]
    assert data.get([]) == []


def test_only_bytes_are_accepted(root: Rdict) -> None:
    batch = WriteBatch(raw_mode=True)
    for wrong in (bytearray(b"a"), memoryview(b"a"), "a"):
        with pytest.raises(Exception, match="bytes"):
            batch.put(wrong, b"")  # type: ignore[arg-type]
        with pytest.raises(Exception, match="bytes"):
            batch.put(b"a", wrong)


def test_iterator_shows_the_moment_of_its_creation_not_of_its_seek(root: Rdict) -> None:
    put(root, "data", b"a", b"b")
    data = root.get_column_family("data")
    iterator = data.iter()
    put(root, "data", b"c")
    data.flush(True)
    assert keys_from(iterator) == [b"a", b"b"]
    assert keys_from(data.iter()) == [b"a", b"b", b"c"]


def test_items_show_the_moment_of_their_creation_and_respect_a_bound(root: Rdict) -> None:
    put(root, "data", b"a", b"b")
    data, options = root.get_column_family("data"), ReadOptions()
    options.set_iterate_upper_bound(b"b")
    items, bounded = data.items(from_key=b"a"), data.items(from_key=b"", read_opt=options)
    put(root, "data", b"aa")
    assert [key for key, _ in items] == [b"a", b"b"]
    assert [key for key, _ in bounded] == [b"a"]


def test_iterator_outlives_a_delete_range_and_a_compaction(root: Rdict) -> None:
    put(root, "data", b"a", b"b")
    data = root.get_column_family("data")
    iterator = data.iter()
    batch = WriteBatch(raw_mode=True)
    batch.delete_range(b"a", b"z", root.get_column_family_handle("data"))
    root.write(batch)
    data.flush(True)
    data.compact_range(None, None)
    assert keys_from(iterator) == [b"a", b"b"]
    assert keys_from(data.iter()) == []


def test_snapshot_iterators_still_show_live_data(root: Rdict) -> None:
    """If this fails, the bug is fixed, and views may use snapshots."""
    put(root, "data", b"a")
    data = root.get_column_family("data")
    snapshot = data.snapshot()
    put(root, "data", b"b")
    assert list(snapshot.keys()) == [b"a", b"b"]
    assert snapshot[b"a"] == b"value of a"
    with pytest.raises(Exception, match="not found"):
        snapshot[b"b"]
    del snapshot


def test_delete_range_is_half_open_and_of_one_family(root: Rdict) -> None:
    put(root, "data", b"a", b"b", b"c")
    put(root, "meta", b"b")
    batch = WriteBatch(raw_mode=True)
    batch.delete_range(b"b", b"c", root.get_column_family_handle("data"))
    root.write(batch)
    assert keys_from(root.get_column_family("data").iter()) == [b"a", b"c"]
    assert keys_from(root.get_column_family("meta").iter()) == [b"b"]


def test_upper_bound_holds_while_its_options_live(root: Rdict) -> None:
    """Without its options an iterator reads freed memory: `Scan` keeps both."""
    put(root, "data", b"\x00a", b"\x00b", b"\x01")
    options = ReadOptions()
    options.set_iterate_upper_bound(b"\x00b")
    iterator = root.get_column_family("data").iter(options)
    assert keys_from(iterator) == [b"\x00a"]


def test_iterator_is_used_on_another_thread(root: Rdict) -> None:
    put(root, "data", b"a", b"b")
    iterator, keys = root.get_column_family("data").iter(), list[bytes]()
    thread = threading.Thread(target=lambda: keys.extend(keys_from(iterator)))
    thread.start()
    thread.join()
    assert keys == [b"a", b"b"]


def test_directory_stays_locked_while_an_iterator_lives(tmp_path: Path) -> None:
    database = open_database(tmp_path / "db")
    put(database, "data", b"a")
    iterator = database.get_column_family("data").iter()
    database.close()
    with pytest.raises(Exception, match="lock"):
        open_database(tmp_path / "db")
    del iterator
    open_database(tmp_path / "db").close()


def test_no_slowdown_refuses_a_write_that_would_stall_and_applies_nothing(tmp_path: Path) -> None:
    family = Options(raw_mode=True)
    family.set_write_buffer_size(64 << 10)
    database = open_database(tmp_path / "db", family)
    data, handle = database.get_column_family("data"), database.get_column_family_handle("data")
    options = WriteOptions()
    options.no_slowdown = True

    def write(number: int) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        batch.put(b"first of %d" % number, bytes(16 << 10), handle)
        batch.put(b"second of %d" % number, bytes(16 << 10), handle)
        database.write(batch, options)
        return batch

    refused = -1
    with pytest.raises(Exception, match="Result incomplete: Write stall"):
        for number in range(100_000):
            refused = number
            write(number)
    assert data.get([b"first of %d" % refused, b"second of %d" % refused]) == [None, None]
    data.flush(True)
    batch = write(refused)
    assert data.get([b"first of %d" % refused, b"second of %d" % refused]) == [bytes(16 << 10)] * 2
    with pytest.raises(Exception, match="consumed"):
        database.write(batch, options)
    database.close()


def test_damaged_block_ends_an_iterator_silently_and_only_its_status_reports_it(tmp_path: Path) -> None:
    damage_a_table(tmp_path / "db", open_database)
    database = open_database(tmp_path / "db")
    data = database.get_column_family("data")
    assert len(list(data.keys())) < 5_000
    with pytest.raises(Exception, match=r"^Corruption"):
        keys_from(data.iter())
    with pytest.raises(Exception, match=r"^Corruption"):
        data.get([b"%06d" % i for i in range(5_000)])
    del data
    database.close()


def test_damaged_block_ends_items_silently_and_a_second_iterator_reports_it(tmp_path: Path) -> None:
    damage_a_table(tmp_path / "db", open_database)
    database = open_database(tmp_path / "db")
    data = database.get_column_family("data")
    keys = [key for key, _ in data.items(from_key=b"")]
    assert 0 < len(keys) < 5_000
    iterator = data.iter()
    last_key = keys[-1]
    assert isinstance(last_key, bytes)
    iterator.seek(last_key + b"\0")
    assert not iterator.valid()
    with pytest.raises(Exception, match=r"^Corruption"):
        iterator.status()
    del data, iterator
    database.close()


def test_forced_compaction_rewrites_the_bottom_tables_of_a_range_only(root: Rdict) -> None:
    data = root.get_column_family("data")
    for keys in ((b"a", b"b"), (b"m", b"n")):
        put(root, "data", *keys)
        data.flush(True)
    options = CompactOptions()
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
    data.compact_range(b"", b"z", options)
    put(root, "data", b"p")
    data.flush(True)
    before = {table["start_key"]: table["name"] for table in root.live_files()}
    data.compact_range(b"a", b"c", options)
    after = {table["start_key"]: table["name"] for table in root.live_files()}
    assert before.keys() == after.keys()
    assert before[b"a"] != after[b"a"]
    assert before[b"p"] == after[b"p"]


def damage_a_table(path: Path, opened: Callable[[Path], Rdict]) -> None:
    """Fill a database's data family, flush it, and overwrite the middle of the table."""
    database = opened(path)
    put(database, "data", *(b"%06d" % i for i in range(5_000)))
    database.get_column_family("data").flush(True)
    database.close()
    (table,) = path.glob("*.sst")
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 2)
        file.write(b"\xff" * 64)


def _table(path: Path, *keys: bytes) -> None:
    writer = SstFileWriter(Options(raw_mode=True))
    writer.open(str(path))
    for key in keys:
        writer[key] = b"of the table"
    writer.finish()


def _moved() -> IngestExternalFileOptions:
    options = IngestExternalFileOptions()
    options.set_move_files(True)
    options.set_snapshot_consistency(True)
    return options


def test_ingested_table_is_moved_invisible_to_open_iterators_and_survives_a_kill(root: Rdict, tmp_path: Path) -> None:
    put(root, "data", b"a", b"c")
    data = root.get_column_family("data")
    data.delete_range(b"a", b"b")
    before = data.iter()
    _table(tmp_path / "t.sst", b"a", b"b")
    data.ingest_external_file([str(tmp_path / "t.sst")], _moved())
    assert not (tmp_path / "t.sst").exists()
    assert keys_from(before) == [b"c"]
    assert keys_from(data.iter()) == [b"a", b"b", b"c"]
    copied = shutil.copytree(tmp_path / "db", tmp_path / "killed")
    again = open_database(copied)
    try:
        assert keys_from(again.get_column_family("data").iter()) == [b"a", b"b", b"c"]
    finally:
        again.close()


def test_table_writer_requires_ascending_keys_and_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="ascending"):
        _table(tmp_path / "1.sst", b"b", b"a")
    with pytest.raises(Exception, match="no entries"):
        _table(tmp_path / "2.sst")


def test_damaged_table_is_not_ingested(root: Rdict, tmp_path: Path) -> None:
    _table(tmp_path / "t.sst", b"a", b"b")
    encoded = bytearray((tmp_path / "t.sst").read_bytes())
    encoded[-1] ^= 1
    (tmp_path / "t.sst").write_bytes(encoded)
    with pytest.raises(Exception, match="Corruption"):
        root.ingest_external_file([str(tmp_path / "t.sst")], _moved())


def test_key_may_exist_with_a_value_reads_memory_alone(tmp_path: Path) -> None:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(1 << 20))
    family = Options(raw_mode=True)
    family.set_block_based_table_factory(blocks)
    root = open_database(tmp_path / "db", family)
    put(root, "data", b"a", b"b")
    assert root.get_column_family("data").key_may_exist(b"a", True) == (True, b"value of a")
    root.get_column_family("data").flush(True)
    root.close()
    root = open_database(tmp_path / "db", family)
    data = root.get_column_family("data")
    assert data.key_may_exist(b"a", True) == (True, None)
    assert data.key_may_exist(b"a", True) == (True, None)
    assert data.get(b"a") == b"value of a"
    assert data.key_may_exist(b"a", True) == (True, b"value of a")
    assert data.key_may_exist(b"none", True) == (False, None)
    del data
    root.close()
