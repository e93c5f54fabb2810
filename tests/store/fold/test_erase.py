"""Deletion of entries by a match on their keys, on both folds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Op, Record
from eddyline.store.fold.erase import PAGE_ENTRIES, erase_entries
from eddyline.store.fold.fold import FoldStalled, FoldWrite, WriterState
from eddyline.store.fold.rocksdb import RocksFold
from tests.support.sim.fold import SimFold

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eddyline.store.fold.fold import Fold

TOPIC = 7
WRITER = ("w", WriterState(3, b"p"))


@pytest.fixture(params=["rocksdb", "memory"])
def fold(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fold]:
    fold: Fold = RocksFold(tmp_path / "fold") if request.param == "rocksdb" else SimFold(1)
    yield fold
    fold.close()


def fill(fold: Fold, *keys: bytes) -> None:
    """Put each key at the seq of its index, from 1 on, in two topics."""
    entries: list[tuple[bytes, bytes | None]] = [
        (key, encode_entry(Record(i + 1, 1, 0, Op.PUT, key, b"data"))) for i, key in enumerate(keys)
    ]
    fold.apply([FoldWrite(topic_id, 1000 + len(keys), entries, [WRITER]) for topic_id in (TOPIC, TOPIC + 1)])


def keys_of(fold: Fold, topic_id: int = TOPIC) -> list[bytes | None]:
    view, keys = fold.view(topic_id), list[bytes | None]()
    while page := view.next_page(1000, 1 << 20):
        keys += [row.key for row in page]
    view.close()
    return keys


def by_key(kind: MatchKind, value: bytes) -> Match:
    return Match(MatchField.KEY, kind, value)


@pytest.mark.parametrize(
    ("match", "bound_seq", "left"),
    [
        (by_key(MatchKind.EQ, b"a"), 9, [b"ab", b"a\xff", b"b"]),
        (by_key(MatchKind.EQ, b"a"), 1, [b"ab", b"a\xff", b"b"]),
        (by_key(MatchKind.EQ, b"b"), 3, [b"a", b"ab", b"a\xff", b"b"]),
        (by_key(MatchKind.EQ, b"never"), 9, [b"a", b"ab", b"a\xff", b"b"]),
        (by_key(MatchKind.PREFIX, b"a"), 9, [b"b"]),
        (by_key(MatchKind.PREFIX, b"a"), 2, [b"a\xff", b"b"]),
        (by_key(MatchKind.PREFIX, b"a\xff"), 9, [b"a", b"ab", b"b"]),
        (by_key(MatchKind.PREFIX, b""), 9, []),
        (by_key(MatchKind.PREFIX, b""), 0, [b"a", b"ab", b"a\xff", b"b"]),
        (by_key(MatchKind.PREFIX, b"c"), 9, [b"a", b"ab", b"a\xff", b"b"]),
    ],
)
def test_matching_keys_within_the_bound_are_deleted(
    fold: Fold, match: Match, bound_seq: int, left: list[bytes]
) -> None:
    keys = [b"a", b"ab", b"a\xff", b"b"]
    fill(fold, *keys)
    assert erase_entries(fold, TOPIC, match, bound_seq) == len(keys) - len(left)
    assert keys_of(fold) == left
    assert erase_entries(fold, TOPIC, match, bound_seq) == 0
    assert keys_of(fold, TOPIC + 1) == keys
    assert fold.topics() == {TOPIC: 1004, TOPIC + 1: 1004}
    assert fold.writers(TOPIC) == dict([WRITER])


def test_many_keys_are_deleted_in_bounded_writes(fold: Fold) -> None:
    count = 2 * PAGE_ENTRIES + 7
    fill(fold, *(b"%06d" % i for i in range(count)))
    assert erase_entries(fold, TOPIC, by_key(MatchKind.PREFIX, b"0"), count - 3) == count - 3
    assert keys_of(fold) == [b"%06d" % i for i in range(count - 3, count)]


def test_unknown_topic_is_not_created(fold: Fold) -> None:
    for kind in MatchKind:
        assert erase_entries(fold, TOPIC, by_key(kind, b"a"), 9) == 0
    assert fold.topics() == {}


def test_erase_stalled_half_way_is_completed_by_the_next_call() -> None:
    fold = SimFold(0)
    fill(fold, *(b"%06d" % i for i in range(PAGE_ENTRIES + 5)))
    fold.stall(1)
    match = by_key(MatchKind.PREFIX, b"")
    with pytest.raises(FoldStalled):
        erase_entries(fold, TOPIC, match, 1 << 40)
    erase_entries(fold, TOPIC, match, 1 << 40)
    assert keys_of(fold) == []
    assert fold.erase(TOPIC)
