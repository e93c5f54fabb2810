"""Rows of a batch that a delete removes, and the bodies of its frame and of a floor's frame."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Op, Record
from eddyline.core.records.size import counted_bytes
from eddyline.store.log.deletion import (
    BadBody,
    DeleteBody,
    Deletion,
    EvictBody,
    decode_delete,
    decode_evict,
    encode_delete,
    encode_evict,
    removed_rows,
)
from eddyline.store.log.seq_set import SeqSet
from tests.support.models.batches import gap_record, placed
from tests.support.models.retained_log import counted_size

values = st.sampled_from((b"", b"a", b"long", b"\0"))
matches = st.builds(Match, st.sampled_from(MatchField), st.sampled_from(MatchKind), values)
numbers = st.integers(0, (1 << 63) - 1)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Placed rows, some of them gap records."""
    rows = draw(placed())
    return [gap_record(row.seq, row.seq, row.seq) if draw(st.integers(0, 5)) == 0 else row for row in rows]


def body(match: Match | None = None) -> DeleteBody:
    seqs = SeqSet()
    if match is not None:
        seqs.add_range(3, 70_000)
    return DeleteBody(Deletion(9, 70_000, match), seqs, 5, 700)


@given(
    rows=logs(),
    match=st.none() | matches,
    before=st.integers(-1, 30),
    bound=st.integers(-1, 30),
    trim=st.integers(-1, 5),
    gone=st.sets(numbers),
)
def test_removed_are_the_records_that_are_there_and_meant(
    *, rows: list[Record], match: Match | None, before: int, bound: int, trim: int, gone: set[int]
) -> None:
    first_seq = rows[0].seq if rows else 1
    deletion = Deletion(max(first_seq + before, 0) if before >= 0 else 0, max(first_seq + bound, 0), match)
    deleted = SeqSet()
    for index in gone:
        deleted.add(first_seq + index % 12)
    trim_seq = max(first_seq + trim, 0)
    meant = []
    for index, row in enumerate(rows):
        is_there = row.seq > trim_seq and row.seq not in deleted and row.op != Op.GAP
        is_bound = row.seq <= deletion.bound_seq and (not deletion.before_seq or row.seq < deletion.before_seq)
        cell: bytes | None = b""
        if match is not None:
            tag = None if row.tag is None else row.tag.encode()
            cell = row.key if match.field is MatchField.KEY else tag
        if is_there and is_bound and (match is None or match.covers(cell)):
            meant.append(index)
    removed = removed_rows(Batch.from_rows(rows), deletion, trim_seq=trim_seq, deleted=deleted)
    assert removed.indices.tolist() == meant
    assert removed.seqs.tolist() == [rows[index].seq for index in meant]
    assert removed.record_bytes == sum(counted_size(rows[index]) for index in meant)


@given(logs())
def test_counted_bytes_are_the_cells_and_an_overhead_and_nothing_for_gaps(rows: list[Record]) -> None:
    expected = [0 if row.op == Op.GAP else counted_size(row) for row in rows]
    assert counted_bytes(Batch.from_rows(rows)).tolist() == expected


def test_a_delete_without_a_match_is_a_floor_within_its_bound() -> None:
    assert Deletion(5, 10).floor == 4
    assert Deletion(50, 10).floor == 10
    assert Deletion(1, 10).floor == 0
    assert Deletion(5, 10, Match(MatchField.TAG, MatchKind.EQ, b"t")).floor == 0


@pytest.mark.parametrize("field", MatchField)
@pytest.mark.parametrize("kind", MatchKind)
def test_delete_body_is_read_as_it_was_written(field: MatchField, kind: MatchKind) -> None:
    for written in (body(), body(Match(field, kind, b"\xff\0"))):
        assert decode_delete(json.loads(json.dumps(encode_delete(written)))) == written


def test_delete_body_keeps_its_words() -> None:
    seqs = SeqSet()
    seqs.add_range(1, 2)
    match = Match(MatchField.KEY, MatchKind.PREFIX, b"user/")
    assert encode_delete(DeleteBody(Deletion(0, 7, match), seqs, 2, 80)) == {
        "before_seq": 0,
        "bound_seq": 7,
        "bitmap": "AQAAAAAAAAAAAAAAOjAAAAEAAAAAAAEAEAAAAAEAAgA=",
        "record_count": 2,
        "record_bytes": 80,
        "match_field": "KEY",
        "match_kind": "PREFIX",
        "match_value": "dXNlci8=",
    }


def test_evict_body_is_read_as_it_was_written() -> None:
    written = EvictBody(7, 9, 1 << 40)
    assert decode_evict(encode_evict(written) | {"later": 1}) == written


@pytest.mark.parametrize(
    "change",
    [
        {"before_seq": "1"},
        {"record_bytes": -1},
        {"bitmap": 1},
        {"bitmap": "AQ"},
        {"bitmap": "AQ=="},
        {"match_field": "NODE"},
        {"match_kind": 1},
        {"match_value": "*"},
    ],
)
def test_a_body_that_is_none_is_refused(change: dict[str, str | int]) -> None:
    with pytest.raises(BadBody):
        decode_delete(encode_delete(body(Match(MatchField.KEY, MatchKind.EQ, b"k"))) | change)


def test_an_evict_body_without_a_floor_is_refused() -> None:
    with pytest.raises(BadBody):
        decode_evict({"cap_floor": 1, "record_bytes": 2})
