"""Resharding of the WAL: after a change of the number of shards, unsegmented frames are written again in the new layout.

A topic's frames are in the shard of its id modulo the number of shards, and a frame is valid only where it was written. So a
store that is opened with another number recovers by the old layout, and then:

    write       the unsegmented frames, CARRIED, into the new layout's first files, under temporary names; fsync
    catalog     one batch: all replayed state, the new layout's positions, the old directories as garbage
    rename      the files get their final names
    open        the new shards; files below their positions are removed

I1: before the catalog's write only temporaries were made, which the next start removes: the old layout is complete. After it
the catalog names the new files, and the next start renames them: the new layout is complete. I2: the new files' numbers are
above every number that any shard ever had, so that no position, mark or identity of the old layout fits them.
Cost: the unsegmented bytes are written once more. Threading: synchronous; runs before the store serves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import DataCorrupt
from eddyline.core.runtime.fs import remove_directory, write_all
from eddyline.store.catalog.catalog import WalPosition
from eddyline.store.fold.fold import sync_for_checkpoint
from eddyline.store.log_io.catalog_entries import encode_catalog_topic, source_of
from eddyline.store.recovery.orphans import with_garbage
from eddyline.store.storage.layout import parse_wal_temporary, temporary_file, wal_file, wal_numbers
from eddyline.store.storage.wal.frame import FrameType, carried_body, control_body, seal
from eddyline.store.storage.wal.wal import Wal, WalEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from eddyline.core.runtime.fs import File, Fs
    from eddyline.store.catalog.catalog import Catalog, CatalogHead
    from eddyline.store.fold.fold import Fold
    from eddyline.store.log.table import TopicTable
    from eddyline.store.recovery.recovered import Recovered
    from eddyline.store.storage.layout import Layout
    from eddyline.store.storage.wal.frame import FrameBody, WalFrame
    from eddyline.store.storage.wal.wal import Location

WRITTEN_BYTES: Final = 1 << 20
"""Frames are written in chunks of so many bytes."""
_WAL_DIRECTORIES: Final = "wal/"
"""Prefix of shard directories in the garbage list."""


def reshard(
    fs: Fs, layout: Layout, recovered: Recovered, *, catalog: Catalog, fold: Fold, wal_shards: int, file_bytes: int
) -> Recovered:
    """Change a recovered store, whose losses are logged, to `wal_shards` shards. Returns it with the new shards open; the
    old ones are closed. Blocking.

    Raises:
        DataCorrupt, OSError, CatalogFailed, FoldFailed: the store cannot start; one of the two layouts is complete for the
            next start.
    """
    old, table = recovered.wals, recovered.table
    head = with_garbage(recovered.head, recovered.replay, layout)
    for name in head.garbage:
        if name.startswith(_WAL_DIRECTORIES):
            remove_directory(fs, layout.data_dir / name)
    first_number = _highest_number(fs, layout, head) + 1
    positions = list[WalPosition]()
    for shard in range(wal_shards):
        layout.make_directories(fs, shard=shard)
        shard_writer = _ShardWriter(
            fs,
            layout.wal_shard(shard),
            shard=shard,
            first_number=first_number,
            file_bytes=file_bytes,
            checkpoint=head.checkpoint,
        )
        for topic in sorted(table.with_frames(), key=lambda topic: topic.id):
            if topic.id % wal_shards == shard:
                for entry in topic.index.entries_through(topic.head_seq):
                    batch = old[topic.id % len(old)].read(entry.location).batch
                    assert batch is not None, "only appends are indexed"
                    shard_writer.add(carried_body(topic.id, batch))
        positions.append(shard_writer.finish())
    for wal in old:
        wal.sync()
    sync_for_checkpoint(fold, head.checkpoint + 1)
    gone = [f"{layout.wal_shard(s).relative_to(layout.data_dir)}/" for s in range(wal_shards, len(old))]
    kept = [name for name in head.garbage if not name.startswith(_WAL_DIRECTORIES)]
    new_head = replace(
        head,
        checkpoint=head.checkpoint + 1,
        store_id=recovered.store_id,
        next_topic_id=table.next_id,
        wal=tuple(positions),
        garbage=tuple(sorted([*kept, *gone])),
    )
    entries = [encode_catalog_topic(topic, source_of(topic, recovered.sources)) for topic in table.dirty]
    catalog.write(new_head, entries, sorted(table.gone))
    table.dirty.clear()
    table.gone.clear()
    rename_files(fs, layout, positions)
    wals = _open(fs, layout, table, positions, file_bytes=file_bytes, checkpoint=new_head.checkpoint)
    for wal in old:
        wal.close()
    return replace(recovered, head=new_head, wals=wals)


def rename_files(fs: Fs, layout: Layout, positions: Sequence[WalPosition]) -> None:
    """Rename the temporaries that the catalog names as files of the WAL. Blocking."""
    for shard, state_number, data_number, *_ in positions:
        directory = layout.wal_shard(shard)
        names = fs.listdir(directory)
        waiting = [number for name in names if (number := parse_wal_temporary(name)) is not None]
        named = [number for number in waiting if data_number <= number < state_number]
        for number in set(named) - set(wal_numbers(names)):
            path = wal_file(directory, number)
            fs.rename(temporary_file(path), path)
        if named:
            fs.fsync_dir(directory)


class _ShardWriter:
    """Writes the first files of one new shard, under temporary names."""

    def __init__(
        self, fs: Fs, directory: Path, *, shard: int, first_number: int, file_bytes: int, checkpoint: int
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._shard = shard
        self._first_number = first_number
        self._file_bytes = file_bytes
        self._checkpoint = checkpoint
        self._number = first_number
        self._file: File | None = None
        self._offset = 0
        self._buffers: list[bytes] = []
        self._buffered = 0

    def add(self, body: FrameBody) -> None:
        """Append a frame."""
        if self._file is not None and self._offset + body.length_bytes > self._file_bytes:
            previous_bytes = self._offset
            self._end_file()
            self._number += 1
            self._begin_file()
            mark = {"checkpoint": self._checkpoint, "previous_bytes": previous_bytes}
            self._put(control_body(FrameType.CHECKPOINT_MARK, 0, mark, ts_ms=body.ts_ms))
        elif self._file is None:
            self._begin_file()
        self._put(body)

    def finish(self) -> WalPosition:
        """Write and sync the rest. Returns where the shard is read from."""
        if self._file is None:
            return WalPosition(self._shard, self._first_number, self._first_number, -1)
        file_bytes = self._offset
        self._end_file()
        self._fs.fsync_dir(self._directory)
        return WalPosition(self._shard, self._number + 1, self._first_number, file_bytes)

    def _put(self, body: FrameBody) -> None:
        frame = seal(body, shard=self._shard, file_number=self._number, offset=self._offset, synced_to=0)
        self._buffers.append(frame)
        self._offset += len(frame)
        self._buffered += len(frame)
        if self._buffered >= WRITTEN_BYTES:
            self._write()

    def _begin_file(self) -> None:
        self._file = self._fs.open(temporary_file(wal_file(self._directory, self._number)), create=True)
        self._file.truncate(0)
        self._offset = 0

    def _end_file(self) -> None:
        assert self._file is not None
        self._write()
        self._file.fsync()
        self._file.close()
        self._file = None

    def _write(self) -> None:
        assert self._file is not None
        write_all(self._file, self._buffers, self._offset - self._buffered)
        self._buffers, self._buffered = [], 0


def _open(
    fs: Fs, layout: Layout, table: TopicTable, positions: Sequence[WalPosition], *, file_bytes: int, checkpoint: int
) -> list[Wal]:
    """Open the new shards and move the indexes to the frames' new locations; each frame is checked against its topic's
    index."""
    due = {topic.id: len(topic.index) for topic in table.with_frames()}
    wals = list[Wal]()
    try:
        for shard, state_number, data_number, previous_bytes, _ in positions:
            settled = WalEnd(state_number - 1, previous_bytes) if previous_bytes >= 0 else None
            wals.append(
                Wal.recover(
                    fs,
                    layout.wal_shard(shard),
                    shard,
                    file_bytes,
                    _moved(table, due, shard),
                    first_number=data_number,
                    closed_end=settled,
                    checkpoint=checkpoint,
                )
            )
        if any(due.values()):
            raise DataCorrupt("frames are missing in the WAL's new layout", file=str(layout.wal), offset=0)
    except BaseException:
        for wal in wals:
            wal.close()
        raise
    return wals


def _moved(table: TopicTable, due: dict[int, int], shard: int) -> Callable[[WalFrame, Location], None]:
    def on_frame(frame: WalFrame, location: Location) -> None:
        topic = table.by_id(frame.topic_id)
        if topic is None or frame.batch is None or not topic.index.move(frame.first_seq, location):
            raise DataCorrupt(
                f"the WAL's new layout has a frame that the old layout lacks, in shard {shard}, file "
                f"{location.file_number:016x}",
                file=f"{location.file_number:016x}.wal",
                offset=location.offset,
            )
        due[topic.id] -= 1

    return on_frame


def _highest_number(fs: Fs, layout: Layout, head: CatalogHead) -> int:
    """Return the highest file number that any shard has or had."""
    highest = max((position.state_number for position in head.wal), default=0)
    for name in fs.listdir(layout.wal):
        numbers = wal_numbers([one.removesuffix(".tmp") for one in fs.listdir(layout.wal / name)])
        highest = max(highest, *numbers, 0)
    return highest
