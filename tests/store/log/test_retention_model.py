"""Seeded histories of one topic: what the store's parts keep, step by step against the semantics over plain rows."""

from __future__ import annotations

from random import Random

import pytest

from eddyline.core.model.topic import Discard, TopicConfig
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import MetaEntry, Record
from eddyline.store.log.deletion import Deletion
from tests.support.models.retained_log import Full, Retained
from tests.support.models.retaining_topic import Retaining

SEEDS = 50
STEPS = 40
TTL_MS = 10


class Run:
    """The model and the parts, doing the same."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 1_000
        config = self._config()
        self.model, self.topic = Retained(config), Retaining(config)
        self.earliest_seq = 0

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.4:
            self._append()
        elif choice < 0.55:
            self.now_ms += self.random.choice((1, 1, 5, TTL_MS - 1, TTL_MS))
        elif choice < 0.7:
            self._delete()
        elif choice < 0.9:
            self.topic.rewrite(self.random.randrange(len(self.topic.batches) + 1))
        elif choice < 0.95:
            self.topic.lose(self.model.lose(self.random.randint(1, 4), self.now_ms))
        elif choice < 0.98:
            self.model.config = self.topic.config = self._config()
        elif self.model.head_seq > self.topic.floors.trim:
            self.model.restart_ephemeral()
            self.topic.restart_ephemeral()
        self.model.settle(self.now_ms)
        self.topic.settle(self.now_ms)

    def judge(self) -> None:
        model, topic = self.model, self.topic
        assert topic.floors.evict == model.evict_floor
        assert topic.earliest_seq == model.earliest_seq > model.evict_floor
        assert topic.record_count == model.record_count
        assert topic.record_bytes == model.record_bytes
        assert topic.earliest_seq >= self.earliest_seq, "a record is back"
        self.earliest_seq = topic.earliest_seq
        for after_seq in {0, model.evict_floor - 1, model.evict_floor, model.head_seq - 3, model.head_seq}:
            if after_seq >= 0:
                assert topic.read(after_seq) == model.read(after_seq)

    def _append(self) -> None:
        records = [self._row() for _ in range(self.random.randint(1, 6))]
        try:
            placed = self.model.append(records, self.now_ms)
        except Full:
            return
        self.topic.append(placed)

    def _row(self) -> Record:
        pick = self.random.choice
        return Record(
            key=pick((None, b"", b"a", b"ab", b"b")),
            data=pick((None, b"", b"x" * 10, b"x" * 100)),
            tag=pick((None, "t", "tu", "u")),
            node=pick((None, "n")),
            meta=pick(((), (MetaEntry("n", b"v"),))),
            version=pick((b"", b"\1\2")),
        )

    def _delete(self) -> None:
        head_seq = self.model.head_seq
        bound_seq = max(head_seq - self.random.choice((0, 0, 1, 3)), 0)
        before_seq, match = max(head_seq + 2 - self.random.randrange(12), 1), None
        if self.random.random() < 0.8:
            before_seq *= self.random.random() < 0.5
            value = self.random.choice((b"", b"a", b"ab", b"b", b"t", b"tu"))
            match = Match(self.random.choice(tuple(MatchField)), self.random.choice(tuple(MatchKind)), value)
        answer = self.model.delete(self.now_ms, before_seq=before_seq, match=match, bound_seq=bound_seq)
        deletion = Deletion(before_seq, bound_seq, match)
        body = self.topic.delete(deletion)
        assert (body.record_count, body.record_bytes) == answer
        assert self.topic.delete(deletion).record_count == 0, "a row is removed once"

    def _config(self) -> TopicConfig:
        pick = self.random.choice
        return TopicConfig(
            ttl_ms=pick((0, TTL_MS, TTL_MS, 4 * TTL_MS)),
            cap_records=pick((0, 0, 0, 4, 9)),
            cap_bytes=pick((0, 0, 0, 40, 300, 900)),
            discard=pick((Discard.OLD, Discard.OLD, Discard.OLD, Discard.REJECT)),
        )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_parts_keep_what_the_semantics_say(seed: int) -> None:
    run = Run(seed)
    for _ in range(STEPS):
        run.step()
        run.judge()
