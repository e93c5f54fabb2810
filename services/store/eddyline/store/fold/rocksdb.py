"""The fold on RocksDB: one database for all topics of a store.

    family `data`   topic id u64 big-endian, key                -> entry (`entry.py`)
    family `meta`   topic id u64 big-endian                     -> u64 applied seq, u64 base
                    topic id u64 big-endian, writer id (UTF-8)  -> u64 fence, position (the rest)

Values little-endian; the base is 0 until bases exist, and kept as found. One `apply` is one WriteBatch over both
families: RocksDB's own WAL, unsynced, makes it atomic and gives the prefix after power loss. Deleting a topic is one
range tombstone a family.

What the binding does, held by tests/store/fold/test_binding.py: `write`, point reads and iterator steps hold the GIL,
`get([keys])`, `flush` and `flush_wal` release it; a failed batch is consumed, so each try builds its own; an iterator
shows the database as of its creation, a `Snapshot`'s iterators do not and are not used; an iterator ends silently at a
damaged block, and only its `status` tells; the directory stays locked while an iterator or a family's handle lives, hence
the register of views, which `close` empties first; an iterator does not keep its `ReadOptions`, whose memory holds the
bound it reads, hence `_Scan`. Its errors are plain `Exception`s with RocksDB's words.
Threading: see `fold.py`. A view has a lock, held through a page; nothing is acquired under it.
"""

from __future__ import annotations

from contextlib import contextmanager
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from eddyline.core.errors import DataCorrupt, TooManyScans
from eddyline.store.fold import profile as sizes
from eddyline.store.fold.entry import decode_entry
from eddyline.store.fold.fold import (
    RETRY_AFTER_MS,
    VIEWS_MAX,
    FoldFailed,
    FoldStalled,
    WriterState,
    key_after,
    prefix_end,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from eddyline.core.record import Record
    from eddyline.store.fold.fold import FoldWrite

_TOPIC: Final = Struct(">Q")
_CURSOR: Final = Struct("<QQ")
_FENCE: Final = Struct("<Q")


class _Cursor(NamedTuple):
    applied_seq: int
    base_seq: int


class _Database(NamedTuple):
    """What is held open, and keeps the directory locked while it is."""

    root: Rdict
    data: Rdict
    meta: Rdict
    data_family: ColumnFamily
    meta_family: ColumnFamily


class _Scan(NamedTuple):
    """An iterator, and the options that must live as long: they own the upper bound that it reads."""

    iterator: RdictIter
    options: ReadOptions


class RocksFold:
    """`eddyline.store.fold.fold.Fold` in a directory of its own."""

    def __init__(self, path: Path, *, profile: sizes.ProfileName = "small") -> None:
        """Open, or create, the fold at `path`; what RocksDB's WAL holds is replayed first.

        Raises:
            DataCorrupt: what is there is damaged. FoldFailed: it is locked, or cannot be read.
        """
        self._path = path
        self._views: set[_RocksView] = set()
        self._write_options = WriteOptions()
        # A stalled write fails at once where it would else sleep with the GIL held, and with it the whole process.
        self._write_options.no_slowdown = True
        with _translated():
            self._database: _Database | None = _open(path, sizes.PROFILES[profile])
            self._cursors = _read_cursors(self._database.meta)

    def apply(self, writes: Sequence[FoldWrite]) -> None:
        if not writes:
            return
        database = self._opened()
        batch = WriteBatch(raw_mode=True)
        # A put that names no family is the cheaper one: entries go to the default, the few others name theirs.
        batch.set_default_column_family(database.data_family)
        meta_family = database.meta_family
        cursors: dict[int, _Cursor] = {}
        for topic_id, applied_seq, entries, writers in writes:
            prefix = _TOPIC.pack(topic_id)
            for key, value in entries:
                if value is None:
                    batch.delete(prefix + key)
                else:
                    batch.put(prefix + key, value)
            for writer, state in writers:
                batch.put(prefix + writer.encode(), _FENCE.pack(state.fence) + state.position, meta_family)
            known = self._cursors.get(topic_id)
            cursors[topic_id] = _Cursor(applied_seq, known.base_seq if known else 0)
        for topic_id, cursor in cursors.items():
            batch.put(_TOPIC.pack(topic_id), _CURSOR.pack(*cursor), meta_family)
        self._write(database, batch)
        self._cursors.update(cursors)

    def applied(self, topic_id: int) -> int:
        cursor = self._cursors.get(topic_id)
        return cursor.applied_seq if cursor else 0

    def writers(self, topic_id: int) -> dict[str, WriterState]:
        prefix = _TOPIC.pack(topic_id)
        writers: dict[str, WriterState] = {}
        with _translated():
            scan = _scan(self._opened().meta, prefix + b"\0", prefix_end(prefix))
            iterator = scan.iterator
            while iterator.valid():
                key, value = iterator.key(), iterator.value()
                writers[_writer_id(key)] = WriterState(_unpack(_FENCE, value[: _FENCE.size])[0], value[_FENCE.size :])
                iterator.next()
            iterator.status()
        return writers

    def topics(self) -> dict[int, int]:
        return {topic_id: cursor.applied_seq for topic_id, cursor in self._cursors.items()}

    def get(self, topic_id: int, keys: Sequence[bytes]) -> list[Record | None]:
        prefix = _TOPIC.pack(topic_id)
        with _translated():
            values = self._opened().data.get([prefix + key for key in keys])
        assert values is not None, "a list is asked, a list is given"
        return [None if value is None else decode_entry(key, value) for key, value in zip(keys, values, strict=True)]

    def view(self, topic_id: int, *, key_prefix: bytes = b"", after_key: bytes = b"") -> _RocksView:
        if len(self._views) >= VIEWS_MAX:
            raise TooManyScans(f"{VIEWS_MAX} scans are open", scansMax=VIEWS_MAX, retryAfterMs=RETRY_AFTER_MS)
        prefix = _TOPIC.pack(topic_id)
        with _translated():
            first = prefix + key_after(key_prefix, after_key)
            scan = _scan(self._opened().data, first, prefix_end(prefix + key_prefix))
        # Only the fold's thread adds, and a set's own operations are atomic under the GIL: the register needs no lock.
        view = _RocksView(scan, on_close=self._views.discard)
        self._views.add(view)
        return view

    def delete_topic(self, topic_id: int) -> None:
        database = self._opened()
        if topic_id not in self._cursors:
            return
        begin = _TOPIC.pack(topic_id)
        end = prefix_end(begin)
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(begin, end, database.data_family)
        batch.delete_range(begin, end, database.meta_family)
        self._write(database, batch)
        del self._cursors[topic_id]

    def flush(self) -> None:
        """Sync RocksDB's WAL, which is what makes it durable; then write memtables out, so that the next open replays
        nothing."""
        database = self._opened()
        with _translated():
            database.root.flush_wal(True)
            database.data.flush(True)
            database.meta.flush(True)

    def close(self) -> None:
        for view in tuple(self._views):
            view.close()
        database, self._database = self._database, None
        if database is not None:
            with _translated():
                database.root.close()

    def _opened(self) -> _Database:
        if self._database is None:
            raise FoldFailed(f"the fold {self._path} is closed")
        return self._database

    def _write(self, database: _Database, batch: WriteBatch) -> None:
        try:
            with _translated():
                database.root.write(batch, self._write_options)
        except DataCorrupt as error:
            raise FoldFailed(error.message) from error


class _RocksView:
    """A view: one iterator, and the lock that keeps `close` out of a page."""

    def __init__(self, scan: _Scan, *, on_close: Callable[[_RocksView], None]) -> None:
        self._scan: _Scan | None = scan
        self._on_close = on_close
        self._lock = Lock()

    def next_page(self, entries_max: int, bytes_max: int) -> list[Record]:
        assert entries_max > 0
        rows: list[Record] = []
        with self._lock, _translated():
            scan = self._scan
            if scan is None:
                raise FoldFailed("the view is closed")
            iterator = scan.iterator
            bytes_left = bytes_max
            while iterator.valid() and len(rows) < entries_max:
                key, value = iterator.key()[_TOPIC.size :], iterator.value()
                bytes_left -= len(key) + len(value)
                if bytes_left < 0 and rows:
                    break
                rows.append(decode_entry(key, value))
                iterator.next()
            if not iterator.valid():
                iterator.status()
        return rows

    def close(self) -> None:
        with self._lock:
            self._scan = None
        self._on_close(self)


def _open(path: Path, profile: sizes.Profile) -> _Database:
    cache = Cache.new_hyper_clock_cache(profile.cache_bytes, sizes.BLOCK_BYTES)
    families = {
        "data": _family_options(profile, cache, profile.memtable_bytes),
        "meta": _family_options(profile, cache, profile.meta_memtable_bytes),
    }
    root = Rdict(str(path), _root_options(profile), families)
    return _Database(
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
    return options


def _family_options(profile: sizes.Profile, cache: Cache, memtable_bytes: int) -> Options:
    blocks = BlockBasedOptions()
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
    options.set_write_buffer_size(memtable_bytes)
    options.set_max_write_buffer_number(profile.memtable_count)
    options.set_target_file_size_base(profile.target_file_bytes)
    options.set_max_bytes_for_level_base(profile.level_base_bytes)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    return options


def _scan(family: Rdict, first: bytes, end: bytes) -> _Scan:
    """A scan that stands at the first key from `first` (inclusive) to `end` (exclusive; b"" = none)."""
    options = ReadOptions()
    # Whoever drops the iterator, the event loop perhaps, unlinks no files.
    options.set_background_purge_on_iterator_cleanup(True)
    if end:
        options.set_iterate_upper_bound(end)
    iterator = family.iter(options)
    iterator.seek(first)
    return _Scan(iterator, options)


def _read_cursors(meta: Rdict) -> dict[int, _Cursor]:
    cursors: dict[int, _Cursor] = {}
    scan = _scan(meta, b"", b"")
    iterator = scan.iterator
    while iterator.valid():
        key = iterator.key()
        if len(key) == _TOPIC.size:
            cursors[_TOPIC.unpack(key)[0]] = _Cursor(*_unpack(_CURSOR, iterator.value()))
        iterator.next()
    iterator.status()
    return cursors


def _unpack(codec: Struct, value: bytes) -> tuple[int, ...]:
    if len(value) != codec.size:
        raise DataCorrupt(f"a fold's meta value has {len(value)} bytes, not {codec.size}", file="fold", offset=0)
    return codec.unpack(value)


def _writer_id(key: bytes) -> str:
    try:
        return key[_TOPIC.size :].decode()
    except UnicodeDecodeError as error:
        raise DataCorrupt(f"a fold's writer id is no text: {key.hex()}", file="fold", offset=0) from error


@contextmanager
def _translated() -> Iterator[None]:
    """The binding's errors as ours. It raises bare `Exception`s, so only their type's exact identity tells them apart."""
    try:
        yield
    except Exception as error:
        words = str(error)
        if type(error) is not Exception and type(error).__module__ != "rocksdict":
            raise
        if "Write stall" in words:
            raise FoldStalled(words) from error
        if words.startswith("Corruption"):
            raise DataCorrupt(f"fold: {words}", file="fold", offset=0) from error
        raise FoldFailed(words) from error
