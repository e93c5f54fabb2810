"""Random histories on both folds and on plain dicts: the same state after every step and every reopen."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.record import Op, Record
from eddyline.store.fold.fold import FoldWrite, WriterState
from eddyline.store.fold.rocksdb import RocksFold
from tests.store.fold.test_rocksdb import all_rows
from tests.support.sim.fold import SimFold

if TYPE_CHECKING:
    from eddyline.store.fold.fold import Fold

KEYS = st.binary(min_size=1, max_size=3)
PUTS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=20)), max_size=6)
MOVES = st.lists(st.tuples(st.sampled_from(["v", "w"]), st.binary(max_size=4)), max_size=2)
TOPICS = st.sampled_from([1, 2, 256])


@dataclass
class Topic:
    """The state of one topic."""

    applied: int = 0
    base: int = 0
    entries: dict[bytes, Record] = field(default_factory=dict)
    writers: dict[str, WriterState] = field(default_factory=dict)

    def write(self, topic_id: int, puts: list[tuple[bytes, bytes | None]], moves: list[tuple[str, bytes]]) -> FoldWrite:
        """Advance by one frame; return the fold's write for it."""
        entries: dict[bytes, bytes | None] = {}
        for key, data in puts:
            self.applied += 1
            if data is None:
                self.entries.pop(key, None)
                entries[key] = None
            else:
                self.entries[key] = Record(self.applied, 5, 0, Op.PUT, key, data)
                entries[key] = encode_entry(self.entries[key])
        moved = {writer: WriterState(self.applied, position) for writer, position in moves}
        self.writers.update(moved)
        return FoldWrite(topic_id, self.applied, list(entries.items()), list(moved.items()))


class FoldMachine(RuleBasedStateMachine):
    """Both folds and the model, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.topics: dict[int, Topic] = {}
        self.memory = SimFold(1)
        self.rocksdb = RocksFold(self.path)

    @property
    def path(self) -> Path:
        return Path(self.directory.name) / "fold"

    @property
    def folds(self) -> tuple[Fold, Fold]:
        return self.memory, self.rocksdb

    @rule(frames=st.lists(st.tuples(TOPICS, PUTS, MOVES), min_size=1, max_size=4))
    def apply(self, frames: list[tuple[int, list[tuple[bytes, bytes | None]], list[tuple[str, bytes]]]]) -> None:
        writes = [self.topics.setdefault(topic, Topic()).write(topic, puts, moves) for topic, puts, moves in frames]
        for fold in self.folds:
            fold.apply(writes)

    @rule(topic_id=TOPICS)
    def delete_topic(self, topic_id: int) -> None:
        self.topics.pop(topic_id, None)
        for fold in self.folds:
            fold.delete_topic(topic_id)

    @rule(topic_id=TOPICS, seq=st.integers(1, 9))
    def set_base(self, topic_id: int, seq: int) -> None:
        self.topics.setdefault(topic_id, Topic()).base = seq
        for fold in self.folds:
            fold.set_base(topic_id, seq)

    @rule(topic_id=TOPICS)
    def erase(self, topic_id: int) -> None:
        for fold in self.folds:
            assert fold.erase(topic_id)

    @rule()
    def flush(self) -> None:
        for fold in self.folds:
            fold.flush()

    @rule()
    def reopen(self) -> None:
        self.memory = self.memory.kill()
        self.rocksdb.close()
        self.rocksdb = RocksFold(self.path)

    @rule()
    def lose_power_after_flush(self) -> None:
        self.memory.flush()
        self.memory = self.memory.power()

    @invariant()
    def folds_are_the_model(self) -> None:
        for fold in self.folds:
            assert fold.topics() == {topic_id: topic.applied for topic_id, topic in self.topics.items()}
            for topic_id, topic in self.topics.items():
                assert fold.writers(topic_id) == topic.writers
                assert fold.base_seq(topic_id) == topic.base
                assert fold.get(topic_id, [*topic.entries, b"never"]) == [*topic.entries.values(), None]
                assert all_rows(fold, topic_id, page_rows=2) == [topic.entries[key] for key in sorted(topic.entries)]

    def teardown(self) -> None:
        self.rocksdb.close()
        self.directory.cleanup()


TestFolds = FoldMachine.TestCase
TestFolds.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
