"""The records that P11 scans: JSON of a hundred bytes with a key, a tag, a node and a source time each."""

from __future__ import annotations

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record

BATCH_ROWS = 65_536
"""A stored batch has as many at most."""
MADE_ROWS = 4_096


def device_batch(first: int, count: int) -> Batch:
    """`count` records with seqs from `first`."""
    return Batch.from_rows([device_record(number) for number in range(first, first + count)])


def device_record(number: int) -> Record:
    """One record; its seq is its number."""
    return Record(
        seq=number,
        ts_ms=1_767_225_600_000 + number,
        source_ts_ns=(1_767_225_600_000 + number) * 1_000_000,
        key=b"device/%013d" % (number * 2_654_435_761 % 10**13),
        tag=f"site-{number % 50:02d}",
        node="n1",
        data=b'{"device": %7d, "celsius": %6.2f, "state": "running", "at": "2026-01-01T%02d:%02d:%02dZ", "n": %5d}'
        % (number, number % 9973 / 100, number // 3600 % 24, number // 60 % 60, number % 60, number % 10_007),
    )
