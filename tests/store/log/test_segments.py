"""The segments of a topic: found by their whole name."""

from __future__ import annotations

from pathlib import Path

from eddyline.store.log.segments import Segment, SegmentSet
from eddyline.store.storage.layout import SegmentId
from eddyline.store.storage.segment.footer import SegmentSummary


def segment(first_seq: int, last_seq: int, generation: int) -> Segment:
    return Segment(SegmentSummary(first_seq, last_seq, generation, 1, 0, 33, 100, 1, 1, 0), Path("/topic/segment"))


def test_find_compares_a_segments_whole_name() -> None:
    segments = SegmentSet()
    assert segments.find(SegmentId(1, 4, 1)) is None
    added = [segment(1, 4, 1), segment(7, 7, 2), segment(8, 20, 3)]
    segments.change(add=added, remove=[])
    assert [segments.find(one.id) for one in added] == added
    for other in (SegmentId(1, 4, 2), SegmentId(1, 5, 1), SegmentId(2, 4, 1), SegmentId(5, 7, 2), SegmentId(21, 22, 4)):
        assert segments.find(other) is None
