"""Opening a store's parts in the order that keeps them right: catalog, WAL shards, fold; nothing is served meanwhile.

The catalog is part of the truth: where it is missing, or older than what the WAL's marks say of it, the start is refused
(`CatalogLost`) and nothing is changed. A replay takes the catalog along, between two frames, so that a kill half-way does
not begin it anew.
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
from eddyline.store.log.sources import Sources
from eddyline.store.log.table import TopicTable
from eddyline.store.log_io.catalog_entries import encode_catalog_topic, restore_catalog_topic, source_entry, source_from
from eddyline.store.log_io.files import LogFiles
from eddyline.store.recovery.orphans import resolve_orphans, with_garbage
from eddyline.store.recovery.recovered import Recovered
from eddyline.store.recovery.replay import Replay
from eddyline.store.recovery.reshard import name_files
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
    from eddyline.store.storage.wal.frame import Frame
    from eddyline.store.storage.wal.wal import Location

_HOUR_MS: Final = 3_600_000
REPLAYED_BYTES_MAX: Final = 64 << 20
REPLAYED_S_MAX: Final = 5.0
"""Bytes and seconds of a replay between two times that the catalog takes down how far it is: what the next start repeats at
most, where this one is killed. A step of 100 topics takes some ms, one of 100 000 seconds."""
STEP_SHARE_MAX: Final = 4
"""So many times as long as such a step took the replay goes on at least before the next: they take a fifth of it at most."""
NO_CHECKPOINT: Final = CatalogHead(0, "", 1, (), ())


def load_catalog(catalog: Catalog, table: TopicTable, replay: Replay, layout: Layout, fs: Fs) -> CatalogHead:
    """Put the catalog's topics into the table; its head.

    Raises:
        CatalogLost: it was never written, and there are segments. DataCorrupt.
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
            "put back the catalog that belongs to this directory, or restore the directory from a copy",
            path=str(layout.catalog),
        )
    return NO_CHECKPOINT


def positions_of(head: CatalogHead, fs: Fs, layout: Layout, *, wal_shards: int) -> tuple[WalPosition, ...]:
    """Where each WAL shard is read from: of a directory that has no checkpoint yet, every shard there is, from its
    beginning."""
    if head.wal:
        return head.wal
    found = [shard for shard in range(WAL_SHARDS_MAX) if fs.exists(layout.wal_shard(shard))]
    return tuple(WalPosition(shard, 1, 1, -1) for shard in range(max([wal_shards, *(shard + 1 for shard in found)])))


class WalOpener:
    """Recovers every WAL shard in turn, and takes the catalog along."""

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
        tell: Callable[[RecoveryProgress], None],
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
        self._tell = tell
        self._file_bytes = file_bytes
        self._total_bytes = 0
        self._known_bytes = 0
        self._step_bytes = 0
        self._step_s = clock.monotonic_s()
        self._step_took_s = 0.0

    def run(self, positions: Sequence[WalPosition], before: Identity | None) -> list[Wal]:
        """Recover all; what was opened is closed where one fails.

        Raises:
            CatalogLost, DataCorrupt, OSError, FoldFailed.
        """
        done = list(positions)
        for position in positions:
            self._layout.make_directories(self._fs, shard=position.shard)
        name_files(self._fs, self._layout, positions)
        self._total_bytes = sum(self._bytes_of(position, position.data_number) for position in positions)
        self._known_bytes = self._total_bytes - sum(
            self._bytes_of(position, position.state_number) - position.state_offset for position in positions
        )
        self._tell_progress()
        wals = list[Wal]()
        try:
            for index, position in enumerate(positions):
                wals.append(self._recover(position, before, done))
                end = wals[-1].end
                done[index] = position._replace(state_number=end.file_number, previous_bytes=-1, state_offset=0)
        except BaseException:
            for wal in wals:
                wal.close()
            raise
        return wals

    def _recover(self, position: WalPosition, before: Identity | None, done: list[WalPosition]) -> Wal:
        shard, state_number, data_number, previous_bytes, state_offset = position
        directory = self._layout.wal_shard(shard)
        if not self._head.checkpoint:
            self._check_complete(shard)
        self._check_marks(shard)
        left = None
        if before is not None and shard == 0 and before.wal_number >= data_number:
            left = WalEnd(before.wal_number, before.wal_bytes)
        take = self._replay.shard(state_number, state_offset)
        state, at = (state_number, state_offset), [data_number]

        def on_frame(frame: Frame, location: Location) -> None:
            if location.file_number != at[0]:
                self._tell_progress()
                at[0] = location.file_number
            if location[:2] > state and self._step_is_due():
                self._step(shard, location, done)
            try:
                take(frame, location)
            except (BadBody, KeyError, ValueError) as error:
                raise corrupt(
                    wal_file(directory, location.file_number),
                    location.offset,
                    f"a {frame.type.name} frame does not say what one says: {error}",
                ) from error

        return Wal.recover(
            self._fs,
            directory,
            shard,
            self._file_bytes,
            on_frame,
            first_number=data_number,
            settled=WalEnd(state_number - 1, previous_bytes) if previous_bytes >= 0 else None,
            expected=left,
            replayed=WalEnd(state_number, state_offset),
            checkpoint=self._head.checkpoint,
            on_mark=self._mark,
        )

    def _mark(self, checkpoint: int) -> None:
        if checkpoint > self._head.checkpoint:
            raise CatalogLost(
                f"{self._layout.catalog} is of checkpoint {self._head.checkpoint}, the WAL was written after checkpoint "
                f"{checkpoint}: an older catalog lies in this directory. Nothing was changed; put back the one that "
                "belongs to it, or restore the directory from a copy",
                path=str(self._layout.catalog),
                checkpoint=self._head.checkpoint,
                walCheckpoint=checkpoint,
            )

    def _check_marks(self, shard: int) -> None:
        """Every file's mark before any is replayed: an older catalog is told as what it is, whichever files it misses."""
        directory = self._layout.wal_shard(shard)
        for number in wal_numbers(self._fs.listdir(directory)):
            mark = first_mark(self._fs, directory, shard, number)
            if mark is not None:
                self._mark(mark)

    def _check_complete(self, shard: int) -> None:
        """Without any checkpoint the WAL begins with file 1: one that does not was trimmed by a checkpoint we lack."""
        numbers = wal_numbers(self._fs.listdir(self._layout.wal_shard(shard)))
        if numbers and numbers[0] > 1:
            raise CatalogLost(
                f"{self._layout.catalog} has no checkpoint, and the WAL begins with "
                f"{wal_file(self._layout.wal_shard(shard), numbers[0])}: the catalog is missing. Nothing was changed; "
                "put back the catalog that belongs to this directory, or restore the directory from a copy",
                path=str(self._layout.catalog),
            )

    def _step_is_due(self) -> bool:
        passed_s = self._clock.monotonic_s() - self._step_s
        if passed_s < self._step_took_s * STEP_SHARE_MAX:
            return False
        return (
            self._replay.bytes - self._known_bytes - self._step_bytes >= REPLAYED_BYTES_MAX
            or passed_s >= REPLAYED_S_MAX
        )

    def _step(self, shard: int, location: Location, done: list[WalPosition]) -> None:
        """All frames before `location` are replayed: take that down. The file's frames need not be durable yet."""
        began_s = self._clock.monotonic_s()
        self._tell_progress()
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
        self._step_bytes = self._replay.bytes - self._known_bytes
        self._step_s = self._clock.monotonic_s()
        self._step_took_s = self._step_s - began_s

    def _tell_progress(self) -> None:
        """Of what the catalog does not know: what it knows is only read."""
        total_bytes = max(self._total_bytes - self._known_bytes, 0)
        done_bytes = min(max(self._replay.bytes - self._known_bytes, 0), total_bytes)
        self._tell(RecoveryProgress(done_bytes, total_bytes))

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
    """Every seq above a topic's floor and up to its head lies in a segment, in a frame, or is known to hold nothing.

    Raises:
        DataCorrupt: some are missing; the start is refused rather than a hole served.
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
    raise DataCorrupt(
        f"seqs {first_seq} to {last_seq} of topic {name} are in no WAL file: frames are missing", file="wal", offset=0
    )


async def recover(
    machine: Env,
    settings: StoreSettings,
    layout: Layout,
    *,
    catalog: Catalog,
    folds: FoldOpener,
    before: Identity | None,
) -> Recovered:
    """Open everything of a locked directory; losses are not yet settled.

    Raises:
        CatalogLost, DataCorrupt, OSError, FoldFailed, CatalogFailed: it cannot be served; nothing was destroyed.
    """
    fs, workers = machine.fs, machine.workers
    table, sources = TopicTable(settings.shard, start=next_start(before)), Sources(machine.clock)
    replay = Replay(table=table, layout=layout, erase_within_ms=settings.erase_within_h * _HOUR_MS)
    head = await workers.background.submit(partial(load_catalog, catalog, table, replay, layout, fs))
    fold = await workers.fold.submit(partial(folds.open, head, table))
    # A start that was cut off before its first checkpoint has told its id to the fold alone.
    store_id = head.store_id or fold.store_id() or new_store_id(machine.clock, machine.host)
    replay.begin(fold)
    opening = WalOpener(
        fs=fs,
        layout=layout,
        catalog=catalog,
        head=head,
        table=table,
        replay=replay,
        fold=fold,
        tell=machine.tell,
        file_bytes=settings.wal_file_bytes,
        clock=machine.clock,
    )
    positions = positions_of(head, fs, layout, wal_shards=settings.wal_shards)
    wals = await workers.wals[0].submit(partial(opening.run, positions, before))
    await workers.fold.submit(partial(replay.finish, sources))
    check_continuous(table)
    aside = partial(
        resolve_orphans,
        fs,
        layout,
        table,
        wal_shards=len(positions),
        garbage=set(with_garbage(head, replay, layout).garbage),
        now_ms=machine.clock.now_ms(),
    )
    await workers.background.submit(aside)
    files = LogFiles(fs, wals)
    repair = FoldRepair(
        fold,
        table=table,
        files=files,
        layout=layout,
        wals=wals,
        report=machine.tell,
        replayed_bytes=replay.bytes,
        before_logging=partial(_no_clean_end, fs, layout, before, machine.host.boot_id()),
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


def _no_clean_end(fs: Fs, layout: Layout, before: Identity | None, boot_id: str) -> None:
    """The log goes on behind the end that a clean stop has told; what is written from here on is of this boot."""
    if before is not None and before.clean:
        write_identity(fs, layout, replace(before, clean=False, boot_id=boot_id, wal_bytes=0, marked=False))


def new_store_id(clock: Clock, host: Host) -> str:
    """An id that no other store has: when, where and in which process it was made."""
    return f"{clock.now_ms():x}-{host.boot_id()}-{host.pid()}"
