"""Arrow batches equal the rows, share their bytes, and can be read by other libraries."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc

from eddyline.core.errors import MalformedColumns
from eddyline.core.records.arrow import arrow_schema, from_arrow, to_arrow
from eddyline.core.records.batch import Batch
from eddyline.core.records.meta import encode_meta
from eddyline.core.records.record import MetaEntry, Record
from tests.support.models.batches import buffers_of, placed

ROWS = [
    Record(4, 1_000, 7, 2, b"k", b"value", "é", None, (MetaEntry("a", b"b"),), b"\1"),
    Record(6, 1_001, 0, 3, b"", None, None, "n"),
]


@given(placed())
def test_arrow_equals_the_rows(rows: list[Record]) -> None:
    table = to_arrow(Batch.from_rows(rows))
    table.validate(full=True)
    assert table.column("seq").to_pylist() == [row.seq for row in rows]
    assert table.column("ts").cast(pa.int64()).to_pylist() == [row.ts_ms for row in rows]
    for name, field in (("source_ts_ns", "source_ts_ns"), ("op", "op"), ("key", "key"), ("data", "data")):
        assert table.column(name).to_pylist() == [getattr(row, field) for row in rows]
    for name in ("tag", "node", "version"):
        assert table.column(name).to_pylist() == [getattr(row, name) for row in rows]
    assert table.column("meta").to_pylist() == [encode_meta(row.meta) for row in rows]


def test_cells_are_shared_not_copied() -> None:
    batch = Batch.from_rows(ROWS * 5)
    table = to_arrow(batch)
    for name in ("key", "data", "tag", "node", "meta", "version"):
        column = getattr(batch, name)
        validity, offsets, values = table.column(name).buffers()
        assert offsets.address == pa.py_buffer(column.offsets).address
        assert values.address == pa.py_buffer(column.values).address
        assert (validity is None) == (column.validity is None)


def test_polars_opens_it() -> None:
    frame = pl.DataFrame(to_arrow(Batch.from_rows(ROWS)))
    assert frame.columns == ["seq", "ts", "source_ts_ns", "op", "key", "tag", "node", "meta", "data", "version"]
    assert frame["tag"].to_list() == ["é", None]
    assert frame["data"].to_list() == [b"value", None]
    assert frame["ts"].dt.epoch("ms").to_list() == [1_000, 1_001]


@given(placed())
def test_a_batch_survives_the_round_trip_through_arrow(rows: list[Record]) -> None:
    batch = Batch.from_rows(rows)
    assert from_arrow(to_arrow(batch)) == batch
    assert buffers_of(from_arrow(to_arrow(batch))) == buffers_of(batch)


@given(placed(), st.sampled_from([None, "lz4", "zstd"]))
def test_a_batch_survives_the_round_trip_through_ipc(rows: list[Record], compression: str | None) -> None:
    batch, sink = Batch.from_rows(rows), pa.BufferOutputStream()
    with ipc.new_stream(sink, arrow_schema(), options=ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(to_arrow(batch))
    back = from_arrow(ipc.open_stream(sink.getvalue()).read_next_batch())
    assert back == batch
    assert buffers_of(back) == buffers_of(batch)


@given(placed(), st.data())
def test_slice_of_an_arrow_batch_is_that_of_the_batch(rows: list[Record], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    batch = Batch.from_rows(rows)
    cut = from_arrow(to_arrow(batch).slice(start, stop - start))
    assert cut == batch.slice(start, stop)
    assert buffers_of(cut) == buffers_of(batch.slice(start, stop))


def test_cells_are_shared_on_the_way_back() -> None:
    table = to_arrow(Batch.from_rows(ROWS * 5))
    batch = from_arrow(table)
    for name in ("key", "data", "tag", "node", "meta", "version"):
        column, buffers = getattr(batch, name), table.column(name).buffers()
        assert pa.py_buffer(column.values).address == buffers[2].address
        assert pa.py_buffer(column.offsets).address == buffers[1].address


def test_another_schema_is_refused() -> None:
    with pytest.raises(MalformedColumns):
        from_arrow(pa.record_batch({"seq": [1]}))
