"""Matches on key or tag."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind, matched
from eddyline.core.records.record import Record

cells = st.none() | st.text("ab", max_size=4) | st.integers(10, 40).map(lambda length: "a" * length)


@given(
    st.lists(st.tuples(cells, cells), max_size=20),
    st.integers(0, 2),
    st.sampled_from(MatchField),
    st.sampled_from(MatchKind),
    st.text("ab", max_size=3) | st.integers(10, 40).map(lambda length: "a" * length),
)
def test_matched_returns_the_rows_whose_cell_is_covered(
    rows: list[tuple[str | None, str | None]], start: int, field: MatchField, kind: MatchKind, value: str
) -> None:
    records = [Record(key=None if key is None else key.encode(), tag=tag) for key, tag in rows]
    match = Match(field, kind, value.encode())
    cells_of_field = [key if field is MatchField.KEY else tag for key, tag in rows[start:]]
    wanted = [i for i, cell in enumerate(cells_of_field) if match.covers(None if cell is None else cell.encode())]
    assert matched(Batch.from_rows(records).slice(start, len(records)), match).tolist() == wanted


def test_an_absent_cell_never_matches_and_an_empty_one_does() -> None:
    batch = Batch.from_rows([Record(key=None), Record(key=b""), Record(key=b"a")])
    assert matched(batch, Match(MatchField.KEY, MatchKind.EQ, b"")).tolist() == [1]
    assert matched(batch, Match(MatchField.KEY, MatchKind.PREFIX, b"")).tolist() == [1, 2]
    assert matched(batch, Match(MatchField.TAG, MatchKind.PREFIX, b"")).tolist() == []
    assert not Match(MatchField.KEY, MatchKind.PREFIX, b"").covers(None)
