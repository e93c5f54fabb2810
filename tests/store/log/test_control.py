"""Bodies of control frames about a topic: read back as written, by a later reader and an earlier one."""

from __future__ import annotations

import pytest

from eddyline.store.catalog.catalog import BaseEntry
from eddyline.store.log.control import Imported, SegmentChange, segment_change_body, segment_change_of
from eddyline.store.storage.layout import SegmentId
from eddyline.store.storage.segment.footer import SegmentSummary

CHANGE = SegmentChange(
    stage="merge",
    next_generation=9,
    add=(SegmentSummary(1, 8, 7, 8, 0, 512, 4_096, 10, 20, -1), SegmentSummary(9, 9, 8, 1, 1, 0, 900, 21, 21, 0)),
    remove=(SegmentId(1, 4, 1), SegmentId(5, 8, 2)),
    segmented_seq=9,
    base=BaseEntry(9, 8, 3, 2_048),
    erase_due_ms=0,
    fold_lost=False,
    base_wanted=True,
)


def test_segment_change_is_read_as_it_was_written() -> None:
    assert segment_change_of(segment_change_body(CHANGE)) == CHANGE
    for imported in (Imported(), Imported("nats", b"\x00\xff")):
        change = CHANGE._replace(imported=imported)
        assert segment_change_of(segment_change_body(change)) == change
    least = SegmentChange("seal", 1)
    assert segment_change_of(segment_change_body(least)) == least


def test_numbers_of_a_later_version_are_ignored() -> None:
    body = segment_change_body(CHANGE)
    longer = {name: " ".join(f"{item},5" for item in str(body[name]).split()) for name in ("add", "remove", "base")}
    assert segment_change_of({**body, **longer}) == CHANGE


@pytest.mark.parametrize("name", ["add", "remove", "base"])
def test_too_few_numbers_are_refused_as_every_bad_body(name: str) -> None:
    with pytest.raises(ValueError, match="fewer than"):
        segment_change_of({"stage": "seal", "next_generation": 1, name: "1,2"})
