"""Seal schedule: topics due for sealing, by a full segment of frames or by the age of the oldest frame.

Only topics that have grown since the last call can be full, and ages are checked in turn, so that a call costs the same with
100 000 topics as with ten.
I1: a full topic is returned by each call until it is sealed. I2: an old topic is returned within one cycle of the age
checks: 25 s for 100 000 topics, against a seal age of an hour.
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
"""Topics whose age is checked in a round: half a millisecond."""


class SealSchedule:
    """Finds the topics that are due for sealing."""

    def __init__(self, table: TopicTable, sealer: Sealer, clock: Clock, *, seal_age_ms: int) -> None:
        self._table = table
        self._sealer = sealer
        self._clock = clock
        self._age_ms = seal_age_ms
        self._age_queue: list[Topic] = []

    def due(self) -> list[Topic]:
        """Return the topics to seal now."""
        grown, self._table.grown = self._table.grown, set()
        full = [topic for topic in grown if not topic.deleted and self._sealer.is_full(topic)]
        self._table.grown.update(full)
        self._age_queue = self._age_queue or self._table.with_frames()
        checked, self._age_queue = self._age_queue[:LOOKS_MAX], self._age_queue[LOOKS_MAX:]
        return full + [topic for topic in checked if self._is_old(topic) and topic not in self._table.grown]

    def _is_old(self, topic: Topic) -> bool:
        """Compare with the seal age, spread by id over a tenth of it, so that topics made at once are not due at once."""
        spread_ms = topic.id * 7919 % (self._age_ms // 10 + 1)
        return bool(len(topic.index)) and self._clock.now_ms() - topic.index.first_ts_ms > self._age_ms + spread_ms
