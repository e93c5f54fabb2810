"""The fold on RocksDB: one database for all topics of a store.

    family `data`   topic id u64 big-endian, key                -> entry (`fold_entry.py`)
    family `meta`                                               see `meta_codec.py`

One `apply` is one WriteBatch over both families: RocksDB's own WAL, unsynced, makes it atomic and keeps a prefix after
power loss. Deleting a topic is one range tombstone in each family.

Properties of the binding, verified by tests/store/fold/test_binding.py. `write`, point reads and iterator steps hold the
GIL; `get([keys])`, `flush`, `flush_wal` and `compact_range` release it. `key_may_exist` with a value reads memtables and
block cache alone. A failed batch is consumed, so each attempt builds its own. An iterator shows the database as of its
creation; a `Snapshot`'s iterators do not and are not used. An iterator ends silently at a damaged block, and only an
`RdictIter`'s `status` reports it. `compact_range` does not report failures, so `erase` checks files and error counts. The
directory stays locked while an iterator or a family's handle lives, so `close` first closes the registered views. An
iterator does not keep its `ReadOptions` alive, whose memory holds the bound it reads, so `Scan` does. Its errors are plain
`Exception`s with RocksDB's texts.
Threading: see `fold.py`.
"""

from __future__ import annotations

from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, Final, NamedTuple

from rocksdict import BottommostLevelCompaction, CompactOptions, Rdict, WriteBatch, WriteOptions

from eddyline.core.errors import DataCorrupt, TooManyScans
from eddyline.core.records.fold_entry import HEAD_BYTES, PLAIN_SHAPE, check_entry, decode_entry
from eddyline.store.fold import rocksdb_options as sizes
from eddyline.store.fold.fold import (
    RETRY_AFTER_MS,
    VIEWS_MAX,
    FoldFailed,
    FoldShort,
    key_after,
    prefix_end,
    retry_stalled,
)
from eddyline.store.fold.meta_codec import (
    CHECKPOINT_KEY,
    STORE_KEY,
    TOPIC,
    TOPIC_BYTES,
    decode_checkpoint,
    decode_cursor,
    decode_store_id,
    decode_writer,
    encode_checkpoint,
    encode_cursor,
    encode_writer,
    writer_id,
)
from eddyline.store.fold.rocksdb_files import (
    DAMAGED,
    FILE_MISSING,
    Database,
    check_whole,
    error_count,
    family_options,
    live_tables,
    open_database,
    table_bytes,
    tables_within,
)
from eddyline.store.fold.rocksdb_sst import RocksTables, move_options
from eddyline.store.fold.rocksdb_view import RocksView, scan_of, translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from eddyline.core.records.record import Record
    from eddyline.store.fold.fold import FoldTables, FoldWrite, WriterState

_CHECKED_ENTRIES: Final = 256
_ROLLED_KEY: Final = b"rolled"
"""A key that is deleted but never put, to have something to flush."""
_REMOVAL_POLLS: Final = 50
_REMOVAL_POLL_S: Final = 0.002
"""RocksDB removes replaced files on its own threads, right after the call that replaced them has returned."""


class RocksFold:
    """`eddyline.store.fold.fold.Fold` in a RocksDB directory."""

    def __init__(
        self,
        path: Path,
        *,
        profile: sizes.ProfileName = "small",
        memory_bytes: int = 0,
        checked_bytes: int = 0,
        read_only: bool = False,
    ) -> None:
        """Open the fold at `path`, or create it; RocksDB's WAL is replayed first. `memory_bytes` bounds memtables and
        caches together; 0 = the profile's sizes. Tables of up to `checked_bytes` together are read completely. A
        `read_only` fold must exist, takes no write, and leaves no damage marker.

        Raises:
            DataCorrupt: the files are damaged, or damage was found before. FoldFailed: it is locked, or cannot be read.
        """
        self._path = path
        self._is_short = False
        self._read_only = read_only
        self._views: set[RocksView] = set()
        self._own_views: set[RocksView] = set()
        self._write_options = WriteOptions()
        # A stalled write fails at once; by default it would sleep with the GIL held, and block the whole process.
        self._write_options.no_slowdown = True
        check_whole(path)
        options = sizes.PROFILES[profile]
        options = sizes.fit_profile(options, memory_bytes) if memory_bytes else options
        self._profile = options
        self._database: Database | None = None
        try:
            self._open()
            with translated(self._note_damage):
                if table_bytes(self._require_open()) <= checked_bytes:
                    _read_all(self._require_open().data)
        except DataCorrupt:
            self.close()
            raise
        except FoldFailed as error:
            self.close()
            if FILE_MISSING in str(error):
                raise DataCorrupt(f"fold: {error}", file="fold", offset=0) from error
            raise

    def _open(self) -> None:
        with translated(self._note_damage):
            self._database = open_database(self._path, self._profile, read_only=self._read_only)
            meta = _read_meta(self._database.meta)
        self._store_id = meta.store_id
        self._checkpoint = meta.checkpoint
        # Two plain dicts, the second nearly empty: a tuple for each topic would add half of its 116 bytes.
        self._applied = meta.applied
        self._bases = meta.bases

    def apply(self, writes: Sequence[FoldWrite]) -> None:
        if not writes:
            return
        database = self._writable()
        batch = WriteBatch(raw_mode=True)
        # A put without a family is cheaper: entries use the default family, the few other puts name theirs.
        batch.set_default_column_family(database.data_family)
        meta_family = database.meta_family
        applied: dict[int, int] = {}
        for topic_id, applied_seq, entries, writers in writes:
            prefix = TOPIC.pack(topic_id)
            for key, value in entries:
                if value is None:
                    batch.delete(prefix + key)
                else:
                    batch.put(prefix + key, value)
            for writer, state in writers:
                batch.put(prefix + writer.encode(), encode_writer(state), meta_family)
            applied[topic_id] = applied_seq
        for topic_id, applied_seq in applied.items():
            cursor = encode_cursor(applied_seq, self._bases.get(topic_id, 0))
            batch.put(TOPIC.pack(topic_id), cursor, meta_family)
        self._write(database, batch)
        self._applied.update(applied)

    def applied(self, topic_id: int) -> int:
        return self._applied.get(topic_id, 0)

    def writers(self, topic_id: int) -> dict[str, WriterState]:
        prefix = TOPIC.pack(topic_id)
        writers: dict[str, WriterState] = {}
        first, end = prefix + b"\0", prefix_end(prefix)
        with translated(self._note_damage), closing(scan_of(self._require_open().meta, first, end)) as scan:
            key: bytes | None = None
            for key, value in scan.items:
                writers[writer_id(key)] = decode_writer(value)
            scan.check_end(key)
        return writers

    def topics(self) -> dict[int, int]:
        return dict(self._applied)

    def store_id(self) -> str:
        return self._store_id

    def set_store_id(self, store_id: str) -> None:
        self._put_meta(STORE_KEY, store_id.encode())
        self._store_id = store_id

    def checkpoint(self) -> int:
        return self._checkpoint

    def set_checkpoint(self, number: int) -> None:
        self._put_meta(CHECKPOINT_KEY, encode_checkpoint(number))
        self._checkpoint = number

    def base_seq(self, topic_id: int) -> int:
        return self._bases.get(topic_id, 0)

    def set_base(self, topic_id: int, seq: int) -> None:
        applied_seq = self.applied(topic_id)
        self._put_meta(TOPIC.pack(topic_id), encode_cursor(applied_seq, seq))
        self._applied[topic_id] = applied_seq
        self._keep_base(topic_id, seq)

    def new_tables(self, topic_id: int, directory: Path) -> RocksTables:
        return RocksTables(directory, family_options(self._profile, None, 0), prefix=TOPIC.pack(topic_id))

    def adopt(self, topic_id: int, tables: FoldTables, seq: int, writers: Sequence[tuple[str, WriterState]]) -> None:
        assert isinstance(tables, RocksTables)
        self.delete_topic(topic_id)
        database = self._writable()
        self.set_base(topic_id, 0)  # creates the topic, at applied seq 0
        if tables.paths:
            with self._translated():
                database.data.ingest_external_file(tables.paths, move_options())
            tables.paths.clear()
        retry_stalled(self, partial(self._set_cursor, topic_id, seq, writers))

    def _set_cursor(self, topic_id: int, seq: int, writers: Sequence[tuple[str, WriterState]]) -> None:
        database, prefix = self._writable(), TOPIC.pack(topic_id)
        batch = WriteBatch(raw_mode=True)
        batch.put(prefix, encode_cursor(seq, seq), database.meta_family)
        for writer, state in writers:
            batch.put(prefix + writer.encode(), encode_writer(state), database.meta_family)
        self._write(database, batch)
        self._applied[topic_id] = seq
        self._keep_base(topic_id, seq)

    def get(self, topic_id: int, keys: Sequence[bytes]) -> list[Record | None]:
        with translated(self._note_damage):
            values = self._values(topic_id, keys)
            return [
                None if value is None else decode_entry(key, value) for key, value in zip(keys, values, strict=True)
            ]

    def get_stored(self, topic_id: int, keys: Sequence[bytes]) -> list[bytes | None]:
        with translated(self._note_damage):
            values = self._values(topic_id, keys)
            for key, value in zip(keys, values, strict=True):
                # The usual shape without a call.
                if value is not None and (len(value) < HEAD_BYTES or not value.startswith(PLAIN_SHAPE)):
                    check_entry(key, value)
            return values

    def get_cached(self, topic_id: int, keys: Sequence[bytes], bytes_max: int) -> list[bytes] | None:
        """Read by KeyMayExist, RocksDB's only read from memory alone that the binding has.

        Its "not there" is not used: it may also stand for an error, which the call does not report.
        """
        prefix = TOPIC.pack(topic_id)
        values: list[bytes] = []
        with translated(self._note_damage):
            key_may_exist = self._require_open().data.key_may_exist
            for key in keys:
                found = key_may_exist(prefix + key, True)
                assert isinstance(found, tuple), "with a value it returns a pair"
                value: bytes | None = found[1]
                if value is None:
                    return None
                check_entry(key, value)
                bytes_max -= len(value)
                if bytes_max < 0 and values:
                    return None
                values.append(value)
        return values

    def _values(self, topic_id: int, keys: Sequence[bytes]) -> list[bytes | None]:
        prefix = TOPIC.pack(topic_id)
        values: list[bytes | None] | None = self._require_open().data.get([prefix + key for key in keys])
        assert values is not None, "a list of keys returns a list"
        return values

    def view(
        self, topic_id: int, *, key_prefix: bytes = b"", after_key: bytes = b"", counted: bool = True
    ) -> RocksView:
        views = self._views if counted else self._own_views
        if counted and len(views) >= VIEWS_MAX:
            raise TooManyScans(
                f"{VIEWS_MAX} scans are open, the maximum", scansMax=VIEWS_MAX, retryAfterMs=RETRY_AFTER_MS
            )
        prefix = TOPIC.pack(topic_id)
        with translated(self._note_damage):
            first = prefix + key_after(key_prefix, after_key)
            scan = scan_of(self._require_open().data, first, prefix_end(prefix + key_prefix))
        # Only the fold's thread adds, and a set's own operations are atomic under the GIL: the register needs no lock.
        view = RocksView(scan, on_close=views.discard, on_damage=self._note_damage)
        views.add(view)
        return view

    def delete_topic(self, topic_id: int) -> None:
        database = self._writable()
        if topic_id not in self._applied:
            return
        begin = TOPIC.pack(topic_id)
        end = prefix_end(begin)
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(begin, end, database.data_family)
        batch.delete_range(begin, end, database.meta_family)
        self._write(database, batch)
        del self._applied[topic_id]
        self._keep_base(topic_id, 0)

    def erase(self, topic_id: int) -> bool:
        """Flush, so that memtables and the WAL's files are removed; rewrite every table that the topic's keys reach,
        including the bottom level; then roll the manifest, which holds the first and last key of removed tables."""
        database = self._writable()
        begin = TOPIC.pack(topic_id)
        end = prefix_end(begin)
        with self._translated():
            old_files = self._files(".log")
            database.data.flush(True)
            database.meta.flush(True)
            old_files |= self._files(".sst") - live_tables(database)
            tables = tables_within(database, begin, end)
            errors = error_count(database)
            options = CompactOptions()
            options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
            options.set_exclusive_manual_compaction(False)
            for family in (database.data, database.meta):
                family.compact_range(begin, end, options)
            old_files |= self._files("MANIFEST")
        batch = WriteBatch(raw_mode=True)
        batch.delete(_ROLLED_KEY, database.meta_family)
        self._write(database, batch)
        with self._translated():
            database.meta.flush(True)
            if error_count(database) != errors:
                return False
            # Files that a compaction was still writing then are live now.
            old_files -= live_tables(database)
        pause = Event()
        for _ in range(_REMOVAL_POLLS):
            if not (old_files | tables) & self._files(""):
                return True
            pause.wait(_REMOVAL_POLL_S)
        return False

    def sync(self) -> None:
        database = self._writable()
        with self._translated():
            database.root.flush_wal(True)

    def flush(self) -> None:
        """Sync RocksDB's WAL, which makes the writes durable; then write memtables out, so that the next open replays
        nothing."""
        database = self._writable()
        with self._translated():
            database.root.flush_wal(True)
            database.data.flush(True)
            database.meta.flush(True)

    def close(self) -> None:
        for view in (*self._views, *self._own_views):
            view.close()
        database, self._database = self._database, None
        if database is not None:
            with translated(self._note_damage):
                database.root.close()

    def _require_open(self) -> Database:
        if self._database is None:
            raise FoldFailed(f"the fold {self._path} is closed")
        return self._database

    def _writable(self) -> Database:
        """Return the database for a write; reopen it if a shortage has made RocksDB refuse all writes. RocksDB's WAL
        has the earlier writes; views of the closed database are closed."""
        if self._is_short:
            with suppress(FoldFailed):  # it repeats its last error
                self.close()
            self._open()
            self._is_short = False
        return self._require_open()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate RocksDB's errors; remember a shortage."""
        try:
            with translated(self._note_damage):
                yield
        except FoldShort:
            self._is_short = True
            raise

    def _note_damage(self) -> None:
        """Leave a marker file, so that the next open is refused: a damaged table stays damaged."""
        if self._read_only:
            return
        with suppress(OSError):
            (self._path / DAMAGED).touch()

    def _files(self, kind: str) -> set[str]:
        """Return the names of the fold's files that contain `kind`; "" = all."""
        return {path.name for path in self._path.iterdir() if kind in path.name}

    def _keep_base(self, topic_id: int, seq: int) -> None:
        if seq:
            self._bases[topic_id] = seq
        else:
            self._bases.pop(topic_id, None)

    def _put_meta(self, key: bytes, value: bytes) -> None:
        database = self._writable()
        batch = WriteBatch(raw_mode=True)
        batch.put(key, value, database.meta_family)
        self._write(database, batch)

    def _write(self, database: Database, batch: WriteBatch) -> None:
        try:
            with self._translated():
                database.root.write(batch, self._write_options)
        except DataCorrupt as error:
            raise FoldFailed(error.message) from error


class _Meta(NamedTuple):
    """The content of the meta family that stays in memory."""

    store_id: str
    checkpoint: int
    applied: dict[int, int]
    bases: dict[int, int]


def _read_meta(family: Rdict) -> _Meta:
    store_id, checkpoint, applied, bases = "", 0, dict[int, int](), dict[int, int]()
    with closing(scan_of(family, b"", b"")) as scan:
        key: bytes | None = None
        for key, value in scan.items:
            if len(key) == TOPIC_BYTES:
                topic_id = TOPIC.unpack(key)[0]
                applied[topic_id], base_seq = decode_cursor(value)
                if base_seq:
                    bases[topic_id] = base_seq
            elif key == STORE_KEY:
                store_id = decode_store_id(value)
            elif key == CHECKPOINT_KEY:
                checkpoint = decode_checkpoint(value)
        scan.check_end(key)
    return _Meta(store_id, checkpoint, applied, bases)


def _read_all(family: Rdict) -> None:
    """Read every block that holds a key of the family."""
    with closing(scan_of(family, b"", b"")) as scan:
        last_key: bytes | None = None
        while chunk := list(islice(scan.items, _CHECKED_ENTRIES)):
            last_key = chunk[-1][0]
        scan.check_end(last_key)
