"""The segment format is frozen: new bytes equal the golden file's, and those are read back."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import ipc

from eddyline.core.records.arrow import from_arrow
from eddyline.core.records.batch import Batch
from eddyline.store.storage.segment.bloom_filter import KeyFilter
from eddyline.store.storage.segment.footer import BatchEntry, SegmentSummary
from eddyline.store.storage.segment.reader import read_footer
from tests.support.golden import golden
from tests.support.storage.segments import PATH, SOURCE, all_batches, disk_with, golden_batch, golden_segment

SUMMARY = SegmentSummary(
    first_seq=4,
    last_seq=11,
    generation=7,
    rows=5,
    gap_count=1,
    record_bytes=155,
    file_bytes=3610,
    first_ts_ms=1000,
    last_ts_ms=1002,
    source_ts_ns_max=7,
)
BATCHES = (
    BatchEntry(
        first_seq=4,
        last_seq=9,
        first_ts_ms=1000,
        last_ts_ms=1001,
        rows=3,
        gap_count=1,
        record_bytes=85,
        source_ts_ns_max=7,
        offset=584,
        length=952,
        checksum=5603702783349012786,
    ),
    BatchEntry(
        first_seq=10,
        last_seq=11,
        first_ts_ms=1002,
        last_ts_ms=1002,
        rows=2,
        gap_count=0,
        record_bytes=70,
        source_ts_ns_max=0,
        offset=1536,
        length=872,
        checksum=6506570873431007851,
    ),
)
KEYS = KeyFilter(cell_count=3, bits=b"\x7f \x10,M\x12\x00\x81")
TAGS = KeyFilter(cell_count=3, bits=b"\x7f\t\x82$\x08`P\x84")


def test_fresh_segment_has_the_golden_bytes() -> None:
    assert golden_segment() == golden("segment-1.arrow")


def test_golden_segment_is_read_back() -> None:
    fs = disk_with(golden("segment-1.arrow"))
    footer = read_footer(fs, PATH)
    assert footer.source == SOURCE
    assert footer.summary == SUMMARY
    assert footer.batches == BATCHES
    assert (footer.min_key, footer.max_key) == (b"", b"\xff")
    assert footer.keys == KEYS
    assert footer.tags == TAGS
    assert Batch.concat(all_batches(fs)) == golden_batch()


def test_golden_segment_opens_in_arrow() -> None:
    reader = ipc.open_file(pa.py_buffer(golden("segment-1.arrow")))
    batches = [from_arrow(reader.get_batch(number)) for number in range(reader.num_record_batches)]
    assert Batch.concat(batches) == golden_batch()
