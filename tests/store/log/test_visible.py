"""The rows of a batch that readers see."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.store.log.deletion import visible
from eddyline.store.log.floors import Floors
from eddyline.store.log.seq_set import SeqSet
from tests.support.models.batches import buffers_of, placed


@given(placed(), st.integers(-3, 30), st.sets(st.integers(-2, 30)))
def test_visible_rows_are_above_the_floors_and_not_deleted(rows: list[Record], trim: int, gone: set[int]) -> None:
    first_seq = rows[0].seq if rows else 1
    floors = Floors(ttl=max(first_seq + trim, 0))
    deleted = SeqSet()
    for seq in gone:
        if first_seq + seq > 0:
            deleted.add(first_seq + seq)
    left = [row for row in rows if row.seq > floors.trim and row.seq not in deleted]
    assert buffers_of(visible(Batch.from_rows(rows), floors, deleted)) == buffers_of(Batch.from_rows(left))


def test_a_batch_that_is_there_whole_is_not_copied() -> None:
    batch = Batch.from_rows([Record(seq=seq) for seq in range(5, 9)])
    deleted = SeqSet()
    deleted.add(9)
    assert visible(batch, Floors(cap=4), deleted) is batch
