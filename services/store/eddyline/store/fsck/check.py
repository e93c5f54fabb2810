"""Check of a whole data directory: identity, catalog, WAL, files, topics, folds, and unknown files.

    identity, catalog        every checksum; the catalog's RocksDB is read completely
    WAL                      every frame, by the cut-or-corruption rule; replayed into memory as at a start
    segments and bases       every byte; footers are recomputed and compared with the catalog
    topics                   every seq accounted for; floors, counts and bytes recomputed from the rows
    folds                    base and log, folded once more, equal the fold

I1: nothing is changed: files are opened for reading only, and the temporary fold is in another directory. I2: damage is
reported once: checks that depend on damaged data are skipped.
Not checked: RocksDB's auxiliary data (filters, the torn tail of its own log), whose damage costs time or a refusal but no
data.
Threading: synchronous. Memory: a WAL file, a record batch, and the topics as in a running store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import CatalogLost, DataCorrupt
from eddyline.store.catalog.catalog import CatalogFailed
from eddyline.store.catalog.rocksdb import open_read_only
from eddyline.store.fold.entries import entries_to_batch
from eddyline.store.fsck.findings import RESTORE, Findings, Severity
from eddyline.store.fsck.folds import FoldsCheck
from eddyline.store.fsck.read_only_fs import ReadOnlyFs
from eddyline.store.fsck.segments import check_file
from eddyline.store.fsck.topics import TopicCheck
from eddyline.store.fsck.wal import ShardCheck, ShardReader
from eddyline.store.log.deletion import BadBody
from eddyline.store.log.sources import SourceTable
from eddyline.store.log.table import TopicTable
from eddyline.store.log_io.files import LogFiles
from eddyline.store.recovery.open import NO_CHECKPOINT, check_continuous, load_catalog, positions_of
from eddyline.store.recovery.orphans import foreign_at_top, survey, with_garbage
from eddyline.store.recovery.replay import Replay
from eddyline.store.storage.identity import read_identity
from eddyline.store.storage.layout import Layout, parse_topic_dir, temporary_file, wal_file, wal_numbers
from eddyline.store.storage.wal.scan import corrupt, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from eddyline.core.records.batch import Batch
    from eddyline.core.records.record import Record
    from eddyline.core.runtime.clock import Clock
    from eddyline.store.catalog.catalog import CatalogHead, WalPosition
    from eddyline.store.fold.fold import Fold, FoldWrite
    from eddyline.store.fsck.findings import Finding
    from eddyline.store.storage.identity import Identity
    from eddyline.store.storage.wal.frame import WalFrame
    from eddyline.store.storage.wal.wal import Location

_AT_START: Final = "nothing: the next start removes or renames it"
_SET_ASIDE: Final = "move it away, or let the next start move it to orphans/"
_NOT_OURS: Final = "move it out of the data directory: the store does not start with it"


class NoDirectory(Exception):
    """The path is not a store's data directory."""


class Summary(NamedTuple):
    """Counts of a check. `orphans` are files that starts have moved to quarantine."""

    topics: int
    files: int
    bytes: int
    orphans: int
    errors: int
    warnings: int
    notes: int


class DirectoryCheck:
    """One check of one directory."""

    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Clock,
        report: Callable[[Finding], None],
        progress: Callable[[str], None],
        open_fold: Callable[[Path], Fold],
        open_scratch: Callable[[], Fold],
    ) -> None:
        self._fs = ReadOnlyFs()
        self._layout = Layout(data_dir)
        self._clock = clock
        self._findings = Findings(report)
        self._progress = progress
        self._open_fold = open_fold
        self._open_scratch = open_scratch
        self._table = TopicTable(0)  # any shard: every id is read, none is assigned
        self._replay = Replay(table=self._table, layout=self._layout, erase_within_ms=0)
        self._files = 0
        self._bytes = 0

    def run(self) -> Summary:
        """Check everything.

        Raises:
            NoDirectory, Locked: a store runs on it. OSError: it cannot be read.
        """
        layout, fs = self._layout, self._fs
        if not layout.data_dir.is_dir():
            raise NoDirectory(f"{layout.data_dir} is not a directory")
        if not any(fs.exists(path) for path in (layout.identity, layout.catalog, layout.wal, layout.topics)):
            raise NoDirectory(f"{layout.data_dir} is not a store's data directory")
        lock = fs.lock(layout.lock, b"") if fs.exists(layout.lock) else None
        try:
            self._check_all()
        finally:
            if lock is not None:
                lock.release()
        counts = self._findings.counts
        return Summary(
            topics=len(self._table.all()),
            files=self._files,
            bytes=self._bytes,
            orphans=self._orphan_count(layout.orphans),
            errors=counts[Severity.ERROR],
            warnings=counts[Severity.WARNING],
            notes=counts[Severity.NOTE],
        )

    def _check_all(self) -> None:
        for path in foreign_at_top(self._fs, self._layout):
            self._findings.error(path, "it does not belong to the store", to_do=_NOT_OURS)
        identity = self._identity()
        self._progress("catalog")
        head = self._catalog(identity)
        if head is None:
            self._check_files_alone()
            return
        self._replay.begin(NullFold())
        positions = positions_of(head, self._fs, self._layout, wal_shards=1)
        whole = self._wal(head, positions, identity)
        self._check_identity_exists()
        missing = self._check_names(head, len(positions)) if whole else self._missing_files()
        files = LogFiles(self._fs, [ShardReader(self._fs, self._layout.wal_shard(p.shard), p.shard) for p in positions])
        try:
            self._topics(files, missing, whole=whole)
            if whole and not self._findings.counts[Severity.ERROR]:
                clean = identity is not None and identity.clean
                self._folds(files, head, clean=clean)
        finally:
            files.close()

    def _identity(self) -> Identity | None:
        try:
            return read_identity(self._fs, self._layout)
        except DataCorrupt as error:
            self._findings.error(self._layout.identity, error.message)
            return None

    def _check_identity_exists(self) -> None:
        if self._fs.exists(self._layout.identity):
            return
        if self._table.all():
            what = "it is missing, and there are topics: their cluster and the last stop are unknown"
            self._findings.error(self._layout.identity, what, to_do="put it back, or " + RESTORE)
        else:
            self._findings.warning(self._layout.identity, "it is missing", to_do="let the next start write a new one")

    def _catalog(self, identity: Identity | None) -> CatalogHead | None:
        """Return the head, and fill the table with the topics; None if there is no usable catalog."""
        path = self._layout.catalog
        try:
            catalog = open_read_only(path)
        except CatalogLost as error:
            fresh = identity is not None and not identity.catalog
            if fresh and not self._fs.exists(self._layout.topics):
                return NO_CHECKPOINT
            self._findings.error(path, error.message, to_do=RESTORE)
            return None
        except (DataCorrupt, CatalogFailed) as error:
            self._findings.error(path, str(error))
            return None
        try:
            return load_catalog(catalog, self._table, self._replay, self._layout, self._fs)
        except (DataCorrupt, CatalogLost, CatalogFailed) as error:
            self._findings.error(path, str(error))
            return None
        finally:
            catalog.close()

    def _wal(self, head: CatalogHead, positions: tuple[WalPosition, ...], identity: Identity | None) -> bool:
        """Replay all shards; return False if the state after the log cannot be determined."""
        whole = True
        for position in positions:
            self._progress(f"WAL shard {position.shard}")
            directory = self._layout.wal_shard(position.shard)
            check = ShardCheck(
                self._fs, directory, position, self._findings, identity=identity, checkpoint=head.checkpoint
            )
            check.run(
                _reporting_bad_frames(self._replay.shard(position.state_number, position.state_offset), directory)
            )
            self._files += check.file_count
            self._bytes += check.byte_count
            whole = whole and check.whole
        if not whole:
            return False
        try:
            self._replay.finish(SourceTable(self._clock))
            check_continuous(self._table)
        except DataCorrupt as error:
            self._findings.error(self._layout.wal, error.message)
            return False
        return True

    def _check_names(self, head: CatalogHead, wal_shards: int) -> set[Path]:
        """Compare the names on the disk with the known ones; return the missing files."""
        garbage = set(with_garbage(head, self._replay, self._layout).garbage)
        names = survey(self._fs, self._layout, self._table, wal_shards=wal_shards, garbage=garbage)
        for path in names.missing:
            self._findings.error(path, "it is missing, and the catalog or the log names it")
        for path in names.unnamed:
            self._fs.alias(path, temporary_file(path))
            self._findings.note(temporary_file(path), "it has not got its final name yet", to_do=_AT_START)
        for path in names.temporaries:
            self._findings.note(path, "a temporary file that neither catalog nor log names", to_do=_AT_START)
        for path in names.foreign:
            self._findings.warning(path, "neither catalog nor log names it", to_do=_SET_ASIDE)
        return set(names.missing)

    def _missing_files(self) -> set[Path]:
        """Return the missing files of the known segments, unreported: a damaged log does not say whether they should
        exist."""
        paths = {segment.path for topic in self._table.all() for segment in topic.segments}
        return {path for path in paths if not self._fs.exists(path)}

    def _topics(self, files: LogFiles, missing: set[Path], *, whole: bool) -> None:
        topics = sorted(self._table.all(), key=lambda topic: topic.id)
        for number, topic in enumerate(topics, 1):
            self._progress(f"topic {number} of {len(topics)}")
            check = TopicCheck(topic, files, self._layout, self._findings, self._layout.catalog)
            check.run(missing=missing, counts=whole)
            self._files += check.file_count
            self._bytes += check.byte_count

    def _folds(self, files: LogFiles, head: CatalogHead, *, clean: bool) -> None:
        check = FoldsCheck(
            self._layout.fold,
            files,
            self._layout,
            self._findings,
            open_fold=self._open_fold,
            open_scratch=self._open_scratch,
            clean=clean,
        )
        topics = [topic for topic in self._table.all() if topic.folds]
        check.run(topics, store_id=head.store_id, progress=self._progress)

    def _check_files_alone(self) -> None:
        """Without a catalog: check every file's own checksums."""
        fs, layout = self._fs, self._layout
        for shard in fs.listdir(layout.wal) if fs.exists(layout.wal) else ():
            directory = layout.wal / shard
            numbers = wal_numbers(fs.listdir(directory))
            for number in numbers:
                self._scan(directory, int(shard, 16), number, complete=number != numbers[-1])
        for name in fs.listdir(layout.topics) if fs.exists(layout.topics) else ():
            if parse_topic_dir(name) is not None:
                for file in fs.listdir(layout.topics / name):
                    self._files += 1
                    check_file(fs, layout.topics / name / file, None, self._findings, lambda batch: None)

    def _scan(self, directory: Path, shard: int, number: int, *, complete: bool) -> None:
        path = wal_file(directory, number)
        file = self._fs.open(path)
        try:
            data = file.pread(file.size(), 0)
        finally:
            file.close()
        self._files += 1
        try:
            scan(data, path, shard=shard, file_number=number, complete=complete, on_frame=lambda frame, location: None)
        except DataCorrupt as error:
            self._findings.error(path, error.message, offset=int(error.metadata.get("offset", 0)))

    def _orphan_count(self, orphans: Path) -> int:
        return sum(1 for path in orphans.rglob("*") if path.is_file()) if orphans.is_dir() else 0


class NullFold:
    """A `ReplayedFold` that stores nothing: topics are checked without their folds, which `FoldsCheck` rebuilds later."""

    def apply(self, writes: Sequence[FoldWrite]) -> None:
        pass

    def applied(self, topic_id: int) -> int:
        return 0

    def topics(self) -> dict[int, int]:
        return {}

    def get(self, topic_id: int, keys: Sequence[bytes]) -> list[Record | None]:
        return [None] * len(keys)

    def view(
        self, topic_id: int, *, key_prefix: bytes = b"", after_key: bytes = b"", counted: bool = True
    ) -> _EmptyView:
        return _EmptyView()

    def delete_topic(self, topic_id: int) -> None:
        pass


class _EmptyView:
    def next_page(self, entries_max: int, bytes_max: int) -> list[Record]:
        return []

    def next_batch(self, entries_max: int, bytes_max: int) -> Batch:
        return entries_to_batch([], [])

    def close(self) -> None:
        pass


def _reporting_bad_frames(
    take: Callable[[WalFrame, Location], None], directory: Path
) -> Callable[[WalFrame, Location], None]:
    def on_frame(frame: WalFrame, location: Location) -> None:
        try:
            take(frame, location)
        except (BadBody, KeyError, ValueError) as error:
            what = f"a {frame.type.name} frame is malformed: {error}"
            raise corrupt(wal_file(directory, location.file_number), location.offset, what) from error

    return on_frame
