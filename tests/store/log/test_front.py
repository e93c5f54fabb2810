"""The walk from a log's start takes the requested rows, and reads rows only where totals do not suffice."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.core.records.size import counted_bytes
from eddyline.store.log.floors import Floors
from eddyline.store.log.front import LogRun, LogStartWalk
from eddyline.store.log.seq_set import SeqSet
from tests.support.models.batches import gap_record

SIZES = (0, 8, 68)


def pieces_of(batches: list[Batch]) -> list[LogRun]:
    return [
        LogRun(batch.first_seq, batch.last_seq, batch.count - sizes.count(0), sum(sizes))
        for batch, sizes in ((batch, counted_bytes(batch).tolist()) for batch in batches)
    ]


def walked(walk: LogStartWalk, batches: list[Batch]) -> int:
    """How many batches had to be looked into."""
    looked = 0
    for piece, batch in zip(pieces_of(batches), batches, strict=True):
        if not walk.take(piece):
            walk.take_rows(batch)
            looked += 1
        if walk.done:
            break
    return looked


def cut(rows: list[Record], cuts: set[int]) -> list[Batch]:
    bounds = sorted({0, len(rows), *(at for at in cuts if at < len(rows))})
    return [Batch.from_rows(rows[start:end]) for start, end in pairwise(bounds)]


@given(
    sizes=st.lists(st.sampled_from((*SIZES, None)), min_size=1, max_size=20),
    cuts=st.sets(st.integers(1, 19)),
    gone=st.sets(st.integers(1, 20)),
    trim=st.integers(0, 22),
    through=st.integers(0, 22),
    excess=st.integers(-50, 900),
)
def test_no_more_rows_are_taken_than_requested(
    *, sizes: list[int | None], cuts: set[int], gone: set[int], trim: int, through: int, excess: int
) -> None:
    rows = [
        gap_record(seq, seq, seq) if size is None else Record(seq=seq, data=bytes(size))
        for seq, size in enumerate(sizes, start=1)
    ]
    uncounted = SeqSet()
    for row in rows:
        if row.seq in gone or sizes[row.seq - 1] is None:
            uncounted.add(row.seq)
    live = [(row.seq, 32 + len(row.data or b"")) for row in rows if row.seq not in uncounted and row.seq > trim]
    taken = sum(size for seq, size in live if seq <= through)
    bytes_floor = 0
    for seq, size in live:
        if seq > through and taken < excess:
            taken += size
            bytes_floor = seq
    walk = LogStartWalk(Floors(cap=trim), uncounted, through_seq=through, excess_bytes=excess)
    walked(walk, cut(rows, cuts))
    assert (walk.removed_bytes, walk.bytes_floor) == (taken, bytes_floor)


def test_whole_pieces_are_taken_without_their_rows() -> None:
    batches = cut([Record(seq=seq, data=bytes(68)) for seq in range(1, 101)], set(range(0, 100, 10)))
    for excess_bytes, looked, floor in ((1_000, 0, 10), (1_001, 1, 11), (950, 1, 10), (0, 0, 0)):
        walk = LogStartWalk(Floors(), SeqSet(), excess_bytes=excess_bytes)
        assert (walked(walk, batches), walk.bytes_floor) == (looked, floor)
    walk = LogStartWalk(Floors(), SeqSet(), through_seq=95)
    assert (walked(walk, batches), walk.removed_bytes) == (1, 9_500)


def test_rows_are_needed_only_where_numbers_count_what_is_gone() -> None:
    batches = cut([Record(seq=seq, data=bytes(68)) for seq in range(1, 41)], {10, 20, 30})
    deleted = SeqSet()
    deleted.add_range(11, 20)
    deleted.add(25)
    walk = LogStartWalk(Floors(cap=5), deleted, through_seq=40)
    assert (walked(walk, batches), walk.removed_bytes) == (2, 2_400)


def test_a_walk_without_a_request_is_done_at_once() -> None:
    assert LogStartWalk(Floors(cap=5), SeqSet(), through_seq=5).done
    assert LogStartWalk(Floors(), SeqSet(), excess_bytes=-1).done


def test_row_that_a_merge_put_into_a_later_piece_is_taken_once() -> None:
    rows = [Record(seq=seq, data=b"x") for seq in range(1, 7)]
    first, rest, merged = Batch.from_rows(rows[:2]), Batch.from_rows(rows[2:4]), Batch.from_rows(rows)
    for before in ([first], [first, rest]):
        walk = LogStartWalk(Floors(), SeqSet(), through_seq=5)
        assert walked(walk, before) == 0
        assert walked(walk, [merged]) == 1
        assert walk.done
        assert walk.removed_bytes == sum(counted_bytes(merged).tolist()[:5])
