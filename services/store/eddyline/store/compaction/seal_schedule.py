"""Which topics are to be sealed now: those that have a whole segment's worth of frames, and those whose oldest is old.

Only what has grown since the last look can have become full, and age is looked at in turn, so that a round costs the same
with 100 000 topics as with ten.
I1: a topic that is full is named at each look until it is sealed. I2: one that is old is named within the time that a turn
takes: 100 000 topics have theirs every 25 s, which is nothing beside an hour.
Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eddyline.core.runtime.clock import Clock
    from eddyline.store.compaction.seal import Sealer
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log.topic import Topic

LOOKS_MAX: Final = 1_024
"""Topics whose age is looked at in a round: half a millisecond."""


class SealSchedule:
    """Names the topics that are due."""

    def __init__(self, table: TopicTable, sealer: Sealer, clock: Clock, *, seal_age_ms: int) -> None:
        self._table = table
        self._sealer = sealer
        self._clock = clock
        self._age_ms = seal_age_ms
        self._turn: list[Topic] = []

    def due(self) -> list[Topic]:
        """Topics to seal now."""
        grown, self._table.grown = self._table.grown, set()
        full = [topic for topic in grown if not topic.deleted and self._sealer.is_full(topic)]
        self._table.grown.update(full)
        self._turn = self._turn or self._table.with_frames()
        looked, self._turn = self._turn[:LOOKS_MAX], self._turn[LOOKS_MAX:]
        return full + [topic for topic in looked if self._is_old(topic) and topic not in self._table.grown]

    def _is_old(self, topic: Topic) -> bool:
        """By age, spread by id over a tenth of it, so that topics made at once do not become due at once."""
        spread_ms = topic.id * 7919 % (self._age_ms // 10 + 1)
        return bool(len(topic.index)) and self._clock.now_ms() - topic.index.first_ts_ms > self._age_ms + spread_ms
