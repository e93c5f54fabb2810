"""RocksDB table files (SST) outside of a database: an ordered dump written, and read back.

Tables that a fold will ingest have the fold's keys: topic id, key. Those of an artifact have the key alone, so that any
topic of any store can import them.

I1: keys ascend through all tables of one dump. I2: reads verify every block; a damaged table raises an error.
I3: memory is that of one table's index and filters and of one block.
Threading: one thread at a time; blocking. Writing and reading hold the GIL, an entry at a time.
Rejected: reading a table directly (the binding has no reader; hence a temporary database that ingests it).
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
)

from eddyline.store.fold.rocksdb_options import BLOCK_BYTES
from eddyline.store.fold.rocksdb_view import EntryLists, scan_of, translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TABLE_BYTES_MAX: Final = 64 << 20
"""Size at which a table ends: the bytes that an upload repeats after a failure, and that a check reads before it
reports."""
READ_ENTRIES: Final = 1024
READ_BYTES: Final = 1 << 20
"""Bytes read at a time: as a dump's batch."""


CACHE_BYTES: Final = 4 << 20
"""[32 MiB in RocksDB] A single ordered read needs no cache except for the index."""


class RocksTables:
    """Writes a dump as tables `000000.sst`, `000001.sst`, … of an existing directory; no table without entries."""

    def __init__(
        self, directory: Path, options: Options, *, prefix: bytes = b"", bytes_max: int = TABLE_BYTES_MAX
    ) -> None:
        self.paths: list[str] = []
        self._directory = directory
        self._options = options
        self._prefix = prefix
        self._bytes_max = bytes_max
        self._writer: SstFileWriter | None = None

    def add(self, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        prefix = self._prefix
        with translated(_ignore_damage):
            for key, value in entries:
                assert value is not None, "a dump has live entries only"
                self._open()[prefix + key] = value
            if self._writer is not None and self._writer.file_size() >= self._bytes_max:
                self.finish()

    def finish(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with translated(_ignore_damage):
                writer.finish()  # it syncs the file

    def _open(self) -> SstFileWriter:
        if self._writer is None:
            path = str(self._directory / f"{len(self.paths):06}.sst")
            self._writer = SstFileWriter(self._options)
            self._writer.open(path)
            self.paths.append(path)
        return self._writer


def artifact_tables(directory: Path, *, bytes_max: int = TABLE_BYTES_MAX) -> RocksTables:
    """Return a writer of an artifact's tables, which are read once and in order: ZSTD, no filters."""
    return RocksTables(directory, _plain_options(), bytes_max=bytes_max)


def read_tables(paths: Sequence[Path], scratch: Path) -> Iterator[EntryLists]:
    """Yield all entries of an artifact's tables in key order. `scratch` does not exist, is on the same disk, and is
    removed at the end; the tables stay in place.

    Raises:
        DataCorrupt: a table is damaged, or no table. FoldFailed: of the disk.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    links = scratch / "links"
    links.mkdir(parents=True)
    try:
        names = [links / path.name for path in paths]
        for path, name in zip(paths, names, strict=True):
            os.link(path, name)
        yield from _read(scratch / "tables", [str(name) for name in names])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def move_options() -> IngestExternalFileOptions:
    """Return options that move tables instead of copying them; open views do not see them."""
    options = IngestExternalFileOptions()
    options.set_move_files(True)
    options.set_snapshot_consistency(True)
    return options


def _read(database_path: Path, names: Sequence[str]) -> Iterator[EntryLists]:
    database: Rdict | None = None
    try:
        with translated(_ignore_damage):
            database = Rdict(str(database_path), _plain_options())
            if names:
                database.ingest_external_file(list(names), move_options())
            with closing(scan_of(database, b"", b"")) as scan:
                last_key: bytes | None = None
                while entries := _next_entries(scan.items):
                    last_key = entries.keys[-1]
                    yield entries
                scan.check_end(last_key)
    finally:
        if database is not None:
            database.close()


def _next_entries(items: Iterator[tuple[bytes, bytes]]) -> EntryLists | None:
    keys, values = list[bytes](), list[bytes]()
    bytes_left = READ_BYTES
    for key, value in islice(items, READ_ENTRIES):
        keys.append(key)
        values.append(value)
        bytes_left -= len(key) + len(value)
        if bytes_left <= 0:
            break
    return EntryLists(keys, values) if keys else None


def _plain_options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.zstd())
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache.new_hyper_clock_cache(CACHE_BYTES, BLOCK_BYTES))
    blocks.set_block_size(BLOCK_BYTES)
    options.set_block_based_table_factory(blocks)
    return options


def _ignore_damage() -> None:
    """Ignore damage: this database is temporary."""
