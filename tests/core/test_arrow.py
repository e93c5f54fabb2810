"""Arrow batches equal the rows, over the same bytes, and open elsewhere."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
from hypothesis import given

from eddyline.core.arrow import to_arrow
from eddyline.core.batch import Batch
from eddyline.core.meta import encode_meta
from eddyline.core.record import MetaEntry, Record
from tests.support.batches import placed

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
