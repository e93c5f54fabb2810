"""Sets of seqs against plain ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.store.log.seq_set import BadSeqSet, SeqSet

SEQ_MAX = 40
FAR = 1 << 40
LONG = 1 << 24
sets = st.sets(st.integers(1, SEQ_MAX))
shifts = st.sampled_from((0, (1 << 16) - 20, FAR))


def seqset(seqs: set[int], shift: int = 0) -> SeqSet:
    made = SeqSet()
    made.add_array(np.array([seq + shift for seq in seqs], dtype="<u8"))
    return made


@given(sets, shifts, st.integers(0, SEQ_MAX), st.integers(0, SEQ_MAX))
def test_count_is_that_of_the_range(seqs: set[int], shift: int, first: int, last: int) -> None:
    counted = seqset(seqs, shift).count(shift + first, shift + last)
    assert counted == len([seq for seq in seqs if first <= seq <= last])


@given(sets, shifts, st.integers(0, SEQ_MAX), st.integers(1, 3 * SEQ_MAX))
def test_select_after_counts_what_is_not_in_the_set(seqs: set[int], shift: int, after: int, n: int) -> None:
    absent = [seq for seq in range(after + 1, 5 * SEQ_MAX) if seq not in seqs]
    made = seqset(seqs, shift)
    assert made.select_after(shift + after, n) == shift + absent[n - 1]
    assert made.first_absent_after(shift + after) == shift + absent[0]


@given(sets, st.integers(0, 2 * SEQ_MAX))
def test_last_absent_through_skips_the_run_that_ends_there(seqs: set[int], through: int) -> None:
    absent = [seq for seq in range(through + 1) if seq not in seqs]
    assert seqset(seqs).last_absent_through(through) == absent[-1]


def test_last_absent_through_a_run_from_the_first_seq_is_none() -> None:
    made = SeqSet()
    made.add_range(1, LONG)
    assert made.last_absent_through(LONG) == 0
    assert made.last_absent_through(LONG + 1) == LONG + 1


def test_searches_pass_a_run_of_many_seqs() -> None:
    made = SeqSet()
    made.add_range(11, LONG)
    assert made.select_after(5, 6) == LONG + 1
    assert made.last_absent_through(LONG) == 10
    assert len(made.serialize()) < 20 * (LONG >> 16)


@given(sets, sets, sets, shifts)
def test_mask_marks_the_rows_in_the_set(rows: set[int], inside: set[int], holes: set[int], shift: int) -> None:
    seqs = sorted(rows)
    batch = Batch.from_rows([Record(seq=shift + seq) for seq in seqs])
    mask = seqset(inside | (holes - rows), shift).mask(batch)
    expected = [seq in inside for seq in seqs]
    assert (mask.tolist() if mask is not None else [False] * len(seqs)) == expected
    assert (mask is None) == (not any(expected))


@given(sets, sets)
def test_union_and_update_hold_the_seqs_of_both(left: set[int], right: set[int]) -> None:
    one, other = seqset(left), seqset(right)
    united = one.union(other)
    assert united.seq_array().tolist() == sorted(left | right)
    assert one == seqset(left)
    one.update(other)
    assert one == united


@given(sets, st.integers(0, SEQ_MAX))
def test_drop_through_forgets_what_is_below(seqs: set[int], through: int) -> None:
    made = seqset(seqs)
    made.drop_through(through)
    left = {seq for seq in seqs if seq > through}
    assert made == seqset(left)
    assert len(made) == len(left)


@given(sets, shifts)
def test_deserialize_gives_what_was_serialized(seqs: set[int], shift: int) -> None:
    made = seqset(seqs, shift)
    assert SeqSet.deserialize(made.serialize()) == made


def test_empty_set_has_no_bitmap_and_no_bytes() -> None:
    made = SeqSet()
    assert made.serialize() == b""
    made.add_range(5, 4)
    made.add_array(np.zeros(0, dtype="<u8"))
    assert made == SeqSet.deserialize(b"")
    made.add(3)
    made.drop_through(3)
    assert made == SeqSet()
    assert made.mask(Batch.from_rows([Record(seq=3)])) is None


def test_copy_is_independent() -> None:
    made = seqset({1, 2})
    copied = made.copy()
    copied.add(3)
    assert 3 not in made
    assert 3 in copied


@pytest.mark.parametrize("data", [b"\0", bytes(8), b"\xff" * 16, seqset({1, 2, 3}).serialize()[:-1]])
def test_bytes_of_no_set_are_refused(data: bytes) -> None:
    with pytest.raises(BadSeqSet):
        SeqSet.deserialize(data)


def test_seq_zero_is_refused() -> None:
    made = SeqSet()
    made.add(0)
    with pytest.raises(BadSeqSet):
        SeqSet.deserialize(made.serialize())
