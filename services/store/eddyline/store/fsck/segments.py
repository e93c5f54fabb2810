"""Check of every byte of segments and bases against checksums, footers, and the catalog.

A footer's numbers and filters are recomputed from the rows and must be equal: no later read would notice a filter that
wrongly denies a key.
Threading: synchronous; one record batch in memory.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc

from eddyline.core.errors import DataCorrupt
from eddyline.core.records.arrow import to_arrow
from eddyline.store.fsck.findings import ASK
from eddyline.store.storage.segment.bloom_filter import FilterBuilder
from eddyline.store.storage.segment.reader import read_batch, read_footer, read_message
from eddyline.store.storage.segment.writer import entry_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.fs import File, Fs
    from eddyline.store.fsck.findings import Findings
    from eddyline.store.storage.segment.footer import BatchEntry, Footer, SegmentSource, SegmentSummary


class ExpectedFile(NamedTuple):
    """A file as the catalog or the log describes it. `summary` is None for a base, which has `rows` and `file_bytes`
    instead."""

    source: SegmentSource
    summary: SegmentSummary | None
    rows: int
    file_bytes: int


def check_file(
    fs: Fs, path: Path, expected: ExpectedFile | None, findings: Findings, on_batch: Callable[[Batch], None]
) -> bool:
    """Check a whole file, and pass its batches to `on_batch`; return whether it is valid. `expected` None = neither catalog
    nor log names it."""
    try:
        footer = read_footer(fs, path)
        file = fs.open(path)
    except DataCorrupt as error:
        findings.error(path, error.message, offset=int(error.metadata.get("offset", 0)))
        return False
    try:
        valid = expected is None or _fits(path, footer, expected, findings)
        return _check_batches(file, path, footer, findings, on_batch) and valid
    finally:
        file.close()


def _fits(path: Path, footer: Footer, expected: ExpectedFile, findings: Findings) -> bool:
    source, summary = footer.source, footer.summary
    ours, theirs = (source.topic_id, source.kind, source.generation, source.is_base, source.base_seq), expected.source
    if ours != (theirs.topic_id, theirs.kind, theirs.generation, theirs.is_base, theirs.base_seq):
        findings.error(path, "its footer is that of another file", to_do=ASK)
        return False
    if expected.summary is not None and summary != expected.summary:
        findings.error(path, f"its footer says {summary}, the catalog {expected.summary}", to_do=ASK)
        return False
    if (summary.rows, summary.file_bytes) != (expected.rows, expected.file_bytes):
        what = f"it has {summary.rows} rows and {summary.file_bytes} bytes, by the catalog {expected.rows} and "
        findings.error(path, what + str(expected.file_bytes), to_do=ASK)
        return False
    return True


def _check_batches(
    file: File, path: Path, footer: Footer, findings: Findings, on_batch: Callable[[Batch], None]
) -> bool:
    keys, tags, bounds = FilterBuilder(), FilterBuilder(), _KeyBounds()
    whole = valid = True
    for entry in footer.batches:
        try:
            batch = read_batch(file, path, entry)
        except DataCorrupt as error:
            findings.error(path, error.message, offset=entry.offset)
            whole = False
            continue
        if not _is_in_order(batch, is_base=footer.source.is_base) or _entry(file, path, batch, entry, footer) != entry:
            findings.error(path, "a record batch differs from its entry in the footer", offset=entry.offset, to_do=ASK)
            valid = False
        keys.add(batch.key, batch.count)
        tags.add(batch.tag, batch.count)
        bounds.add(batch)
        on_batch(batch)
    if whole and (keys.finish(), tags.finish(), bounds.least, bounds.greatest) != (
        footer.keys,
        footer.tags,
        footer.min_key,
        footer.max_key,
    ):
        findings.error(path, "its filters or key bounds do not match its keys and tags", to_do=ASK)
        valid = False
    return whole and valid


def _entry(file: File, path: Path, batch: Batch, entry: BatchEntry, footer: Footer) -> BatchEntry:
    message = memoryview(read_message(file, path, entry))
    return entry_of(batch, offset=entry.offset, message=message, is_base=footer.source.is_base)


def _is_in_order(batch: Batch, *, is_base: bool) -> bool:
    if is_base:
        cells = [row.key or b"" for row in batch.to_rows()]
        return all(one < other for one, other in pairwise(cells))
    seqs = batch.seq_array()
    return bool(seqs[0] > 0 and (seqs[1:] > seqs[:-1]).all())


class _KeyBounds:
    """Collects the smallest and the largest key."""

    def __init__(self) -> None:
        self.least: bytes | None = None
        self.greatest: bytes | None = None

    def add(self, batch: Batch) -> None:
        if batch.key is not None:
            bounds = pc.min_max(to_arrow(batch).column("key")).as_py()
            self.least = bounds["min"] if self.least is None else min(self.least, bounds["min"])
            self.greatest = bounds["max"] if self.greatest is None else max(self.greatest, bounds["max"])
