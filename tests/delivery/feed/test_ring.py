"""Rings: adjacent frames, bounds, and one encoding a view."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, Record
from eddyline.core.records.size import item_bytes
from eddyline.delivery.feed.encode import NOTHING, TopicView, view_of
from eddyline.delivery.feed.frame_split import FRAME_BYTES, split_batch
from eddyline.delivery.feed.ring import FRAME_OVERHEAD_BYTES, Ring, RingBudget

if TYPE_CHECKING:
    from collections.abc import Sequence

ALL = TopicView()


def batch(first_seq: int, *sizes: int) -> Batch:
    return Batch.from_rows([Record(data=b"x" * size) for size in sizes]).with_seqs(first_seq, 1)


def filled(ring: Ring, sizes: Sequence[int]) -> None:
    for size in sizes:
        ring.push(batch(ring.end_seq + 1, size), ring.end_seq + 1)


def test_frames_are_adjacent_and_located_by_seq() -> None:
    ring = Ring("t", RingBudget(1 << 20), 1 << 20)
    ring.reset(7, 10)
    assert ring.frame_after(10) is None
    ring.push(batch(11, 1, 1, 1), 13)
    ring.push(Gap(14, 14, GapReason.SOURCE_GAP, seq=14), 14)
    ring.push(batch(15, 1), 15)
    frames = [ring.frame_after(seq) for seq in range(10, 16)]
    assert [frame and (frame.after_seq, frame.next_after_seq) for frame in frames] == [
        (10, 13),
        (10, 13),
        (10, 13),
        (13, 14),
        (14, 15),
        None,
    ]


def test_reset_starts_over_and_frees_all_frames() -> None:
    budget = RingBudget(1 << 20)
    ring = Ring("t", budget, 1 << 20)
    ring.reset(7, 0)
    filled(ring, [10, 10])
    ring.reset(8, 5)
    assert (ring.epoch, ring.floor_seq, ring.end_seq, ring.nbytes, budget.nbytes) == (8, 5, 5, 0, 0)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4000), st.booleans()), max_size=60),
    ring_bytes=st.integers(0, 20_000),
    all_bytes=st.integers(0, 30_000),
)
def test_rings_keep_their_bounds_and_evict_the_oldest_first(
    sizes: list[tuple[int, int, bool]], ring_bytes: int, all_bytes: int
) -> None:
    budget = RingBudget(all_bytes)
    rings = [Ring(f"t{number}", budget, ring_bytes) for number in range(3)]
    for number, ring in enumerate(rings):
        ring.reset(number + 1, 0)
    for number, size, encode in sizes:
        ring = rings[number]
        filled(ring, [size])
        newest = ring.frame_after(ring.end_seq - 1) if ring.floor_seq < ring.end_seq else None
        if newest is not None and encode:
            assert ring.encoded(newest, ALL) is ring.encoded(newest, ALL)
        assert all(one.nbytes <= ring_bytes for one in rings)
        assert budget.nbytes == sum(one.nbytes for one in rings) <= all_bytes
        for one in rings:
            seq = one.floor_seq
            while (frame := one.frame_after(seq)) is not None:
                assert frame.after_seq == seq
                seq = frame.next_after_seq
            assert seq == one.end_seq


def test_frame_is_encoded_once_a_view_and_counted() -> None:
    budget = RingBudget(1 << 20)
    ring = Ring("t", budget, 1 << 20)
    ring.reset(1, 0)
    filled(ring, [100])
    frame = ring.frame_after(0)
    assert frame is not None
    before = budget.nbytes
    first = ring.encoded(frame, view_of([], columns=False))
    assert ring.encoded(frame, view_of([], columns=False)) is first
    assert budget.nbytes == before + len(first.data)
    assert ring.encoded(frame, view_of([b"k"], columns=False)) is NOTHING, "no key, no match"
    assert budget.encoded_count == 2


def test_equivalent_views_are_equal() -> None:
    assert view_of([b"b", b"a", b"ab", b"b"], columns=True) == view_of([b"a", b"b"], columns=True)
    assert view_of([b"", b"a"], columns=False) == view_of([b""], columns=False)
    assert view_of([b"a"], columns=False) != view_of([b"a"], columns=True)


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([10, 10], [2]),
        ([FRAME_BYTES * 2], [1]),
        ([FRAME_BYTES // 2, FRAME_BYTES // 2, 10], [1, 2]),
        ([10, FRAME_BYTES * 3, 10], [1, 1, 1]),
        ([FRAME_BYTES // 4] * 7, [3, 3, 1]),
    ],
)
def test_large_batches_are_split_into_frames(sizes: list[int], counts: list[int]) -> None:
    whole = batch(5, *sizes)
    cut = list(split_batch(whole))
    assert [piece.count for piece in cut] == counts
    assert Batch.concat(cut) == whole
    assert all(item_bytes(piece) <= FRAME_BYTES or piece.count == 1 for piece in cut)


def test_credit_counts_cells_and_an_overhead_a_record() -> None:
    assert item_bytes(batch(1, 10, 20)) == 30 + 2 * 32
    assert item_bytes(Gap(1, 2, GapReason.SOURCE_GAP)) == 64
    assert FRAME_OVERHEAD_BYTES > 0


@given(ends=st.lists(st.integers(1, 5), min_size=1, max_size=20), opened=st.integers(0, 5), after=st.integers(0, 120))
def test_a_reader_ahead_of_the_open_frames_skips_them(ends: list[int], opened: int, after: int) -> None:
    ring = Ring("t", RingBudget(1 << 20), 1 << 20)
    ring.reset(1, 0)
    for count in ends:
        ring.push(batch(ring.end_seq + 1, *[5] * count), ring.end_seq + count)
    for _ in range(opened):
        if ring.has_unopened:
            ring.open_next()
    if not ring.has_unopened:
        return
    reached = max(after, ring.open_seq)
    records = ring.open_next(after)
    if reached >= ring.end_seq:
        assert (ring.open_seq, ring.unopened_bytes, records) == (ring.end_seq, 0, 0)
        return
    frame = ring.frame_after(reached)
    assert frame is not None
    assert frame.after_seq <= reached < frame.next_after_seq == ring.open_seq
    assert records == frame.next_after_seq - frame.after_seq
    assert ring.unopened_bytes == (ring.end_seq - ring.open_seq) * 37


@given(
    calls=st.lists(st.tuples(st.sampled_from(("push", "gap", "open", "join")), st.integers(1, 3000)), max_size=60),
    ring_bytes=st.sampled_from((5_000, 1 << 20)),
)
def test_frames_are_opened_in_order_and_joined_unchanged(calls: list[tuple[str, int]], ring_bytes: int) -> None:
    budget = RingBudget(1 << 24)
    other = Ring("other", budget, 1 << 20)
    filled(other, [7])
    ring = Ring("t", budget, ring_bytes)
    ring.reset(3, 0)
    taken = pushed = reader = 0
    for call, size in calls:
        before = ring.open_seq
        if call == "push":
            ring.push(batch(ring.end_seq + 1, size, size), ring.end_seq + 2)
        elif call == "gap":
            ring.push(Gap(ring.end_seq + 1, ring.end_seq + 1, GapReason.SOURCE_GAP), ring.end_seq + 1)
        elif ring.has_unopened:
            records = ring.open_next(joined_bytes_max=2 * size if call == "join" else 0)
            assert before < ring.open_seq <= ring.end_seq
            if before >= ring.floor_seq:
                frame = ring.frame_after(before)
                assert frame is not None
                assert frame.next_after_seq == ring.open_seq, "a turn opens one frame"
                if isinstance(frame.item, Gap):
                    assert records == 0
                else:
                    assert frame.item.seq_list() == list(range(before + 1, ring.open_seq + 1))
                    assert records == frame.item.count
                    assert records == 2 or item_bytes(frame.item) <= 2 * size
                    assert ring.encoded(frame, ALL).records == records
        reader = max(reader, ring.floor_seq)
        while reader < ring.open_seq:
            frame = ring.frame_after(reader)
            assert frame is not None
            reader = frame.next_after_seq
        taken, pushed = reader, ring.end_seq
        assert taken <= pushed
        held = [frame for frame, owner in budget._frames.items() if owner is ring]
        assert ring.nbytes == sum(frame.nbytes for frame in held) <= max(ring_bytes, 0)
        assert budget.nbytes == ring.nbytes + other.nbytes
        closed = [item_bytes(frame.item) for frame in held if frame.after_seq >= ring.open_seq]
        assert ring.unopened_bytes == sum(closed)
        assert ring.has_unopened == (ring.open_seq < ring.end_seq)
