"""Dump and load of a topic's fold as batches, on both folds."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import DataCorrupt
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import MetaEntry, Op, Record
from eddyline.store.fold.dump import DUMP_ENTRIES, LOAD_BYTES, LOAD_ENTRIES, dump_batches, load_steps
from eddyline.store.fold.entries import entries_of
from eddyline.store.fold.fold import FoldFailed, FoldStalled, FoldWrite, WriterState
from eddyline.store.fold.rocksdb import RocksFold
from tests.support.sim.fold import SimFold

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eddyline.store.fold.fold import Fold

TOPIC = 7
WRITERS = [("w", WriterState(3, b"p"))]


@pytest.fixture(params=["rocksdb", "memory"])
def fold(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fold]:
    built: Fold = RocksFold(tmp_path / "fold") if request.param == "rocksdb" else SimFold(1)
    yield built
    built.close()


def rows(count: int) -> list[Record]:
    """Entries in key order with seqs in another order."""
    return [
        Record(count - i, 5 + i % 2, i % 3, Op.PUT, b"%06d" % i, b"x" * (i % 20), "t" if i % 100 == 99 else None)
        for i in range(count)
    ]


def load(fold: Fold, records: list[Record], applied_seq: int, *, rows_max: int = 1000) -> int:
    batches = [Batch.from_rows(records[i : i + rows_max]) for i in range(0, len(records), rows_max)]
    return sum(load_steps(fold, TOPIC, batches, applied_seq, writers=WRITERS))


def dump(fold: Fold, topic_id: int = TOPIC) -> list[Record]:
    view = fold.view(topic_id)
    dumped = [row for batch in dump_batches(view) for row in batch.to_rows()]
    view.close()
    return dumped


def test_dump_of_an_empty_fold_is_empty(fold: Fold) -> None:
    assert dump(fold) == []


def test_loaded_entries_are_dumped(fold: Fold) -> None:
    records = rows(2 * DUMP_ENTRIES + 5)
    assert load(fold, records, 1 << 40) == len(records)
    assert dump(fold) == records
    assert fold.applied(TOPIC) == fold.base_seq(TOPIC) == 1 << 40
    assert fold.writers(TOPIC) == dict(WRITERS)


def test_dump_goes_into_another_fold_batch_by_batch(fold: Fold) -> None:
    load(fold, rows(3000), 3000)
    other = SimFold(2)
    view = fold.view(TOPIC)
    sum(load_steps(other, TOPIC, dump_batches(view), 3000))
    view.close()
    assert dump(other) == dump(fold)


def test_load_replaces_all_earlier_entries(fold: Fold) -> None:
    old = Batch.from_rows([Record(op=Op.PUT, key=b"old", data=b""), Record(op=Op.PUT, key=b"000001")]).with_seqs(1, 1)
    writers = [("old", WriterState(1, b""))]
    fold.apply([FoldWrite(topic_id, 2, entries_of(old), writers) for topic_id in (TOPIC, TOPIC + 1)])
    load(fold, rows(3), 9)
    assert dump(fold) == rows(3)
    assert fold.writers(TOPIC) == dict(WRITERS)
    assert len(dump(fold, TOPIC + 1)) == 2
    assert fold.writers(TOPIC + 1) == dict(writers)


def test_empty_load_leaves_an_empty_topic_at_its_base(fold: Fold) -> None:
    load(fold, rows(3), 9)
    assert load(fold, [], 12) == 0
    assert dump(fold) == []
    assert fold.topics() == {TOPIC: 12}
    assert fold.base_seq(TOPIC) == 12


class CountingFold(SimFold):
    """A fold that records its writes."""

    def __init__(self) -> None:
        super().__init__(0)
        self.writes: list[FoldWrite] = []

    def apply(self, writes: object) -> None:
        assert isinstance(writes, list)
        self.writes += writes
        super().apply(writes)


def test_writes_of_a_load_are_bounded() -> None:
    fold = CountingFold()
    large = [Record(i + 1, 1, 0, Op.PUT, b"%06d" % i, bytes(LOAD_BYTES // 3)) for i in range(10)]
    load(fold, [*large, *(Record(1, 1, 0, Op.PUT, b"x%06d" % i) for i in range(20_000))], 20_000, rows_max=65_536)
    sizes = [sum(len(key) + len(value or b"") for key, value in write.entries) for write in fold.writes]
    assert max(sizes) <= LOAD_BYTES
    assert max(len(write.entries) for write in fold.writes) == LOAD_ENTRIES
    assert [write.applied_seq for write in fold.writes[:-1]] == [0] * (len(fold.writes) - 1)


def test_stalled_writes_are_retried() -> None:
    fold = SimFold(0)
    load(fold, rows(5), 9)
    fold.stall(5)
    load(fold, rows(4), 9)
    assert dump(fold) == rows(4)
    fold.stall(1 << 30)
    with pytest.raises(FoldStalled):
        load(fold, rows(4), 9)


@given(st.integers(0, 1 << 30), st.integers(0, 9))
def test_power_loss_in_a_load_leaves_the_old_state_or_a_topic_without_the_base(seed: int, fails_at: int) -> None:
    fold = SimFold(seed)
    load(fold, rows(3), 9)
    fold.flush()

    def batches() -> Iterator[Batch]:
        for index, row in enumerate(rows(8)):
            if index == fails_at:
                fold.fail()
            yield Batch.from_rows([row])

    with contextlib.suppress(FoldFailed):
        sum(load_steps(fold, TOPIC, batches(), 20))
    fold = fold.power()
    if fold.base_seq(TOPIC) == 9:
        assert (fold.applied(TOPIC), dump(fold)) == (9, rows(3))
    elif fold.base_seq(TOPIC) == 20:
        assert (fold.applied(TOPIC), dump(fold)) == (20, rows(8))
    else:
        assert fold.base_seq(TOPIC) == 0
        assert fold.applied(TOPIC) in (0, 20)
    load(fold, rows(8), 20)
    assert dump(fold) == rows(8)


PUT = Record(3, 1, 0, Op.PUT, b"m", b"", None, None, (MetaEntry("a", b""),), b"v")


@pytest.mark.parametrize(
    "batches",
    [
        [[PUT, PUT._replace(key=b"l")]],
        [[PUT, PUT]],
        [[PUT], [PUT]],
        [[PUT], [PUT._replace(key=b"a")]],
        [[PUT._replace(key=None)]],
        [[PUT._replace(op=Op.DELETE)]],
        [[PUT._replace(seq=10)]],
        [[PUT, PUT._replace(key=b"n", seq=0)]],
    ],
    ids=["order", "twice", "twice over batches", "order over batches", "no key", "no put", "seq above", "no seq"],
)
def test_batches_that_are_no_dump_are_refused(fold: Fold, batches: list[list[Record]]) -> None:
    with pytest.raises(DataCorrupt):
        sum(load_steps(fold, TOPIC, [Batch.from_rows(records) for records in batches], 9))
    assert fold.applied(TOPIC) == 0
    assert fold.base_seq(TOPIC) == 0
