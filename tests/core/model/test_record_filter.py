"""Filters agree with a reference that checks record by record."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.model.read import ALL_RECORDS, RecordFilter
from eddyline.core.model.record_filter import matching
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from tests.support.models.batches import gap_record


def row(op: int, key: bytes | None, tag: str | None, node: str | None) -> Record:
    return Record(op=op, key=key, tag=tag, node=node)


rows = st.lists(
    st.builds(
        row,
        op=st.sampled_from([1, 2, 3, 4]),
        key=st.none() | st.sampled_from([b"", b"a", b"ab", b"abc", b"b", b"ba"]),
        tag=st.none() | st.sampled_from(["", "x", "xy", "é"]),
        node=st.none() | st.sampled_from(["", "n1", "n2"]),
    )
    | st.just(gap_record(0, 1, 2)),
    max_size=12,
)


def few_or_many(values: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.just(()) | st.lists(values, max_size=3).map(tuple) | st.lists(values, min_size=9, max_size=12).map(tuple)


filters = st.builds(
    RecordFilter,
    key_prefixes=few_or_many(st.sampled_from(["", "a", "ab", "b", "zz", "abcd"])).map(
        lambda names: tuple(name.encode() for name in names)
    ),
    tags=few_or_many(st.sampled_from(["", "x", "é", "long"])),
    exclude_nodes=few_or_many(st.sampled_from(["", "n1", "n3"])),
    ops=st.lists(st.sampled_from([1, 2, 3, 5]), max_size=2).map(tuple),
)


def passes(record: Record, record_filter: RecordFilter) -> bool:
    if record.op == Op.GAP:
        return True
    if record_filter.key_prefixes and not (
        record.key is not None and record.key.startswith(record_filter.key_prefixes)
    ):
        return False
    if record_filter.tags and record.tag not in record_filter.tags:
        return False
    if record_filter.exclude_nodes and record.node in record_filter.exclude_nodes:
        return False
    return not record_filter.ops or record.op in record_filter.ops


@given(rows, filters)
def test_filter_selects_records_that_pass_every_condition(records: list[Record], record_filter: RecordFilter) -> None:
    indices = matching(Batch.from_rows(records), record_filter)
    selected = list(range(len(records))) if indices is None else indices.tolist()
    assert selected == [index for index, record in enumerate(records) if passes(record, record_filter)]


def test_no_condition_selects_all_without_a_scan() -> None:
    assert matching(Batch.from_rows([Record(key=b"a")]), ALL_RECORDS) is None
