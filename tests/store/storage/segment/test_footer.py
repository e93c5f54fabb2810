"""A segment returns the written rows, describes its content, and opens in libraries that do not know Eddyline."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc

from eddyline.core.records.arrow import arrow_schema, to_arrow
from eddyline.core.records.batch import Batch
from eddyline.core.records.meta import encode_meta
from eddyline.core.records.record import Op, Record
from eddyline.core.runtime.fs import RealFs
from eddyline.store.storage.segment.footer import Compression, Footer, SegmentId, SegmentSource
from eddyline.store.storage.segment.reader import read_batch, read_footer, read_message
from eddyline.store.storage.segment.writer import write_segment
from tests.support.models.batches import buffers_of, gap_record, placed
from tests.support.sim.fs import SimFs
from tests.support.storage.segments import BASE, PATH, SOURCE, all_batches, bytes_at, disk_with, written

if TYPE_CHECKING:
    from pathlib import Path

COMPRESSIONS: list[Compression] = ["none", "lz4", "zstd"]


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Rows of a log, at least one, gap records among them."""
    rows = draw(placed().filter(bool))
    gaps = draw(st.sets(st.integers(0, len(rows) - 1), max_size=3))
    return [
        gap_record(row.seq, row.seq, row.seq)._replace(ts_ms=row.ts_ms) if at in gaps else row
        for at, row in enumerate(rows)
    ]


def split(draw: st.DrawFn, rows: list[Record]) -> list[Batch]:
    cuts = sorted({0, len(rows), *draw(st.lists(st.integers(0, len(rows)), max_size=6))})
    return [Batch.from_rows(rows[start:stop]) for start, stop in pairwise(cuts)]


@st.composite
def split_logs(draw: st.DrawFn) -> tuple[list[Record], list[Batch]]:
    rows = draw(logs())
    return rows, split(draw, rows)


def bytes_of(row: Record) -> int:
    """A record's bytes as quotas count them."""
    if row.op == Op.GAP:
        return 0
    texts = [text.encode() for text in (row.tag, row.node) if text is not None]
    cells = [cell for cell in (row.key, row.data) if cell is not None]
    return sum(map(len, texts + cells)) + len(encode_meta(row.meta)) + len(row.version) + 32


@given(
    split_logs(), st.sampled_from(COMPRESSIONS), st.integers(1, 20), st.sampled_from([1, 40, 1 << 20]), st.booleans()
)
def test_written_batches_are_read_back(
    log: tuple[list[Record], list[Batch]], compression: Compression, rows_max: int, bytes_max: int, backwards: bool
) -> None:
    rows, batches = log
    source = SOURCE
    if backwards:  # a base is in key order, not in seq order
        rows, batches, source = rows[::-1], [Batch.from_rows(batch.to_rows()[::-1]) for batch in batches[::-1]], BASE
    fs = SimFs()
    footer = written(fs, batches, source=source, compression=compression, rows_max=rows_max, bytes_max=bytes_max)
    assert read_footer(fs, PATH) == footer
    read_batches = all_batches(fs)
    assert [row for batch in read_batches for row in batch.to_rows()] == rows
    assert [buffers_of(batch) for batch in read_batches] == [
        buffers_of(Batch.from_rows(batch.to_rows())) for batch in read_batches
    ]
    assert all(batch.count <= rows_max for batch in read_batches)
    assert all(
        batch.count == 1 or sum([len(column.values) for column in batch.columns() if column is not None]) <= bytes_max
        for batch in read_batches
    )
    check_footer(footer, read_batches, rows, len(bytes_at(fs)))


def check_footer(footer: Footer, batches: list[Batch], rows: list[Record], file_bytes: int) -> None:
    for entry, batch in zip(footer.batches, batches, strict=True):
        check_numbers(entry[:8], batch.to_rows())
    summary = footer.summary
    check_numbers((*summary[:2], *summary[7:9], *summary[3:6], summary[9]), rows)
    assert (summary.generation, summary.file_bytes) == (footer.source.generation, file_bytes)
    assert footer.id == SegmentId(summary.first_seq, summary.last_seq, summary.generation)
    keys = [row.key for row in rows if row.key is not None]
    tags = [row.tag for row in rows if row.tag is not None]
    assert (footer.min_key, footer.max_key) == (min(keys, default=None), max(keys, default=None))
    assert (footer.key_count, footer.tag_count) == (len(set(keys)), len(set(tags)))
    assert all(footer.may_hold_key(key) for key in keys)
    assert all(footer.may_hold_key_prefix(key[:size]) for key in keys for size in range(len(key) + 1))
    assert all(footer.may_hold_tag(tag) for tag in tags)


def check_numbers(numbers: tuple[int, ...], rows: list[Record]) -> None:
    assert numbers == (
        min([row.seq for row in rows]),
        max([row.seq for row in rows]),
        min([row.ts_ms for row in rows]),
        max([row.ts_ms for row in rows]),
        len(rows),
        len([row for row in rows if row.op == Op.GAP]),
        sum(map(bytes_of, rows)),
        max([row.source_ts_ns for row in rows if row.source_ts_ns], default=0),
    )


def records(count: int, *, key: bytes | None = None) -> Batch:
    """`count` records with every field, absent, empty and full cells in turn, and a gap record in the middle."""
    rows = [
        Record(
            10 + 2 * number,
            1_000 + number // 4,
            number % 3,
            Op.PUT if number % 2 else Op.DELETE,
            key or b"key/%d" % (number % 5),
            (None, b"", b"value")[number % 3],
            (None, "", "é")[number % 3],
            ("n", None, "")[number % 3],
            version=b"\1" * (number % 3),
        )
        for number in range(count)
    ]
    middle = rows[count // 2]
    rows[count // 2] = gap_record(middle.seq, 5, 6)._replace(ts_ms=middle.ts_ms)
    return Batch.from_rows(rows)


def test_no_records_make_no_file() -> None:
    fs = SimFs()
    assert write_segment(fs, PATH, SOURCE, [Batch(0)]) is None
    assert not fs.exists(PATH)


def test_equal_batches_give_equal_bytes() -> None:
    one, two = SimFs(), SimFs()
    batch = records(30)
    written(one, [batch], rows_max=10, compression="zstd")
    written(two, [batch.slice(at, at + 5) for at in range(0, 30, 5)], rows_max=10, compression="zstd")
    assert bytes_at(one) == bytes_at(two)


def test_existing_file_is_overwritten() -> None:
    fs = disk_with(b"x" * 100_000)
    footer = written(fs, [records(3)])
    assert read_footer(fs, PATH) == footer
    assert len(bytes_at(fs)) == footer.summary.file_bytes


def test_seq_finds_its_batch() -> None:
    footer = written(SimFs(), [records(40)], rows_max=10)
    firsts = [entry.first_seq for entry in footer.batches]
    assert firsts == [10, 30, 50, 70]
    assert [footer.batch_after(seq) for seq in (0, 9, 27, 28, 29, 48, 87, 88, 1 << 64)] == [0, 0, 0, 1, 1, 2, 3, 4, 4]


def test_absent_keys_prefixes_and_tags_are_denied() -> None:
    footer = written(SimFs(), [records(20)])
    assert not footer.may_hold_key(b"key/5")
    assert not footer.may_hold_key(b"key")
    assert not any(footer.may_hold_key_prefix(prefix) for prefix in (b"a", b"kez", b"key/5", b"key/\xff"))
    assert not footer.may_hold_tag("other")
    without = written(SimFs(), [Batch.from_rows([Record(1, data=b"x")])])
    assert (without.min_key, without.max_key, without.key_count, without.tag_count) == (None, None, 0, 0)
    assert not without.may_hold_key(b"")
    assert not without.may_hold_key_prefix(b"")
    assert not without.may_hold_tag("")


def test_message_is_one_that_arrow_reads() -> None:
    fs = SimFs()
    footer = written(fs, [records(30)], rows_max=10, compression="lz4")
    file = fs.open(PATH)
    for number, entry in enumerate(footer.batches):
        message = ipc.read_message(pa.py_buffer(read_message(file, PATH, entry)))
        expected = to_arrow(records(30).slice(10 * number, 10 * number + 10))
        assert ipc.read_record_batch(message, arrow_schema()).equals(expected)
        assert read_batch(file, PATH, entry) == records(30).slice(10 * number, 10 * number + 10)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_file_is_one_that_arrow_writes(compression: Compression) -> None:
    """The same batches, written by Arrow alone, are the same messages at the same offsets."""
    fs = SimFs()
    footer = written(fs, [records(30)], rows_max=10, compression=compression)
    options = ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    sink = pa.BufferOutputStream()
    with ipc.new_file(sink, arrow_schema(), options=options) as writer:
        for start in range(0, 30, 10):
            writer.write_batch(to_arrow(records(30).slice(start, start + 10)))
    end = footer.batches[-1].offset + footer.batches[-1].length
    assert bytes_at(fs)[: end + 8] == sink.getvalue().to_pybytes()[: end + 8]


def test_metadata_survives_an_arrow_round_trip() -> None:
    fs = SimFs()
    written(fs, [records(3)], source=SegmentSource(10, "eddyline.segment", "LOG", 1, 1))
    metadata = ipc.open_file(pa.py_buffer(bytes_at(fs))).metadata
    assert metadata[b"eddyline.segment"].startswith(b'{"base_seq":0,"batches":[[10,14,')
    assert len(metadata[b"eddyline.xxh3_64"]) == 16
    assert read_footer(fs, PATH).source.topic_name == "eddyline.segment"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_polars_and_duckdb_read_the_same_rows(tmp_path: Path, compression: Compression) -> None:
    path = tmp_path / "seg.arrow"
    batch = records(100)
    write_segment(RealFs(), path, SOURCE, [batch], compression=compression, rows_max=30)
    expected = to_arrow(batch).to_pylist()
    with path.open("rb") as file:
        assert pl.read_ipc(file).to_arrow().to_pylist() == expected
    with pa.OSFile(str(path)) as source:
        table = ipc.open_file(source).read_all()
    with duckdb.connect() as connection:
        read_batches = connection.from_arrow(table).order("seq").fetchall()
        live = connection.from_arrow(table).filter("op = 2").aggregate("count(*), max(seq)").fetchall()
    times = [(row[0], *row[2:]) for row in read_batches]
    assert times == [(row["seq"], *[row[name] for name in arrow_schema().names[2:]]) for row in expected]
    puts = [row for row in batch.to_rows() if row.op == Op.PUT]
    assert live == [(len(puts), puts[-1].seq)]
