"""Merge policy: the chosen neighbours, and how often a row is written again."""

from __future__ import annotations

from math import log2

from hypothesis import given
from hypothesis import strategies as st

from eddyline.store.compaction.merge import NEIGHBOURS_MIN, MergeRun, merge_due, weight_of
from eddyline.store.storage.segment.footer import SegmentSummary

WHOLE = 1 << 16


def summary(size: int) -> SegmentSummary:
    return SegmentSummary(1, 1, 1, 0, 0, size, size, 0, 0, 0)


def due(*sizes: int) -> MergeRun | None:
    return merge_due([summary(size) for size in sizes], records_max=WHOLE, bytes_max=WHOLE)


def test_four_small_neighbours_are_merged() -> None:
    assert due(10, 10, 10) is None
    assert due(10, 10, 10, 10) == MergeRun(0, 4)


def test_all_neighbours_of_a_size_are_merged_at_once() -> None:
    assert due(10, 10, 10, 10, 10, 10) == MergeRun(0, 6)


def test_smallest_segments_are_merged_first() -> None:
    assert due(100, 100, 100, 100, 10, 10, 10, 10) == MergeRun(4, 8)


def test_a_large_one_is_not_written_again_for_a_few_small_ones() -> None:
    assert due(1000, 10, 10, 10) is None
    assert due(10, 10, 1000, 10, 10) is None


def test_small_ones_between_two_large_ones_do_not_stay() -> None:
    assert due(1000, 10, 1000, 10) == MergeRun(0, 4)


def test_result_fits_into_one_segment() -> None:
    assert due(*[WHOLE // 2] * 8) is None
    assert due(*[WHOLE // 4] * 8) == MergeRun(0, 4)


def test_records_count_as_bytes_do() -> None:
    many = SegmentSummary(1, 1, 1, WHOLE // 2, 0, 10, 10, 0, 0, 0)
    assert weight_of(many, records_max=WHOLE, bytes_max=WHOLE) == WHOLE // 2
    assert merge_due([many] * 8, records_max=WHOLE, bytes_max=WHOLE) is None


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=400))
def test_a_row_is_written_a_logarithmic_number_of_times(sizes: list[int]) -> None:
    """For any sizes each merge at least doubles the segment that holds a row, and few segments are left."""
    segments: list[tuple[int, int, int]] = []  # size; of its rows: fewest bytes at first, most merges
    for size in sizes:
        segments.append((size, size, 0))
        while (run := due(*(segment[0] for segment in segments))) is not None:
            merged = segments[run.start : run.stop]
            assert len(merged) >= NEIGHBOURS_MIN
            total = sum(segment[0] for segment in merged)
            assert max(segment[0] for segment in merged) * 2 <= total <= WHOLE
            row = (total, min(segment[1] for segment in merged), 1 + max(segment[2] for segment in merged))
            segments[run.start : run.stop] = [row]
    assert all(merges <= log2(WHOLE) for _, _, merges in segments)
    assert len(segments) <= 4 * (sum(sizes) // (WHOLE // 4) + log2(WHOLE))
