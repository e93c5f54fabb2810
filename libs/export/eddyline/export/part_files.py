"""The files of one split: a Parquet file a UTC day of commit, in turn, and one of gap rows where they are wanted.

I1: rows come in order of `seq`, and commit times never go back in a topic, so one file is open at a time.
Threading: one task.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from eddyline.core.errors import DataCorrupt
from eddyline.export.manifest import NO_DAY, PartFile, part_name
from eddyline.export.parquet_file import ROWS_SCHEMA, read_back, with_epoch, write_file
from eddyline.export.split.arrow_rows import RowMaker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from eddyline.core.records.record import Gap
    from eddyline.export.out_dir import OutDir
    from eddyline.export.split.pieces import TopicSplit

_DAY_US: Final = 86_400 * 1_000_000


class PartFiles:
    """Writes what one split gives."""

    def __init__(self, out: OutDir, piece: TopicSplit) -> None:
        self._out = out
        self._piece = piece
        self._maker = RowMaker(piece.topic, ROWS_SCHEMA)
        self.files: list[PartFile] = []
        """Those that are finished."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write the store's batches, all of the split's.

        Raises:
            DataCorrupt: a commit time that lies before the one of an earlier record.
        """
        day: int | None = None
        parts = self._by_day(batches)
        part = next(parts, None)
        while part is not None:
            if day is not None and part[0] <= day:
                raise DataCorrupt(
                    f"topic {self._piece.topic}: records of {_shown(part[0])} after those of {_shown(day)}"
                )
            day, first = part
            following: list[tuple[int, pa.RecordBatch]] = []
            self._write_file(_shown(day), _same_day(day, first, parts, following))
            part = following[0] if following else None

    def write_gaps(self, gaps: list[Gap]) -> None:
        """Write a row a gap."""
        if gaps:
            self._write_file(NO_DAY, [with_epoch(self._maker.gap_rows(gaps), self._piece.epoch)])

    def _by_day(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = with_epoch(self._maker.rows(batch), self._piece.epoch)
            days = rows.column("ts").cast(pa.int64()).to_numpy() // _DAY_US
            bounds = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), rows.num_rows]
            for start, end in pairwise(bounds):
                yield int(days[start]), rows.slice(start, end - start)

    def _write_file(self, day: str, batches: Iterable[pa.RecordBatch]) -> None:
        name = part_name(self._piece, day)
        written = write_file(self._out, name, batches, is_sorted=True)
        self.files.append(PartFile(name, day, *written))


def read_part_file(out: OutDir, name: str) -> PartFile:
    """A finished file as it says of itself."""
    return PartFile(name, name.rpartition("/")[0].rpartition("day=")[2], *read_back(out, name))


def _same_day(
    day: int,
    first: pa.RecordBatch,
    parts: Iterator[tuple[int, pa.RecordBatch]],
    following: list[tuple[int, pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """The batches of a day; the first of another one goes into `following`."""
    yield first
    for part in parts:
        if part[0] != day:
            following.append(part)
            return
        yield part[1]


def _shown(day: int) -> str:
    return f"{datetime.fromtimestamp(day * 86_400, UTC):%Y-%m-%d}"
