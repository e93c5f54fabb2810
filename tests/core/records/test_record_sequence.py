"""A sequence over columns is, to its readers, the tuple of its rows."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record, effective_version, op_of
from eddyline.core.records.record_sequence import RecordSequence, key_data_bytes
from tests.support.models.batches import placed

if TYPE_CHECKING:
    from collections.abc import Sequence


def rows_of_readers(rows: list[Record]) -> tuple[Record, ...]:
    return tuple(row._replace(op=op_of(row.op), version=effective_version(row.version, row.seq)) for row in rows)


@given(placed(), st.data())
def test_every_reading_is_that_of_the_tuple_of_its_rows(rows: list[Record], data: st.DataObject) -> None:
    batch, expected = Batch.from_rows(rows), rows_of_readers(rows)
    places = st.integers(-len(rows) - 1, len(rows))
    bounds = st.none() | places
    made = RecordSequence(batch)
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            place = data.draw(places)
            assert taken(made, place) == taken(expected, place)
        else:
            part = slice(data.draw(bounds), data.draw(bounds), data.draw(st.sampled_from([None, 1, 2, -1])))
            assert made[part] == expected[part]
            assert len(made[part]) == len(expected[part])
    assert len(made) == len(expected)
    assert [*made] == [*expected]
    assert [*reversed(made)] == [*reversed(expected)]
    assert made.rows() is made.rows()


def taken(rows: Sequence[Record], place: int) -> Record | None:
    try:
        return rows[place]
    except IndexError:
        return None


@given(placed())
def test_it_stands_in_the_place_of_a_tuple(rows: list[Record]) -> None:
    made, expected = RecordSequence(Batch.from_rows(rows)), rows_of_readers(rows)
    assert made == expected
    assert expected == made
    assert made == RecordSequence(Batch.from_rows(rows))
    assert made != (*expected, Record())
    assert made != [*expected]
    assert hash(made) == hash(expected)
    assert repr(made) == repr(expected)
    assert made + expected == expected + made == made + made == expected + expected
    for copied in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert type(copied) is tuple
        assert copied == expected
    assert key_data_bytes(made) == key_data_bytes(expected)
    assert bool(made) == bool(expected)


def test_it_takes_no_list_at_its_side() -> None:
    rows: list[Record] = []
    with pytest.raises(TypeError):
        RecordSequence(Batch(0)) + rows


def test_versions_are_those_of_readers() -> None:
    seqs = (0, 3, 4)
    rows = [Record(seq=seq, op=Op.PUT, version=b"\x07" if seq == 4 else b"") for seq in seqs]
    assert [row.version for row in RecordSequence(Batch.from_rows(rows))] == [b"", (3).to_bytes(8, "big"), b"\x07"]
    unplaced = Batch.from_rows([Record(), Record(version=b"1")])
    assert [row.version for row in RecordSequence(unplaced)] == [b"", b"1"]
