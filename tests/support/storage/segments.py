"""Segments on a simulated disk: written, placed as bytes, read whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import MetaEntry, Op, Record
from eddyline.core.runtime.fs import write_all
from eddyline.store.storage.segment.footer import SegmentSource
from eddyline.store.storage.segment.reader import read_batch, read_footer
from eddyline.store.storage.segment.writer import BYTES_MAX, ROWS_MAX, write_segment
from tests.support.models.batches import gap_record
from tests.support.sim.fs import SimFs

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from eddyline.core.runtime.fs import File, Fs
    from eddyline.store.storage.segment.footer import BatchEntry, Compression, Footer

PATH = Path("/seg.arrow")
SOURCE = SegmentSource(10, "téléphone", "KV", 3, 7)
BASE = SOURCE._replace(is_base=True, base_seq=1 << 60)


def written(
    fs: Fs,
    batches: Iterable[Batch],
    *,
    source: SegmentSource = SOURCE,
    compression: Compression = "none",
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
) -> Footer:
    """A segment at `PATH`, of at least one record."""
    footer = write_segment(fs, PATH, source, batches, compression=compression, rows_max=rows_max, bytes_max=bytes_max)
    assert footer is not None
    return footer


def bytes_at(fs: Fs, path: Path = PATH) -> bytes:
    """The bytes of a file."""
    file = fs.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def disk_with(data: bytes) -> SimFs:
    """A disk whose file at `PATH` has these bytes."""
    fs = SimFs()
    file = fs.open(PATH, create=True)
    write_all(file, [data], 0)
    file.close()
    return fs


def all_batches(fs: Fs) -> list[Batch]:
    """Every record batch of the segment at `PATH`."""
    footer = read_footer(fs, PATH)
    file = fs.open(PATH)
    try:
        return [read_batch(file, PATH, entry) for entry in footer.batches]
    finally:
        file.close()


def golden_batch() -> Batch:
    """The content of the golden file: every column, absent and empty cells, a hole, a gap record."""
    rows = [
        Record(4, 1_000, 7, Op.PUT, b"k", b"value", "é", None, (MetaEntry("a", b"b"),), b"\1"),
        Record(5, 1_000, -1, Op.DELETE, b"", None, "", "node"),
        gap_record(9, 7, 8)._replace(ts_ms=1_001),
        Record(10, 1_002, 0, Op.APPEND, None, b""),
        Record(11, 1_002, 0, Op.PURGE, b"\xff", b"\0\xff", "tag", ""),
    ]
    return Batch.from_rows(rows)


def golden_segment() -> bytes:
    """The golden file, made now: two record batches."""
    fs = SimFs()
    written(fs, [golden_batch()], rows_max=3)
    return bytes_at(fs)


def segment_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list that gets the path of every batch that a store reads from a segment from now on."""
    paths: list[Path] = []

    def noted(file: File, path: Path, entry: BatchEntry) -> Batch:
        paths.append(path)
        return read_batch(file, path, entry)

    monkeypatch.setattr("eddyline.store.log_io.files.read_batch", noted)
    return paths
