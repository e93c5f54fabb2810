"""Tests of the gatherer: bounds, columns, gaps in their places."""

from __future__ import annotations

from eddyline.core.records.record import Gap, GapReason, MetaEntry, Op, Record
from eddyline.core.records.validation import validated
from eddyline.ingest.copy.batch import CHUNK_RECORDS_MAX, RECORD_OVERHEAD_BYTES, Chunk, Gatherer, PlacedGap, gap_record
from eddyline.ingest.copy.decode import VALUE, Delivery, Meaning, parse_headers
from eddyline.ingest.copy.position import sample_of


def add(gatherer: Gatherer, revision: int, data: bytes = b"x", meaning: Meaning = VALUE) -> Chunk:
    """Add one message."""
    return gatherer.add(b"$KV.b.k", b"k", data, meaning, Delivery(revision, revision, revision * 10, 0))


def sizes(gatherer: Gatherer) -> list[int]:
    """Pop all chunks, and return their counts."""
    parts = []
    while (chunk := gatherer.pop()) is not None:
        parts.append(chunk.count)
    return parts


def test_chunks_end_at_their_bound_of_records() -> None:
    gatherer = Gatherer()
    for revision in range(1, 2 * CHUNK_RECORDS_MAX + 501):
        add(gatherer, revision)
    assert gatherer.count == 2 * CHUNK_RECORDS_MAX + 500
    assert sizes(gatherer) == [CHUNK_RECORDS_MAX, CHUNK_RECORDS_MAX, 500]
    assert gatherer.count == 0


def test_chunks_end_before_a_mebibyte_and_a_larger_record_goes_alone() -> None:
    gatherer = Gatherer()
    half = (1 << 19) - RECORD_OVERHEAD_BYTES - 1
    for revision, size in enumerate((half, half, 1, 2 << 20, 1), 1):
        add(gatherer, revision, b"x" * size)
    assert sizes(gatherer) == [2, 1, 1, 1]


def test_messages_that_arrive_before_a_chunk_is_popped_join_the_newest_one() -> None:
    gatherer = Gatherer()
    add(gatherer, 1)
    first = gatherer.pop()
    assert first is not None
    add(gatherer, 2)
    add(gatherer, 3)
    assert sizes(gatherer) == [2]
    assert first.count == 1


def test_columns_are_the_messages() -> None:
    gatherer = Gatherer()
    headers = b"NATS/1.0\r\nA: 1\r\n\r\n"
    add(gatherer, 1, b"", VALUE)
    add(gatherer, 2, b"v", parse_headers(headers))
    chunk = add(gatherer, 3, b"", Meaning(Op.DELETE, b""))
    batch = chunk.batch()
    assert batch is not None
    assert batch.to_rows() == [
        Record(op=Op.PUT, key=b"k", data=b"", source_ts_ns=10, version=(1).to_bytes(8, "big")),
        Record(
            op=Op.PUT,
            key=b"k",
            data=b"v",
            source_ts_ns=20,
            version=(2).to_bytes(8, "big"),
            meta=(MetaEntry("A", b"1"),),
        ),
        Record(op=Op.DELETE, key=b"k", data=None, source_ts_ns=30, version=(3).to_bytes(8, "big")),
    ]
    assert validated(batch, source=True).to_rows() == batch.to_rows()
    assert chunk.position(7).sample == sample_of(b"$KV.b.k", b"")
    assert chunk.position(7).revision == 3


def test_gaps_lie_before_their_rows() -> None:
    gatherer = Gatherer()
    for revision in (3, 4, 9):
        chunk = add(gatherer, revision)
    gaps = [
        PlacedGap(0, Gap(0, 0, GapReason.SOURCE_GAP, source_first=1, source_last=2)),
        PlacedGap(2, Gap(0, 0, GapReason.SOURCE_GAP, source_first=5, source_last=8)),
    ]
    parts = chunk.batch(gaps)
    assert parts is not None
    rows = validated(parts, source=True).to_rows()
    assert [row.op for row in rows] == [Op.GAP, Op.PUT, Op.PUT, Op.GAP, Op.PUT]
    assert rows[3] == gap_record(gaps[1].gap)
