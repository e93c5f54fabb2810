"""Answers of key reads, made of stored entries: the bytes are protobuf's of the same rows; both forms decode alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.codec.entries import (
    COLUMNS_MIN,
    HEADS_AT_ONCE_MIN,
    encode_batch_get,
    encode_entries,
    encode_get,
    entries_from_pb,
    format_of,
    stored_entries_from_pb,
)
from eddyline.core.codec.records import fill_columns, record_to_pb
from eddyline.core.codec.state import fold_state_to_pb
from eddyline.core.model.read import FoldState
from eddyline.core.records.batch import Batch
from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.record import MetaEntry, Op, Record, effective_version
from eddyline.v1 import fold_pb2, types_pb2

STATE = FoldState(77, 3, "LIVE", 12)
SEQS = st.sampled_from([1, 127, 128, 1 << 14, (1 << 35) + 3, 1 << 63, (1 << 64) - 1]) | st.integers(1, (1 << 64) - 1)
TIMES = st.sampled_from([0, 1, 127, 128, -1, -(1 << 63), (1 << 63) - 1]) | st.integers(-(1 << 63), (1 << 63) - 1)
LENGTHS = st.sampled_from([0, 1, 127, 128, 300, 20_000])
TEXTS = st.none() | st.text(max_size=4)
METAS = st.lists(st.builds(MetaEntry, st.text(max_size=3), st.binary(max_size=3)), max_size=3).map(tuple)
PLAIN = st.builds(
    lambda seq, ts, source_ts, key, size, version: Record(
        seq, ts, source_ts, Op.PUT, key, b"d" * size, version=version
    ),
    SEQS,
    TIMES,
    TIMES,
    st.binary(min_size=1, max_size=130),
    LENGTHS,
    st.sampled_from([b"", bytes(8), b"\x01", b"\xff" * 10]),
)
RICH = st.builds(
    lambda record, has_data, tag, node, meta: record._replace(
        data=record.data if has_data else None, tag=tag, node=node, meta=meta
    ),
    PLAIN,
    st.booleans(),
    TEXTS,
    TEXTS,
    METAS,
)


def stored(records: list[Record | None]) -> tuple[list[bytes], list[bytes | None]]:
    """Keys and stored values; the key of one that is not live is of no account."""
    keys = [b"gone" if record is None else record.key or b"" for record in records]
    return keys, [None if record is None else encode_entry(record) for record in records]


def by_objects(records: list[Record | None]) -> fold_pb2.BatchGetEntriesResponse:
    answers = [
        fold_pb2.MaybeEntry() if record is None else fold_pb2.MaybeEntry(entry=record_to_pb(record))
        for record in records
    ]
    return fold_pb2.BatchGetEntriesResponse(entries=answers, state=fold_state_to_pb(STATE))


def by_bytes(records: list[Record | None]) -> bytes:
    return encode_batch_get(encode_entries(*stored(records)), fold_state_to_pb(STATE).SerializeToString())


@given(st.lists(st.none() | PLAIN | RICH, max_size=6), st.sampled_from([1, HEADS_AT_ONCE_MIN]))
def test_bytes_of_entries_are_those_of_protobuf(records: list[Record | None], times: int) -> None:
    records = records * times
    assert by_bytes(records) == by_objects(records).SerializeToString()


@given(PLAIN | RICH)
def test_bytes_of_one_entry_are_those_of_protobuf(record: Record) -> None:
    state = fold_state_to_pb(STATE)
    expected = fold_pb2.GetEntryResponse(entry=record_to_pb(record), state=state).SerializeToString()
    assert encode_get(record.key or b"", encode_entry(record), state.SerializeToString()) == expected


def test_number_of_entries_does_not_change_their_bytes() -> None:
    records: list[Record | None] = [
        Record(seq, 1_700_000_000_000 + seq, seq % 2, Op.PUT, b"%d" % seq, b"x" * seq) for seq in range(1, 300)
    ]
    for count in (1, HEADS_AT_ONCE_MIN - 1, HEADS_AT_ONCE_MIN, HEADS_AT_ONCE_MIN + 1, len(records)):
        assert by_bytes(records[:count]) == by_objects(records[:count]).SerializeToString()


@given(st.lists(PLAIN | RICH, max_size=6, unique_by=lambda record: record.key))
def test_rows_and_columns_decode_to_the_same_entries(records: list[Record]) -> None:
    records = [record._replace(seq=place + 1) for place, record in enumerate(records)]
    keys = [record.key or b"" for record in records] * 2 + [b"gone" * 100]
    live = [*records, *records]
    columns = fold_pb2.BatchGetEntriesResponse()
    fill_columns(columns.columns, Batch.from_rows(live))
    rows = by_objects([*live, None])
    as_stored = (*live, None)
    assert stored_entries_from_pb(columns, keys) == stored_entries_from_pb(rows, keys) == as_stored
    as_read = tuple(row and row._replace(version=effective_version(row.version, row.seq)) for row in as_stored)
    assert entries_from_pb(columns, keys) == entries_from_pb(rows, keys) == as_read


def test_many_keys_are_asked_for_as_columns() -> None:
    assert format_of(COLUMNS_MIN - 1) == types_pb2.BATCH_FORMAT_UNSPECIFIED
    assert format_of(COLUMNS_MIN) == types_pb2.BATCH_FORMAT_COLUMNS


def test_columns_without_an_entry_are_keys_that_are_not_live() -> None:
    answer = fold_pb2.BatchGetEntriesResponse()
    fill_columns(answer.columns, Batch(0))
    assert entries_from_pb(answer, [b"a", b"b"]) == stored_entries_from_pb(answer, [b"a", b"b"]) == (None, None)
