"""Rows for Spark out of the store's batches: what the client library reads, in Spark's schema."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import MalformedColumns
from eddyline.core.records.arrow import to_arrow
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, MetaEntry, Record
from eddyline.export.split.arrow_rows import RowMaker
from eddyline.spark.schema import SCHEMA, arrow_schema_of, schema_of
from tests.spark.sessions.rows_expected import expected_rows
from tests.support.models.batches import placed

pytestmark = pytest.mark.spark


def rows_of(made: pa.RecordBatch) -> list[dict[str, object]]:
    """Rows, times as microseconds."""
    for name in ("ts", "source_ts"):
        if name in made.schema.names:
            at = made.schema.get_field_index(name)
            made = made.set_column(at, name, made.column(name).cast(pa.int64()))
    found: list[dict[str, object]] = made.to_pylist()
    return found


@given(placed().filter(len), st.data())
def test_rows_are_what_the_client_reads_from_any_slice(records: list[Record], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(records) - 1))
    stop = data.draw(st.integers(start + 1, len(records)))
    made = RowMaker("routes").rows(to_arrow(Batch.from_rows(records)).slice(start, stop - start))
    made.validate(full=True)
    assert made.schema.equals(arrow_schema_of(SCHEMA))
    assert rows_of(made) == expected_rows("routes", records[start:stop])


@given(placed().filter(len), st.sets(st.sampled_from(SCHEMA.fieldNames()), min_size=1))
def test_columns_that_are_left_out_change_none_of_the_others(records: list[Record], columns: set[str]) -> None:
    made = RowMaker("routes", arrow_schema_of(schema_of(sorted(columns)))).rows(to_arrow(Batch.from_rows(records)))
    expected = expected_rows("routes", records)
    assert rows_of(made) == [{name: row[name] for name in SCHEMA.fieldNames() if name in columns} for row in expected]


def test_a_long_batch_after_a_short_one_has_its_constants_too() -> None:
    maker = RowMaker("routes", arrow_schema_of(schema_of(["topic", "op"])))
    for count in (1, 3, 2):
        made = maker.rows(to_arrow(Batch.from_rows([Record(seq=seq + 1) for seq in range(count)])))
        assert made.to_pylist() == [{"topic": "routes", "op": "APPEND"}] * count


def test_a_key_that_is_no_text_is_null_as_text_and_its_neighbours_are_not() -> None:
    records = [Record(seq=1, key=b"a"), Record(seq=2, key=b"\xff"), Record(seq=3), Record(seq=4, key=b"")]
    made = RowMaker("routes", arrow_schema_of(schema_of(["key", "key_text"]))).rows(to_arrow(Batch.from_rows(records)))
    assert made.column("key_text").to_pylist() == ["a", None, None, ""]
    assert made.column("key").to_pylist() == [b"a", b"\xff", None, b""]


def test_ops_of_a_later_version_are_printed_by_their_number() -> None:
    batch = to_arrow(Batch.from_rows([Record(seq=1), Record(seq=2)]))
    later = batch.set_column(3, batch.schema.field("op"), pa.array([1, 9], pa.uint8()))
    assert RowMaker("routes", arrow_schema_of(schema_of(["op"]))).rows(later).to_pylist() == [
        {"op": "APPEND"},
        {"op": "9"},
    ]


def test_meta_that_breaks_its_grammar_is_refused() -> None:
    batch = to_arrow(Batch.from_rows([Record(seq=1, meta=(MetaEntry("a", b"x" * 300),))]))
    torn = batch.set_column(7, batch.schema.field("meta"), pa.array([b"\x05\x00ab"], pa.binary()))
    with pytest.raises(MalformedColumns):
        RowMaker("routes").rows(torn)


def test_a_gap_as_a_row_reports_its_range_and_reason() -> None:
    made = RowMaker("routes").gap_rows([Gap(3, 9, GapReason.TTL)])
    row = made.to_pylist()[0]
    assert (row["topic"], row["seq"], row["op"]) == ("routes", 9, "GAP")
    assert {entry["name"]: entry["value"] for entry in row["meta"]} == {
        "first_seq": b"3",
        "last_seq": b"9",
        "reason": b"TTL",
    }
    assert [row[name] for name in ("ts", "source_ts", "source_ts_ns", "key", "key_text", "data", "version")] == [
        None
    ] * 7


def test_a_gap_of_a_source_has_the_seq_of_its_record_and_reports_the_sources_range() -> None:
    gap = Gap(7, 7, GapReason.SOURCE_GAP, 7, source_identity=b"\x01", source_first=100, source_last=0)
    row = RowMaker("routes", arrow_schema_of(schema_of(["seq", "meta"]))).gap_rows([gap]).to_pylist()[0]
    told = {entry["name"]: entry["value"] for entry in row["meta"]}
    assert row["seq"] == 7
    assert (told["source_first"], told["source_last"], told["source_identity"]) == (b"100", b"0", b"\x01")


def test_data_as_text_is_given_where_it_is_named_and_null_where_it_is_none() -> None:
    records = [Record(seq=1, data=b"paid"), Record(seq=2, data=b"\xff\x00"), Record(seq=3), Record(seq=4, data=b"")]
    maker = RowMaker("routes", arrow_schema_of(schema_of(["data_text", "seq"])))
    made = maker.rows(to_arrow(Batch.from_rows(records)))
    assert made.column("data_text").to_pylist() == ["paid", None, None, ""]
    assert made.schema.names == ["seq", "data_text"]
    assert maker.gap_rows([Gap(3, 9, GapReason.TTL)]).to_pylist() == [{"seq": 9, "data_text": None}]
    assert "data_text" not in schema_of([]).fieldNames()
