"""Opens a store's catalog, WAL shards and fold, in this order, before the store serves.

The catalog is part of the truth: if it is missing, or older than the checkpoint in the WAL's marks, the start is refused
(`CatalogLost`) and nothing is changed. A replay writes its progress to the catalog now and then, between two frames, so that
a start after a kill does not repeat all of it.
Threading: but for `recover` the functions are blocking, and run on the threads that own what they open.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import CatalogLost, DataCorrupt
from eddyline.store.catalog.catalog import CatalogHead, SourceEntry, WalPosition
from eddyline.store.config import WAL_SHARDS_MAX
from eddyline.store.fold_repair.repair import FoldRepair
from eddyline.store.log.deletion import BadBody
from eddyline.store.log.sources import SourceTable
from eddyline.store.log.table import TopicTable
from eddyline.store.log_io.catalog_entries import encode_catalog_topic, restore_catalog_topic, source_entry, source_from
from eddyline.store.log_io.files import LogFiles
from eddyline.store.recovery.orphans import resolve_orphans, with_garbage
from eddyline.store.recovery.recovered import Recovered
from eddyline.store.recovery.replay import Replay
from eddyline.store.recovery.reshard import rename_files
from eddyline.store.retention.retention import drop_below_floors
from eddyline.store.stats import RecoveryProgress
from eddyline.store.storage.identity import next_start, write_identity
from eddyline.store.storage.layout import wal_file, wal_numbers
from eddyline.store.storage.wal.scan import corrupt, first_mark
from eddyline.store.storage.wal.wal import Wal, WalEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eddyline.core.runtime.clock import Clock, Host
    from eddyline.core.runtime.fs import Fs
    from eddyline.store.catalog.catalog import Catalog
    from eddyline.store.config import StoreSettings
    from eddyline.store.env import Env
    from eddyline.store.fold.fold import Fold
    from eddyline.store.log.sources import ReplayedSource
    from eddyline.store.recovery.open_fold import FoldOpener
    from eddyline.store.storage.identity import Identity
    from eddyline.store.storage.layout import Layout
    from eddyline.store.storage.wal.frame import WalFrame
    from eddyline.store.storage.wal.wal import Location

_HOUR_MS: Final = 3_600_000
REPLAYED_BYTES_MAX: Final = 64 << 20
REPLAYED_S_MAX: Final = 5.0
"""Bytes and seconds of a replay between two progress writes to the catalog: the next start after a kill repeats at most so
much. A progress write with 100 topics takes some ms, with 100 000 seconds."""
SAVE_SHARE_MAX: Final = 4
"""The replay runs at least so many times as long as the last progress write took before the next one: these writes take a
fifth of its time at most."""
NO_CHECKPOINT: Final = CatalogHead(0, "", 1, (), ())


def load_catalog(catalog: Catalog, table: TopicTable, replay: Replay, layout: Layout, fs: Fs) -> CatalogHead:
    """Load the catalog's topics into the table. Returns the catalog's head.

    Raises:
        CatalogLost: the catalog is empty, but there are segments. DataCorrupt.
    """
    head, entries = catalog.load()
    for entry in entries:
        table.replayed(restore_catalog_topic(entry, layout.topic_dir(entry.id), table.key_budget))
        source = source_from(entry)
        if source is not None:
            replay.sources[entry.id] = source
    table.dirty.clear()
    if head is not None:
        table.skip_ids(head.next_topic_id)
        return head
    if fs.exists(layout.topics) and fs.listdir(layout.topics):
        raise CatalogLost(
            f"{layout.catalog} is empty, and {layout.topics} has segments: the catalog is missing. Nothing was changed; "
            "put back this directory's catalog, or restore the directory from a copy",
            path=str(layout.catalog),
        )
    return NO_CHECKPOINT


def positions_of(head: CatalogHead, fs: Fs, layout: Layout, *, wal_shards: int) -> tuple[WalPosition, ...]:
    """Return where each WAL shard is read from; without a checkpoint, all shards of the directory from their beginning."""
    if head.wal:
        return head.wal
    shards = [shard for shard in range(WAL_SHARDS_MAX) if fs.exists(layout.wal_shard(shard))]
    return tuple(WalPosition(shard, 1, 1, -1) for shard in range(max([wal_shards, *(shard + 1 for shard in shards)])))


class WalOpener:
    """Recovers every WAL shard in turn, and writes the progress to the catalog."""

    def __init__(
        self,
        *,
        fs: Fs,
        layout: Layout,
        catalog: Catalog,
        head: CatalogHead,
        table: TopicTable,
        replay: Replay,
        fold: Fold,
        on_progress: Callable[[RecoveryProgress], None],
        file_bytes: int,
        clock: Clock,
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._layout = layout
        self._catalog = catalog
        self._head = head
        self._table = table
        self._replay = replay
        self._fold = fold
        self._on_progress = on_progress
        self._file_bytes = file_bytes
        self._total_bytes = 0
        self._known_bytes = 0
        self._saved_bytes = 0
        self._saved_s = clock.monotonic_s()
        self._save_took_s = 0.0

    def run(self, positions: Sequence[WalPosition], previous: Identity | None) -> list[Wal]:
        """Recover all shards; if one fails, those already open are closed.

        Raises:
            CatalogLost, DataCorrupt, OSError, FoldFailed.
        """
        done = list(positions)
        for position in positions:
            self._layout.make_directories(self._fs, shard=position.shard)
        rename_files(self._fs, self._layout, positions)
        self._total_bytes = sum(self._bytes_of(position, position.data_number) for position in positions)
        self._known_bytes = self._total_bytes - sum(
            self._bytes_of(position, position.state_number) - position.state_offset for position in positions
        )
        self._report_progress()
        wals = list[Wal]()
        try:
            for index, position in enumerate(positions):
                wals.append(self._recover(position, previous, done))
                end = wals[-1].end
                done[index] = position._replace(state_number=end.file_number, previous_bytes=-1, state_offset=0)
        except BaseException:
            for wal in wals:
                wal.close()
            raise
        return wals

    def _recover(self, position: WalPosition, previous: Identity | None, done: list[WalPosition]) -> Wal:
        shard, state_number, data_number, previous_bytes, state_offset = position
        directory = self._layout.wal_shard(shard)
        if not self._head.checkpoint:
            self._check_complete(shard)
        self._check_marks(shard)
        expected = None
        if previous is not None and shard == 0 and previous.wal_number >= data_number:
            expected = WalEnd(previous.wal_number, previous.wal_bytes)
        apply = self._replay.shard(state_number, state_offset)
        state, file_number = (state_number, state_offset), [data_number]

        def on_frame(frame: WalFrame, location: Location) -> None:
            if location.file_number != file_number[0]:
                self._report_progress()
                file_number[0] = location.file_number
            if location[:2] > state and self._save_is_due():
                self._save_progress(shard, location, done)
            try:
                apply(frame, location)
            except (BadBody, KeyError, ValueError) as error:
                raise corrupt(
                    wal_file(directory, location.file_number),
                    location.offset,
                    f"a {frame.type.name} frame is malformed: {error}",
                ) from error

        return Wal.recover(
            self._fs,
            directory,
            shard,
            self._file_bytes,
            on_frame,
            first_number=data_number,
            closed_end=WalEnd(state_number - 1, previous_bytes) if previous_bytes >= 0 else None,
            expected=expected,
            replayed=WalEnd(state_number, state_offset),
            checkpoint=self._head.checkpoint,
            on_mark=self._mark,
        )

    def _mark(self, checkpoint: int) -> None:
        if checkpoint > self._head.checkpoint:
            raise CatalogLost(
                f"{self._layout.catalog} has checkpoint {self._head.checkpoint}, the WAL was written after checkpoint "
                f"{checkpoint}: the catalog is an older one. Nothing was changed; put back this directory's catalog, or "
                "restore the directory from a copy",
                path=str(self._layout.catalog),
                checkpoint=self._head.checkpoint,
                walCheckpoint=checkpoint,
            )

    def _check_marks(self, shard: int) -> None:
        """Check every file's mark before any replay, so that an older catalog is reported as such, whichever files it
        lacks."""
        directory = self._layout.wal_shard(shard)
        for number in wal_numbers(self._fs.listdir(directory)):
            mark = first_mark(self._fs, directory, shard, number)
            if mark is not None:
                self._mark(mark)

    def _check_complete(self, shard: int) -> None:
        """Check that a WAL without checkpoint begins with file 1: otherwise a checkpoint that is missing here trimmed it."""
        numbers = wal_numbers(self._fs.listdir(self._layout.wal_shard(shard)))
        if numbers and numbers[0] > 1:
            raise CatalogLost(
                f"{self._layout.catalog} has no checkpoint, and the WAL begins with "
                f"{wal_file(self._layout.wal_shard(shard), numbers[0])}: the catalog is missing. Nothing was changed; "
                "put back this directory's catalog, or restore the directory from a copy",
                path=str(self._layout.catalog),
            )

    def _save_is_due(self) -> bool:
        passed_s = self._clock.monotonic_s() - self._saved_s
        if passed_s < self._save_took_s * SAVE_SHARE_MAX:
            return False
        return (
            self._replay.bytes - self._known_bytes - self._saved_bytes >= REPLAYED_BYTES_MAX
            or passed_s >= REPLAYED_S_MAX
        )

    def _save_progress(self, shard: int, location: Location, done: list[WalPosition]) -> None:
        """Write the progress to the catalog: all frames below `location` are replayed. They need not be durable yet."""
        began_s = self._clock.monotonic_s()
        self._report_progress()
        self._replay.flush()
        self._fold.sync()
        file = self._fs.open(wal_file(self._layout.wal_shard(shard), location.file_number))
        try:
            file.fsync()
        finally:
            file.close()
        done[shard] = done[shard]._replace(
            state_number=location.file_number, previous_bytes=-1, state_offset=location.offset
        )
        sources = self._replay.sources
        entries = [encode_catalog_topic(topic, _source_of(sources.get(topic.id))) for topic in self._table.dirty]
        known = with_garbage(self._head, self._replay, self._layout)
        self._head = replace(known, next_topic_id=self._table.next_id, wal=tuple(done))
        self._catalog.write(self._head, entries, sorted(self._table.gone))
        self._table.dirty.clear()
        self._table.gone.clear()
        self._saved_bytes = self._replay.bytes - self._known_bytes
        self._saved_s = self._clock.monotonic_s()
        self._save_took_s = self._saved_s - began_s

    def _report_progress(self) -> None:
        """Report the progress in bytes that the catalog lacks; frames that it has are only read."""
        total_bytes = max(self._total_bytes - self._known_bytes, 0)
        done_bytes = min(max(self._replay.bytes - self._known_bytes, 0), total_bytes)
        self._on_progress(RecoveryProgress(done_bytes, total_bytes))

    def _bytes_of(self, position: WalPosition, first_number: int) -> int:
        directory, total = self._layout.wal_shard(position.shard), 0
        for number in wal_numbers(self._fs.listdir(directory)):
            if number >= first_number:
                file = self._fs.open(wal_file(directory, number))
                try:
                    total += file.size()
                finally:
                    file.close()
        return total


def _source_of(replayed: ReplayedSource | None) -> SourceEntry | None:
    return source_entry(replayed) if replayed is not None else None


def check_continuous(table: TopicTable) -> None:
    """Check that every seq above a topic's floor and up to its head is in a segment, in a frame, or known to be empty.

    Raises:
        DataCorrupt: some are missing; the start is refused, since reads would have a hole.
    """
    for topic in table.all():
        if topic.is_ephemeral:
            continue
        expected = max(topic.floors.trim, topic.segmented_seq) + 1
        for position in range(topic.index.position_after(expected - 1), len(topic.index)):
            entry = topic.index.entry(position)
            first_missing = topic.uncounted.first_absent_after(expected - 1)
            if entry.first_seq > expected and first_missing < entry.first_seq:
                _missing(topic.name, first_missing, entry.first_seq - 1)
            expected = entry.last_seq + 1
        if expected <= topic.head_seq and topic.uncounted.first_absent_after(expected - 1) <= topic.head_seq:
            _missing(topic.name, expected, topic.head_seq)


def _missing(name: str, first_seq: int, last_seq: int) -> None:
    raise DataCorrupt(f"seqs {first_seq} to {last_seq} of topic {name} are missing from the WAL", file="wal", offset=0)


async def recover(
    env: Env,
    settings: StoreSettings,
    layout: Layout,
    *,
    catalog: Catalog,
    folds: FoldOpener,
    previous: Identity | None,
) -> Recovered:
    """Open and replay a locked directory; the caller logs losses next.

    Raises:
        CatalogLost, DataCorrupt, OSError, FoldFailed, CatalogFailed: the store cannot start; nothing was destroyed.
    """
    fs, workers = env.fs, env.workers
    table, sources = TopicTable(settings.shard, start=next_start(previous)), SourceTable(env.clock)
    replay = Replay(table=table, layout=layout, erase_within_ms=settings.erase_within_h * _HOUR_MS)
    head = await workers.background.submit(partial(load_catalog, catalog, table, replay, layout, fs))
    fold = await workers.fold.submit(partial(folds.open, head, table))
    # A start that was killed before its first checkpoint has stored its id in the fold alone.
    store_id = head.store_id or fold.store_id() or new_store_id(env.clock, env.host)
    replay.begin(fold)
    wal_opener = WalOpener(
        fs=fs,
        layout=layout,
        catalog=catalog,
        head=head,
        table=table,
        replay=replay,
        fold=fold,
        on_progress=env.tell,
        file_bytes=settings.wal_file_bytes,
        clock=env.clock,
    )
    positions = positions_of(head, fs, layout, wal_shards=settings.wal_shards)
    wals = await workers.wals[0].submit(partial(wal_opener.run, positions, previous))
    await workers.fold.submit(partial(replay.finish, sources))
    check_continuous(table)
    orphans = partial(
        resolve_orphans,
        fs,
        layout,
        table,
        wal_shards=len(positions),
        garbage=set(with_garbage(head, replay, layout).garbage),
        now_ms=env.clock.now_ms(),
    )
    await workers.background.submit(orphans)
    files = LogFiles(fs, wals)
    repair = FoldRepair(
        fold,
        table=table,
        files=files,
        layout=layout,
        wals=wals,
        report=env.tell,
        replayed_bytes=replay.bytes,
        before_logging=partial(_no_clean_end, fs, layout, previous, env.host.boot_id()),
    )
    try:
        await workers.fold.submit(partial(repair.run, replay.behind))
    finally:
        files.close()
    if not fold.store_id():
        fold.set_store_id(store_id)
    for topic in table.all():
        topic.oldest_ts_ms = topic.segments.first_ts_ms or topic.index.first_ts_ms
        drop_below_floors(topic)
    return Recovered(head, store_id, table, sources, replay, wals, fold, repair.salvaged)


def _no_clean_end(fs: Fs, layout: Layout, previous: Identity | None, boot_id: str) -> None:
    """Mark the directory as not cleanly stopped, of this boot: the log grows past the end that the clean stop recorded."""
    if previous is not None and previous.clean:
        write_identity(fs, layout, replace(previous, clean=False, boot_id=boot_id, wal_bytes=0, marked=False))


def new_store_id(clock: Clock, host: Host) -> str:
    """Make a unique store id of time, boot id and process id."""
    return f"{clock.now_ms():x}-{host.boot_id()}-{host.pid()}"
