"""Source of a topic's fold: its base, and the log after it, read piece by piece.

Rows deleted on request are left out of both; rows below the logical floors are not: retention trims history, never a fold.
Every seq of the range must be in a piece or known to be empty.

I1: pieces come in order, those of the base by key, those of the log by seq, each with the last seq that it completes. I2:
one stored batch is in memory at a time, and is yielded in pieces of so few rows that none keeps other threads waiting. I3:
a source shows the moment of its creation: it holds segments that are replaced later.
Failure: a damaged or missing piece is DataCorrupt. With `past_damage` the source yields what can be read: the intact part
of a damaged base, and before it the rest of the log up to it (`older`).
Threading: created and closed where the topic's state lives (the event loop, or before the store serves); read on any one
thread, blocking.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eddyline.core.errors import DataCorrupt
from eddyline.store.log.deletion import visible
from eddyline.store.log.floors import Floors
from eddyline.store.log_io.files import extent_of
from eddyline.store.storage.layout import base_file
from eddyline.store.storage.segment.reader import open_segment, read_batch, read_footer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from eddyline.core.records.batch import Batch
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.files import LogExtent, LogFiles
    from eddyline.store.storage.layout import Layout

_NO_FLOORS: Final = Floors()
ROWS_MAX: Final = 4096
"""Rows of a piece: one write of the fold, as large as the applier's."""


class LogPiece(NamedTuple):
    """Rows of the log, maybe none; they complete all seqs up to `last_seq`."""

    last_seq: int
    batch: Batch


class FoldSource:
    """Base and log of one topic, or the log alone if an existing fold continues."""

    def __init__(
        self,
        files: LogFiles,
        layout: Layout,
        topic: Topic,
        *,
        through_seq: int,
        applied_seq: int = 0,
        rows_max: int = ROWS_MAX,
        past_damage: bool = False,
        base_damaged: bool = False,
    ) -> None:
        """Source of the fold at `through_seq`. A fold that is complete up to `applied_seq` continues from there, if the
        log reaches so far. `base_damaged` (only with `past_damage`) = also read the rest of the log before the base."""
        base = topic.base
        base_seq = base.seq if base is not None else 0
        self.continues: Final = 0 < applied_seq >= base_seq
        """Whether the source is the log alone, on top of an existing fold."""
        self.base_seq: Final = 0 if self.continues else base_seq
        self.after_seq: Final = applied_seq if self.continues else base_seq
        """Start of the log, exclusive."""
        self.through_seq: Final = through_seq
        self.base_damaged: Final = base_damaged
        # Below this, erased rows may lie in a file that still exists, without any record of their erasure.
        self._older_after = topic.retained_after_seq if base_damaged else base_seq
        self.log_first_seq = (self._older_after if base_damaged else self.after_seq) + 1
        """First seq from which the log is complete."""
        self.bytes_read = 0
        self._files = files
        self._rows_max = rows_max
        self._past_damage = past_damage
        self._base: Path | None = None
        self._deleted = topic.deleted_seqs.copy()
        self._uncounted = topic.uncounted.copy()
        self._older = extent_of(topic, self._older_after, base_seq)
        self._extent = extent_of(topic, self.after_seq, through_seq)
        if base is not None and base.rows and not self.continues:
            self._base = base_file(layout.topic_dir(topic.id), base.seq, base.generation)

    def close(self) -> None:
        """Release the files."""
        self._older.close()
        self._extent.close()

    def base(self) -> Iterator[Batch]:
        """Yield the base's entries in order of keys.

        Raises:
            DataCorrupt.
        """
        if self._base is None:
            return
        try:
            footer = read_footer(self._files.fs, self._base)
            file = open_segment(self._files.fs, self._base)
        except DataCorrupt as error:
            self._on_damage(error)
            return
        try:
            for entry in footer.batches:
                try:
                    batch = read_batch(file, self._base, entry)
                except DataCorrupt as error:
                    self._on_damage(error)
                    continue
                self.bytes_read += entry.length
                gone = self._deleted.mask_each(batch.seq_array())
                yield from self._cut(batch.select(np.flatnonzero(~gone)) if gone.any() else batch)
        finally:
            file.close()

    def log(self) -> Iterator[LogPiece]:
        """Yield the log after the base, or after the existing fold's applied seq.

        Raises:
            DataCorrupt: a piece is damaged, or seqs are in no file.
        """
        return self._log(self._extent, self.after_seq, self.through_seq)

    def older(self) -> Iterator[LogPiece]:
        """Yield the rest of the log before a damaged base, else nothing. The base's entry of a key is as new or newer."""
        return self._log(self._older, self._older_after, self.base_seq)

    def _log(self, extent: LogExtent, after_seq: int, through_seq: int) -> Iterator[LogPiece]:
        next_seq, whole = after_seq + 1, True
        for read, size in self._pieces(extent, after_seq):
            try:
                stored = read()
            except DataCorrupt as error:
                self._on_damage(error)
                whole = False
                continue
            self.bytes_read += size
            rows = stored.slice(stored.index_after(next_seq - 1), stored.index_after(through_seq))
            if not rows.count:
                continue
            whole = self._is_whole(rows, next_seq) and whole
            if not whole:
                self.log_first_seq, whole = rows.first_seq, True
            next_seq = rows.last_seq + 1
            for part in self._cut(rows):
                yield LogPiece(part.last_seq, visible(part, _NO_FLOORS, self._deleted))
        if next_seq <= through_seq and (missing := self._uncounted.first_absent_after(next_seq - 1)) <= through_seq:
            self._on_missing(missing, through_seq)
            self.log_first_seq = through_seq + 1

    def _cut(self, batch: Batch) -> Iterator[Batch]:
        for start in range(0, batch.count, self._rows_max):
            yield batch.slice(start, start + self._rows_max)

    def _pieces(self, extent: LogExtent, after_seq: int) -> Iterator[tuple[Callable[[], Batch], int]]:
        for segment in extent.segments:
            try:
                footer = self._files.footer(segment)
            except DataCorrupt as error:
                self._on_damage(error)
                continue
            for entry in footer.batches[footer.batch_after(after_seq) :]:
                yield partial(self._files.batch, segment, entry), entry.length
        for frame in extent.entries:
            yield partial(self._files.frame, extent.topic_id, frame.location), frame.location.length

    def _is_whole(self, rows: Batch, next_seq: int) -> bool:
        """Whether every seq from `next_seq` to the last of `rows` is a row, or empty."""
        span = rows.last_seq - next_seq + 1
        if span == rows.count:
            return True
        empty = self._uncounted.mask(rows)
        counted = rows.count - (int(empty.sum()) if empty is not None else 0)
        if counted + self._uncounted.count(next_seq, rows.last_seq) == span:
            return True
        self._on_missing(next_seq, rows.last_seq)
        return False

    def _on_missing(self, first_seq: int, last_seq: int) -> None:
        self._on_damage(
            DataCorrupt(
                f"seqs among {first_seq} to {last_seq} of a topic are missing from all files",
                file="log",
                offset=first_seq,
            )
        )

    def _on_damage(self, error: DataCorrupt) -> None:
        if not self._past_damage:
            raise error
