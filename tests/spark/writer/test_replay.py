"""A partition's rows, judged against a list: cut, put back, skipped, begun anew."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import InvalidArgument
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.spark.writer.position import RowDigest, RowPosition
from eddyline.spark.writer.replay import ReplayableRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eddyline.spark.options.write import OnDifferentRows
    from eddyline.spark.writer.partition import RowChunk

pytestmark = pytest.mark.spark


def records_of(count: int, *, other: int = -1) -> list[Record]:
    return [Record(data=b"other" if index == other else b"%d" % index * (index % 7)) for index in range(count)]


@contextmanager
def rows_of(
    records: Sequence[Record],
    *,
    step: int = 3,
    records_max: int = 5,
    bytes_max: int = 1000,
    on_different: OnDifferentRows = "append",
) -> Iterator[ReplayableRows]:
    batches = (Batch.from_rows(records[start : start + step]) for start in range(0, len(records), step))
    with closing(
        ReplayableRows(batches, records_max=records_max, bytes_max=bytes_max, on_different=on_different)
    ) as rows:
        yield rows


def pieces_of(
    records: Sequence[Record], *, step: int = 3, records_max: int = 5, bytes_max: int = 1000
) -> list[RowChunk]:
    with rows_of(records, step=step, records_max=records_max, bytes_max=bytes_max) as rows:
        return all_of(rows)


def all_of(rows: ReplayableRows) -> list[RowChunk]:
    return list(iter(rows.next_piece, None))


def joined(pieces: Sequence[RowChunk]) -> list[Record]:
    return [record for piece in pieces for record in piece.batch.to_rows()]


def position_at(records: Sequence[Record], ordinal: int) -> RowPosition:
    digest = RowDigest()
    digest.add(Batch.from_rows(records[:ordinal]))
    return RowPosition(0, ordinal, digest.digest())


@given(st.integers(0, 40), st.integers(1, 12), st.integers(1, 9), st.integers(1, 60))
def test_pieces_are_all_rows_in_order_within_their_bounds(
    count: int, step: int, records_max: int, bytes_max: int
) -> None:
    records = records_of(count)
    pieces = pieces_of(records, step=step, records_max=records_max, bytes_max=bytes_max)
    assert joined(pieces) == records
    ordinal = 0
    for piece in pieces:
        assert piece.first == ordinal
        ordinal += piece.batch.count
        assert piece.position == position_at(records, ordinal)
        assert piece.batch.count <= records_max


def test_small_batches_are_joined_and_large_ones_cut() -> None:
    assert [piece.batch.count for piece in pieces_of(records_of(23), step=2, records_max=10)] == [10, 10, 3]
    assert [piece.batch.count for piece in pieces_of(records_of(23), step=23, records_max=10)] == [10, 10, 3]


def test_a_row_beyond_the_bytes_goes_alone() -> None:
    records = [Record(data=b"a"), Record(data=b"x" * 100), Record(data=b"b")]
    pieces = pieces_of(records, step=3, bytes_max=50)
    assert joined(pieces) == records
    assert max(piece.batch.count for piece in pieces[:2]) == 1


@given(st.data())
def test_rows_go_on_behind_any_place_and_take_back_what_was_under_way(data: st.DataObject) -> None:
    records = records_of(data.draw(st.integers(1, 40)))
    with rows_of(records) as rows:
        asked = data.draw(st.integers(0, 6))
        given_out = [piece for piece in (rows.next_piece() for _ in range(asked)) if piece is not None]
        settled = data.draw(st.integers(0, len(given_out)))
        first = given_out[settled].first if settled < len(given_out) else rows.ordinal
        stored = data.draw(st.integers(first, len(records)))
        position = position_at(records, stored) if stored else None
        assert rows.resume(position, given_out[settled:])
        assert joined(all_of(rows)) == records[stored:]


@pytest.mark.parametrize("stored", [2, 9, 15, 20])
def test_changed_rows_are_reported_and_start_again(stored: int) -> None:
    with rows_of(records_of(20, other=1)) as rows:
        assert not rows.resume(position_at(records_of(20), stored), ())
        assert rows.rewind()
        assert joined(all_of(rows)) == records_of(20, other=1)


def test_more_rows_than_were_written_go_on() -> None:
    with rows_of(records_of(12)) as rows:
        assert rows.resume(position_at(records_of(20), 9), ())
        assert joined(all_of(rows)) == records_of(12)[9:]


def test_fewer_rows_than_were_written_prove_nothing() -> None:
    with rows_of(records_of(9)) as rows, pytest.raises(InvalidArgument, match=r"its rows end at 9, and .* wrote 10"):
        rows.resume(position_at(records_of(12), 10), ())
    with rows_of(records_of(9), on_different="appendFewer") as rows:
        assert not rows.resume(position_at(records_of(12), 10), ())
        assert rows.rewind()
        assert joined(all_of(rows)) == records_of(9)


def test_pieces_under_way_are_part_of_a_new_beginning() -> None:
    with rows_of(records_of(30, other=28)) as rows:
        under_way = [piece for piece in (rows.next_piece(), rows.next_piece()) if piece is not None]
        for _ in range(2):
            assert not rows.resume(position_at(records_of(30), 29), under_way)
            assert rows.rewind()
            under_way = [piece for piece in (rows.next_piece(), rows.next_piece()) if piece is not None]
            assert [piece.first for piece in under_way] == [0, 5]
        assert joined(under_way + all_of(rows)) == records_of(30, other=28)


def test_rows_that_keep_nothing_do_not_go_back() -> None:
    with rows_of(records_of(20, other=1), on_different="fail") as rows:
        assert not rows.resume(position_at(records_of(20), 9), ())
        assert not rows.rewind()
