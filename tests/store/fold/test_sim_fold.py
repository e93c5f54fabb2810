"""The simulated fold's crashes and refusals."""

from __future__ import annotations

import pytest

from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.record import Op, Record
from eddyline.store.fold.fold import FoldFailed, FoldStalled, FoldWrite, WriterState
from tests.support.sim.fold import SimFold

TOPIC = 1


def write(seq: int) -> FoldWrite:
    record = Record(seq, 1, 0, Op.PUT, b"key %d" % seq, b"")
    entries: list[tuple[bytes, bytes | None]] = [(b"key %d" % seq, encode_entry(record))]
    return FoldWrite(TOPIC, seq, entries, [("w", WriterState(1, b"%d" % seq))])


def seqs(fold: SimFold) -> list[int]:
    """Seqs of the entries, after a check that cursor and writer agree."""
    entry_seqs = sorted(row.seq for row in fold.view(TOPIC).next_page(1_000, 1 << 20))
    assert fold.applied(TOPIC) == (entry_seqs[-1] if entry_seqs else 0)
    assert fold.writers(TOPIC) == ({"w": WriterState(1, b"%d" % entry_seqs[-1])} if entry_seqs else {})
    return entry_seqs


def test_kill_keeps_every_write() -> None:
    fold = SimFold(0)
    for seq in range(1, 6):
        fold.apply([write(seq)])
    assert seqs(fold.kill()) == [1, 2, 3, 4, 5]


def test_power_loss_keeps_flushed_writes_and_a_prefix_of_the_rest() -> None:
    outcomes = set()
    for seed in range(60):
        fold = SimFold(seed)
        fold.apply([write(1)])
        fold.apply([write(2)])
        fold.flush()
        fold.apply([write(3)])
        fold.apply([write(4), write(5)])
        fold.apply([write(6)])
        outcomes.add(tuple(seqs(fold.power())))
    assert outcomes == {(1, 2), (1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6)}


def test_writes_that_survived_a_power_loss_stay() -> None:
    fold = SimFold(5)
    for seq in range(1, 9):
        fold.apply([write(seq)])
    fold = fold.power()
    left = seqs(fold)
    for _ in range(20):
        fold = fold.power()
        assert seqs(fold) == left


def test_outcome_depends_on_the_seed_alone() -> None:
    def outcome(seed: int) -> list[int]:
        fold = SimFold(seed)
        for seq in range(1, 30):
            fold.apply([write(seq)])
        return seqs(fold.power())

    assert outcome(3) == outcome(3)
    assert len({tuple(outcome(seed)) for seed in range(10)}) > 3


def test_deleted_topic_can_return_only_after_power_loss() -> None:
    outcomes = set()
    for seed in range(20):
        fold = SimFold(seed)
        fold.apply([write(1)])
        fold.flush()
        fold.delete_topic(TOPIC)
        assert fold.topics() == {}
        outcomes.add(tuple(fold.power().topics()))
    assert outcomes == {(), (TOPIC,)}


def test_stalled_write_is_not_applied_and_can_be_repeated() -> None:
    fold = SimFold(0)
    fold.stall(2)
    for _ in range(2):
        with pytest.raises(FoldStalled):
            fold.apply([write(1)])
    assert fold.topics() == {}
    fold.apply([write(1)])
    assert seqs(fold) == [1]


def test_failed_write_is_applied_completely_or_not_at_all_after_a_reopen() -> None:
    outcomes = set()
    for seed in range(20):
        fold = SimFold(seed)
        fold.apply([write(1)])
        fold.fail()
        for _ in range(2):
            with pytest.raises(FoldFailed):
                fold.apply([write(2), write(3)])
        with pytest.raises(FoldFailed):
            fold.flush()
        assert seqs(fold) == [1]
        outcomes.add(tuple(seqs(fold.kill())))
    assert outcomes == {(1,), (1, 2, 3)}
