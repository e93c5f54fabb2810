"""Files of the fold's RocksDB: opening them with a profile's options, and finding the tables of a range.

Threading: none of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
)

from eddyline.core.errors import DataCorrupt
from eddyline.store.fold import rocksdb_options as sizes

if TYPE_CHECKING:
    from pathlib import Path


CHECKED_BYTES: Final = 64 << 20
"""Up to this size of all tables a store reads the whole fold at a start: 0.5 s. A larger fold is checked as it is read."""
DAMAGED: Final = "DAMAGED"
"""An empty marker file in RocksDB's directory: a checksum was wrong on a read. RocksDB ignores unknown files."""
FILE_MISSING: Final = "No such file or directory"
"""RocksDB's text for an open that misses one of its files. (A missing table is "Corruption" in its texts.)"""
_ROOT: Final = "CURRENT"


class Database(NamedTuple):
    """Open handles, which keep the directory locked."""

    root: Rdict
    data: Rdict
    meta: Rdict
    data_family: ColumnFamily
    meta_family: ColumnFamily


def check_whole(path: Path) -> None:
    """Check the file names in a fold's directory, which need not exist.

    Raises:
        DataCorrupt: damage was found before, or a file is missing without which RocksDB would create a new database over
            the tables of the old one, and remove them.
    """
    names = {file.name for file in path.iterdir()} if path.exists() else set[str]()
    if DAMAGED in names:
        raise DataCorrupt("fold: it is marked as damaged", file="fold", offset=0)
    if _ROOT not in names and any(name.endswith(".sst") or name.startswith("MANIFEST") for name in names):
        raise DataCorrupt(f"fold: its file {_ROOT} is missing", file="fold", offset=0)


def open_database(path: Path, profile: sizes.Profile, *, read_only: bool = False) -> Database:
    cache = Cache.new_hyper_clock_cache(profile.cache_bytes, sizes.BLOCK_BYTES)
    families = {
        "data": family_options(profile, cache, profile.memtable_bytes),
        "meta": family_options(profile, cache, profile.meta_memtable_bytes),
    }
    access = AccessType.read_only(False) if read_only else AccessType.read_write()
    root = Rdict(str(path), _root_options(profile), families, access_type=access)
    return Database(
        root,
        root.get_column_family("data"),
        root.get_column_family("meta"),
        root.get_column_family_handle("data"),
        root.get_column_family_handle("meta"),
    )


def _root_options(profile: sizes.Profile) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # A torn tail of RocksDB's WAL ends the replay there: some prefix of the batches, which is the contract.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_max_total_wal_size(profile.wal_bytes_max)
    options.set_max_background_jobs(profile.background_jobs)
    options.set_max_open_files(profile.open_files_max)
    options.set_bytes_per_sync(sizes.BYTES_PER_SYNC)
    options.set_keep_log_file_num(sizes.FILE_LOG_COUNT)
    options.set_max_log_file_size(sizes.FILE_LOG_BYTES)
    options.set_max_manifest_file_size(sizes.MANIFEST_BYTES)
    return options


def family_options(profile: sizes.Profile, cache: Cache | None, memtable_bytes: int) -> Options:
    """Options of a family, or of tables written outside the database and ingested later: without a cache, and 0 bytes
    of memtable."""
    blocks = BlockBasedOptions()
    if cache is not None:
        blocks.set_block_cache(cache)
    blocks.set_block_size(sizes.BLOCK_BYTES)
    blocks.set_metadata_block_size(sizes.METADATA_BLOCK_BYTES)
    blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
    blocks.set_partition_filters(True)
    blocks.set_bloom_filter(sizes.BLOOM_BITS, False)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_top_level_index_and_filter(True)
    blocks.set_format_version(sizes.FORMAT_VERSION)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    if memtable_bytes:
        options.set_write_buffer_size(memtable_bytes)
    options.set_max_write_buffer_number(profile.memtable_count)
    options.set_target_file_size_base(profile.target_file_bytes)
    options.set_max_bytes_for_level_base(profile.level_base_bytes)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    return options


def table_bytes(database: Database) -> int:
    """Return the bytes of all live tables."""
    return sum(table["size"] for table in database.root.live_files())


def live_tables(database: Database) -> set[str]:
    return {table["name"].lstrip("/") for table in database.root.live_files()}


def tables_within(database: Database, begin: bytes, end: bytes) -> set[str]:
    """Return the live tables whose first or last key is between the two, exclusive: another topic's tombstone ends at
    `begin`.

    A table that spans the range may have no key in it, and then no compaction of the range rewrites it.
    """
    return {
        table["name"].lstrip("/")
        for table in database.root.live_files()
        if any(begin < key and (not end or key < end) for key in (table["start_key"], table["end_key"]))
    }


def error_count(database: Database) -> int:
    """Return how many flushes and compactions have failed since the database was opened."""
    return database.root.property_int_value("rocksdb.background-errors") or 0
