"""The drills' judgement: each kind of loss is seen, and nothing else is called one."""

from __future__ import annotations

from eddyline.cli.drill.support.checks import (
    deleted_stay_deleted,
    every_append_once,
    every_revision_once,
    every_seq_once,
    messages_of,
    same_values,
)
from eddyline.cli.drill.support.writers import Put, numbered_record
from eddyline.core.records.record import Gap, GapReason, Op, Record


def seqs(*numbers: int) -> list[Record | Gap]:
    return [Record(seq=number) for number in numbers]


def appended(*numbers: int) -> list[Record | Gap]:
    return [numbered_record("w", number)._replace(seq=seq) for seq, number in enumerate(numbers, 1)]


def revision(number: int, key: bytes, value: bytes | None) -> Record:
    op = Op.DELETE if value is None else Op.PUT
    return Record(seq=number, op=op, key=key, data=value, version=number.to_bytes(8, "big"))


def test_every_seq_once_is_no_finding() -> None:
    assert every_seq_once("w", seqs(4, 5, 6), after_seq=3, head_seq=6) == []
    assert every_seq_once("w", [], after_seq=3, head_seq=3) == []


def test_check_detects_lost_repeated_and_missing_seqs() -> None:
    assert every_seq_once("w", seqs(1, 3), after_seq=0, head_seq=3) == ["w: seq 2 to 2 lost"]
    assert every_seq_once("w", seqs(1, 2, 2, 3), after_seq=0, head_seq=3) == ["w: 1 seqs came again, the first 2"]
    assert every_seq_once("w", seqs(1), after_seq=0, head_seq=3) == ["w: ends at seq 1, the head is 3"]


def test_gaps_cover_what_they_name() -> None:
    point = Gap(2, 2, GapReason.SOURCE_GAP, seq=2, source_first=5, source_last=9)
    floor = Gap(1, 2, GapReason.UNSYNCED)
    assert every_seq_once("w", [*seqs(1), point, *seqs(3)], after_seq=0, head_seq=3) == []
    assert every_seq_once("w", [floor, *seqs(3)], after_seq=0, head_seq=3) == []


def test_appends_in_order_are_no_finding() -> None:
    assert every_append_once(appended(0, 1, 2), {"w": 3}) == []


def test_check_detects_lost_repeated_and_swapped_appends() -> None:
    assert every_append_once(appended(0, 2), {"w": 3})
    assert every_append_once(appended(0, 1, 1), {"w": 2})
    assert every_append_once(appended(1, 0), {"w": 2})
    assert every_append_once(appended(0, 1), {"w": 3}) == ["topic: w had 3 records acknowledged, 2 are there"]
    assert every_append_once([Gap(1, 1, GapReason.UNSYNCED)], {"w": 0})


def test_revisions_as_written_are_no_finding() -> None:
    written = {1: Put("a", b"1"), 2: Put("a", None), 3: Put("b", b"")}
    items = [revision(1, b"a", b"1"), revision(2, b"a", None), revision(3, b"b", b"")]
    assert every_revision_once(items, written, set()) == []


def test_check_detects_lost_repeated_changed_and_invented_revisions() -> None:
    written = {1: Put("a", b"1"), 2: Put("a", b"2")}
    one, two = revision(1, b"a", b"1"), revision(2, b"a", b"2")
    assert every_revision_once([one], written, set()) == ["bucket: 1 acknowledged revisions are missing, the first 2"]
    assert every_revision_once([one, one, two], written, set())
    assert every_revision_once([two, one], written, set())
    assert every_revision_once([one, revision(2, b"a", b"x")], written, set())
    assert every_revision_once([one, two, revision(3, b"z", b"?")], written, set())


def test_attempts_whose_outcome_was_unknown_may_be_there() -> None:
    written = {1: Put("a", b"1")}
    items = [revision(1, b"a", b"1"), revision(2, b"a", b"2")]
    assert every_revision_once(items, written, {Put("a", b"2")}) == []
    assert every_revision_once(items[:1], written, {Put("a", b"2")}) == []


def test_revisions_within_a_gap_or_gone_at_nats_are_not_missed() -> None:
    written = {number: Put("a", b"%d" % number) for number in range(1, 6)}
    gap = Gap(1, 1, GapReason.SUPERSEDED, seq=1, source_first=1, source_last=2)
    items: list[Record | Gap] = [gap, revision(3, b"a", b"3"), revision(5, b"a", b"5")]
    assert every_revision_once(items, written, set(), may_be_gone={4}) == []
    assert every_revision_once(items, written, set())


def test_deletes_of_a_resync_are_no_messages() -> None:
    gap = Gap(1, 1, GapReason.SOURCE_GAP, seq=1, source_first=1, source_last=2)
    message, synthetic = revision(3, b"a", b"3")._replace(source_ts_ns=7), revision(3, b"b", None)
    assert messages_of([gap, message, synthetic]) == [gap, message]


def test_check_detects_differing_values() -> None:
    assert same_values("w", {b"a": b"1"}, {b"a": b"1"}) == []
    assert same_values("w", {b"a": b"1", b"s": b""}, {b"a": b"2"}) == ["w: 2 keys differ from the fold, the first b'a'"]


def test_check_detects_deleted_records_that_returned() -> None:
    records = [Record(seq=seq, tag=tag) for seq, tag in ((1, "kept"), (2, "doomed"), (5, "doomed"))]
    assert deleted_stay_deleted(records, "doomed", 1) == []
    assert deleted_stay_deleted(records, "doomed", 4) == ["topic: 1 deleted records came back, the first at seq 2"]
