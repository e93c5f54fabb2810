"""Gap payloads, and batches split at their gap records."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import MalformedColumns
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap, gap_of, split_gaps
from eddyline.core.records.record import Gap, GapReason, Op, Record
from tests.support.models.batches import gap_record


def test_payload_is_laid_out_as_the_format_says() -> None:
    payload = encode_gap(Gap(0, 0, GapReason.SOURCE_GAP, source_identity=b"id", source_first=3, source_last=9))
    assert payload.hex(" ") == "01 02 02 00 00 00 00 00 03 00 00 00 00 00 00 00 09 00 00 00 00 00 00 00 69 64"


def test_unsynced_gap_is_the_lost_seqs() -> None:
    gap = gap_of(21, encode_gap(Gap(5, 20, GapReason.UNSYNCED)))
    assert gap == Gap(5, 20, GapReason.UNSYNCED, seq=21)


def test_source_gap_covers_the_seq_of_its_record() -> None:
    gap = Gap(0, 0, GapReason.SUPERSEDED, source_identity=b"id", source_first=3, source_last=9)
    assert gap_of(7, encode_gap(gap)) == gap._replace(first_seq=7, last_seq=7, seq=7)


def test_source_gap_of_an_unknown_end_has_none() -> None:
    gap = Gap(0, 0, GapReason.SOURCE_GAP, source_identity=b"id", source_first=3)
    assert gap_of(7, encode_gap(gap)) == gap._replace(first_seq=7, last_seq=7, seq=7)


@pytest.mark.parametrize(
    "gap",
    [Gap(0, 0, GapReason.SOURCE_GAP, source_first=3, source_last=2), Gap(5, 0, GapReason.UNSYNCED)],
    ids=["of a source", "of the store"],
)
def test_range_that_ends_before_it_begins_is_malformed(gap: Gap) -> None:
    with pytest.raises(MalformedColumns):
        gap_of(7, encode_gap(gap))


@given(st.binary(max_size=40))
def test_foreign_payload_is_a_gap_or_malformed(data: bytes) -> None:
    with suppress(MalformedColumns):
        assert gap_of(1, data).seq == 1


@given(st.lists(st.booleans(), max_size=8))
def test_gaps_are_split_off_at_their_positions(are_gaps: list[bool]) -> None:
    rows = [gap_record(i + 1, i, i) if is_gap else Record(i + 1, 0, 0, 2, b"k") for i, is_gap in enumerate(are_gaps)]
    flat: list[Record | Gap] = []
    for item in split_gaps(Batch.from_rows(rows)):
        flat += [item] if isinstance(item, Gap) else item.to_rows()
    assert flat == [Gap(i, i, GapReason.UNSYNCED, i + 1) if gap else rows[i] for i, gap in enumerate(are_gaps)]


def test_a_batch_without_gaps_is_returned_itself() -> None:
    batch = Batch.from_rows([Record(op=Op.PUT, key=b"a"), Record(op=Op.DELETE, key=b"b")])
    assert split_gaps(batch)[0] is batch


def test_an_identity_too_long_is_refused() -> None:
    with pytest.raises(MalformedColumns):
        encode_gap(Gap(0, 0, GapReason.SOURCE_GAP, source_identity=bytes(65_536)))
