"""The catalog on RocksDB: a database of its own, one write batch and one sync for each checkpoint. Keys and values:
`codec.py`.

RocksDB appends a batch to its WAL, and `flush_wal(True)` makes it durable: a synced write would hold the GIL through the
sync, and block the whole process. A torn tail is a batch that no sync covered, and is dropped. Damage within RocksDB's WAL
also drops everything after it: that leaves an older catalog, which the checkpoint marks in the log detect.
Its memtable is small and its cache smaller: a checkpoint writes the changes, and a start reads everything once. RocksDB's
defaults are in brackets.

`eddyline.store.fold.rocksdb` describes the binding; in addition: a read-only open creates a missing directory, so the code
checks first, and writes only the binding's own `rocksdict-config.json`, with the same bytes.
Threading: see `catalog.py`.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from eddyline.core.errors import CatalogLost, DataCorrupt
from eddyline.core.runtime.fs import RealFs, is_shortage_text
from eddyline.store.catalog.catalog import CatalogFailed
from eddyline.store.catalog.codec import HEAD_KEY, decode_head
from eddyline.store.catalog.diff import CatalogDiff, KeyValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from eddyline.store.catalog.catalog import CatalogHead, TopicEntry
    from eddyline.store.catalog.diff import KeyChanges

MEMTABLE_BYTES: Final = 8 << 20
"""[64 MiB] A checkpoint of 1 000 changed topics is half a megabyte, so every 16th causes a flush. A larger batch still
goes into one memtable. Also the bytes that an open must replay, in a tenth of a second."""
MEMTABLE_COUNT: Final = 4
"""[2] So a checkpoint after a very large one does not wait for its flush."""
CACHE_BYTES: Final = 4 << 20
"""[32 MiB] Index blocks; each value is read once at each start."""
READAHEAD_BYTES: Final = 1 << 20
"""[grows from 8 to 256 KiB] The start reads everything once, in order."""
BACKGROUND_JOBS: Final = 2
OPEN_FILES_MAX: Final = 64
FILE_LOG_COUNT: Final = 4
FILE_LOG_BYTES: Final = 1 << 20
"""[1 000 files, no bound] RocksDB's own text log, which would grow without end."""
STALLED_TRIES_MAX: Final = 3
"""Attempts of a write that RocksDB has no room for; each but the first follows a flush, which waits for the room with
the GIL released."""


class RocksCatalog:
    """`eddyline.store.catalog.catalog.Catalog` in a RocksDB directory."""

    def __init__(self, path: Path, *, must_exist: bool = False, read_only: bool = False) -> None:
        """Open the catalog at `path`, or create it durably; its parent exists. A read-only open requires an existing
        catalog.

        Raises:
            CatalogLost: `must_exist`, and the catalog is missing or was never written. DataCorrupt: it is damaged.
            CatalogFailed: it is locked, or cannot be read.
        """
        self._path = path
        self._diff = CatalogDiff(str(path))
        self._is_short = False
        self._write_options = WriteOptions()
        # A stalled write fails at once; by default it would sleep with the GIL held.
        self._write_options.no_slowdown = True
        must_exist = must_exist or read_only
        if must_exist and not (path / "CURRENT").exists():
            raise _lost(path, "is missing")
        with self._translated():
            access = AccessType.read_only(False) if read_only else AccessType.read_write()
            self._database: Rdict | None = Rdict(str(path), _options(), access_type=access)
        if must_exist and self._head() is None:
            self.close()
            raise _lost(path, "is empty")
        if not read_only:
            # RocksDB syncs its own directory but not that directory's name; a crash may have come between the two.
            RealFs().fsync_dir(path.parent)

    def load(self) -> tuple[CatalogHead | None, Iterator[TopicEntry]]:
        head = self._head()
        return (None if head is None else decode_head(head, str(self._path))), self._diff.read(self._stored())

    def write(self, head: CatalogHead, changed: Sequence[TopicEntry], removed: Sequence[int]) -> None:
        self._reopen_after_shortage()
        database = self._require_open()
        changes = self._diff.changes(head, changed, removed)
        try:
            with self._translated():
                self._write(database, changes)
                database.flush_wal(True)
        except (DataCorrupt, CatalogFailed) as error:
            self._is_short = is_shortage_text(str(error))
            with suppress(CatalogFailed):
                self.close()
            raise CatalogFailed(str(error)) from error
        self._diff.commit(changes)

    def _reopen_after_shortage(self) -> None:
        """Reopen after a write that failed for lack of descriptors or memory: the next checkpoint repeats it, on the
        stored state, which may include it."""
        if not self._is_short:
            return
        with suppress(CatalogFailed):
            self.close()
        with self._translated():
            self._database = Rdict(str(self._path), _options(), access_type=AccessType.read_write())
        self._diff = CatalogDiff(str(self._path))
        for _ in self.load()[1]:
            pass  # reading makes the diff match the stored keys
        self._is_short = False

    def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            with self._translated():
                database.close()

    def _head(self) -> bytes | None:
        with self._translated():
            values = self._require_open().get([HEAD_KEY])
        assert values is not None, "a list of keys returns a list"
        head: bytes | None = values[0]
        return head

    def _stored(self) -> Iterator[KeyValue]:
        """Yield every key, as of the first step; an unfinished iterator keeps the directory locked until it is dropped."""
        options = ReadOptions()
        options.set_readahead_size(READAHEAD_BYTES)
        with self._translated():
            iterator = self._require_open().iter(options)
            iterator.seek_to_first()
            while iterator.valid():
                yield KeyValue(iterator.key(), iterator.value())
                iterator.next()
            iterator.status()

    def _write(self, database: Rdict, changes: KeyChanges) -> None:
        for tries_left in reversed(range(STALLED_TRIES_MAX)):
            # A refused batch is consumed: each attempt builds its own.
            batch = WriteBatch(raw_mode=True)
            for key, value in changes.puts:
                batch.put(key, value)
            for key in changes.deletes:
                batch.delete(key)
            try:
                database.write(batch, self._write_options)
            except Exception as error:
                if "Write stall" not in str(error) or not tries_left:
                    raise
                database.flush(True)
            else:
                return

    def _require_open(self) -> Rdict:
        if self._database is None:
            raise CatalogFailed(f"the catalog {self._path} is closed")
        return self._database

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate the binding's errors. It raises bare `Exception`s, so only the exact type distinguishes them."""
        try:
            yield
        except Exception as error:
            if type(error) is not Exception and type(error).__module__ != "rocksdict":
                raise
            message = str(error)
            if message.startswith("Corruption"):
                raise DataCorrupt(f"{self._path}: {message}", file=str(self._path), offset=0) from error
            raise CatalogFailed(f"{self._path}: {message}") from error


def open_read_only(path: Path) -> RocksCatalog:
    """Open the catalog for reading without a lock, so a store may be running. A write raises `CatalogFailed`.

    Raises:
        CatalogLost: it is missing or was never written. DataCorrupt: it is damaged. CatalogFailed.
    """
    return RocksCatalog(path, read_only=True)


def _lost(path: Path, how: str) -> CatalogLost:
    return CatalogLost(
        f"the catalog {path} {how}. Nothing was changed; put back this directory's catalog, or restore "
        "the directory from a copy",
        path=str(path),
    )


def _options() -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(CACHE_BYTES))
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    # A torn tail of RocksDB's WAL ends the replay there: it is a batch that no sync covered.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_write_buffer_size(MEMTABLE_BYTES)
    options.set_max_write_buffer_number(MEMTABLE_COUNT)
    options.set_max_background_jobs(BACKGROUND_JOBS)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_keep_log_file_num(FILE_LOG_COUNT)
    options.set_max_log_file_size(FILE_LOG_BYTES)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    return options
